"""GET records and its kin: starts, bounds, formats, waiting, refusals."""

import io
import json
import time
import uuid
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from storage.format.batch import decode_batch
from storage.format.records import READ_SCHEMA
from tests.integration.rest.test_append_routes import refused
from tests.support.cluster import Cluster

LOG = "/v1/logs/default"
RECORDS = f"{LOG}/records"


def read(cluster: Cluster, node: str = "n1", **params: Any) -> dict[str, Any]:
    names = {"start": "from"}
    answer = cluster.get(
        node, RECORDS, params={names.get(name, name): value for name, value in params.items()}
    )
    assert answer.status_code == 200, answer.text
    page: dict[str, Any] = answer.json()
    assert answer.headers["commitlog-next-index"] == str(page["next_index"])
    assert answer.headers["commitlog-committed-index"] == str(page["committed_index"])
    return page


def indexes(page: dict[str, Any]) -> list[int]:
    return [record["index"] for record in page["records"]]


def test_everything_by_default(filled: Cluster) -> None:
    page = read(filled)
    assert list(page) == [
        "log", "records", "next_index", "begin_index", "end_index", "committed_index", "term", "has_more",
    ]  # fmt: skip
    assert indexes(page) == list(range(1, 101))
    assert (page["begin_index"], page["end_index"], page["committed_index"]) == (0, 100, 100)
    assert (page["next_index"], page["has_more"], page["term"]) == (101, False, 1)


def test_starts(filled: Cluster) -> None:
    assert indexes(read(filled, from_index=98)) == [98, 99, 100]
    assert indexes(read(filled, from_index=101)) == []
    assert indexes(read(filled, last=3)) == [98, 99, 100]
    assert indexes(read(filled, last=7))[0] == 94
    assert indexes(read(filled, last=1000))[0] == 1
    assert indexes(read(filled, start="earliest", limit=1)) == [1]
    latest = read(filled, start="latest")
    assert (indexes(latest), latest["next_index"]) == ([], 101)


def test_a_start_and_an_end_by_time(cluster: Cluster, own_logs: list[str]) -> None:
    name = f"t{uuid.uuid4().hex}"
    own_logs.append(name)
    assert cluster.call("POST", cluster.ids[0], "/v1/logs", json={"name": name}).status_code == 201

    def send(*timestamps: int) -> int:
        records = [{"value": "timed", "timestamp": timestamp} for timestamp in timestamps]
        made = cluster.call(
            "POST", cluster.leader(name), f"/v1/logs/{name}/records", json={"records": records}
        )
        first_index: int = made.json()["first_index"]
        return first_index

    def found(**params: int) -> list[int]:
        answer = cluster.get(cluster.ids[0], f"/v1/logs/{name}/records", params=params)
        return indexes(answer.json())

    first = send(10, 20)
    second = send(30, 25)
    assert found(from_timestamp=11) == [first + 1, second, second + 1]
    assert found(from_timestamp=30) == [second, second + 1]
    assert found(from_timestamp=10, until_timestamp=30) == [first, first + 1]
    assert found(from_timestamp=31) == []
    assert found(from_index=second + 1, until_timestamp=26) == [second + 1]  # an earlier record is later


def test_control_records_have_no_part_in_a_read_by_time(filled: Cluster) -> None:
    """The records carry times of 1970, the control record before them that of today."""
    assert indexes(read(filled, until_timestamp=3_000)) == [1, 2]
    assert indexes(read(filled, from_timestamp=99_000)) == [99, 100]
    assert indexes(read(filled, from_timestamp=100_001)) == []


def test_the_tail_waits_for_an_index(filled: Cluster) -> None:
    tail = filled.get("n1", f"{LOG}/tail", headers={"Commitlog-Min-Index": "100"})
    assert (tail.status_code, tail.json()["committed_index"]) == (200, 100)
    refused(filled.get("n1", f"{LOG}/tail", headers={"Commitlog-Min-Index": "x"}), 422, "invalid-request")
    started = time.monotonic()
    late = filled.get("n1", f"{LOG}/tail", headers={"Commitlog-Min-Index": "101"})
    refused(late, 504, "not-yet-replicated")
    assert time.monotonic() - started > 4


def test_a_page_of_another_website_may_only_read(filled: Cluster) -> None:
    own, foreign = {"Origin": filled.url("n1")}, {"Origin": "https://elsewhere.example"}
    path = "/v1/cluster/leader:transfer"
    refused(filled.call("POST", "n1", path, headers=foreign), 403, "cross-origin")
    refused(filled.call("POST", "n1", path, headers=foreign | {"Origin": "null"}), 403, "cross-origin")
    assert filled.get("n1", RECORDS, headers=foreign).status_code == 200
    assert filled.call("POST", "n1", path, headers=own).status_code != 403


