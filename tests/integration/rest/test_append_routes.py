"""POST /v1/logs/{log}/records: every body, every refusal, at a leader and through a follower."""

import base64
import gzip
import json
import socket
import uuid
from typing import Any
from urllib.parse import unquote

import httpx
import pyarrow as pa
import pytest
import zstandard

from app.node.network.append_carrier import BODY_MAX_BYTES
from tests.support.cluster import Cluster

RECORDS = "/v1/logs/default/records"
MIB = 1024 * 1024


def post(cluster: Cluster, body: Any, content_type: str | None, **options: Any) -> httpx.Response:
    given = {"Content-Type": content_type} if content_type else {}
    headers = [*given.items(), *options.pop("headers", {}).items()]
    node = options.pop("node", None) or cluster.leader()
    return cluster.call("POST", node, options.pop("path", RECORDS), content=body, headers=headers, **options)


def stored(cluster: Cluster, answer: httpx.Response, **params: Any) -> list[dict[str, Any]]:
    """The records of an append, as they are read back."""
    assert answer.status_code == 200, answer.text
    made = answer.json()
    page = cluster.get(
        made["leader"],
        f"/v1/logs/{made['log']}/records",
        params={"from_index": made["first_index"], "until_index": made["last_index"] + 1, **params},
    )
    records: list[dict[str, Any]] = page.json()["records"]
    return records


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Return the problem document of an answer, after a check of the required members (docs/api.md §2)."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["code"] == code
    assert problem["type"] == f"/problems/{code}"
    assert problem["status"] == status
    assert unquote(problem["instance"]) == answer.request.url.path
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert problem["outcome"] == "not_applied"
    assert problem["title"]
    assert problem["detail"]
    assert "Traceback" not in answer.text
    return problem


def test_an_append_answers_with_the_shape_of_the_contract(cluster: Cluster) -> None:
    leader = cluster.leader()
    answer = cluster.append(leader, "a", "b", "c")
    assert answer.status_code == 200
    made = answer.json()
    assert list(made) == [
        "log", "first_index", "last_index", "count", "term", "first_offset", "next_offset", "timestamp",
        "committed_index", "next_index", "leader", "acks", "durability", "replayed",
    ]  # fmt: skip
    assert made["last_index"] == made["first_index"] + 2
    assert made["count"] == 3
    assert made["leader"] == leader
    assert made["committed_index"] >= made["last_index"]
    assert made["next_index"] > made["last_index"]
    assert made["first_offset"] < made["next_offset"]
    assert (made["acks"], made["durability"], made["replayed"]) == ("quorum", "fsync", False)
    assert answer.headers["commitlog-leader"] == cluster.url(leader)
    assert answer.headers["commitlog-term"] == str(made["term"])
    assert answer.headers["commitlog-committed-index"] == str(made["committed_index"])
    assert answer.headers["commitlog-next-index"] == str(made["next_index"])
    assert [record["value"] for record in stored(cluster, answer)] == ["a", "b", "c"]


def test_a_follower_forwards_and_answers_as_the_leader_does(cluster: Cluster) -> None:
    leader, follower = cluster.leader(), cluster.follower()
    answer = cluster.append(follower, "through", headers={"X-Request-Id": "mine-1"})
    assert answer.status_code == 200
    assert answer.json()["leader"] == leader
    assert answer.headers["commitlog-leader"] == cluster.url(leader)
    assert answer.headers.get_list("x-request-id") == ["mine-1"]


def test_a_carried_append_has_the_answer_of_a_forwarded_one(cluster: Cluster) -> None:
    """Small bodies share frames between the nodes, large ones take an HTTP call."""
    follower = cluster.follower()
    for query, status in (({}, 200), ({"acks": "leader"}, 202), ({"match_index": 0}, 412)):
        small, large = (
            cluster.call(
                "POST",
                follower,
                RECORDS,
                content=b"v" * size,
                params={**query, "timeout_ms": 30_000},
                headers={"Content-Type": "application/octet-stream"},
            )
            for size in (10, BODY_MAX_BYTES + 1)
        )
        assert (small.status_code, large.status_code) == (status, status)
        assert list(small.headers) == list(large.headers)
        assert list(small.json()) == list(large.json())
    other = cluster.call("POST", follower, "/v1/logs/none/records", content=b"x")
    assert other.status_code == 404


