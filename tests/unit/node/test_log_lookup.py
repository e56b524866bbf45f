"""Log lookup: a new log that this node does not serve yet."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.errors import QuorumTimeout
from app.node.hosted_logs import HostedLogs
from app.node.hosting.log_lookup import LogLookup
from app.node.request_waits import Waits


@pytest.mark.parametrize("stops", [False, True])
def test_a_created_log_that_is_not_served_in_time_is_not_reported_as_missing(*, stops: bool) -> None:
    """Neither at a stop, which it does not delay: the log exists, and 404 means that nothing was done."""
    waits = Waits(leader_wait_ms=5_000)
    metadata = SimpleNamespace(is_current=True, hosted=SimpleNamespace(removed=False))
    logs = SimpleNamespace(unsupported={}, unopened=())
    lookup = LogLookup(HostedLogs(), cast(Any, metadata), cast(Any, logs), waits)

    async def seconds_of(timeout_ms: int) -> float:
        loop = asyncio.get_running_loop()
        since_s = loop.time()
        if stops:
            loop.call_later(0.02, waits.end)
        with pytest.raises(QuorumTimeout, match="was created"):
            await lookup.known("orders", timeout_ms)
        return loop.time() - since_s

    assert asyncio.run(seconds_of(5_000 if stops else 30)) < 1