@pytest.mark.parametrize("path", ["/v1/cluster/leader:transfer", "/v1/cluster/members/n1:promote"])
@pytest.mark.parametrize("form", ["application/x-www-form-urlencoded", "multipart/form-data; boundary=b"])
def test_an_empty_form_changes_nothing(filled: Cluster, path: str, form: str) -> None:
    answer = filled.call("POST", "n1", path, headers={"Content-Type": form})
    refused(answer, 415, "unsupported-media-type")


@pytest.mark.parametrize(
    "path", [f"{RECORDS}?limit=1&limit=2", f"{LOG}/tail?consistency=local&consistency=local"]
)
def test_a_parameter_given_twice_is_refused(filled: Cluster, path: str) -> None:
    problem = refused(filled.get("n1", path), 422, "invalid-request")
    assert [error["detail"] for error in problem["errors"]] == ["given twice"]


def test_bounds(filled: Cluster) -> None:
    page = read(filled, from_index=10, limit=3)
    assert (indexes(page), page["next_index"], page["has_more"]) == ([10, 11, 12], 13, True)
    page = read(filled, from_index=10, until_index=12)
    assert (indexes(page), page["next_index"], page["has_more"]) == ([10, 11], 12, False)
    page = read(filled, from_index=10, until_index=10)
    assert (indexes(page), page["next_index"], page["has_more"]) == ([], 10, False)
    page = read(filled, from_index=10, until_index=5)
    assert (indexes(page), page["next_index"], page["has_more"]) == ([], 10, False)
    page = read(filled, from_index=10, until_index=13, limit=2)
    assert (indexes(page), page["has_more"]) == ([10, 11], True)
    page = read(filled, max_bytes=1)
    assert (indexes(page), page["has_more"]) == ([1], True)
    page = read(filled, max_bytes=len("v0-0k0") * 7)
    assert indexes(page) == list(range(1, 8))


def test_pages_give_every_record_once(filled: Cluster) -> None:
    for params in ({"limit": 7}, {"max_bytes": 40}, {"limit": 3, "key": "k2"}):
        seen: list[int] = []
        start = 0
        while True:
            page = read(filled, from_index=start, **params)
            assert page["next_index"] > start
            seen += indexes(page)
            start = page["next_index"]
            if not page["has_more"]:
                break
        assert seen == [index for index in range(1, 101) if "key" not in params or (index - 1) % 5 == 2]


def test_filters(filled: Cluster) -> None:
    page = read(filled, key="k3", limit=2)
    assert (indexes(page), page["next_index"], page["has_more"]) == ([4, 9], 10, True)
    page = read(filled, key="nobody")
    assert (indexes(page), page["next_index"], page["has_more"]) == ([], 101, False)
    assert indexes(read(filled, term=1))[:1] == [1]
    assert indexes(read(filled, term=2)) == []


def test_control_records_on_request(filled: Cluster) -> None:
    first = read(filled, include="control", limit=1)["records"][0]
    assert (first["index"], first["type"]) == (0, "control")
    assert {"kind": "term", "leader": "n1"}.items() <= json.loads(first["value"]).items()
    one = filled.get("n1", f"{RECORDS}/0").json()
    assert one == first


@pytest.mark.parametrize("consistency", ["linearizable", "committed", "local"])
def test_consistency(filled: Cluster, consistency: str) -> None:
    assert len(read(filled, consistency=consistency)["records"]) == 100
    tail = filled.get("n1", f"{LOG}/tail", params={"consistency": consistency})
    assert tail.json() == {
        "begin_index": 0,
        "end_index": 100,
        "committed_index": 100,
        "next_index": 101,
        "term": 1,
        "leader": "n1",
    }


def test_past_the_end(filled: Cluster) -> None:
    for consistency in ("linearizable", "local"):
        params = {"from_index": 102, "consistency": consistency}
        assert (
            refused(filled.get("n1", RECORDS, params=params), 416, "index-out-of-range")["next_index"] == 101
        )
    behind = read(filled, from_index=500, consistency="committed")
    assert (indexes(behind), behind["next_index"], behind["has_more"]) == ([], 500, False)
    beyond = refused(filled.get("n1", f"{RECORDS}/101"), 416, "index-out-of-range")
    assert beyond["next_index"] == 101
    assert beyond["detail"] == "index 101 is beyond the log, whose next index is 101"
    event_stream = {"Accept": "text/event-stream"}
    refused(
        filled.get("n1", RECORDS, params={"from_index": 102}, headers=event_stream), 416, "index-out-of-range"
    )


