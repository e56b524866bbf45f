"""`/readyz` needs no token, and shows names of logs only to a token that may see them."""

import asyncio
from pathlib import Path
from typing import Any

from tests.support.event_loop import until
from tests.support.in_process import node_in_process

LINES = "everything write\nshop read logs=shop.*\nreader read\n"


def answers(folder: Path, *authorizations: str | None, tokens: bool = True) -> list[dict[str, Any]]:
    """The answers to /readyz of a node with the logs `default` and `shop.orders`, and with a failing task."""
    (folder / "tokens").write_text(LINES)
    security = {"tokens_file": str(folder / "tokens"), "audit": False} if tokens else {}

    async def run() -> list[dict[str, Any]]:
        found = []
        async with node_in_process(folder, security=security, logs=[{"name": "shop.orders"}]) as node:
            logs = node.broker.logs
            await until(lambda: "shop.orders" in logs and all(each.caught_up for each in logs.values()))
            node.broker.tasks.failing["open shop.orders"] = "no space"
            for authorization in authorizations:
                headers = {} if authorization is None else {"Authorization": authorization}
                answer = await node.client.get("/readyz", headers=headers)
                assert answer.status_code == 503
                found.append(answer.json())
            node.broker.tasks.failing.clear()
        return found

    return asyncio.run(run())


def test_names_are_shown_to_tokens_alone(tmp_path: Path) -> None:
    none, wrong, shop, everything, reader = answers(
        tmp_path, None, "Bearer wrong", "Bearer shop", "Bearer everything", "Bearer reader"
    )
    assert (
        none
        == wrong
        == {
            "ready": False,
            "logs": {},
            "failing": {},
            "log_count": 2,
            "ready_log_count": 2,
            "failing_count": 1,
        }
    )
    assert (shop["logs"], shop["failing"]) == ({"shop.orders": True}, {})
    for each in (everything, reader):
        assert each["logs"].keys() == {"default", "shop.orders"}
        assert each["failing"] == {"open shop.orders": "no space"}


def test_without_tokens_every_name_is_shown(tmp_path: Path) -> None:
    (found,) = answers(tmp_path, None, tokens=False)
    assert found["logs"].keys() == {"default", "shop.orders"}
    assert found["failing"] == {"open shop.orders": "no space"}
