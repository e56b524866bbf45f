"""Syncs of a log and its journal: one of each in progress, for everything written meanwhile."""

import logging
from collections.abc import Callable
from typing import Final

from app.log.contract import CoreEvent, Durability
from app.log.driver_interfaces import Clock, Disk, DriverConfig
from app.log.events import EpochAdded, JournalEvent, TermKnown, Watermarks
from app.node.replica.log_space import LogSpace
from storage.errors import StorageFull
from storage.format.batch import Batch
from storage.log.commitlog import Commitlog, SyncTicket
from storage.log.journal import Journal

logger = logging.getLogger(__name__)

WATERMARKS_REPEAT_MS: Final = 60_000  # unchanged watermarks are written to the journal at this interval


class LogSyncer:
    """The log as a sync source of the disk (app.log.driver_interfaces.SyncSource).

    With `fsync` every write requests a sync, with `replicated` one follows within `sync_interval_ms`. During
    a truncation the log is not synced: the truncation makes everything durable itself, in the disk thread.
    """

    def __init__(
        self,
        log: Commitlog,
        disk: Disk,
        durability: Durability,
        config: DriverConfig,
        synced: Callable[[], None],
    ) -> None:
        """synced(): durable_index may have moved."""
        self.is_truncating = False
        self._log = log
        self._disk = disk
        self._durability = durability
        self._config = config
        self._synced = synced
        self._asked = False
        self._due_ms: int | None = None

    @property
    def delays_answers(self) -> bool:
        """True while a sync is in progress that the answers to new records would wait for."""
        return self._asked and self._durability is Durability.FSYNC

    def change_durability(self, durability: Durability) -> None:
        """Change the durability from now on; what is already written is synced at once."""
        self._durability = durability
        self._ask()

    def written(self, now_ms: int) -> None:
        """The log has grown."""
        if self._durability is Durability.FSYNC:
            self._ask()
        elif self._due_ms is None:
            self._due_ms = now_ms + self._config.sync_interval_ms

    def tick(self, now_ms: int) -> None:
        if self._due_ms is not None and now_ms >= self._due_ms and not self._asked:
            self._due_ms = None
            self._ask()

    def start_sync(self) -> SyncTicket | None:
        return None if self.is_truncating else self._log.start_sync()

    def finish_sync(self, ticket: SyncTicket) -> None:
        if not self.is_truncating:
            self._log.finish_sync(ticket)

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._disk.request_sync(self, self._done)

    def _done(self) -> None:
        self._asked = False
        behind = self._log.durable_index < self._log.end_index
        if self._durability is Durability.FSYNC and behind and not self.is_truncating:
            self._ask()
        self._synced()


class JournalWriter:
    """Writes the events of one log to the node's journal; a full disk costs events, never replication."""

    def __init__(
        self,
        log_name: str,
        log: Commitlog,
        journal: Journal,
        disk: Disk,
        clock: Clock,
        space: LogSpace,
    ) -> None:
        self._log_name = log_name
        self._log = log
        self._journal = journal
        self._disk = disk
        self._clock = clock
        self._space = space
        self._asked = False
        self._dirty = False
        self._watermarks: tuple[int, JournalEvent] | None = None  # the last ones written, and their term
        self._watermarks_ms = 0

    def record(self, event: CoreEvent) -> None:
        """Write an event; it is durable soon."""
        if isinstance(event.event, TermKnown):
            found = {"log": self._log_name, "term": event.event.term, "leader": event.event.leader}
            logger.info("leader known", extra=found)
        if self._space.in_use and isinstance(event.event, Watermarks):
            return  # the remaining space is for events that happen once
        now_ms = self._clock.now_ms()
        if isinstance(event.event, Watermarks) and not self._is_due(event, now_ms):
            return
        try:
            if self._journal.record(event.kind, event.term, event.data, now_ms) is None:
                return
        except StorageFull:
            logger.warning(
                "log %s: the disk is full: event %s %s is dropped", self._log_name, event.kind, event.data
            )
            return
        self._dirty = True
        if not self._asked:
            self._sync()

    def _is_due(self, event: CoreEvent, now_ms: int) -> bool:
        """Return whether the watermarks have changed since they were last written, are due again, or are
        those at the beginning or end of a term."""
        is_recent = 0 <= now_ms - self._watermarks_ms < WATERMARKS_REPEAT_MS
        if event.is_repeat and is_recent and (event.term, event.event) == self._watermarks:
            return False
        self._watermarks, self._watermarks_ms = (event.term, event.event), now_ms
        return True

    def control(self, batch: Batch) -> None:
        """A control batch was stored: if it opened an epoch, record the event of docs/api.md §2."""
        for epoch in reversed(self._log.epochs):
            if epoch.start_index == batch.base_index:
                added = EpochAdded(
                    epoch=epoch.epoch,
                    term=epoch.term,
                    leader=epoch.leader,
                    start_index=epoch.start_index,
                    start_offset=epoch.start_offset,
                    end_index=None,
                    end_offset=None,
                    started_ms=epoch.started_ms,
                )
                self.record(CoreEvent(epoch.term, added))
            if epoch.start_index <= batch.base_index:
                return

    def _sync(self) -> None:
        """Make the events durable, one sync at a time: events written meanwhile wait for the next one."""
        self._asked, self._dirty = self._dirty, False
        if self._asked:
            self._disk.request_sync(self._journal, self._sync)
