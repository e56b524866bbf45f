"""Journals of a node: one a log that it keeps, or has kept, a replica of."""

import logging
from dataclasses import replace
from functools import partial
from typing import Final

from app.log.events import JournalEvent
from app.node.hosted_log import HostedLog
from app.node.metadata.folders import holds_file
from app.node.opening.open_replica import open_journal
from app.node.services import NodeServices
from storage.errors import DiskError, StorageFull
from storage.log.journal import Journal
from storage.units import KIB

logger = logging.getLogger(__name__)

JOURNAL_TAIL_BYTES: Final = 256 * KIB  # newest events of one log kept in memory


class LogJournals:
    """Opens journals, and writes events of the node to them."""

    def __init__(self, services: NodeServices, segment_max_bytes: int) -> None:
        """segment_max_bytes: of a journal; segments of logs may be smaller."""
        self._services = services
        self._syncing: dict[Journal, bool] = {}  # sync in progress -> events were written since its request
        self._storage = replace(
            services.storage,
            segment_max_bytes=min(services.storage.segment_max_bytes, segment_max_bytes),
            tail_cache_bytes=min(services.storage.tail_cache_bytes, JOURNAL_TAIL_BYTES),
        )

    def open_if_kept(self, hosted: HostedLog) -> None:
        """Open the journal of a log if this node keeps a replica of it, also one that joined later (R-10).

        The empty folder of a deleted log is not a replica of a later log of the same name. Blocks. Raises
        DiskError.
        """
        services, folder = self._services, self._services.log_folder(hosted.name)
        if services.node_id in hosted.settings.replicas or (
            services.files.exists(folder) and holds_file(services.files, folder)
        ):
            self.open(hosted)

    def open(self, hosted: HostedLog) -> None:
        """Open the journal of a log. Blocks. Raises DiskError."""
        services = self._services
        hosted.journal = open_journal(
            services.files, services.data_folder, services.node_id, hosted.name, self._storage
        )

    def record(self, hosted: HostedLog, event: JournalEvent) -> None:
        """Write an event to the journal of a log, whether the log is served or not. A full disk drops it."""
        journal, services = hosted.journal, self._services
        if journal is None:
            return
        term = 0 if hosted.driver is None else hosted.driver.term
        try:
            if journal.record(event.kind, term, event.data, services.clock.now_ms()) is None:
                return
        except StorageFull:
            logger.warning(
                "log %s: the disk is full: event %s %s is dropped", hosted.name, event.kind, event.data
            )
            return
        except DiskError as error:
            services.fail(f"journal of log {hosted.name}", error)
            return
        self._sync(hosted.name, journal)

    def _sync(self, name: str, journal: Journal) -> None:
        """Make the events durable, one sync at a time: while a disk hangs, requests must not pile up."""
        if journal in self._syncing:
            self._syncing[journal] = True
        else:
            self._syncing[journal] = False
            self._services.disk.lane(name).request_sync(journal, partial(self._synced, name, journal))

    def _synced(self, name: str, journal: Journal) -> None:
        if self._syncing.pop(journal):
            self._sync(name, journal)
