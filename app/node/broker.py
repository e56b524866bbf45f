"""One node: opens its data folder, runs a driver for each log it keeps, and stops cleanly or at once.

DATA/lock                     held while the node runs: two processes cannot share a folder
DATA/node.json                whose folder it is: cluster and node
DATA/logs/NAME/               the commit log of one log (storage/README.md), and beside it
    vote, checkpoint, state   term and vote (R-01), where a restart begins, the log's state there
DATA/journal/NAME/            what this node has seen of that log
DATA/reserve                  space for what must be written when the disk is full (reserve.py)
DATA/repairing/NAME           the log is damaged, and does not vote (repair/marker.py)
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final

from app.controller.log_state import MetadataLogState
from app.controller.messages import AnyControllerMessage
from app.controller.metadata import CONTROLLER_LOG
from app.errors import (
    CommitlogError,
    InvalidRequest,
    LogDeleting,
    LogNotFound,
    LogUnsupported,
    NoLeader,
)
from app.log.state import Address
from app.node.clock import LoopScheduler, SystemClock
from app.node.descriptors import ha_room_size, peer_room_size
from app.node.disk import DiskThreads
from app.node.hosted_log import HostedLog
from app.node.links.credentials import load_link_security
from app.node.links.handshake import Identity, Purpose
from app.node.links.links import Links
from app.node.metadata.folders import LogFolders
from app.node.metadata.logs import MetadataLogs, Unsupported
from app.node.metadata.service import MetadataService, controller_log
from app.node.network.ha_transport import HaLink, HaTransport, Protocol
from app.node.network.http_forwarder import Forwarder
from app.node.network.node_directory import Directory
from app.node.network.peer_transport import PeerTransport, RetryConfig
from app.node.network.repair_messages import PeerCall
from app.node.node_identity import check_stamp
from app.node.opening.folder_birth import FolderBirth
from app.node.opening.open_replica import open_journal
from app.node.opening.opener import LogOpener
from app.node.repair.log_repair import Damaged
from app.node.repair.registry import Repairs
from app.node.repair.rollbacks import RollBacks
from app.node.repair.scrub import Scrubber
from app.node.replica.driver import LogDriver
from app.node.request_waits import Waits
from app.node.reserve import RESERVE_NAME, Reserve, ReservedFiles, disk_bytes_of
from app.node.retention.clocks import PeerClocks
from app.node.retention.journals import JournalKeeper
from app.node.retention.records import RetentionKeeper
from app.node.services import NodeServices, ReplicaEvents
from app.node.tasks import TaskSupervisor
from app.raft.messages import PushRequest
from app.settings.model import LOG_NAME, LogSettings, NodeSettings, Replication, Settings
from app.telemetry import Meter
from app.version import VERSION
from storage.errors import CorruptFile, CorruptLog, ForeignLog, StorageError
from storage.file_system import FileSystem, Lock
from storage.files import OsFileSystem
from storage.format.batch import log_id_of
from storage.log.journal import Journal
from storage.log.log_folder import MANIFEST_NAME

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S: Final = 10.0
_RETRY_S: Final = 0.1
_REMOVED_RETRY_S: Final = 1.0  # a removed replica may be added again
_POLL_S: Final = 0.01
JOURNAL_TAIL_BYTES: Final = 256 * 1024  # newest events of one log kept in memory


class Broker:
    """The logs of one node and their shared parts: loop, timer, disk threads, peers, forwarder.

    `failed` is done when the node must stop at once (R-11).
    """

    def __init__(self, settings: Settings) -> None:
        disk_bytes = disk_bytes_of(settings.node.data)
        settings = replace(settings, storage=settings.storage.fit_to(disk_bytes))
        self.settings = settings
        self.node: NodeSettings = settings.node
        self.nodes = Directory(settings.nodes)
        self.meter = Meter()
        self.clock = SystemClock()
        self.forwarder = Forwarder(settings.security)
        self.logs: dict[str, HostedLog] = {}
        self.waits = Waits(settings.http.leader_wait_ms)
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[str] = self._loop.create_future()
        self.tasks = TaskSupervisor(self._fail)
        self._data = str(self.node.data.absolute())
        disk_files = OsFileSystem()
        self.reserve = Reserve(disk_files, f"{self._data}/{RESERVE_NAME}", settings.disk.reserve_bytes)
        self.reserve.fit_to(disk_bytes)
        self._files: FileSystem = ReservedFiles(disk_files, self.reserve)
        self._by_id: dict[int, HostedLog] = {}
        self._lock: Lock | None = None
        self._disk = DiskThreads(self._loop, self._fail, settings.disk.threads)
        links = load_link_security(settings.security, self.nodes.host_of)
        self.transport = PeerTransport(
            cluster_id=settings.cluster_id,
            node_id=self.node.id,
            listen=self.node.peer_listen,
            address=self.node.peer_address,
            peers=[(peer.id, peer.peer_address) for peer in settings.nodes if peer.id != self.node.id],
            deliver=self._deliver,
            lost=lambda peer: self.metadata.server.disconnected(peer),
            chance=random.SystemRandom(),
            ha_address=lambda: self.ha_address,
            is_member=lambda peer: any(peer in hosted.members for hosted in self.all_hosted()),
            forget=self.nodes.forget,
            retry=RetryConfig(
                removed_retry_s=settings.raft.removed_retry_ms / 1000,
                removed_forget_s=settings.raft.removed_forget_ms / 1000,
            ),
            links=Links(Identity(settings.cluster_id, self.node.id, Purpose.PEER), links, peer_room_size()),
        )
        self.ha = HaTransport(
            self.node.ha_listen,
            Links(Identity(settings.cluster_id, self.node.id, Purpose.HA), links, ha_room_size()),
        )
        self.repairs = Repairs(
            settings=settings,
            files=self._files,
            disk=self._disk,
            transport=self.transport,
            clock=self.clock,
            chance=random.SystemRandom(),
            logs=self._by_id,
            open_log=self._open,
            serve=self._serve,
            tasks=self.tasks,
            fail=self._fail,
        )
        self.scrubber = Scrubber(settings.scrub, self._files, self._disk, self.repairs.begin)
        services = NodeServices(
            node_id=self.node.id,
            version=VERSION,
            data_folder=self._data,
            files=self._files,
            storage=settings.storage,
            limits=settings.limits,
            clock=self.clock,
            disk=self._disk,
            transport=self.transport,
            scheduler=LoopScheduler(self._loop, self._fail),
            random=random.SystemRandom(),
            fail=self._fail,
            reserve=self.reserve,
        )
        self._opener = LogOpener(
            settings,
            services,
            ha_transport=HaLink(self.ha, self.transport),
            ha_address=lambda: self.ha_address,
            events=self._events_of,
        )
        self.metadata = MetadataService(
            settings=settings,
            files=self._files,
            clock=self.clock,
            disk=self._disk,
            transport=self.transport,
            scheduler=LoopScheduler(self._loop, self._fail),
            random=random.SystemRandom(),
            connected=self.transport.connected,
            find=self.hosted,
            tell=self.repairs.tell,
            fail=self._fail,
        )
        self._rollbacks = RollBacks(
            host=self,
            files=self._files,
            data_folder=self._data,
            storage=settings.storage,
            tell=self.repairs.tell,
            tasks=self.tasks,
            fail=self._fail,
        )
        self._folders = LogFolders(self._files, self._data)
        self._birth = FolderBirth(self._files, self._data, self.repairs.marker_named(CONTROLLER_LOG))
        self._metadata_logs = MetadataLogs(
            node_id=self.node.id, metadata=self.metadata, host=self, folders=self._folders
        )
        self._learned: dict[int, Mapping[str, Address]] = {}  # by log: what was taken from it
        self._timer: asyncio.TimerHandle | None = None

    # --- start and stop ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything and take part. Raises ConfigError, storage.errors.StorageError or OSError."""
        data = self._data
        self._files.make_folders(data)
        self._lock = self._files.lock(f"{data}/lock")
        check_stamp(self._files, f"{data}/node.json", self.settings.cluster_id, self.node.id)
        self.reserve.restore()
        self._folders.finish_removals()
        await self.ha.start()
        self.metadata.hosted = self._host(controller_log(self.settings))
        configured = [self._host(log) for log in self.settings.logs]
        opened = await self._open_all([self.metadata.hosted])
        self._take_known_settings(opened[0][1])
        opened += await self._open_all(configured)
        self._disk.start()
        await self.forwarder.start()
        await self.transport.start()
        for hosted, result in opened:
            if isinstance(result, LogDriver):
                self._serve(hosted, result)
            elif result is not None:
                self.repairs.begin(hosted, result, "start")
        self.tasks.keep("reserve", self.reserve.keep)
        self.tasks.keep("scrub", lambda: self.scrubber.run(self._by_id))
        journals = JournalKeeper(self.settings.journal, self.clock, self._disk, self._fail)
        self.tasks.keep("journal-retention", lambda: journals.run(self.all_hosted))
        clocks = PeerClocks(self.repairs.calls, self.clock)
        retention = RetentionKeeper(self.settings.retention, clocks, self.node.id)
        self.tasks.keep("retention", lambda: retention.run(self.logs))
        await self._metadata_logs.follow()
        self._tick_at = self._loop.time()
        self._tick()
        self.tasks.keep("metadata", self._metadata_logs.run)
        logger.info("node started", extra={"node": self.node.id, "logs": len(self.logs), "data": data})

    async def stop(self) -> None:
        """End cleanly: answer waiting callers, make everything durable, close. Call `begin_stop` before."""
        self.begin_stop()
        await self.metadata.leave()
        logs = self.all_hosted()
        drivers = [hosted.driver for hosted in logs if hosted.driver is not None]
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            stopped = [self._stopped(driver) for driver in drivers]
            await asyncio.gather(*stopped)
            await self._disk.drain()
        if self._timer is not None:
            self._timer.cancel()
        await self.tasks.stop()
        await self.ha.stop()
        await self.transport.stop()
        await self.forwarder.stop()
        self._disk.stop(_STOP_TIMEOUT_S)
        for driver in drivers:
            driver.log.close()
        for hosted in logs:
            if hosted.journal is not None:
                hosted.journal.close()
        if self._lock is not None:
            self._lock.release()
        logger.info("node stopped", extra={"node": self.node.id})

    @property
    def disk_waiting(self) -> int:
        """Number of pieces of work that no disk thread has started yet."""
        return self._disk.waiting

    def begin_stop(self) -> None:
        """End long polls and streams."""
        self.waits.end()
        for hosted in self.all_hosted():
            hosted.wake()

    def _stopped(self, driver: LogDriver) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        driver.stop(lambda: None if done.done() else done.set_result(None))
        return done

    def _fail(self, what: str, error: BaseException) -> None:
        """Report a fatal failure (R-11): the server ends the process without a clean stop."""
        logger.critical("node fails: %s", what, exc_info=error)
        if not self.failed.done():
            self.failed.set_result(f"{what}: {error}")

    def _host(self, settings: LogSettings) -> HostedLog:
        """Register a log."""
        hosted = HostedLog(settings, log_id_of(self.settings.cluster_id, settings.name), None)
        self._by_id[hosted.log_id] = hosted
        if settings.name != CONTROLLER_LOG:
            self.logs[settings.name] = hosted
        return hosted

    async def _open_all(self, logs: list[HostedLog]) -> list[tuple[HostedLog, LogDriver | Damaged | None]]:
        """Open logs and journals in parallel: each waits for the disk often. Raises StorageError."""
        with ThreadPoolExecutor(self.settings.disk.threads, thread_name_prefix="open") as pool:
            opening = [self._loop.run_in_executor(pool, self._open_new, hosted) for hosted in logs]
            await asyncio.wait(opening)
        return [(hosted, opened.result()) for hosted, opened in zip(logs, opening, strict=True)]

    def _take_known_settings(self, controller: LogDriver | Damaged | None) -> None:
        """Open the configured logs with the settings in this node's copy of the metadata."""
        if isinstance(controller, LogDriver) and isinstance(controller.state, MetadataLogState):
            controller.state.committed(controller.committed_index)
            for log in controller.state.metadata:
                if log.generation < 0:
                    self._metadata_logs.follow_configured(log)

    def _find_journal(self, hosted: HostedLog) -> None:
        folder = f"{self._data}/logs/{hosted.name}"
        if self.node.id in hosted.settings.replicas or self._files.exists(folder):  # it joined later
            hosted.journal = self._open_journal(hosted.settings)

    def _add(self, hosted: HostedLog) -> None:
        self.logs[hosted.name] = self._by_id[hosted.log_id] = hosted

    def _open_journal(self, settings: LogSettings) -> Journal:
        storage = replace(
            self.settings.storage,
            segment_max_bytes=min(
                self.settings.storage.segment_max_bytes, self.settings.journal.segment_max_bytes
            ),
            tail_cache_bytes=min(self.settings.storage.tail_cache_bytes, JOURNAL_TAIL_BYTES),
        )
        return open_journal(self._files, self._data, self.node.id, settings.name, storage)

    def _recover(self, hosted: HostedLog) -> LogDriver | Damaged | None:
        """Return the driver of a log that this node keeps, or its damage. Blocks."""
        if hosted.journal is None:
            return None
        marker, folder = self.repairs.marker_of(hosted), f"{self._data}/logs/{hosted.name}"
        hosted.healing = marker.exists
        if hosted.healing and not marker.intact and self._files.exists(f"{folder}/{MANIFEST_NAME}"):
            return CorruptLog(folder, 0, "its repair was cut short")  # opening alone sees no old damage
        try:
            if hosted.healing:
                return self.repairs.open_marked(hosted, sound=marker.keeps_promises)
            driver = self._open(hosted, sound=True)
        except ForeignLog:
            raise  # the address of an unknown node is not used
        except (CorruptLog, CorruptFile) as error:
            return error
        hosted.healing = marker.exists  # the opening may find a reason for doubt
        return driver

    def _open(self, hosted: HostedLog, *, sound: bool, sound_if_alone: bool = False) -> LogDriver:
        """As LogOpener.open."""
        begins = hosted.generation > self._birth.index
        return self._opener.open(hosted, sound=sound, sound_if_alone=sound_if_alone, begins=begins)

    def _events_of(self, hosted: HostedLog) -> ReplicaEvents:
        return ReplicaEvents(
            healed=partial(self._healed, hosted),
            damaged=partial(self.repairs.begin, hosted, found_by="replication"),
        )

    def _healed(self, hosted: HostedLog) -> None:
        """A replica has become sound. The creation time of the folder is saved before that of the metadata
        counts."""
        driver = hosted.driver
        if hosted is self.metadata.hosted and driver is not None:
            self.repairs.healed(hosted, partial(self._birth.save, driver.log.end_index))
        else:
            self.repairs.healed(hosted)

    def _serve(self, hosted: HostedLog, driver: LogDriver) -> None:
        """Start an open log."""
        hosted.opened(driver)
        self._attach(hosted, driver)
        driver.start()
        if hosted.healing and driver.sound:
            self._healed(hosted)
        self.tasks.keep(f"catch-up {hosted.name}", lambda: self._watch_until_caught_up(hosted))

    def _attach(self, hosted: HostedLog, driver: LogDriver) -> None:
        """Let slaves and masters of the log connect, and let its role follow the metadata."""
        settings = hosted.settings
        if settings.replication is Replication.RAFT:
            return
        classic = settings.replication is Replication.CLASSIC
        protocol = Protocol.CLASSIC if classic else Protocol.AUTO_SWITCH
        place = settings.replicas.index(self.node.id) + 1 if self.node.id in settings.replicas else 0
        by_number = self.settings.ha.speaks_by_number(self.ha_address)
        self.ha.attach(
            hosted.log_id,
            protocol,
            driver.deliver,
            place=place,
            by_number=by_number,
            master=lambda: self.transport.peer_ha_address(settings.replicas[0]),
            takes_more=lambda: driver.takes_more,
            replicas=settings.replicas if classic else (),
        )
        if settings.ha_listen is not None and settings.replicas[0] == self.node.id:
            self.tasks.critical(
                f"HA listener of {hosted.name}", self.ha.listen_for(hosted.log_id, settings.ha_listen)
            )
        if hosted.ha is not None:
            self.metadata.managers.attach(
                hosted.name,
                hosted.generation,
                driver,
                hosted.ha,
                self.ha_address,
                lambda: hosted.driver is driver,
            )

    @property
    def ha_address(self) -> str:
        """host:port of this node's listener for slaves, once it is started."""
        return self.node.ha_address or self.ha.address

    # --- while it runs ----------------------------------------------------------------------------------

    def find(self, name: str) -> HostedLog:
        """Return the log of that name. Raises InvalidRequest for an invalid name, LogNotFound,
        LogDeleting, LogUnsupported; NoLeader while this node does not know the metadata."""
        hosted = self.hosted(name)
        if hosted is None:
            if not LOG_NAME.fullmatch(name.removeprefix("__")):
                raise InvalidRequest(("/path/log", f"a log's name is {LOG_NAME.pattern}"))
            if (unsupported := self.unsupported.get(name)) is not None:
                raise LogUnsupported(name, unsupported.reason)
            if not self.metadata.is_current:
                raise NoLeader("this node does not know all logs yet")
            raise LogNotFound(name)
        if hosted.deleting:
            raise LogDeleting(name)
        return hosted

    @property
    def unsupported(self) -> Mapping[str, Unsupported]:
        """Logs of the metadata that this version does not support, by name."""
        return self._metadata_logs.unsupported

    # --- logs that come and go (metadata/logs.py) -------------------------------------------------------

    def hosted(self, name: str) -> HostedLog | None:
        """Return the log of that name, including the log of the metadata."""
        return self.metadata.hosted if name == CONTROLLER_LOG else self.logs.get(name)

    def all_hosted(self) -> list[HostedLog]:
        return [self.metadata.hosted, *self.logs.values()]

    async def add_log(self, settings: LogSettings, log_id: int, generation: int) -> None:
        """Register a log, and keep a replica of it if this node is one of its nodes. Raises StorageError."""
        hosted = HostedLog(settings, log_id, None)
        hosted.generation = generation
        await self._open_replica(hosted, known=False)

    async def open_replica(self, hosted: HostedLog) -> None:
        """Keep a replica of a registered log from now on. Raises StorageError."""
        await self._open_replica(hosted, known=True)

    async def _open_replica(self, hosted: HostedLog, *, known: bool) -> None:
        result = await asyncio.to_thread(self._open_new, hosted)
        if not known:
            self._add(hosted)
        if isinstance(result, LogDriver):
            self._serve(hosted, result)
        elif result is not None:
            self.repairs.begin(hosted, result, "start")

    def _open_new(self, hosted: HostedLog) -> LogDriver | Damaged | None:
        self._find_journal(hosted)
        return self._recover(hosted)

    async def close_log(self, hosted: HostedLog) -> None:
        """End a log's driver at once and close its files; the log stays registered. Raises StorageError."""
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
        self.ha.detach(hosted.log_id)
        self.metadata.managers.detach(hosted.name)
        hosted.wake()
        await self._disk.drain()
        if driver is not None:
            driver.log.close()

    async def reopen(self, hosted: HostedLog) -> None:
        """Open a log again and take part; damage is passed to the repairs. Raises DiskError."""
        result = await asyncio.to_thread(self._recover, hosted)
        if isinstance(result, LogDriver):
            self._serve(hosted, result)
        elif result is not None:
            self.repairs.begin(hosted, result, "start")

    async def known_log(self, name: str) -> HostedLog:
        """Return a log of the metadata, once this node has registered it. Raises LogNotFound, LogDeleting."""
        deadline_s = self._loop.time() + self.settings.http.leader_wait_ms / 1000
        while self.hosted(name) is None and self._loop.time() < deadline_s:
            await self.waits.pause(_POLL_S)
        return self.find(name)

    def forget_log(self, hosted: HostedLog) -> None:
        self.logs.pop(hosted.name, None)
        self._by_id.pop(hosted.log_id, None)

    def _deliver(self, source: str, log_id: int, message: Any) -> None:
        if isinstance(message, AnyControllerMessage):
            self.metadata.take(source, message)
        elif isinstance(message, PeerCall):
            self.repairs.take(source, log_id, message)
        elif (hosted := self._by_id.get(log_id)) is not None and hosted.driver is not None:
            hosted.driver.deliver(source, message)
        elif hosted is not None and hosted.journal is None and isinstance(message, PushRequest):
            self._join(hosted)

    def _join(self, hosted: HostedLog) -> None:
        """A leader counts this node as a member of a log that the configuration does not give it (R-10)."""
        if hosted.deleting:
            return
        if hosted.generation >= 0:
            try:
                self._folders.prepare(hosted.name, hosted.generation)
            except StorageError as error:
                logger.error("log %s cannot be opened: %s", hosted.name, error)
                return
        hosted.journal = self._open_journal(hosted.settings)
        result = self._recover(hosted)
        if isinstance(result, LogDriver):
            self._serve(hosted, result)
        elif result is not None:
            self.repairs.begin(hosted, result, "start")

    def _tick(self) -> None:
        """The one timer of all logs. Late ticks are not repeated. An error in it fails the node."""
        interval_s = self.settings.raft.tick_interval_ms / 1000
        self._tick_at = max(self._tick_at + interval_s, self._loop.time())
        self._timer = self._loop.call_at(self._tick_at, self._tick)
        try:
            for hosted in self.all_hosted():
                if hosted.driver is not None:
                    hosted.driver.tick()
                    hosted.look()
                    self._learn_nodes(hosted.driver)
                    self._rollbacks.look(hosted)
            self.metadata.tick()
        except Exception as error:
            self._fail("timer", error)

    def _learn_nodes(self, driver: LogDriver) -> None:
        """Connect to the members whose addresses are in the log (R-10)."""
        if driver.addresses is not self._learned.get(driver.log_id):
            self._learned[driver.log_id] = driver.addresses
            for node in self.nodes.learn(driver.addresses):
                self.transport.add_peer(node.id, node.peer_address)

    async def _watch_until_caught_up(self, hosted: HostedLog) -> None:
        """A first linearizable read shows that this node knows its leader and has its records."""
        driver = hosted.driver
        while not hosted.caught_up and hosted.driver is driver:
            if hosted.removed:
                await asyncio.sleep(_REMOVED_RETRY_S)
                continue
            with contextlib.suppress(CommitlogError):
                await self.waits.read_index(hosted)
                hosted.caught_up = True
                logger.info("log caught up", extra={"log": hosted.name})
                return
            await asyncio.sleep(_RETRY_S)
