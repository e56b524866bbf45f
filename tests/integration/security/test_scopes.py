"""Every route of the service has a scope, and a token without it is refused there."""

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from app.api.access.caller import Scope
from app.api.access.rules import RULES, Reach
from app.api.access.tokens import is_open
from tests.support.event_loop import until
from tests.support.in_process import InProcess, node_in_process

LIMITED = "other.*"  # logs of a token that has all scopes, but not for the log of the calls
OF_THE_FRAMEWORK = {"/v1/openapi.json"}


def calls_of(routes: list[BaseRoute]) -> Iterator[tuple[str, str]]:
    for route in routes:
        if (included := getattr(route, "original_router", None)) is not None:
            yield from calls_of(included.routes)
            continue
        path = getattr(route, "path", None)
        if path in OF_THE_FRAMEWORK:
            assert is_open(path)
            continue
        assert isinstance(route, APIRoute), f"{route} is checked by nothing"  # a mount, a socket
        yield from ((method, route.path) for method in sorted(route.methods))


def example_of(path: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: {"log": "default"}.get(name[1], "1"), path)


def test_every_route_is_refused_without_its_scope(tmp_path: Path) -> None:
    lines = [f"{scope} {scope}" for scope in Scope]
    lines += [
        f"limited write logs={LIMITED}",
        "all write",
        "slow read rate=1",
        "busy read append in_flight=1",
    ]
    tokens = tmp_path / "tokens"
    tokens.write_text("\n".join(lines))

    async def run() -> None:
        async with node_in_process(tmp_path, security={"tokens_file": str(tokens)}) as node:
            assert set(calls_of(node.framework.routes)) == set(RULES)
            for method, path in RULES:
                await check_route(node, method, path)
            await check_lists(node)
            await check_limits(node)
            await check_duplicate_headers(node)

    logging.disable(logging.WARNING)
    try:
        asyncio.run(run())
    finally:
        logging.disable(logging.NOTSET)


async def check_route(node: InProcess, method: str, path: str) -> None:
    rule, url = RULES[method, path], example_of(path)
    assert is_open(url) == (rule.scopes is None), path
    allowed = set(Scope) if rule.scopes is None else rule.scopes
    if method == "GET":
        head = (await node.client.head(url)).status_code
        assert (head == 401) == (rule.scopes is not None), path
    if rule.scopes is None:
        return
    refused = await node.client.request(method, url)
    assert (refused.status_code, refused.json()["code"]) == (401, "unauthenticated"), path
    for scope in set(Scope) - allowed:
        refused = await node.client.request(method, url, headers={"Authorization": f"Bearer {scope}"})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), (path, scope)
    if method == "GET":
        assert Scope.READ in allowed  # a `read` token of an earlier version reads everything
    if rule.reach is not Reach.CHECKED_LATER:
        refused = await node.client.request(method, url, headers={"Authorization": "Bearer limited"})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), path
    # What is sent here is not valid, but a caller with the scope gets as far as that.
    if method == "POST" or "1" in url:
        for scope in chain(allowed, ("all",)):
            answer = await node.client.request(
                method, url, headers={"Authorization": f"Bearer {scope}"}, content=b"?"
            )
            assert answer.status_code not in (401, 403, 500), (path, scope, answer.text)


async def check_lists(node: InProcess) -> None:
    """A token sees the logs that it is for."""
    for url in ("/v1/logs", "/v1/cluster", "/ui/overview.json"):
        for token, expected in (("read", 1), ("limited", 0)):
            answer = await node.client.get(url, headers={"Authorization": f"Bearer {token}"})
            assert len(answer.json()["logs"]) == expected, url
    for name, status in (("other.x", 201), ("default2", 403)):
        answer = await node.client.post(
            "/v1/logs", headers={"Authorization": "Bearer limited"}, json={"name": name}
        )
        assert answer.status_code == status, answer.text


