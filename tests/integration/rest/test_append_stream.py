"""`records:stream`: many appends on one connection, answered in order while they come."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.support.cluster import Cluster

LINES = {"Content-Type": "application/x-ndjson"}
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}
BATCHES = {"Content-Type": "application/vnd.commitlog.batch"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    logs = ({"name": "default"}, {"name": "other"})
    patient = {"raft": {"election_timeout_ms": [2_000, 4_000]}}  # a change of leader ends a stream
    cluster = Cluster(tmp_path_factory.mktemp("stream"), 3, logs=logs, sections=patient)
    try:
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.close()


def stream(cluster: Cluster, node: str, body: Any, headers: dict[str, str], **params: Any) -> list[Any]:
    answer = cluster.call(
        "POST", node, "/v1/logs/default/records:stream", content=body, headers=headers, params=params
    )
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    return [json.loads(line) for line in answer.text.splitlines()]


def lines(*documents: Any) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


@pytest.mark.parametrize("where", ["leader", "follower"])
def test_every_line_is_an_append_in_the_order_of_the_stream(cluster: Cluster, where: str) -> None:
    node = cluster.leader() if where == "leader" else cluster.follower()
    values = [f"{where}-{number}" for number in range(700)]
    body = lines({"records": [{"value": values[0]}]}, *({"value": value} for value in values[1:]))
    answers = stream(cluster, node, body, LINES)
    assert len(answers) == 700
    indexes = [answer["first_index"] for answer in answers]
    assert indexes == sorted(indexes)
    stored = [value for value in cluster.values(node) if value.startswith(where)]
    assert stored == values


@pytest.mark.parametrize("where", ["leader", "follower"])
def test_answers_have_the_header_against_buffers_of_a_proxy(cluster: Cluster, where: str) -> None:
    node = cluster.leader() if where == "leader" else cluster.follower()
    answer = cluster.call(
        "POST", node, "/v1/logs/default/records:stream", content=lines({"value": "p"}), headers=LINES
    )
    assert answer.headers["x-accel-buffering"] == "no"


@pytest.mark.parametrize("where", ["leader", "follower"])
def test_answers_leave_while_the_stream_continues(cluster: Cluster, where: str) -> None:
    """The next line is sent only after the one before was answered."""
    node = cluster.leader() if where == "leader" else cluster.follower()
    with socket.create_connection(("127.0.0.1", cluster.rest_ports[node]), timeout=20) as door:
        head = "POST /v1/logs/default/records:stream HTTP/1.1\r\nHost: n\r\n"
        head += "Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
        door.sendall(head.encode())
        answers = door.makefile("rb")
        indexes = []
        for number in range(3):
            for piece in (b'{"value": "', b"%d" % number, b'"}\n'):
                door.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
            line = b""
            while b"first_index" not in line:
                line = answers.readline()
            indexes.append(json.loads(line)["first_index"])
        door.sendall(b"0\r\n\r\n")
    assert indexes == sorted(set(indexes))


def test_nothing_is_stored_after_the_first_failure(cluster: Cluster) -> None:
    leader = cluster.leader()
    good = [{"value": f"kept-{number}"} for number in range(5)]
    bad = {"records": [{"value": "x"}], "match_index": 1}
    late = [{"value": f"late-{number}"} for number in range(50)]
    answers = stream(cluster, leader, lines(*good, bad, *late), LINES)
    assert [answer.get("code") for answer in answers] == [None] * 5 + ["index-mismatch"]
    broken = stream(cluster, leader, lines(good[0], "no record", *late), LINES)
    assert [answer.get("code") for answer in broken] == [None, "invalid-request"]
    torn = stream(cluster, leader, lines(good[0]) + b"{\n" + lines(*late), LINES)
    assert [answer.get("code") for answer in torn] == [None, "invalid-json"]
    assert not [value for value in cluster.values(leader) if value.startswith("late")]


def test_arrow_batches_and_packed_batches_are_appends(cluster: Cluster) -> None:
    sink = pa.BufferOutputStream()
    tables = [pa.record_batch({"value": [f"a{number}", f"b{number}"]}) for number in range(20)]
    with pa.ipc.new_stream(sink, tables[0].schema) as writer:
        for table in tables:
            writer.write_batch(table)
    data = sink.getvalue().to_pybytes()
    answers = stream(cluster, cluster.follower(), data, ARROW)
    assert [answer["count"] for answer in answers] == [2] * 20
    torn = stream(cluster, cluster.leader(), data[:-300], ARROW)
    assert torn[-1]["code"] == "invalid-body"
    place = {"from_index": answers[0]["first_index"], "until_index": answers[-1]["last_index"]}
    packed = cluster.get(
        cluster.leader(),
        "/v1/logs/default/records",
        params=place,
        headers={"Accept": BATCHES["Content-Type"]},
    ).content
    again = stream(cluster, cluster.follower(), packed, BATCHES)
    assert sum(answer["count"] for answer in again) == 40
    assert stream(cluster, cluster.leader(), packed[:-1], BATCHES)[-1]["code"] == "invalid-body"


def test_a_producers_sequence_counts_on_and_a_repeat_is_replayed(cluster: Cluster) -> None:
    body = lines(*({"value": f"p{number}"} for number in range(4)))
    producer = {"producer_id": "p", "producer_epoch": 0, "producer_sequence": 10}
    first = stream(cluster, cluster.follower(), body, LINES, **producer)
    again = stream(cluster, cluster.leader(), body, LINES, **producer)
    assert [answer["first_index"] for answer in again] == [answer["first_index"] for answer in first]
    assert {answer["replayed"] for answer in again} == {True}


def test_a_client_may_name_the_type_of_the_answers(cluster: Cluster) -> None:
    wanted = {**LINES, "Accept": LINES["Content-Type"]}
    assert [answer["count"] for answer in stream(cluster, "n1", lines({"value": "a"}), wanted)] == [1]


def test_invalid_streams_are_refused(cluster: Cluster) -> None:
    def code(**headers: str) -> str:
        answer = cluster.call("POST", "n1", "/v1/logs/default/records:stream", content=b"", headers=headers)
        return str(answer.json()["code"])

    assert code(**{"Content-Type": "application/octet-stream"}) == "unsupported-media-type"
    assert code(**LINES, **{"Idempotency-Key": "k"}) == "invalid-request"
    assert code(**LINES, **{"Commitlog-Key": "k"}) == "invalid-request"
    assert code(**LINES, Accept="application/json") == "not-acceptable"
    for encoding in ("gzip", "zstd", "br"):
        assert code(**LINES, **{"Content-Encoding": encoding}) == "unsupported-media-type"
    plain = cluster.call(
        "POST",
        "n1",
        "/v1/logs/default/records:stream",
        content=b"",
        headers={**LINES, "Content-Encoding": "identity"},
    )
    assert (plain.status_code, plain.content) == (200, b"")
    path = "/v1/logs/default/records:stream"
    follower = cluster.follower()
    stays = cluster.call("POST", follower, path, headers={**LINES, "Commitlog-No-Forward": "1"})
    assert stays.json()["code"] == "not-leader"
    assert cluster.get("n1", path).status_code == 405
    assert stream(cluster, cluster.leader(), b"", LINES) == []
    large = b'{"value": "' + b"x" * (17 << 20) + b'"}\n'
    assert stream(cluster, cluster.leader(), large, LINES)[-1]["code"] == "too-large"