def test_no_forward_names_the_leader(cluster: Cluster) -> None:
    leader, follower = cluster.leader(), cluster.follower()
    answer = cluster.append(follower, "x", headers={"Commitlog-No-Forward": "1"})
    problem = refused(answer, 421, "not-leader")
    assert (problem["leader"], problem["leader_url"]) == (leader, cluster.url(leader))
    assert problem["retryable"] is True


def test_records_come_back_as_they_went_in(cluster: Cluster) -> None:
    body = {
        "records": [
            {"key": "k1", "value": "text", "headers": [["name", "v"], ["raw", {"base64": "/w=="}]]},
            {"key_base64": "/w==", "value_base64": base64.b64encode(b"\xff\x00").decode()},
            {"value": None, "timestamp": 1_730_000_000_000},
            {"value": ""},
            {"value": "ünï😀"},
        ]
    }
    answer = post(cluster, json.dumps(body), "application/json")
    first, second, third, fourth, fifth = stored(cluster, answer)
    assert list(first) == ["index", "term", "offset", "timestamp", "key", "value", "headers", "type"]
    assert (first["key"], first["value"]) == ("k1", "text")
    assert first["headers"] == [["name", "v"], ["raw", {"base64": "/w=="}]]
    assert first["timestamp"] == answer.json()["timestamp"]
    assert (second["key_base64"], second["value_base64"]) == ("/w==", "/wA=")
    assert "key" not in second
    assert (third["key"], third["value"], third["timestamp"]) == (None, None, 1_730_000_000_000)
    assert (fourth["value"], fifth["value"]) == ("", "ünï😀")
    assert first["type"] == "data"
    assert first["offset"] == fifth["offset"]


def test_json_values_keep_their_numbers(cluster: Cluster) -> None:
    text = (
        '{"records": [{"value_json": {"a" : 1.0, "b": [12345678901234567890123, 1e400], "c": "\\u00e9\\n"}}]}'
    )
    answer = post(cluster, text, "application/json")
    (record,) = stored(cluster, answer)
    assert record["value"] == '{"a":1.0,"b":[12345678901234567890123,1e400],"c":"é\\n"}'
    made = answer.json()
    raw = cluster.get(made["leader"], f"{RECORDS}/{made['first_index']}", params={"encoding": "json"}).text
    assert '"value_json":{"a":1.0,"b":[12345678901234567890123,1e400],"c":"é\\n"}' in raw


def test_one_record_by_itself(cluster: Cluster) -> None:
    answer = post(cluster, '{"key": "k", "value": "alone"}', "application/json; charset=utf-8")
    assert [record["value"] for record in stored(cluster, answer)] == ["alone"]


def test_lines(cluster: Cluster) -> None:
    answer = post(cluster, '{"value":"1"}\n\n{"value":"2","key":"k"}\r\n', "application/x-ndjson")
    assert [record["value"] for record in stored(cluster, answer)] == ["1", "2"]


def test_raw_records(cluster: Cluster) -> None:
    headers = {"Commitlog-Key": "key", "Commitlog-Timestamp": "1730000000123"}
    answer = post(cluster, b"\x00\xffraw", "application/octet-stream", headers=headers)
    (record,) = stored(cluster, answer)
    assert (record["key"], record["timestamp"]) == ("key", 1_730_000_000_123)
    assert base64.b64decode(record["value_base64"]) == b"\x00\xffraw"
    (empty,) = stored(cluster, post(cluster, b"", "application/octet-stream"))
    assert empty["value"] == ""


