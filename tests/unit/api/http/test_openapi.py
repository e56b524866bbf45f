"""Schemas that are derived from the examples of the OpenAPI document admit every answer."""

import asyncio
from pathlib import Path
from typing import Any

from jsonschema_rs import Draft202012Validator

from app.api.http.openapi import ETAG, answers, schema_of
from app.api.routes import controller_settings, ha_status
from app.errors import PROBLEMS
from app.media_types import PROBLEM
from storage.format.records import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from tests.support.in_process import node_in_process

UNNAMED = {"content-type", "content-length", "cache-control", "date"}  # of HTTP itself
LOG = "/v1/logs/{log}"
CURSOR = f"{LOG}/cursors/{{name}}"


def test_the_gap_of_a_slave_may_be_unknown() -> None:
    slave = schema_of(ha_status.HA_STATUS_EXAMPLE)["properties"]["slaves"]["items"]["properties"]
    assert slave["gap_bytes"] == slave["acked_offset"] == {"type": ["integer", "null"]}


def test_changed_settings_are_numbers_and_switches() -> None:
    settings = schema_of(controller_settings.EXAMPLE)["properties"]
    assert settings["changed"] == {"type": "object", "additionalProperties": {}}
    kinds = {schema["type"] for schema in settings["settings"]["properties"].values()}
    assert kinds == {"integer", "boolean"}


def test_routes_share_the_headers_and_the_examples_of_their_problems() -> None:
    """Copies of their own took 1.3 MiB of each node."""
    one, other = answers("storage-full", headers=(ETAG,)), answers("storage-full", "term-changed", status=201)
    assert one["404"]["headers"] is other["404"]["headers"]
    assert one["200"]["headers"] is not other["201"]["headers"]
    first, second = (each["507"]["content"][PROBLEM]["examples"]["storage-full"] for each in (one, other))
    assert first is second


def test_the_document_names_every_header_condition_and_problem(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            document = (await node.client.get("/v1/openapi.json")).json()

            async def check(method: str, path: str, status: int, **request: Any) -> None:
                """Call a route with query parameters in its path, and compare."""
                route, _, query = path.partition("?")
                url = route.format(log="default", name="c", code="too-large")
                answer = await node.client.request(method, f"{url}?{query}", **request)
                assert answer.status_code == status, answer.text
                operation = document["paths"][route][method.lower()]
                named = {each.lower() for each in operation["responses"][str(status)]["headers"]}
                assert set(answer.headers) - UNNAMED <= named, (method, route)
                taken = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "header"}
                assert set(request.get("headers", ())) <= taken | {"Accept", "Content-Type"}, (method, route)

            stays = {"Commitlog-No-Forward": "1"}
            await check("POST", f"{LOG}/records", 200, json={"value": "a"}, headers=stays)
            await check("POST", f"{LOG}/records", 415, content=b"a", headers={"Content-Type": "text/plain"})
            compressed = {"Content-Encoding": "br", "Content-Type": "application/json"}
            await check("POST", f"{LOG}/records", 415, content=b"{}", headers=compressed)
            lines = {"Content-Type": "application/x-ndjson"} | stays
            await check("POST", f"{LOG}/records:stream", 200, content=b"{}", headers=lines)
            await check("GET", f"{LOG}/records", 200)
            await check("GET", f"{LOG}/records?until_index=0", 200, headers={"Accept": "text/event-stream"})
            await check("PUT", CURSOR, 200, json={"index": 0}, headers={"If-None-Match": "*"})
            await check("PUT", CURSOR, 200, json={"index": 1}, headers={"If-Match": "*"} | stays)
            await check("GET", CURSOR, 304, headers={"If-None-Match": "*"})
            await check("DELETE", CURSOR, 412, headers={"If-Match": '"0"'})
            schema = {"format": "json", "definition": "id BIGINT"}
            await check("PUT", f"{LOG}/schema", 200, json=schema, headers={"If-None-Match": "*"})
            await check("GET", f"{LOG}/schema", 304, headers={"If-None-Match": '"1"'})
            await check("PATCH", LOG, 412, json={}, headers={"If-Match": '"99"'})
            listed = document["paths"]["/v1/logs"]["get"]["responses"]["200"]["content"]["application/json"]
            (log,) = (await node.client.get("/v1/logs?ends=true")).json()["logs"]
            named = listed["schema"]["properties"]["logs"]["items"]
            assert set(log) <= set(named["properties"])
            assert set(log["ends"]) == set(named["properties"]["ends"]["properties"])
            assert "ends" not in named["required"]
            await check("GET", "/problems/{code}", 200)
            promoted = (await node.client.post("/v1/cluster/members/n1:promote?log=default")).json()
            responses = document["paths"]["/v1/cluster/members/{id}:promote"]["post"]["responses"]
            member = responses["200"]["content"]["application/json"]["schema"]["properties"]["members"]
            assert set(promoted["members"][0]) == set(member["items"]["properties"])
            assert "role" not in member["items"]["required"]
            everywhere = {"bad-request", "cross-origin", "request-timeout", "head-too-large"}
            described = set[str]()
            for operations in document["paths"].values():
                for operation in operations.values():
                    contents = [each.get("content", {}) for each in operation["responses"].values()]
                    codes = {code for each in contents for code in each.get(PROBLEM, {}).get("examples", ())}
                    assert everywhere <= codes
                    described |= codes
            assert described == set(PROBLEMS)

    asyncio.run(run())


def test_the_schema_of_an_append_admits_what_the_service_stores(tmp_path: Path) -> None:
    bodies: tuple[tuple[dict[str, Any], bool], ...] = (
        ({"value": "a", "timestamp": MAX_TIMESTAMP_MS}, True),
        ({"value": "a", "timestamp": MAX_TIMESTAMP_MS + 1}, False),
        ({"value": "a", "timestamp": MIN_TIMESTAMP_MS}, True),
        ({"value": "a", "timestamp": MIN_TIMESTAMP_MS - 1}, False),
        ({"value": "a", "key": "k", "key_base64": None}, True),
        ({"value": "a", "key": "k", "key_base64": "aw=="}, False),
        ({"value": None, "value_base64": "aw=="}, False),
        ({"value_json": None}, True),
        ({"key": "k"}, False),
        ({"value": "a", "headers": [["h", {"base64": "aw=="}]]}, True),
        ({"value": "a", "headers": [["h", {"base64": "aw==", "x": 1}]]}, False),
        ({"records": [{"value": "a"}], "match_index": 2**63 - 1}, True),
        ({"records": [{"value": "a"}], "match_index": 2**63}, False),
        ({"records": [{"value": "a"}], "producer": {"id": "", "epoch": 0, "sequence": 0}}, False),
        ({"records": [{"value": "a"}], "producer": {"id": "p" * 255, "epoch": 0, "sequence": 0}}, True),
        ({"records": [{"value": "a"}], "producer": {"id": "p" * 256, "epoch": 0, "sequence": 0}}, False),
    )

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            document = (await node.client.get("/v1/openapi.json")).json()
            request = document["paths"][f"{LOG}/records"]["post"]["requestBody"]
            described = Draft202012Validator(request["content"]["application/json"]["schema"])
            for body, is_valid in bodies:
                answer = await node.client.post("/v1/logs/default/records", json=body)
                assert (described.is_valid(body), answer.status_code != 422) == (is_valid, is_valid), body

    asyncio.run(run())
