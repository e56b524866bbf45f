"""Trims through a node that does not lead: the answer is the leader's, whatever this node's replica does."""

import asyncio
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.responses import Response

from app.api.routes.log_actions import TrimIn, trim
from app.node.request_waits import Waits
from storage.errors import CorruptLog

DAMAGE = CorruptLog("data/logs/a/1.log", 0, "checksum")


def trimmed_through_a_follower(*, has_ended: bool = False, stopping: bool = False) -> tuple[int, list[Any]]:
    """Return the status of a trim that the leader has carried out, and the damage that was reported. The
    follower finds damage at the new beginning, or does not trim because it ends."""
    reported: list[Any] = []
    waits = Waits(1_000)

    def batch_at(_index: int) -> Any:
        if not stopping:
            raise DAMAGE
        waits.end()
        return SimpleNamespace(base_index=7)

    log = SimpleNamespace(begin_index=0, end_index=9, batch_at=batch_at)
    driver = SimpleNamespace(log=log, committed_index=9, has_ended=has_ended)
    hosted = SimpleNamespace(leads=False, serving=driver, driver=driver)

    async def test() -> tuple[int, list[Any]]:
        clock_ms = count()
        broker = SimpleNamespace(
            waits=waits,
            clock=SimpleNamespace(monotonic_ms=lambda: next(clock_ms)),
            repairs=SimpleNamespace(report=lambda error, found_by: reported.append((error, found_by))),
        )

        async def asked(_kind: type[TrimIn]) -> TrimIn:
            return TrimIn(7)

        async def at_leader(_hosted: Any, _act: Any) -> Response:
            return Response(b"{}", 200, {"commitlog-committed-index": "9"})

        call: Any = SimpleNamespace(broker=broker, find=lambda _log: hosted, asked=asked, at_leader=at_leader)
        answer = await trim(call, "a", None)
        assert next(clock_ms) < 10  # it does not run out
        return answer.status_code, reported

    return asyncio.run(test())


@pytest.mark.parametrize(("has_ended", "reported"), [(False, [(DAMAGE, "read")]), (True, [])])
def test_damage_of_a_follower_does_not_hide_that_the_leader_has_trimmed(
    has_ended: bool, reported: list[Any]
) -> None:
    """Repairing, or an internal error, would state that nothing was done."""
    assert trimmed_through_a_follower(has_ended=has_ended) == (200, reported)


def test_a_trim_does_not_keep_a_node_from_stopping() -> None:
    assert trimmed_through_a_follower(stopping=True) == (200, [])