@pytest.mark.parametrize(
    ("params", "pointers"),
    [
        ({"limit": "0"}, ["/query/limit"]),
        ({"limit": "100001"}, ["/query/limit"]),
        ({"wait_ms": "60001"}, ["/query/wait_ms"]),
        ({"max_bytes": "0"}, ["/query/max_bytes"]),
        ({"max_bytes": "67108865"}, ["/query/max_bytes"]),
        ({"last": "0"}, ["/query/last"]),
        ({"from_index": "-1"}, ["/query/from_index"]),
        ({"from_index": "9" * 30}, ["/query/from_index"]),
        ({"from_index": "1.5"}, ["/query/from_index"]),
        ({"from": "nowhere"}, ["/query/from"]),
        ({"from_index": "1", "last": "2"}, ["/query/last"]),
        ({"from": "latest", "from_timestamp": "2", "last": "1"}, ["/query/last", "/query/from"]),
        ({"consistency": "some", "encoding": "x"}, ["/query/consistency", "/query/encoding"]),
        ({"include": "all"}, ["/query/include"]),
        ({"frm": "1"}, ["/query/frm"]),
        ({"from_": "latest"}, ["/query/from_"]),
    ],
)
def test_parameters_are_checked(filled: Cluster, params: dict[str, str], pointers: list[str]) -> None:
    problem = refused(filled.get("n1", RECORDS, params=params), 422, "invalid-request")
    assert sorted(error["pointer"] for error in problem["errors"]) == sorted(pointers)


def test_other_paths_are_checked(filled: Cluster) -> None:
    for path in (f"{RECORDS}/x", f"{RECORDS}/-1", f"{RECORDS}/{'9' * 30}", f"{LOG}/epochs/x"):
        refused(filled.get("n1", path), 422, "invalid-request")
    for path in (
        f"{LOG}/tail",
        f"{LOG}/status",
        f"{LOG}/epochs",
        f"{LOG}/events",
        f"{LOG}/watermarks",
        "/v1/logs",
    ):
        refused(filled.get("n1", path, params={"foo": "1"}), 422, "invalid-request")
    for header, value in (("Commitlog-Min-Index", "x"), ("Commitlog-Min-Index", "-1")):
        problem = refused(filled.get("n1", RECORDS, headers={header: value}), 422, "invalid-request")
        assert problem["errors"][0]["pointer"] == f"/headers/{header}"


def test_unknown_logs(filled: Cluster) -> None:
    for tail in (
        "/records",
        "/records/0",
        "/tail",
        "/status",
        "/epochs",
        "/epochs/1",
        "/watermarks",
        "/events",
        "",
    ):
        refused(filled.get("n1", f"/v1/logs/nope{tail}"), 404, "log-not-found")
        refused(filled.get("n1", f"/v1/logs/nope{tail}", params={"foo": "1"}), 404, "log-not-found")
        refused(filled.get("n1", f"/v1/logs/No{tail}"), 422, "invalid-request")


# --- formats ---------------------------------------------------------------------------------------------


def test_lines(filled: Cluster) -> None:
    answer = filled.get("n1", RECORDS, params={"limit": 2}, headers={"Accept": "application/x-ndjson"})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.headers["commitlog-has-more"] == "true"
    assert [json.loads(line)["index"] for line in answer.text.splitlines()] == [1, 2]


def test_arrow_and_parquet_have_the_columns_of_the_contract(filled: Cluster) -> None:
    stream = filled.get("n1", RECORDS, headers={"Accept": "application/vnd.apache.arrow.stream"})
    assert stream.headers["commitlog-has-more"] == "false"
    table = pa.ipc.open_stream(stream.content).read_all()
    assert table.schema == READ_SCHEMA
    assert table.column("index").to_pylist() == list(range(1, 101))
    assert table.column("key").to_pylist()[:2] == [b"k0", b"k1"]
    parquet = filled.get("n1", RECORDS, headers={"Accept": "application/vnd.apache.parquet"})
    again = pyarrow.parquet.read_table(io.BytesIO(parquet.content))
    assert again.column("value").to_pylist() == table.column("value").to_pylist()
    empty = filled.get(
        "n1", RECORDS, params={"from": "latest"}, headers={"Accept": "application/vnd.apache.arrow.stream"}
    )
    assert pa.ipc.open_stream(empty.content).read_all().num_rows == 0


