"""Schemas over REST: set, read and compared at every node, and appends that a schema rejects."""

import json
import uuid
from typing import Any

import httpx
import pyarrow as pa
import pytest

from tests.integration.rest.test_append_routes import refused
from tests.support.cluster import Cluster, eventually

NDJSON = {"Content-Type": "application/x-ndjson"}
PACKED = {"Content-Type": "application/vnd.commitlog.batch"}
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}


def json_schema(kind: str = "integer", *more: str) -> dict[str, Any]:
    properties = {"id": {"type": kind}, **{name: {"type": "string"} for name in more}}
    return {"type": "object", "properties": properties, "required": ["id"]}


def asked(kind: str = "integer", *more: str, **fields: Any) -> dict[str, Any]:
    return {"format": "json", "definition": json_schema(kind, *more), **fields}


class SchemaLog:
    """A log of its own at the shared cluster."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.path = f"/v1/logs/{name}"
        settings = {"name": name, "replicas": 2}
        answer = cluster.call("POST", "n1", "/v1/logs", json=settings)
        assert answer.status_code in (200, 201), answer.text
        eventually(lambda: self.get("n3", "/tail").status_code == 200, what="the log is served")

    def get(self, node: str, route: str, **options: Any) -> httpx.Response:
        return self.cluster.get(node, self.path + route, **options)

    def put(self, node: str, document: Any, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.cluster.call("PUT", node, f"{self.path}/schema", json=document, headers=named)

    def append(
        self, node: str, body: Any, headers: dict[str, str], route: str = "/records"
    ) -> httpx.Response:
        return self.cluster.call("POST", node, self.path + route, content=body, headers=headers)


@pytest.fixture
def log(cluster: Cluster, own_logs: list[str]) -> SchemaLog:
    name = f"schemas-{uuid.uuid4().hex}"
    own_logs.append(name)
    return SchemaLog(cluster, name)


def test_versions_are_read_at_every_node_with_their_tags(cluster: Cluster, log: SchemaLog) -> None:
    refused(log.get("n2", "/schema"), 404, "schema-not-found")
    none = log.get("n3", "/schemas")
    assert (none.json(), none.headers["etag"]) == ({"schemas": []}, '"0"')
    assert "schema_version" not in log.get("n1", "/tail").json()
    first = log.put("n1", asked(key_columns=["id"]), If_None_Match="*")
    assert (first.status_code, first.headers["etag"]) == (200, '"1"')
    assert list(first.json()) == [
        "version", "index", "format", "definition", "message", "key_columns", "compatibility", "on_invalid",
        "cluster_by", "columns",
    ]  # fmt: skip
    assert first.json()["columns"] == [{"name": "id", "type": "bigint", "nullable": False, "comment": ""}]
    assert json.loads(first.json()["definition"]) == json_schema()
    again = log.put("n2", asked(key_columns=["id"]), If_None_Match="*")
    assert again.json() == first.json()
    refused(log.put("n2", asked("integer", "a"), If_None_Match="*"), 412, "schema-changed")
    assert (
        refused(log.put("n2", asked("integer", "a"), If_Match='"7"'), 412, "schema-changed")["version"] == 1
    )
    second = log.put("n3", asked("integer", "a", key_columns=["id"]), If_Match='"1"').json()
    assert (second["version"], second["index"] > first.json()["index"]) == (2, True)
    for node in cluster.ids:
        assert log.get(node, "/schema").json() == second
        assert log.get(node, "/schemas").json() == {"schemas": [first.json(), second]}
        assert log.get(node, "/schemas/1").json() == first.json()
        refused(log.get(node, "/schemas/3"), 404, "schema-not-found")
        same = log.get(node, "/schemas", headers={"If-None-Match": '"2"'})
        assert (same.status_code, same.content) == (304, b"")
        min_index = {"Commitlog-Min-Index": str(second["index"])}
        assert log.get(node, "/schema?consistency=committed", headers=min_index).json() == second
        assert log.get(node, "/tail").json()["schema_version"] == 2
    eventually(
        lambda: {log.get(node, "").json().get("schema_version") for node in cluster.ids} == {2, None},
        what="both replicas show the version, the third node none",
    )
    control = log.get("n1", f"/records/{second['index']}").json()
    assert json.loads(control["value"])["kind"] == "schema"


def test_a_schema_is_refused_with_the_reason(log: SchemaLog) -> None:
    assert log.put("n1", asked()).status_code == 200
    problem = refused(log.put("n2", asked("string")), 409, "schema-incompatible")
    assert [each["path"] for each in problem["differences"]] == ["/id"]
    assert log.put("n2", asked("string", compatibility="none")).json()["version"] == 2
    for document, pointer in (
        ({"format": "xml", "definition": {}}, "/format"),
        ({"format": "json", "definition": 4}, "/definition"),
        ({"format": "json", "definition": {"type": "array"}}, "/definition"),
        ({"format": "json"}, "/definition"),
        (asked(key_columns=["other"]), "/key_columns"),
        (asked(on_invalid="drop"), "/on_invalid"),
        (asked() | {"version": 4}, "/version"),
        ({"format": "json", "definition": f"a STRING COMMENT '{'x' * 300_000}'"}, "/definition"),
    ):
        problem = refused(log.put("n3", document), 422, "invalid-request")
        assert problem["errors"][0]["pointer"].startswith(pointer), problem
    refused(log.cluster.call("PUT", "n1", "/v1/logs/__audit/schema", json=asked()), 403, "forbidden")


def test_every_way_of_appending_is_checked_and_stores_nothing(cluster: Cluster, log: SchemaLog) -> None:
    assert log.put("n1", asked(on_invalid="reject")).status_code == 200
    end_index = log.get("n1", "/tail").json()["end_index"]
    good, bad = b'{"id": 1}', b'{"id": "x"}'
    table = pa.table({"value": pa.array([good, bad], pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    made = cluster.append("n1", good.decode(), bad.decode(), log="other").json()
    span = {"from_index": made["first_index"], "until_index": made["last_index"] + 1}
    accept = {"Accept": PACKED["Content-Type"]}
    packed = cluster.get("n1", "/v1/logs/other/records", params=span, headers=accept).content
    lines = b"\n".join(json.dumps({"value": each.decode()}).encode() for each in (good, bad))
    for node in cluster.ids:
        for body, headers in (
            (lines, NDJSON),
            (json.dumps({"records": [{"value_json": {"id": 1}}, {"value_json": {"id": "x"}}]}), {}),
            (sink.getvalue().to_pybytes(), ARROW),
            (packed, PACKED),
        ):
            problem = refused(
                log.append(node, body, {"Content-Type": "application/json", **headers}),
                422,
                "schema-mismatch",
            )
            assert (problem["record"], problem["pointer"], problem["version"]) == (1, "/id", 1)
            assert problem["reason"]
        octets = {"Content-Type": "application/octet-stream"}
        assert refused(log.append(node, bad, octets), 422, "schema-mismatch")["record"] == 0
        streamed = log.append(node, lines, NDJSON, "/records:stream").text.splitlines()
        assert [json.loads(each).get("code") for each in streamed] == [None, "schema-mismatch"]
        end_index += 1
    assert log.get("n1", "/tail").json()["end_index"] == end_index
    tombstone = json.dumps({"records": [{"key": "k", "value": None}]})
    assert log.append("n1", tombstone, {"Content-Type": "application/json"}).status_code == 200


def test_a_retry_of_a_stored_append_is_not_checked_again(log: SchemaLog) -> None:
    headers = {"Content-Type": "application/octet-stream", "Idempotency-Key": "before"}
    first = log.append("n1", b"free text", headers).json()
    assert log.put("n1", asked(on_invalid="reject")).status_code == 200
    again = log.append("n2", b"free text", headers).json()
    assert (again["first_index"], again["replayed"]) == (first["first_index"], True)
    refused(log.append("n2", b"free text", {**headers, "Idempotency-Key": "after"}), 422, "schema-mismatch")
