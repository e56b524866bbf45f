"""Copies that remove what an unclean election has lost (A-04): taken offline, truncated after a receipt,
served again.

ha_loss.py describes the truncation and its durable steps; the event `truncate` of the log's journal names the
receipt.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeVar

from app.ha.auto_switch.slave_side import Rollback
from app.log.events import JournalEvent, Truncated
from app.node.hosted_log import HostedLog
from app.node.repair.ha_loss import RemovedRecords, roll_back
from app.node.repair.interfaces import Damaged
from app.node.services import NodeServices
from app.node.tasks import TaskSupervisor
from storage.errors import CorruptFile, CorruptLog, DiskError, StorageFull, as_damage

logger = logging.getLogger(__name__)

_RETRY_S: Final = 2.0
Result = TypeVar("Result")


class RollbackHost(Protocol):
    """The part of app.node.hosting.node_logs.NodeLogs that is used here."""

    async def end_driver(self, hosted: HostedLog) -> None:
        """End the log's driver at once and close the log; its journal stays open. Raises StorageError."""
        ...

    def reopen(self, hosted: HostedLog) -> Awaitable[None]:
        """Open the log again and take part. Raises StorageError, also for damage that it finds."""
        ...

    def damaged(self, hosted: HostedLog, cause: Damaged) -> None:
        """Begin the repair of a log whose files the rollback has found damaged."""
        ...


class RunningRollback:
    """A rollback in progress. Owned by the event loop."""

    def __init__(self) -> None:
        self._given_up = asyncio.Event()

    def give_up(self) -> None:
        """The log is to be removed: end soon, and do not open it again."""
        self._given_up.set()

    @property
    def is_given_up(self) -> bool:
        return self._given_up.is_set()

    async def pause(self, seconds: float) -> None:
        """Wait, at most until it is given up."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._given_up.wait()


class Rollbacks:
    """Owned by the event loop. `begin_wanted` is called each tick."""

    def __init__(
        self,
        host: RollbackHost,
        services: NodeServices,
        record: Callable[[HostedLog, JournalEvent], None],
        tasks: TaskSupervisor,
    ) -> None:
        """record(hosted, event): write an event to a log's journal."""
        self._host = host
        self._files = services.files
        self._data = services.data_folder
        self._storage = services.storage
        self._record = record
        self._tasks = tasks
        self._fail = services.fail

    def begin_wanted(self, hosted: HostedLog) -> None:
        """Begin what the log's core requests, once."""
        rollback = None if hosted.ha is None or hosted.driver is None else hosted.ha.wanted_rollback
        if rollback is not None and hosted.rollback is None and not hosted.deleting:
            running = hosted.rollback = RunningRollback()
            self._tasks.critical(f"roll back {hosted.name}", self._roll_back(hosted, rollback, running))

    async def _roll_back(self, hosted: HostedLog, rollback: Rollback, running: RunningRollback) -> None:
        damage: BaseException | None = None
        try:
            await self._host.end_driver(hosted)
            removed = await self._when_there_is_room(
                hosted, running, lambda: asyncio.to_thread(self._cut, hosted, rollback)
            )
            if removed is not None:
                truncated = Truncated(
                    from_index=rollback.index + 1,
                    to_index=removed.end_index,
                    epoch=rollback.epoch,
                    reason="unclean-election",
                    receipt=removed.receipt.removeprefix(f"{self._data}/"),
                )
                logger.warning(
                    "an election has lost records of this copy", extra={"log": hosted.name, **truncated.data}
                )
                self._record(hosted, truncated)
            await self._when_there_is_room(hosted, running, lambda: self._host.reopen(hosted))
        except (CorruptLog, CorruptFile, DiskError) as error:
            damage = as_damage(error)
            if not isinstance(damage, Damaged):
                self._fail(f"roll back of log {hosted.name}", error)
        finally:
            hosted.rollback = None
        if isinstance(damage, Damaged) and not running.is_given_up:
            self._host.damaged(hosted, damage)

    def _cut(self, hosted: HostedLog, rollback: Rollback) -> RemovedRecords | None:
        """Truncate the log with a receipt. Blocks."""
        return roll_back(
            self._files,
            self._data,
            hosted.name,
            log_id=hosted.log_id,
            storage=self._storage,
            rollback=rollback,
        )

    async def _when_there_is_room(
        self, hosted: HostedLog, running: RunningRollback, step: Callable[[], Awaitable[Result]]
    ) -> Result | None:
        """Return the result of a step, which is repeated while the disk is full; None if it was given up."""
        while not running.is_given_up:
            try:
                return await step()
            except StorageFull as error:
                logger.warning("log %s: the disk is full: a rollback waits: %s", hosted.name, error)
                await running.pause(_RETRY_S)
        return None