def test_batches_as_they_are_stored(filled: Cluster) -> None:
    accept = {"Accept": "application/vnd.commitlog.batch"}
    answer = filled.get("n1", RECORDS, params={"from_index": 7}, headers=accept)
    data = memoryview(answer.content)
    found = []
    while data:
        batch = decode_batch(data)
        found.append((batch.base_index, batch.count))
        data = data[batch.size_bytes :]
    assert found[0] == (6, 5)
    assert found[-1] == (96, 5)
    assert answer.headers["commitlog-next-index"] == "101"
    nothing = filled.get("n1", RECORDS, params={"from_index": 101}, headers=accept)
    assert (nothing.content, nothing.headers["commitlog-next-index"]) == (b"", "101")
    refused(filled.get("n1", RECORDS, params={"key": "k"}, headers=accept), 422, "invalid-request")


def test_the_type_that_the_client_likes_best(filled: Cluster) -> None:
    accept = {"Accept": "text/html, application/x-ndjson;q=0.5, application/json;q=0.4"}
    assert filled.get("n1", RECORDS, headers=accept).headers["content-type"] == "application/x-ndjson"
    for wanted in ("*/*", "application/*", "", "text/html, */*;q=0.1"):
        answer = filled.get("n1", RECORDS, headers={"Accept": wanted})
        assert answer.headers["content-type"] == "application/json"
    refused(filled.get("n1", RECORDS, headers={"Accept": "text/html"}), 406, "not-acceptable")
    refused(filled.get("n1", f"{LOG}/tail", headers={"Accept": "text/html"}), 406, "not-acceptable")


@pytest.mark.parametrize("params", [{"last": 1}, {"from_index": 1, "wait_ms": 10}])
def test_accept_may_have_several_lines(filled: Cluster, params: dict[str, int]) -> None:
    lines = [("Accept", "text/html"), ("Accept", "application/x-ndjson")]
    answer = filled.get("n1", RECORDS, params=params, headers=lines)
    assert answer.headers["content-type"] == "application/x-ndjson"


def test_encodings(cluster: Cluster) -> None:
    leader = cluster.leader()
    records = [{"value_json": {"a": 1}, "key_base64": "/w=="}, {"value_base64": "/w=="}, {"value": None}]
    made = cluster.call("POST", leader, RECORDS, json={"records": records}).json()

    def given(encoding: str) -> list[dict[str, Any]]:
        page = read(cluster, leader, from_index=made["first_index"], limit=3, encoding=encoding)
        return [
            {name: value for name, value in record.items() if name.startswith(("key", "value"))}
            for record in page["records"]
        ]

    assert given("auto") == [
        {"key_base64": "/w==", "value": '{"a":1}'},
        {"key": None, "value_base64": "/w=="},
        {"key": None, "value": None},
    ]
    assert given("json")[0] == {"key_base64": "/w==", "value_json": {"a": 1}}
    assert given("json")[1:] == given("auto")[1:]
    assert given("base64")[0] == {"key_base64": "/w==", "value_base64": "eyJhIjoxfQ=="}
    assert given("text")[1] == {"key": None, "value": "\ufffd"}


# --- waiting ---------------------------------------------------------------------------------------------


def test_a_cursor_that_was_never_made_is_not_found(filled: Cluster) -> None:
    refused(filled.get("n1", RECORDS, params={"cursor": "mine"}), 404, "cursor-not-found")
    answer = filled.get("n1", RECORDS, params={"cursor": "mine", "last": 1})
    assert refused(answer, 422, "invalid-request")["errors"][0]["pointer"] == "/query/cursor"


def test_limit_bounds_packed_batches_too(filled: Cluster) -> None:
    accept = {"Accept": "application/vnd.commitlog.batch"}
    answer = filled.get("n1", RECORDS, params={"from_index": 1, "limit": 6}, headers=accept)
    assert answer.headers["commitlog-next-index"] == "11"  # two whole batches of 5
    assert answer.headers["commitlog-has-more"] == "true"


# --- event streams ---------------------------------------------------------------------------------------


def test_head(filled: Cluster) -> None:
    for path in (RECORDS, f"{RECORDS}/1", f"{LOG}/tail", "/healthz", "/docs", "/v1/openapi.json", "/nothing"):
        whole, head = filled.get("n1", path), filled.call("HEAD", "n1", path)
        assert head.content == b""
        assert head.status_code == whole.status_code
        assert head.headers["content-type"] == whole.headers["content-type"]
    stream = filled.call("HEAD", "n1", RECORDS, headers={"Accept": "text/event-stream"})
    assert (stream.status_code, stream.content) == (200, b"")
