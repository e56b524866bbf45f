"""Every route of the service has a scope, and a token without it is refused there."""

import asyncio
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
from tests.support.in_process import InProcess, node_in_process, until

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
    caller = node.app._tokens.caller("/", b"Bearer busy")
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
