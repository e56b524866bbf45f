"""The task that follows the metadata: when it tries again, and when it does nothing."""

import asyncio

import pytest

from storage.errors import StorageFull
from tests.support.event_loop import until
from tests.unit.node.metadata.test_logs import Metadata, follower, log_of


def test_a_log_that_could_not_be_opened_is_tried_again_without_a_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A full disk has space again, or a file is free: the metadata need not change for that."""
    monkeypatch.setattr("app.node.metadata.logs._RETRY_S", 0.01)

    async def run() -> None:
        logs, host, service = follower(Metadata([log_of("a", 1)]))
        service.changed = asyncio.Event()
        host.failing["a"] = StorageFull("a", "open", "full")
        following = asyncio.create_task(logs.run())
        await until(lambda: logs.unopened == {"a"})
        host.failing.clear()
        await until(lambda: "a" in host.open)
        service.metadata.append(log_of("b", 2))
        await asyncio.sleep(0)
        assert "b" not in host.open  # all is done: it waits for the change
        service.changed.set()
        await until(lambda: "b" in host.open)
        following.cancel()

    asyncio.run(run())


def test_without_metadata_nothing_is_closed() -> None:
    logs, host, service = follower(Metadata([log_of("a", 1)]))
    assert asyncio.run(logs.follow())
    service.metadata = None  # its replica is repaired
    assert not asyncio.run(logs.follow())
    assert list(host.open) == ["a"]
