"""The plain ASGI front and the FastAPI route it stands before give the same bytes (docs/design.md)."""

import gzip
import re
from pathlib import Path

import pytest

from tests.support.cluster import Cluster

HEAD = b"POST /v1/logs/default/records%s HTTP/1.1\r\nHost: commitlog\r\n%sConnection: close\r\n\r\n"


def request(
    body: bytes,
    content_type: bytes | None = b"application/json",
    query: bytes = b"",
    path: bytes | None = None,
    **headers: bytes,
) -> bytes:
    lines = [(b"X-Request-Id", b"same")]
    if content_type is not None:
        lines.append((b"Content-Type", content_type))
    lines += [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    lines.append((b"Content-Length", b"%d" % len(body)))
    head = HEAD % (b"?" + query if query else b"", b"".join(b"%s: %s\r\n" % line for line in lines))
    if path is not None:
        head = head.replace(b"/v1/logs/default/records", path, 1)
    return head + body


CALLS = {
    "json": request(b'{"records":[{"value":"a"},{"value":null,"key":"k"}]}'),
    "one record": request(b'{"value":"a"}'),
    "lines": request(b'{"value":"a"}\n{"value":"b"}\n', b"application/x-ndjson"),
    "raw": request(b"raw", b"application/octet-stream", Commitlog_Key=b"k"),
    "empty": request(b"", b"application/octet-stream"),
    "packed": request(gzip.compress(b'{"value":"a"}'), Content_Encoding=b"gzip"),
    "acks=leader": request(b"x", b"application/octet-stream", b"acks=leader"),
    "keyed": request(b"x", b"application/octet-stream", Idempotency_Key=b"key"),
    "replayed": request(b"x", b"application/octet-stream", Idempotency_Key=b"key"),
    "reused": request(b"y", b"application/octet-stream", Idempotency_Key=b"key"),
    "no type": request(b"x", None),
    "strange type": request(b"x", b"text/plain"),
    "broken": request(b"{"),
    "unknown field": request(b'{"value":"a","foo":1}'),
    "unknown parameter": request(b'{"value":"a"}', query=b"foo=1"),
    "many parameters": request(b"{}", query=b"&".join(b"p%d=1" % number for number in range(101))),
    "mismatch": request(b'{"value":"a"}', query=b"match_index=0"),
    "gap": request(b'{"value":"a"}', query=b"producer_id=p&producer_epoch=0&producer_sequence=0"),
    "broken arrow": request(b"x", b"application/vnd.apache.arrow.stream"),
    "too large": request(b"x" * (1024 * 1024 + 1), b"application/octet-stream"),
    "unknown log": request(b"x", b"application/octet-stream", path=b"/v1/logs/nope/records"),
    "malformed log": request(b"x", b"application/octet-stream", path=b"/v1/logs/NO%20PE/records"),
    "chunked": (
        b"POST /v1/logs/default/records HTTP/1.1\r\nHost: commitlog\r\nX-Request-Id: same\r\n"
        b"Connection: close\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        b'5\r\n{"val\r\n8\r\nue":"a"}\r\n0\r\n\r\n'
    ),
}


def without_clocks(answer: bytes, cluster: Cluster) -> bytes:
    answer = re.sub(rb"\r\ndate: [^\r]+", b"", answer)
    answer = re.sub(rb'"timestamp":\d{13}', b'"timestamp":0', answer)
    return answer.replace(cluster.url("n1").encode(), b"URL")


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    clusters = {}
    try:
        for front in ("lane", "fastapi"):
            folder: Path = tmp_path_factory.mktemp(front)
            clusters[front] = Cluster(folder, 1, sections={"http": {"append_front": front}})
            clusters[front].start()
        for cluster in clusters.values():
            cluster.wait_ready()
        yield clusters
    finally:
        for cluster in clusters.values():
            cluster.close()


def test_both_doors_give_the_same_bytes(fronts: dict[str, Cluster]) -> None:
    for name, call in CALLS.items():
        answers = {
            front: without_clocks(cluster.exchange(call, timeout_s=10), cluster)
            for front, cluster in fronts.items()
        }
        assert answers["lane"] == answers["fastapi"], name
        assert answers["lane"].startswith(b"HTTP/1.1 "), name
        assert not answers["lane"].startswith(b"HTTP/1.1 500"), name
    logs = [cluster.values("n1") for cluster in fronts.values()]
    assert logs[0] == logs[1]
    assert len(logs[0]) > 8
