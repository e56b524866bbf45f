"""One log as this node knows it: its settings, its replica here if it keeps one, and who leads."""

import asyncio
from dataclasses import dataclass

from app.node.driver import LogDriver
from app.replication import Role
from app.settings import LogSettings
from storage.commitlog import Commitlog
from storage.journal import Journal


@dataclass(slots=True)
class Replica:
    """What a node keeps of a log."""

    driver: LogDriver
    log: Commitlog
    journal: Journal


class HostedLog:
    """A configured log. `replica` is None at a node that keeps no copy. Owned by the event loop."""

    def __init__(self, settings: LogSettings, log_id: int, replica: Replica | None) -> None:
        self.settings = settings
        self.name = settings.name
        self.log_id = log_id
        self.replica = replica
        self.caught_up = False  # a linearizable read has succeeded here since the start
        self._seen: tuple[Role, str | None, int] | None = None
        self._watchers: dict[asyncio.Future[None], None] = {}

    @property
    def leader_id(self) -> str | None:
        return None if self.replica is None else self.replica.driver.leader_id

    @property
    def leads(self) -> bool:
        return self.replica is not None and self.replica.driver.role is Role.LEADER

    def look(self) -> None:
        """Wake whoever waits for a change of leadership; the node's timer calls this."""
        if self.replica is None:
            return
        driver = self.replica.driver
        seen = (driver.role, driver.leader_id, driver.term)
        if seen != self._seen:
            self._seen = seen
            self.wake()

    def wake(self) -> None:
        watchers, self._watchers = self._watchers, {}
        for watcher in watchers:
            if not watcher.done():
                watcher.set_result(None)

    async def leadership_changed(self, timeout_s: float) -> None:
        """Wait until role, leader or term change, at most `timeout_s`."""
        watcher: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._watchers[watcher] = None
        try:
            async with asyncio.timeout(timeout_s):
                await watcher
        except TimeoutError:
            pass
        finally:
            self._watchers.pop(watcher, None)
