"""The logs of a node: opened at the start and later, served, and closed."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from app.controller.metadata import CONTROLLER_LOG
from app.errors import CommitlogError
from app.node.disk import DiskThreads
from app.node.hosted_log import CONFIGURED, HostedLog
from app.node.hosted_logs import HostedLogs
from app.node.hosting.ha_connections import HaConnections
from app.node.hosting.log_journals import LogJournals
from app.node.metadata.folders import LogFolders
from app.node.opening.folder_birth import FolderBirth
from app.node.opening.opener import LogOpener
from app.node.repair.interfaces import Damaged
from app.node.repair.registry import Repairs
from app.node.replica.driver import LogDriver
from app.node.request_waits import Waits
from app.node.services import NodeServices, ReplicaEvents
from app.node.tasks import TaskSupervisor
from app.settings.model import LogSettings, Replication
from storage.errors import CorruptLog, ForeignLog, StorageError, StorageFull, as_damage
from storage.log.log_folder import MANIFEST_NAME

logger = logging.getLogger(__name__)

_RETRY_S: Final = 0.1
_JOIN_RETRY_S: Final = 2.0
_REMOVED_RETRY_S: Final = 1.0  # a removed replica may be added again

OpeningResult = LogDriver | Damaged | StorageFull | None  # None: this node keeps no replica of the log


class NodeLogs:
    """LogHost of metadata/logs.py and RollbackHost of repair/rollbacks.py. Owned by the event loop."""

    def __init__(
        self,
        opener: LogOpener,
        services: NodeServices,
        disk: DiskThreads,
        hosted: HostedLogs,
        journals: LogJournals,
        ha: HaConnections,
        tasks: TaskSupervisor,
        waits: Waits,
    ) -> None:
        self._opener = opener
        self._services = services
        self._disk = disk
        self._hosted = hosted
        self._journals = journals
        self._ha = ha
        self._tasks = tasks
        self._waits = waits
        self.repairs = Repairs(
            services,
            hosted.by_id,
            journals.record,
            disk=disk,
            open_log=self._open,
            predates_folder=self._predates_folder,
            serve=self.serve,
            tasks=tasks,
        )
        marker = self.repairs.marker_named(CONTROLLER_LOG)
        self.folders = LogFolders(services.files, services.data_folder)
        self._join_after_s: dict[int, float] = {}  # by log id: after a replica that could not be opened
        self._birth = FolderBirth(services.files, services.data_folder, marker)

    # --- opening ----------------------------------------------------------------------------------------

    def know_metadata(self, controller: LogDriver) -> None:
        """Before a log of the metadata is opened: an earlier incarnation may have known all that is in their
        log here. The checkpoint of what was committed is seconds older."""
        self._birth.know(max(controller.committed_index, controller.log.end_index))

    async def open_all(self, logs: list[HostedLog], threads: int) -> list[tuple[HostedLog, OpeningResult]]:
        """Open logs and journals side by side: each often waits for the disk. A log without space for its
        opening is opened later, except for that of the metadata. Raises StorageError."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(threads, thread_name_prefix="open") as pool:
            opening = [loop.run_in_executor(pool, self._open_if_room, hosted) for hosted in logs]
            await asyncio.wait(opening)
        return [(hosted, opened.result()) for hosted, opened in zip(logs, opening, strict=True)]

    async def serve_all(self, opened: Iterable[tuple[HostedLog, OpeningResult]]) -> None:
        """Begin with each log in a turn of its own: one takes some milliseconds, and the peers of a node with
        a thousand logs wait for its votes."""
        for hosted, result in opened:
            self._begin(hosted, result)
            await asyncio.sleep(0)

    def _begin(self, hosted: HostedLog, result: OpeningResult) -> None:
        """Take part in a log that is open, begin the repair of a damaged one, or open it once the disk has
        space: until then this task counts as failing."""
        if isinstance(result, LogDriver):
            self.serve(hosted, result)
        elif isinstance(result, StorageFull):
            self._tasks.keep(f"open {hosted.name}", partial(self._open_later, hosted))
        elif result is not None:
            self.repairs.begin(hosted, result, "start")

    async def add_log(self, settings: LogSettings, log_id: int, generation: int) -> None:
        """Register a log, and keep a replica of it if this node is one of its nodes. Raises StorageError."""
        hosted = HostedLog(settings, log_id)
        hosted.generation = generation
        result = await self._open_aside(hosted, self._open_new)
        self._hosted.add(hosted)
        self._begin(hosted, result)

    async def open_replica(self, hosted: HostedLog) -> None:
        """Keep a replica of a registered log from now on, unless it is being opened already. Raises
        StorageError."""
        if hosted.is_opening:
            return
        self._begin(hosted, await self._open_aside(hosted, self._open_new))

    async def reopen(self, hosted: HostedLog) -> None:
        """Open a log again after its rollback and take part. Raises StorageError; damage too, because no
        repair begins before the rollback has ended."""
        result = await asyncio.to_thread(self._recover, hosted)
        if isinstance(result, Damaged):
            raise result
        self._begin(hosted, result)

    def damaged(self, hosted: HostedLog, cause: Damaged) -> None:
        """Begin the repair of a log whose files a rollback has found damaged."""
        self.repairs.begin(hosted, cause, "rollback")

    def join(self, hosted: HostedLog) -> None:
        """Begin to keep a replica of a log that the configuration does not give this node: its leader counts
        this node as a member (R-10). If that is impossible now, a later push of the leader tries again."""
        now_s = asyncio.get_running_loop().time()
        if hosted.deleting or hosted.is_opening or now_s < self._join_after_s.get(hosted.log_id, 0.0):
            return
        hosted.is_opening = True
        self._tasks.once(f"join {hosted.name}", self._join(hosted))

    async def _join(self, hosted: HostedLog) -> None:
        try:
            opened = await self._open_aside(hosted, self._open_joined)
        except StorageError as error:
            self._join_after_s[hosted.log_id] = asyncio.get_running_loop().time() + _JOIN_RETRY_S
            logger.error("log %s cannot be opened: %s", hosted.name, error)
            return
        self._join_after_s.pop(hosted.log_id, None)
        self._begin(hosted, opened)

    def _open_joined(self, hosted: HostedLog) -> OpeningResult:
        """Open the journal and the log in the folder of its generation. Blocks. Raises StorageError."""
        if hosted.generation >= 0:
            self.folders.prepare(hosted.name, hosted.generation, hosted.log_id)
        self._journals.open(hosted)
        return self._recover(hosted)

    async def _open_aside(
        self, hosted: HostedLog, open_log: Callable[[HostedLog], OpeningResult]
    ) -> OpeningResult:
        """Open the journal of a log, then the log, in a thread. Without the log the journal is closed again:
        a log with a journal counts as open, and would not be opened later. Raises StorageError."""
        hosted.is_opening = True
        try:
            return await asyncio.to_thread(open_log, hosted)
        except StorageError:
            with contextlib.suppress(StorageError):
                await self.close_log(hosted)
            raise
        finally:
            hosted.is_opening = False

    async def _open_later(self, hosted: HostedLog) -> None:
        """Open a log that had no space for its opening, unless it was opened meanwhile. Raises
        StorageError."""
        if hosted.journal is None and not (hosted.is_opening or hosted.deleting):
            await self.open_replica(hosted)
            logger.info("log opened", extra={"log": hosted.name})

    def _open_if_room(self, hosted: HostedLog) -> OpeningResult:
        try:
            return self._open_new(hosted)
        except StorageFull as error:
            if hosted is self._hosted.controller:
                raise  # no log of this node works without the metadata
            logger.error("log %s is opened later: %s", hosted.name, error)
            self._close_journal(hosted)
            return error

    def _close_journal(self, hosted: HostedLog) -> None:
        """Let a log that could not be opened count as closed. Nothing was written to its journal yet."""
        journal, hosted.journal = hosted.journal, None
        if journal is not None:
            with contextlib.suppress(StorageError):
                journal.close()

    def _open_new(self, hosted: HostedLog) -> OpeningResult:
        self._journals.open_if_kept(hosted)
        return self._recover(hosted)

    def _recover(self, hosted: HostedLog) -> OpeningResult:
        """Return the driver of a log that this node keeps, or what is damaged in it. Blocks."""
        if hosted.journal is None:
            return None
        services = self._services
        marker, folder = self.repairs.marker_of(hosted), services.log_folder(hosted.name)
        hosted.in_doubt = marker.find()
        if hosted.in_doubt and not marker.intact and services.files.exists(f"{folder}/{MANIFEST_NAME}"):
            return CorruptLog(folder, 0, "its repair was cut short")  # opening alone sees no old damage
        try:
            if hosted.in_doubt:
                return self.repairs.open_marked(hosted, sound=marker.keeps_promises)
            driver = self._open(hosted, sound=True)
        except ForeignLog:
            raise  # no node may write to it
        except StorageError as error:
            damage = as_damage(error)
            if isinstance(damage, Damaged) and damage.path.startswith(folder):
                return damage
            raise
        hosted.in_doubt = marker.exists  # an opening may find a reason for doubt
        return driver

    def _open(self, hosted: HostedLog, *, sound: bool, sound_if_alone: bool = False) -> LogDriver:
        """As LogOpener.open."""
        return self._opener.open(
            hosted,
            self._events_of(hosted),
            sound=sound,
            sound_if_alone=sound_if_alone,
            begins=hosted.generation > self._birth.index,
            predates_folder=self._predates_folder(hosted),
        )

    def _predates_folder(self, hosted: HostedLog) -> bool:
        """Return whether the log is older than the data folder of this node (RaftMode). Blocks."""
        return CONFIGURED < hosted.generation <= self._birth.folder_index

    # --- serving ----------------------------------------------------------------------------------------

    def serve(self, hosted: HostedLog, driver: LogDriver) -> None:
        """Take part in a log that is open."""
        hosted.opened(driver)
        if hosted.settings.replication is not Replication.RAFT:
            self._ha.attach(hosted, driver)
        driver.start()
        if hosted.in_doubt and driver.sound:
            self._healed(hosted)
        self._tasks.keep(f"catch-up {hosted.name}", partial(self._watch_until_caught_up, hosted))

    def _events_of(self, hosted: HostedLog) -> ReplicaEvents:
        return ReplicaEvents(
            healed=partial(self._healed, hosted),
            damaged=partial(self.repairs.begin, hosted, found_by="replication"),
        )

    def _healed(self, hosted: HostedLog) -> None:
        """A replica is sound. That of the metadata counts as sound only once the folder's birth is stored."""
        driver = hosted.driver
        if hosted is self._hosted.controller and driver is not None:
            self.repairs.healed(hosted, partial(self._birth.save, driver.log.end_index))
        else:
            self.repairs.healed(hosted)

    async def _watch_until_caught_up(self, hosted: HostedLog) -> None:
        """A first linearizable read shows that this node knows its leader and has what the leader has."""
        driver = hosted.driver
        while not hosted.caught_up and hosted.driver is driver:
            if hosted.removed:
                await asyncio.sleep(_REMOVED_RETRY_S)
                continue
            with contextlib.suppress(CommitlogError):
                index = await self._waits.read_index(hosted)
                if hosted.driver is not driver:
                    return  # a repair has begun since: what is served after it may be older
                if hosted is self._hosted.controller:
                    self._birth.read(index)
                hosted.caught_up = True
                logger.info("log caught up", extra={"log": hosted.name})
                return
            await asyncio.sleep(_RETRY_S)

    # --- closing ----------------------------------------------------------------------------------------

    async def close_log(self, hosted: HostedLog) -> None:
        """End a log's driver at once and give its files back; the log stays known. Raises StorageError."""
        journal, hosted.journal = hosted.journal, None  # first: no repair begins any more
        try:
            await self.end_driver(hosted)
        finally:
            if journal is not None:
                journal.close()

    async def end_driver(self, hosted: HostedLog) -> None:
        """End a log's driver at once and close the log; its journal stays open. Raises StorageError."""
        driver = hosted.driver
        if driver is not None:
            driver.abandon()
        hosted.driver = hosted.ha = None
        self._ha.detach(hosted)
        hosted.wake()
        await self._disk.lane(hosted.name).drain()
        if driver is not None:
            driver.close()
