"""Journals of a node: one a log that it keeps, or has kept, a replica of."""

import logging
from dataclasses import replace
from functools import partial
from typing import Final

from app.log.events import JournalEvent
from app.node.descriptors import descriptors_allowed, logs_allowed
from app.node.hosted_log import HostedLog
from app.node.hosted_logs import HostedLogs
from app.node.metadata.folders import holds_file
from app.node.opening.open_replica import open_journal
from app.node.services import NodeServices
from storage.errors import DiskError, StorageFull
from storage.log.journal import Journal
from storage.units import KIB

logger = logging.getLogger(__name__)

JOURNAL_TAIL_BYTES: Final = 256 * KIB  # newest events of one log kept in memory


class LogJournals:
    """Opens journals, and writes events of the node to them. The first file of a log that is opened is its
    journal."""

    def __init__(self, services: NodeServices, segment_max_bytes: int, hosted: HostedLogs) -> None:
        """segment_max_bytes: of a journal; segments of logs may be smaller. hosted: all logs."""
        self._services = services
        self._hosted = hosted
        self._syncing: dict[Journal, bool] = {}  # sync in progress -> events were written since its request
        self._storage = replace(
            services.storage,
            segment_max_bytes=min(services.storage.segment_max_bytes, segment_max_bytes),
            tail_cache_bytes=min(services.storage.tail_cache_bytes, JOURNAL_TAIL_BYTES),
        )

    def open_if_kept(self, hosted: HostedLog) -> None:
        """Open the journal of a log if this node keeps a replica of it, also one that joined later (R-10).

        The empty folder of a deleted log is not a replica of a later log of the same name. Blocks. Raises
        as `open`.
        """
        services, folder = self._services, self._services.log_folder(hosted.name)
        if services.node_id in hosted.settings.replicas or (
            services.files.exists(folder) and holds_file(services.files, folder)
        ):
            self.open(hosted)

    def open(self, hosted: HostedLog) -> None:
        """Open the journal of a log. Blocks. Raises DiskError; StorageFull if as many logs are open as the
        file descriptors of the process allow: without one for its sync a log would end the node."""
        services, count = self._services, self._hosted.open_count
        if count >= logs_allowed():
            reason = (
                f"{count} logs are open, as many as {descriptors_allowed()} file descriptors allow: raise "
                "the limit of open files (ulimit -n, LimitNOFILE), or delete logs"
            )
            raise StorageFull(services.log_folder(hosted.name), "open", reason)
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
