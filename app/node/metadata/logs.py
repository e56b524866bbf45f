"""Logs of the metadata at this node: opened, changed and closed accordingly (C-10, docs/api.md §5).

One task handles one log at a time. A log that cannot be opened now (a full disk) is retried; a damaged one is
passed to the repairs, as at the start of the node. A failure of one log is logged and retried, and does not
affect the others. A log that this version does not support, because a newer one created it, is left alone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from app.controller.log_state import MetadataLogState
from app.controller.metadata import LOG_DELETING, Log
from app.controller.state_machine import Metadata
from app.errors import check
from app.node.hosted_log import CONFIGURED, HostedLog
from app.node.hosted_logs import HostedLogs
from app.node.metadata.folders import LogFolders
from app.node.metadata.service import MetadataService
from app.node.replica.driver import LogDriver
from app.settings.model import LogSettings, Replication
from storage.errors import StorageError

logger = logging.getLogger(__name__)

_RETRY_S: Final = 2.0


class Unsupported(NamedTuple):
    """A log of the metadata that this version cannot open, and the reason."""

    log: Log
    reason: str


class LogHost(Protocol):
    """The part of app.node.hosting.node_logs.NodeLogs that is used here."""

    async def add_log(self, settings: LogSettings, log_id: int, generation: int) -> None:
        """Register a log, and keep a replica of it if this node is one of its nodes. Raises StorageError."""
        ...

    async def open_replica(self, hosted: HostedLog) -> None:
        """Keep a replica of a registered log from now on. Raises StorageError."""
        ...

    async def close_log(self, hosted: HostedLog) -> None:
        """End its driver and close its files; the log stays registered."""
        ...


class MetadataLogs:
    """Owned by the event loop."""

    def __init__(
        self,
        *,
        node_id: str,
        metadata: MetadataService,
        host: LogHost,
        hosted: HostedLogs,
        folders: LogFolders,
        in_thread: Callable[..., Any] = asyncio.to_thread,
    ) -> None:
        self._node_id = node_id
        self._metadata = metadata
        self._host = host
        self._hosted = hosted
        self._folders = folders
        self._in_thread = in_thread
        self._dropping: dict[str, None] = {}  # logs whose copy here is being removed
        self._seen_index = -1  # of the newest metadata that any log here was opened or closed by
        self._has_checked_folders = False
        self.unsupported: dict[str, Unsupported] = {}  # by name
        self.unopened: frozenset[str] = frozenset()  # names; the opening is tried again

    async def run(self) -> None:
        """Follow the metadata until cancelled."""
        while True:
            self._metadata.changed.clear()
            whole = await self.follow()
            try:
                async with asyncio.timeout(None if whole else _RETRY_S):
                    await self._metadata.changed.wait()
            except TimeoutError:
                continue

    async def follow(self) -> bool:
        """Open, change and close logs as the metadata require; return whether all of it could be done.

        A log that cannot be opened does not keep this node from following the metadata: otherwise no deletion
        of another log would ever be complete.
        """
        metadata = self._metadata.metadata
        if metadata is None:
            return False
        index, is_newest = metadata.applied_index, self._metadata.is_newest
        if index < max(self._metadata.followed_index, self._seen_index):
            return False  # a repair has restored older metadata: the newer ones will follow
        self._seen_index = index
        self._follow_configured(metadata)
        is_gone, is_open = await self._forget_deleted(metadata), True
        for log in metadata:
            done = await self._guarded(log.name, self._follow(log, is_newest=is_newest))
            if log.state == LOG_DELETING:
                is_gone &= done
            else:
                is_open &= done
        self._note_unopened(metadata)
        if is_gone and is_open and self._metadata.is_current and not self._has_checked_folders:
            self._has_checked_folders = True
            await self._report_unknown(metadata)
        if is_gone and (is_open or is_newest) and index > self._metadata.followed_index:
            self._metadata.followed_index = index
            self._metadata.client.heartbeat_now()
        return is_gone and is_open

    async def _forget_deleted(self, metadata: Metadata) -> bool:
        """Remove the logs that the metadata do not have any more; return whether nothing is left of them."""
        is_gone = True
        for hosted in self._hosted:
            log = metadata.log(hosted.name)
            if hosted.generation >= 0 and (log is None or log.generation != hosted.generation):
                is_gone &= await self._guarded(hosted.name, self._forget(hosted))
        return is_gone

    def _note_unopened(self, metadata: Metadata) -> None:
        known = {log.name: log.state for log in metadata if log.generation >= 0}
        wanted = {name for name, state in known.items() if state != LOG_DELETING}
        self.unopened = frozenset(
            name for name in wanted if self._hosted.get(name) is None and name not in self.unsupported
        )
        self.unsupported = {name: each for name, each in self.unsupported.items() if name in known}

    async def _report_unknown(self, metadata: Metadata) -> None:
        """Log the names of logs whose files are here and that the newest metadata do not have.

        Nothing proves that such a log was deleted: metadata that were rebuilt from an older copy do not know
        logs that were created since, and their records must stay.
        """
        kept = await self._in_thread(self._folders.kept)
        for name in sorted(set(kept) - {log.name for log in metadata}):
            logger.warning(
                "log %s: its files are here, but the metadata do not have it: it was deleted while this node"
                " was stopped, or the metadata were rebuilt from a copy that is older than the log",
                name,
            )

    async def _guarded(self, name: str, work: Awaitable[bool]) -> bool:
        """Return whether the work on one log is done; a failure of it affects that log alone."""
        try:
            return await work
        except Exception:
            logger.exception("log %s cannot be opened, changed or closed as the metadata require", name)
            return False

    async def _forget(self, hosted: HostedLog) -> bool:
        """Remove a log that is deleted. Until its files are free, no later log of the name may use them."""
        if not await self._remove(hosted):
            hosted.deleting = True
            return False
        self._hosted.forget(hosted)
        return True

    def follow_known(self, controller: LogDriver) -> None:
        """Let the logs of the configuration open with the settings that the metadata here have of them.

        controller: the replica of `__controller`, not started yet. Raises ConfigError if the file has another
        mode of such a log: what one mode has acknowledged, the rules of another one do not protect.
        """
        if isinstance(controller.state, MetadataLogState):
            controller.state.committed(controller.committed_index)
            for hosted, log in self._configured(controller.state.metadata):
                if log is not None:
                    _check_mode(hosted.settings, log)
            self._follow_configured(controller.state.metadata)

    def _configured(self, metadata: Metadata) -> Iterator[tuple[HostedLog, Log | None]]:
        """Yield the logs of the configuration file; None for one that the metadata do not have."""
        for hosted in self._hosted:
            if hosted.generation == CONFIGURED:
                log = metadata.log(hosted.name)
                yield hosted, None if log is None or log.generation >= 0 else log

    def _follow_configured(self, metadata: Metadata) -> None:
        """Logs of the configuration file: apply the changes made since (docs/api.md §5)."""
        for hosted, log in self._configured(metadata):
            if log is None:
                hosted.take_settings(replace(hosted.settings, raised_from=self._raised_from(None)))
                continue
            try:
                hosted.take_settings(hosted.settings.changed_by(log.acting_spec, self._raised_from(log)))
            except ValueError as error:
                logger.error("log %s keeps its settings: %s", log.name, error)

    def _raised_from(self, log: Log | None) -> int:
        """Return the floor that the log had before it was raised; 1 as long as newer metadata may have a
        lower one. log: None if it was never changed."""
        if not self._metadata.is_current:
            return 1
        return 0 if log is None else log.raised_from

    async def _follow(self, log: Log, *, is_newest: bool) -> bool:
        hosted = self._hosted.get(log.name)
        if log.generation < 0:  # in the configuration file
            return await self._follow_nodes(log, hosted)
        if log.state != LOG_DELETING and not self._supports(log):
            return True
        if hosted is None and log.state == LOG_DELETING:
            return await self._discard(log)
        if hosted is None:
            return await self._add(log, is_newest=is_newest)
        if hosted.generation != log.generation:
            if hosted.generation != CONFIGURED:
                return False  # an earlier log of the name is not removed yet
            logger.error("log %s is in the configuration file too: that one is kept", log.name)
        elif log.state == LOG_DELETING:
            return hosted.deleting or await self._remove(hosted)
        else:
            is_new = self._node_id in log.spec.replicas and self._node_id not in hosted.settings.replicas
            if is_new and hosted.journal is not None:
                await self._in_thread(self._folders.adopt, log.name, log.generation)
            hosted.take_settings(LogSettings.of_spec(log.name, log.acting_spec, self._raised_from(log)))
            return await self._follow_nodes(log, hosted)
        return True

    async def _follow_nodes(self, log: Log, hosted: HostedLog | None) -> bool:
        """In controller mode: open a copy if this node is a new replica, remove it if the node was taken out.

        Only metadata that were the newest at some time since the start prove that it was taken out: after a
        crash a node may have older ones, from before it was added.
        """
        if log.spec.replication != Replication.CONTROLLER.value:
            return True
        if hosted is None or hosted.generation != log.generation:
            return True  # another log of that name is in the configuration file
        if log.name in self._dropping and hosted.journal is not None and not await self._drop_copy(hosted):
            return False  # also of a node that was added again: the copy that it had is not served any more
        has_copy = hosted.journal is not None
        if self._node_id in log.spec.replicas and not has_copy:
            return await self._open_copy(log, hosted)
        is_taken_out = self._node_id not in log.nodes and self._metadata.is_current
        if is_taken_out and (has_copy or log.name in self._dropping):
            return await self._drop_copy(hosted)
        return True

    async def _open_copy(self, log: Log, hosted: HostedLog) -> bool:
        try:
            if log.generation < 0:
                await self._in_thread(self._folders.finish_removal, log.name)
            else:
                await self._in_thread(self._folders.prepare, log.name, log.generation, log.log_id)
            self._dropping.pop(log.name, None)
            await self._host.open_replica(hosted)
        except StorageError as error:
            logger.error("log %s cannot be opened: %s", log.name, error)
            return False
        logger.info("replica added", extra={"log": log.name, "generation": log.generation})
        return True

    async def _drop_copy(self, hosted: HostedLog) -> bool:
        self._dropping[hosted.name] = None
        if not hosted.release_files():
            return False
        try:
            await self._host.close_log(hosted)
            hosted.caught_up = hosted.in_doubt = False
            await self._in_thread(self._folders.drop, hosted.name, hosted.generation)
        except StorageError as error:
            logger.error("the copy of log %s cannot be removed: %s", hosted.name, error)
            return False
        del self._dropping[hosted.name]
        logger.info("replica removed", extra={"log": hosted.name, "generation": hosted.generation})
        return True

    def _supports(self, log: Log) -> bool:
        """Return whether this version supports the log's mode and durability; an open log keeps its
        settings."""
        try:
            LogSettings.of_spec(log.name, log.spec)
        except ValueError as error:
            if log.name not in self.unsupported:
                logger.error("log %s is not supported by this version: %s", log.name, error)
            self.unsupported[log.name] = Unsupported(log, str(error))
            return False
        self.unsupported.pop(log.name, None)
        return True

    async def _add(self, log: Log, *, is_newest: bool) -> bool:
        settings = LogSettings.of_spec(log.name, log.acting_spec, self._raised_from(log))
        is_replica = self._node_id in log.spec.replicas
        try:
            if not is_newest and await self._waits(log, is_replica=is_replica):
                return False
            make = self._folders.prepare if is_replica else self._folders.make_way
            await self._in_thread(make, log.name, log.generation, log.log_id)
            await self._host.add_log(settings, log.log_id, log.generation)
        except StorageError as error:
            logger.error("log %s cannot be opened: %s", log.name, error)
            return False
        logger.info("log opened", extra={"log": log.name, "generation": log.generation})
        return True

    async def _waits(self, log: Log, *, is_replica: bool) -> bool:
        """Return whether a log waits until this node has known the newest metadata.

        Before, as after a crash, they may be older than its folders: the copy of a later log of that name
        must not be removed, and a log that was deleted must not begin again.
        """
        kept = await self._in_thread(self._folders.kept_generation, log.name)
        return is_replica if kept is None else bool(kept != log.generation)

    async def _discard(self, log: Log) -> bool:
        """Remove the copy of a log whose deletion has begun: this node was stopped before it had done so."""
        if await self._in_thread(self._folders.kept_generation, log.name) == log.generation:
            await self._in_thread(self._folders.remove, log.name)
            logger.info("log removed", extra={"log": log.name, "generation": log.generation})
        return True

    async def _remove(self, hosted: HostedLog) -> bool:
        if not hosted.release_files():
            return False
        hosted.deleting = True
        try:
            await self._host.close_log(hosted)
            await self._in_thread(self._folders.remove, hosted.name)
        except StorageError as error:
            logger.error("log %s cannot be removed: %s", hosted.name, error)
            hosted.deleting = False
            return False
        self._dropping.pop(hosted.name, None)
        logger.info("log removed", extra={"log": hosted.name, "generation": hosted.generation})
        return True


def _check_mode(configured: LogSettings, log: Log) -> None:
    known, given = log.spec.replication, configured.replication.value
    check(
        known == given,
        f"log {log.name}: replication cannot be changed from {known} to {given}: restore it in the "
        "configuration file, and create a log of another name for the other mode",
    )
