"""Entries of administration on their way into the audit log: in order, each once, bounded."""

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.node import audit
from app.node.audit import AuditLog
from app.settings.model import SecuritySettings


class FakeLog(AuditLog):
    """Its log stores what `outcomes` allow: True, False, or True while the node believes that it failed."""

    def __init__(self, *outcomes: bool | None, security: SecuritySettings | None = None) -> None:
        services = SimpleNamespace(
            clock=SimpleNamespace(now_ms=lambda: 7), node_id="n1", transport=None, random=random.Random(1)
        )
        given = security or SecuritySettings(audit=True)
        super().__init__(cast(Any, services), cast(Any, None), lambda _: None, ("n1",), given)
        self.outcomes = list(outcomes)
        self.attempts: list[tuple[int, tuple[int, ...]]] = []

    async def _stored(self, entries: tuple[bytes, ...]) -> bool:
        self.attempts.append((self._sequence, tuple(json.loads(entry)["number"] for entry in entries)))
        if len(self.attempts) == 1:
            self.write({"number": 99})  # one more while the first ones are being stored
        return bool(self.outcomes.pop(0)) if self.outcomes else True


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_RETRY_S", 0.0)


async def emptied(log: AuditLog) -> None:
    task = asyncio.create_task(log.run())
    await log.flush(10.0)
    task.cancel()


def test_a_repeated_attempt_has_the_same_entries_and_the_same_sequence() -> None:
    log = FakeLog(False, False, True)
    for number in (1, 2):
        log.write({"number": number})
    asyncio.run(emptied(log))
    assert log.attempts == [(0, (1, 2)), (0, (1, 2)), (0, (1, 2)), (1, (99,))]
    assert (log.counts.written, log.counts.dropped, log.waiting) == (3, 0, 0)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "WAITING_MAX", 3)
    log = FakeLog()
    for number in range(5):
        log.write({"number": number, "request": "x" * 10_000})
    assert (log.waiting, log.counts.dropped) == (3, 2)
    log.write({"number": 6, "path": "x" * 10_000})
    assert log.counts.dropped == 3


@pytest.mark.parametrize(
    ("security", "enabled"),
    [
        ({}, False),
        ({"tokens_file": Path("t")}, True),
        ({"audit": True}, True),
        ({"tokens_file": Path("t"), "audit": False}, False),
    ],
)
def test_it_is_on_when_callers_have_names(security: dict[str, Any], enabled: bool) -> None:
    log = FakeLog(security=SecuritySettings(**security))
    log.write({"number": 1})
    assert (log.enabled, log.waiting) == (enabled, int(enabled))