async def check_limits(node: InProcess) -> None:
    slow = [await node.client.get("/v1/logs", headers={"Authorization": "Bearer slow"}) for _ in range(2)]
    assert [answer.status_code for answer in slow] == [200, 429]
    assert slow[1].headers["retry-after"] == "1"
    assert (slow[1].json()["code"], slow[1].json()["retryable"]) == ("rate-limited", True)
    busy = {"Authorization": "Bearer busy"}
    read = {"Authorization": "Bearer read"}
    next_index = (await node.client.get("/v1/logs/default/tail", headers=read)).json()["next_index"]
    waiting = asyncio.create_task(
        node.client.get(f"/v1/logs/default/records?from_index={next_index}&wait_ms=30000", headers=busy)
    )
    caller = node.app._tokens.caller("/metrics", b"Bearer busy")
    await until(lambda: caller.in_flight == 1)
    url = "/v1/logs/default/records"
    for request in (node.client.get(url, headers=busy), node.client.post(url, headers=busy, content=b"x")):
        answer = await request
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    raw = {"Authorization": "Bearer append", "Content-Type": "application/octet-stream"}
    assert (await node.client.post(url, headers=raw, content=b"x")).status_code == 200
    assert (await waiting).status_code == 200
    assert caller.in_flight == 0


async def check_duplicate_headers(node: InProcess) -> None:
    """Two nodes must not read two identities in one call."""
    for tokens in (("all", "read"), ("read", "all")):
        headers = [("Authorization", f"Bearer {token}") for token in tokens]
        assert (await node.client.get("/v1/logs", headers=headers)).status_code == 401


def test_administration_is_recorded(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("boss admin read name=boss\nclerk read append name=clerk\n")

    async def run() -> None:
        async with node_in_process(tmp_path, security={"tokens_file": str(tokens)}) as node:
            boss, clerk = {"Authorization": "Bearer boss"}, {"Authorization": "Bearer clerk"}
            read = "/v1/logs/__audit/records"
            assert (await node.client.get(read, headers=boss)).status_code == 404  # created on demand
            calls = [
                ("POST", "/v1/logs", {"name": "orders"}, boss, "r1"),
                ("DELETE", "/v1/logs/orders", {}, clerk, "r2"),
                ("POST", "/v1/logs/default:trim", {"until_index": 10**6}, boss, "r3"),
                ("DELETE", "/v1/logs/__audit", {}, boss, "r4"),
                ("POST", "/v1/logs/default:verify", {}, boss, "r5"),
                ("PATCH", "/v1/logs/__audit", {"retention": {"ms": 60_000}}, boss, "r6"),
                ("POST", "/v1/logs/default:fence", {"token": None}, clerk, "not administration"),
                ("POST", "/v1/logs", {"name": "x" * 9_000}, boss, "r7"),
            ]
            for method, path, body, who, request_id in calls:
                headers = {**who, "X-Request-Id": request_id.replace(" ", "-")}
                if path.endswith("/__audit"):  # it exists after the first entry
                    await until(lambda: node.broker.audit.waiting == 0)
                await node.client.request(method, path, json=body, headers=headers)
                await node.client.get("/v1/logs", headers=who)
            await until(lambda: node.broker.audit.counts.written == 7)
            assert node.broker.audit.waiting == 0
            found = (await node.client.get(read, headers=boss)).json()["records"]
            entries = [json.loads(record["value"]) for record in found]
            seen = [(e["request_id"], e["caller"], e["status"], e["outcome"], e["code"]) for e in entries]
            assert seen == [
                ("r1", "boss", 201, "done", None),
                ("r2", "clerk", 403, "not_applied", "forbidden"),
                ("r3", "boss", 422, "not_applied", "invalid-request"),
                ("r4", "boss", 403, "not_applied", "forbidden"),
                ("r5", "boss", 200, "done", None),
                ("r6", "boss", 200, "done", None),
                ("r7", "boss", 422, "not_applied", "invalid-request"),
            ]
            assert entries[0]["request"] == {"name": "orders"}
            assert entries[-1]["request"] is None  # too long
            for path in (read, "/v1/logs/__audit", "/v1/logs/__audit/tail"):
                assert (await node.client.get(path, headers=clerk)).status_code == 403
            for who in (boss, clerk):
                assert "__audit" not in (await node.client.get("/v1/logs", headers=who)).text
            metrics = (await node.client.get("/metrics", headers=boss)).text
            assert "commitlog_audit_entries_total 7.0" in metrics
            settings = await node.client.get("/v1/logs/__audit", headers=boss)
            assert settings.json()["retention"]["ms"] == 60_000

    asyncio.run(run())
