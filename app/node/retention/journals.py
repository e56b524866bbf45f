"""Retention of journals by age and size. A journal belongs to one node, so each node trims its own."""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final
from weakref import WeakKeyDictionary

from app.log.driver_interfaces import Clock, Lanes
from app.node.hosted_log import HostedLog
from app.settings.model import JournalConfig
from storage.errors import StorageError, StorageFull
from storage.log.commitlog import TrimTicket
from storage.log.journal import Journal

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S: Final = 60.0


class JournalKeeper:
    """Owned by the event loop."""

    def __init__(
        self, config: JournalConfig, clock: Clock, disk: Lanes, fail: Callable[[str, BaseException], None]
    ) -> None:
        """fail(what, error): the node must stop, as after any failed change of its files (R-11)."""
        self._config = config
        self._clock = clock
        self._disk = disk
        self._fail = fail
        self._trimming: set[str] = set()  # logs whose journal is being trimmed: a hung disk delays that
        # Trims that the disk had no space to record: their segments are still there.
        self._unrecorded: WeakKeyDictionary[Journal, TrimTicket] = WeakKeyDictionary()

    async def run(self, logs: Callable[[], Iterable[HostedLog]]) -> None:
        """Check the journals of `logs()` as long as the node runs, one in each turn of the loop."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL_S)
            for hosted in list(logs()):
                self.trim(hosted)
                await asyncio.sleep(0)

    def trim(self, hosted: HostedLog) -> None:
        """Begin to remove what exceeds the age or the size, or what a full disk has kept."""
        journal, config = hosted.journal, self._config
        if journal is None or hosted.name in self._trimming:
            return
        oldest_ms = None if config.retention_ms is None else self._clock.now_ms() - config.retention_ms
        try:
            ticket = journal.start_trim(oldest_ms, config.retention_bytes) or self._unrecorded.get(journal)
        except StorageError as error:  # the next start replaces a damaged journal
            logger.error("log %s: retention of its journal: %s", hosted.name, error)
            return
        if ticket is None:
            return

        self._trimming.add(hosted.name)
        self._unrecorded.pop(journal, None)

        def ended(_result: Any, error: BaseException | None) -> None:
            self._trimming.discard(hosted.name)
            if isinstance(error, StorageFull):
                self._unrecorded[journal] = ticket
                logger.warning("log %s: the disk is full: a trim of its journal is not recorded", hosted.name)
            elif error is not None:
                self._fail(f"trim of the journal of log {hosted.name}", error)

        self._disk.lane(hosted.name).submit(ticket.run, ended)
