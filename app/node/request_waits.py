"""Waits used by request handlers: for a confirmed read, a committed index, or a time. All end when the
node stops."""

import asyncio
import contextlib
from functools import partial
from typing import Final

from app.errors import ReadIndexUnavailable
from app.futures import settle, settling
from app.node.hosted_log import HostedLog

_RETRY_S: Final = 0.1


class Waits:
    """Owned by the event loop. `stopping`: a clean stop has begun, and no caller waits any more."""

    def __init__(self, leader_wait_ms: int) -> None:
        """leader_wait_ms: how long a read waits for a leader to be elected and confirmed."""
        self.stopping = False
        self._leader_wait_s = leader_wait_ms / 1000
        self._open: dict[asyncio.Future[None], None] = {}

    def end(self) -> None:
        """Let all callers continue: a clean stop begins."""
        self.stopping = True
        for waiting in list(self._open):
            settle(waiting, None)

    async def read_index(self, hosted: HostedLog) -> int:
        """Return the index that a linearizable read must see; it is committed here on return (R-08).

        Waits for a leader to be elected and confirmed. Raises ReadIndexUnavailable, Repairing,
        LogDeleting.
        """
        try:
            async with asyncio.timeout(self._leader_wait_s):
                while not self.stopping:
                    driver = hosted.driver
                    if driver is None:
                        raise hosted.interrupted
                    if hosted.removed:
                        break  # it never confirms a read; another node does
                    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                    driver.read_index(settling(future))
                    with contextlib.suppress(ReadIndexUnavailable):
                        return await future
                    await hosted.leadership_changed(_RETRY_S)
        except TimeoutError:
            pass
        raise ReadIndexUnavailable(
            "the leader, or master, was not confirmed in time, so this read could be outdated. "
            f"`commitlog status --log {hosted.name}` shows which nodes answer; with consistency=committed a "
            "node answers with what it knows to be committed"
        )

    async def committed(self, hosted: HostedLog, index: int, timeout_s: float) -> bool:
        """Wait until `index` is committed here, for `timeout_s` at most; return whether it is. Raises
        Repairing, LogDeleting."""
        driver = hosted.driver
        if driver is None:
            raise hosted.interrupted
        if driver.committed_index < index and timeout_s > 0 and not self.stopping:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiter = driver.when_committed(index, partial(settle, waiting, None))
            try:
                await self.until(waiting, timeout_s)
            finally:
                waiter.cancel()
        return driver.committed_index >= index

    async def pause(self, seconds: float) -> None:
        """Sleep, but not beyond the beginning of a stop: from then on only until the other tasks have run."""
        if self.stopping:
            await asyncio.sleep(0)
        else:
            await self.until(asyncio.get_running_loop().create_future(), seconds)

    async def until(self, waiting: "asyncio.Future[None]", timeout_s: float) -> None:
        """Wait for the future, at most for the time limit, and not beyond the beginning of a stop."""
        self._open[waiting] = None
        late = asyncio.get_running_loop().call_later(timeout_s, settle, waiting, None)
        try:
            await waiting
        finally:
            late.cancel()
            self._open.pop(waiting, None)