def test_keys_in_headers_are_utf_8_at_every_node(cluster: Cluster) -> None:
    for node in (cluster.leader(), cluster.follower()):
        headers = {b"Commitlog-Key": "schlüssel".encode()}
        answer = post(cluster, b"v", "application/octet-stream", headers=headers, node=node)
        assert [record["key"] for record in stored(cluster, answer)] == ["schlüssel"]
        wrong = post(
            cluster, b"v", "application/octet-stream", headers={b"Commitlog-Key": b"\xff"}, node=node
        )
        problem = refused(wrong, 422, "invalid-request")
        assert problem["errors"][0]["pointer"] == "/headers/Commitlog-Key"


def test_strange_queries_are_forwarded_too(cluster: Cluster) -> None:
    for node in (cluster.leader(), cluster.follower()):
        with socket.create_connection(("127.0.0.1", cluster.rest_ports[node])) as door:
            door.settimeout(10)
            door.sendall(
                b"POST /v1/logs/default/records?fencing_token=\xff\xc3%c3%a9{} HTTP/1.1\r\nHost: x\r\n"
                b"Content-Type: application/octet-stream\r\nContent-Length: 1\r\nConnection: close\r\n\r\nx"
            )
            answer = door.recv(65536)
        assert answer.startswith(b"HTTP/1.1 200") or answer.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_packed_bodies(cluster: Cluster, encoding: str) -> None:
    packed = {"gzip": gzip.compress, "zstd": zstandard.compress}[encoding](b'{"value":"packed"}')
    answer = post(cluster, packed, "application/json", headers={"Content-Encoding": encoding})
    assert [record["value"] for record in stored(cluster, answer)] == ["packed"]
    through = post(
        cluster, packed, "application/json", headers={"Content-Encoding": encoding}, node=cluster.follower()
    )
    assert through.status_code == 200


@pytest.mark.parametrize(
    ("body", "content_type", "status", "code"),
    [
        ("{", "application/json", 400, "invalid-json"),
        (b'{"value": "\xff"}', "application/json", 400, "invalid-json"),
        (b'{"value_json": "\xff"}', "application/json", 400, "invalid-json"),
        ('{"value": "\\ud800"}', "application/json", 400, "invalid-json"),
        ('{"value_json": ["\\ud800"]}', "application/json", 400, "invalid-json"),
        ('{"value_json": NaN}', "application/json", 400, "invalid-json"),
        ('{"value_json": ' + "[" * 100_000 + "]" * 100_000 + "}", "application/json", 400, "invalid-json"),
        ("", "application/json", 400, "invalid-json"),
        ("[", "application/json", 400, "invalid-json"),  # broken behind a wrong shape
        ("12x", "application/json", 400, "invalid-json"),
        ('{"value": 1', "application/json", 400, "invalid-json"),
        ('{"records": [{"value": 1},', "application/json", 400, "invalid-json"),
        ("[" * 100_000, "application/json", 400, "invalid-json"),
        ('{"records": [' + "{}," * 200_000 + "{}]}", "application/json", 413, "too-large"),  # decoded aside
        ("\n" * 1_000_000, "application/x-ndjson", 422, "invalid-request"),
        ("{}", "application/json", 422, "invalid-request"),
        ("[]", "application/json", 422, "invalid-request"),
        ('{"records": []}', "application/json", 422, "invalid-request"),
        ('{"value": "a", "value_json": 1}', "application/json", 422, "invalid-request"),
        ('{"value": 1}', "application/json", 422, "invalid-request"),
        ('{"value": "a", "match_index": 1}', "application/json", 422, "invalid-request"),
        ('{"value": "a", "timestamp": 1' + "0" * 400 + "}", "application/json", 422, "invalid-request"),
        ('{"value_base64": "%%"}', "application/json", 422, "invalid-request"),
        ('{"value": "a"}\n{"valu', "application/x-ndjson", 400, "invalid-json"),
        ("\n\n", "application/x-ndjson", 422, "invalid-request"),
        ('{"value":"1"}{"value":"2"}', "application/x-ndjson", 400, "invalid-json"),
        ("ARROW1 is not a stream", "application/vnd.apache.arrow.stream", 400, "invalid-body"),
        ("", "application/vnd.apache.arrow.stream", 400, "invalid-body"),
        ("CLB1 is not a batch", "application/vnd.commitlog.batch", 400, "invalid-body"),
        ("a=b", "application/x-www-form-urlencoded", 415, "unsupported-media-type"),
        ("a", None, 415, "unsupported-media-type"),
        ("a", "", 415, "unsupported-media-type"),
    ],
)  # fmt: skip
def test_an_invalid_append_is_refused_and_nothing_is_stored(
    cluster: Cluster, body: str | bytes, content_type: str | None, status: int, code: str
) -> None:
    leader = cluster.leader()
    before = cluster.status(leader)["end_index"]
    refused(post(cluster, body, content_type), status, code)
    refused(post(cluster, body, content_type, node=cluster.follower()), status, code)
    assert cluster.status(leader)["end_index"] == before


