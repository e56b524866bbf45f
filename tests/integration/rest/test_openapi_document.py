"""The OpenAPI document: complete, with the bounds of requests, and true of the answers."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from typing import Any

from app.errors import PROBLEMS
from tests.support.cluster import Cluster

BODILESS = (":promote", ":demote", ":clean")


def test_the_openapi_document_is_complete(cluster: Cluster) -> None:
    document = cluster.get("n1", "/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    append = document["paths"]["/v1/logs/{log}/records"]["post"]
    assert set(append["requestBody"]["content"]) == {
        "application/json",
        "application/x-ndjson",
        "application/octet-stream",
        "application/vnd.apache.arrow.stream",
        "application/vnd.commitlog.batch",
    }
    assert append["responses"]["200"]["content"]["application/json"]["example"]["replayed"] is False
    read = document["paths"]["/v1/logs/{log}/records"]["get"]
    names = {parameter["name"] for parameter in read["parameters"]}
    assert {"from_index", "from", "wait_ms", "consistency", "Commitlog-Min-Index"} <= names
    assert "422" in read["responses"]
    text = cluster.get("n1", "/v1/openapi.json").text
    assert "HTTPValidationError" not in text
    assert '"$ref":"#/$defs' not in text
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            reads_json = method in ("put", "patch", "post") and not path.endswith(BODILESS)
            assert ("requestBody" in operation) == reads_json, (method, path)
    for route in ("tail", "status", "epochs", "epochs/{epoch}", "watermarks", "events", "records/{index}"):
        responses = document["paths"][f"/v1/logs/{{log}}/{route}"]["get"]["responses"]
        assert responses["200"]["content"]["application/json"]["example"]


SCHEMA_KEYWORDS = {
    "$ref", "anyOf", "const", "default", "description", "enum", "examples", "maxLength", "maximum",
    "minLength", "minimum", "pattern", "title", "type",
}  # fmt: skip


def test_the_openapi_document_has_the_bounds_of_requests(cluster: Cluster) -> None:
    paths = cluster.get("n1", "/v1/openapi.json").json()["paths"]
    for path, methods in paths.items():
        for parameter in [row for operation in methods.values() for row in operation.get("parameters", ())]:
            for schema in (parameter["schema"], *parameter["schema"].get("anyOf", ())):
                assert set(schema) <= SCHEMA_KEYWORDS, (path, parameter["name"])
    log, *others = paths["/v1/logs/{log}/records"]["get"]["parameters"]
    schemas = {parameter["name"]: parameter["schema"] for parameter in others}
    ordinal = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
    assert schemas["from_index"]["anyOf"][0] == schemas["term"]["anyOf"][0] == ordinal
    assert schemas["last"]["anyOf"][0] == {"type": "integer", "minimum": 1, "maximum": 100_000}
    allowed = [bool(re.search(log["schema"]["pattern"], name)) for name in ("a.b", "__controller", "A", "_a")]
    assert allowed == [True, True, False, False]
    for path, method, is_required in (
        ("/v1/logs", "post", True),
        ("/v1/logs/{log}:trim", "post", True),
        ("/v1/logs/{log}/cursors/{name}", "put", True),
        ("/v1/logs/{log}:verify", "post", False),
    ):
        assert paths[path][method]["requestBody"]["required"] is is_required, path


def deviations(value: Any, schema: Any, place: str = "") -> Iterator[str]:
    """Yield the places at which a JSON value is not as a schema of the OpenAPI document describes it."""
    kinds = schema.get("type")
    types = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "boolean": bool,
        "null": type(None),
    }
    if kinds is not None:
        allowed = tuple(types[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds))
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            yield f"{place}: {value!r} is not {kinds}"
            return
    if isinstance(value, dict):
        yield from (f"{place}/{name} is missing" for name in schema.get("required", ()) if name not in value)
        named, others = schema.get("properties", {}), schema.get("additionalProperties")
        for name, content in value.items():
            if name in named or others is not None:
                yield from deviations(content, named.get(name, others), f"{place}/{name}")
            elif named and "detail" not in named:  # a problem may have fields of its own
                yield f"{place}/{name} is not described"
    elif isinstance(value, list):
        for item in value:
            yield from deviations(item, schema.get("items", {}), f"{place}[]")


def test_answers_are_as_the_openapi_document_describes_them(cluster: Cluster) -> None:
    document = cluster.get("n1", "/v1/openapi.json").json()
    leader = cluster.leader()
    follower = cluster.follower()
    log, stays = "/v1/logs/{log}", {"Commitlog-No-Forward": "1"}
    binary = {
        "value_base64": "/w==",
        "key_base64": "/w==",
        "headers": [["text", "v"], ["raw", {"base64": "/w=="}]],
    }
    body = {"records": [binary, {"value": None}, {"value_json": 1}]}
    first = cluster.call("POST", leader, "/v1/logs/default/records", json=body).json()["first_index"]
    calls: list[tuple[str, str, str, dict[str, Any]]] = [
        ("post", f"{log}/records", leader, {"json": body}),
        ("post", f"{log}/records", leader, {"json": body, "params": {"acks": "leader"}}),
        ("post", f"{log}/records", leader, {"content": b"{"}),
        ("post", f"{log}/records", leader, {"json": {"value": "a", "unknown": 1}}),
        ("post", f"{log}/records", leader, {"json": body, "params": {"match_index": 0}}),
        ("post", f"{log}/records", follower, {"json": body, "headers": stays}),
        ("get", f"{log}/records", leader, {"params": {"include": "control", "from_index": first}}),
        ("get", f"{log}/records", leader, {"params": {"from_index": 10**9}}),
        ("get", f"{log}/records", leader, {"headers": {"Accept": "image/png"}}),
        ("get", f"{log}/records/{first}", leader, {}),
        ("get", f"{log}/tail", follower, {}),
        ("get", f"{log}/status", leader, {}),
        ("get", f"{log}/status", follower, {}),
        ("get", f"{log}/epochs", follower, {}),
        ("get", f"{log}/epochs/999", follower, {}),
        ("get", f"{log}/watermarks", leader, {}),
        ("get", f"{log}/watermarks", follower, {"headers": stays}),
        ("get", f"{log}/events", leader, {}),
        ("get", f"{log}/digests", leader, {}),
        ("get", f"{log}/tables", leader, {}),
        ("get", log, leader, {}),
        ("put", f"{log}/cursors/described", leader, {"json": {"index": 0}}),
        ("get", f"{log}/cursors/described", follower, {}),
        ("delete", f"{log}/cursors/described", leader, {}),
        ("get", f"{log}/cursors/described", leader, {}),
        ("post", f"{log}:verify", leader, {"json": {}}),
        ("get", "/v1/logs", leader, {}),
        ("get", "/v1/cluster", leader, {}),
        ("get", "/v1/cluster/members", leader, {}),
        ("get", "/readyz", leader, {}),
        ("get", "/healthz", leader, {}),
    ]
    found = []
    for method, path, node, options in calls:
        answer = cluster.call(method.upper(), node, path.replace("{log}", "default"), **options)
        route = re.sub(
            r"/(epochs|cursors|records)/[^/]+$",
            lambda part: {
                "epochs": "/epochs/{epoch}",
                "cursors": "/cursors/{name}",
                "records": "/records/{index}",
            }[part[1]],
            path,
        )
        operation = document["paths"][route][method]
        described = operation["responses"].get(str(answer.status_code))
        if described is None:
            found.append(f"{method} {route}: {answer.status_code} is not described")
            continue
        special = {"allow", "etag", "location", "retry-after", "x-request-id"} & set(answer.headers)
        special |= {name for name in answer.headers if name.startswith("commitlog-")}
        found += [
            f"{method} {route}: the header {name} is not described"
            for name in special - {name.lower() for name in described.get("headers", ())}
        ]
        media = described["content"][answer.headers["content-type"]]
        schema = media["schema"]
        if "$ref" in schema:
            schema = document["components"]["schemas"]["Problem"]
            if answer.json()["code"] not in media["examples"]:
                found.append(f"{method} {route}: {answer.json()['code']} is not described")
        found += [f"{method} {route} {each}" for each in deviations(answer.json(), schema)]
    assert found == []


def test_every_field_and_header_of_a_problem_is_described(cluster: Cluster) -> None:
    """The keys that `fields` of each error returns, by its source."""
    components = cluster.get("n1", "/v1/openapi.json").json()["components"]
    described = components["schemas"]["Problem"]["properties"]
    for problem in PROBLEMS.values():
        tree = ast.parse(textwrap.dedent(inspect.getsource(problem.fields)))
        keys = [key for node in ast.walk(tree) if isinstance(node, ast.Dict) for key in node.keys]
        assert {ast.literal_eval(key) for key in keys if key is not None} <= set(described), problem.code
        headers = ast.parse(textwrap.dedent(inspect.getsource(problem.headers)))
        names = [node.elts[0] for node in ast.walk(headers) if isinstance(node, ast.Tuple)]
        sent = {name.value for name in names if isinstance(name, ast.Constant)}
        assert sent <= {name.lower() for name in components["headers"]}, problem.code


def test_every_route_describes_the_refusals_of_the_service(cluster: Cluster) -> None:
    document = cluster.get("n1", "/v1/openapi.json").json()
    opened = {"/healthz", "/readyz", "/problems/{code}"}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            responses = operation["responses"]
            assert ("401" in responses) == (path not in opened), (method, path)
            if path.startswith("/v1/logs/{log}"):
                assert {"403", "404", "503"} <= set(responses), (method, path)
            if method != "get" and "{log}" in path and not path.endswith((":verify", ":stream")):
                assert "504" in responses, (method, path)