@pytest.mark.parametrize("params", [{}, {"match_term": 99}, {"acks": "leader"}])
def test_an_append_for_a_client_that_accepts_no_json_is_refused(
    cluster: Cluster, params: dict[str, Any]
) -> None:
    for node in (cluster.leader(), cluster.follower()):
        headers = {"Accept": "text/html, application/json;q=0"}
        refused(
            post(cluster, "x", "application/octet-stream", node=node, params=params, headers=headers),
            406,
            "not-acceptable",
        )
    headers = {"Accept": "text/html, application/*;q=0.1"}
    assert post(cluster, "x", "application/octet-stream", headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ('{"records": [{"value": "a"}, {"value": "b", "x/y": 1}]}', "/records/1/x~1y"),
        ('{"records": [{"value": "a"}], "macth_index": 1}', "/macth_index"),
        ('{"records": [{}]}', "/records/0"),
        ('{"records": [{"value": "a", "key": "k", "key_base64": "aw=="}]}', "/records/0/key"),
        ('{"records": [{"value": "a", "headers": [["n", 1]]}]}', "/records/0/headers/0/1"),
        ('{"records": [{"value": "a"}], "producer": {"id": "p", "epoch": 0}}', "/producer/sequence"),
        ('{"records": [{"value": "a"}], "key": "k"}', "/key"),
        ('{"records": [{"value": "a"}], "match_index": -1}', "/match_index"),
    ],
)
def test_pointers_name_the_place(cluster: Cluster, body: str, pointer: str) -> None:
    problem = refused(post(cluster, body, "application/json"), 422, "invalid-request")
    assert [error["pointer"] for error in problem["errors"]] == [pointer]


@pytest.mark.parametrize(
    ("query", "pointers"),
    [
        ({"foo": "1"}, ["/query/foo"]),
        ({"acks": "two", "timeout_ms": "0"}, ["/query/acks", "/query/timeout_ms"]),
        ({"timeout_ms": "60001"}, ["/query/timeout_ms"]),
        ({"match_index": "x"}, ["/query/match_index"]),
        ({"producer_id": "p"}, ["/query/producer_epoch", "/query/producer_sequence"]),
        ({"producer_allow_gap": "true"}, ["/query/producer_allow_gap"]),
    ],
)
def test_parameters_are_checked(cluster: Cluster, query: dict[str, str], pointers: list[str]) -> None:
    answer = cluster.append(cluster.leader(), "x", params=query)
    problem = refused(answer, 422, "invalid-request")
    assert [error["pointer"] for error in problem["errors"]] == pointers


def test_headers_are_checked(cluster: Cluster) -> None:
    for name, value in (
        ("Idempotency-Key", "a b"),
        ("Idempotency-Key", "a" * 256),
        ("Commitlog-Timestamp", "x"),
    ):
        answer = post(cluster, b"v", "application/octet-stream", headers={name: value})
        problem = refused(answer, 422, "invalid-request")
        assert problem["errors"][0]["pointer"] == f"/headers/{name}"


def test_a_condition_is_given_in_one_place(cluster: Cluster) -> None:
    body = '{"records": [{"value": "a"}], "match_term": 1}'
    problem = refused(
        post(cluster, body, "application/json", params={"match_term": "1"}), 422, "invalid-request"
    )
    assert problem["errors"][0]["pointer"] == "/match_term"


def test_a_record_of_one_mebibyte_fits_exactly(cluster: Cluster) -> None:
    whole = post(cluster, b"v" * MIB, "application/octet-stream")
    assert whole.status_code == 200
    problem = refused(post(cluster, b"v" * (MIB + 1), "application/octet-stream"), 413, "too-large")
    assert (problem["limit"], problem["limit_name"]) == (MIB, "max_record_bytes")
    keyed = post(cluster, b"v" * MIB, "application/octet-stream", headers={"Commitlog-Key": "k"})
    refused(keyed, 413, "too-large")
    body = json.dumps({"records": [{"value": "v" * MIB}, {"value": "w" * (MIB + 1)}]})
    refused(post(cluster, body, "application/json"), 413, "too-large")
    rows = arrow_stream(pa.record_batch({"value": [b"v", b"w" * (MIB + 1)]}))
    problem = refused(post(cluster, rows, "application/vnd.apache.arrow.stream"), 413, "too-large")
    assert (problem["limit"], problem["limit_name"]) == (MIB, "max_record_bytes")
    assert problem["detail"] == f"record 1: a record may have at most {MIB} bytes, got {MIB + 1}"


def test_a_request_has_limits(cluster: Cluster) -> None:
    lines = b'{"value":""}\n' * 10_000
    assert post(cluster, lines, "application/x-ndjson").status_code == 200
    problem = refused(post(cluster, lines + b'{"value":""}\n', "application/x-ndjson"), 413, "too-large")
    assert (problem["limit"], problem["limit_name"]) == (10_000, "max_request_records")
    body = b'{"value": "' + b" " * (16 * MIB) + b'"}'
    refused(post(cluster, body, "application/json"), 413, "too-large")
    bomb = gzip.compress(b" " * (17 * MIB))
    refused(post(cluster, bomb, "application/json", headers={"Content-Encoding": "gzip"}), 413, "too-large")
    refused(
        post(cluster, b"junk", "application/json", headers={"Content-Encoding": "gzip"}), 400, "invalid-body"
    )
    refused(
        post(cluster, b"{}", "application/json", headers={"Content-Encoding": "br"}),
        415,
        "unsupported-media-type",
    )


def test_a_chunked_body_is_taken_and_capped(cluster: Cluster) -> None:
    answer = post(cluster, iter([b'{"val', b'ue":"chunked"}']), "application/json")
    assert [record["value"] for record in stored(cluster, answer)] == ["chunked"]
    refused(post(cluster, (b"x" * MIB for _ in range(18)), "application/octet-stream"), 413, "too-large")


def arrow_stream(*batches: pa.RecordBatch, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batches[0].schema, **options) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def test_arrow_streams(cluster: Cluster) -> None:
    arrow = "application/vnd.apache.arrow.stream"
    rows = pa.record_batch(
        {
            "value": pa.array(["a", None, "c"]),
            "key": pa.array([b"k", b"\xff", None], pa.large_binary()),
            "timestamp": pa.array([1, None, 3], pa.timestamp("ms")),
            "headers": pa.array(
                [[{"name": "n", "value": b"v"}], None, []],
                pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())])),
            ),
        }
    )
    more = pa.record_batch({name: rows.column(name).slice(0, 1) for name in rows.schema.names})
    body = arrow_stream(rows, more)
    answer = post(cluster, body, arrow, node=cluster.follower())
    first, second, third, fourth = stored(cluster, answer)
    assert (first["value"], first["key"], first["timestamp"], first["headers"]) == ("a", "k", 1, [["n", "v"]])
    assert (second["value"], second["key_base64"], second["headers"]) == (None, "/w==", [])
    assert second["timestamp"] == answer.json()["timestamp"]
    assert (third["value"], third["key"], third["timestamp"]) == ("c", None, 3)
    assert {**fourth, "index": 0} == {**first, "index": 0}
    key = {"Idempotency-Key": uuid.uuid4().hex}
    value_only = arrow_stream(pa.record_batch({"value": ["x", "y"]}))
    assert post(cluster, value_only, arrow, headers=key).json()["replayed"] is False
    again = post(cluster, '{"value":"x"}\n{"value":"y"}', "application/x-ndjson", headers=key)
    assert again.json()["replayed"] is True


def test_broken_and_oversize_arrow_is_refused(cluster: Cluster) -> None:
    arrow = "application/vnd.apache.arrow.stream"
    end = cluster.status(cluster.leader())["end_index"]
    rows = pa.record_batch({"value": ["x" * 100] * 10})
    good = arrow_stream(rows)
    for cut in (1, 8, len(good) // 2, len(good) - 300):
        refused(post(cluster, good[:cut], arrow), 400, "invalid-body")
    refused(post(cluster, arrow_stream(pa.record_batch({"other": ["x"]})), arrow), 400, "invalid-body")
    refused(post(cluster, arrow_stream(pa.record_batch({"value": [1]})), arrow), 400, "invalid-body")
    refused(post(cluster, arrow_stream(rows.slice(0, 0)), arrow), 422, "invalid-request")
    many = pa.record_batch({"value": [""] * 10_001})
    refused(post(cluster, arrow_stream(many), arrow), 413, "too-large")
    large = pa.record_batch({"value": ["x" * (MIB + 1)]})
    refused(post(cluster, arrow_stream(large), arrow), 413, "too-large")
    bomb = pa.record_batch({"value": ["x" * MIB] * 100})
    packed = arrow_stream(bomb, options=pa.ipc.IpcWriteOptions(compression="zstd"))
    refused(post(cluster, packed, arrow), 413, "too-large")
    assert cluster.status(cluster.leader())["end_index"] == end


def test_packed_batches(cluster: Cluster) -> None:
    """The batches read from one log can be appended to another unchanged."""
    media_type = "application/vnd.commitlog.batch"
    values = [uuid.uuid4().hex for _ in range(3)]
    made = cluster.append(cluster.leader(), *values).json()
    span = {"from_index": made["first_index"], "until_index": made["last_index"] + 1}
    packed = cluster.get(cluster.leader(), RECORDS, params=span, headers={"Accept": media_type}).content
    answer = post(cluster, packed, media_type)
    assert [record["value"] for record in stored(cluster, answer)] == values
    flipped = bytearray(packed)
    flipped[-20] ^= 1
    refused(post(cluster, bytes(flipped), media_type), 400, "invalid-body")
    refused(post(cluster, packed[:-8], media_type), 400, "invalid-body")


def test_unknown_logs_come_before_the_body(cluster: Cluster) -> None:
    problem = refused(post(cluster, "{", "text/plain", path="/v1/logs/nope/records"), 404, "log-not-found")
    assert problem["log"] == "nope"
    refused(post(cluster, "{", "text/plain", path="/v1/logs/NOPE/records"), 422, "invalid-request")
    refused(post(cluster, "{", "text/plain", path="/v1/logs/__meta/records"), 404, "log-not-found")


def test_logs_are_apart(cluster: Cluster) -> None:
    answer = cluster.append(cluster.ids[0], "only here", log="other")
    assert answer.status_code == 200
    assert cluster.values(cluster.ids[1], log="other")[-1] == "only here"
    quiet = cluster.append(cluster.ids[0], "quiet", log="quiet")
    assert quiet.json()["durability"] == "replicated"
