"""One simulated node over all its incarnations: production core, driver, store, state, journal, codec."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from app.api.read.selection import Consistency
from app.errors import CommitlogError
from app.log.commands import Command, CommandResult
from app.log.contract import (
    NO_INDEX,
    AppendRequest,
    AppendResult,
    Durability,
    GroupConfig,
    LogOptions,
    Role,
)
from app.log.events import JournalEvent
from app.node.network.peer_calls import PeerCalls
from app.node.network.repair_messages import FetchRequest, PeerCall, TermRequest
from app.node.opening.open_replica import LogIdentity, open_journal, open_replica
from app.node.opening.replica_modes import RaftMode
from app.node.repair.interfaces import DamagedCopy, FoundDamage, settled_voters
from app.node.repair.log_repair import LogRepair
from app.node.repair.marker import RepairMarker
from app.node.repair.server import RepairServer
from app.node.replica.driver import LogDriver
from app.node.services import NodeServices, ReplicaEvents
from storage.errors import (
    CorruptFile,
    CorruptLog,
    DiskError,
    StorageError,
    StorageFull,
    SyncFailed,
    as_damage,
)
from storage.format.batch import log_id_of
from storage.format.segment_format import DamagedIndex
from storage.log.commitlog import Commitlog
from tests.simulation.raft.groups import AppendGroups
from tests.simulation.raft.reads import CursorDone, NodeReads, PageDone, scrub
from tests.simulation.world.disk import DiskThread
from tests.simulation.world.network import NodeTransport
from tests.simulation.world.promises import Violation
from tests.simulation.world.sick_files import SickFiles, has_intent, tail_bytes
from tests.simulation.world.world import Life, Standstill, WorldClock, WorldScheduler
from tests.simulation.world.world_loop import WorldLoop, in_thread
from tests.support.memory_files import PowerCut

if TYPE_CHECKING:
    from tests.simulation.raft.cluster import SimulatedCluster

LOG_NAME = "default"
LOG_ID = log_id_of("simulation", LOG_NAME)
FOLDER = f"data/logs/{LOG_NAME}"
REVIVAL_US = 1_000_000  # after which a node that stopped by itself is started again


class SimulatedNode:
    """Its disk outlives it. driver, log: of this incarnation, or of the last one while the node is down."""

    driver: LogDriver
    log: Commitlog

    def __init__(self, cluster: SimulatedCluster, name: str) -> None:
        self.name = name
        self.files = SickFiles(Random(cluster.world.random.getrandbits(64)))
        self.clock = WorldClock(cluster.world)
        self.settings = cluster.plan.settings
        self.disk_slowness = 1
        self.may_lack = False  # its disk was replaced or flipped, or lost power; not healed
        self._disk: DiskThread | None = None
        self._cluster = cluster
        self._groups = AppendGroups(self.clock, lambda point: cluster.sometimes.hit(point))
        self._life = Life(name, alive=False)
        self._options = LogOptions(durability=cluster.plan.durability)  # as this node knows them
        self._acks_unsynced = False  # or has done so since its log was opened with `fsync`
        self._disk_hang = Standstill()  # it outlasts a restart
        self._was_full = False  # in this incarnation, and has gone on since
        self._serves = False
        self._marker = RepairMarker(self.files, "data", LOG_NAME)

    @property
    def is_up(self) -> bool:
        """True while the process runs."""
        return self._life.alive

    @property
    def alive(self) -> bool:
        """True while the log is served: the process runs, and no repair is under way."""
        return self._serves and self._life.alive

    @property
    def is_in_doubt(self) -> bool:
        """True if its disk holds the note of a doubt or a repair."""
        return self._marker.exists

    @property
    def is_stalled(self) -> bool:
        return self._life.stall.until_us > self._cluster.world.now_us

    @property
    def has_healthy_disk(self) -> bool:
        """True while the disk works at its usual speed."""
        hangs = self._disk_hang.until_us > self._cluster.world.now_us
        return not (hangs or self.disk_slowness > 1 or self.files.is_ill)

    @property
    def held_index(self) -> int:
        """State that survives every crash: with `replicated` the operating system keeps running."""
        return self.log.end_index if self._acks_unsynced else self.log.durable_index

    # --- incarnations

    def start(self) -> None:
        """Begin an incarnation; a failing disk may put it off, a power failure within recovery too."""
        cluster = self._cluster
        self._life = Life(self.name)
        self._serves = False
        self._was_full = False
        before = tail_bytes(self.files, FOLDER)
        try:
            if has_intent(self.files, FOLDER):
                cluster.sometimes.hit("intent-finished")
            self._start_process()
            if self._marker.exists and not self._marker.intact:
                raise CorruptLog(FOLDER, 0, "a repair was cut short")
            driver = self._open(sound=not self._marker.exists)
        except PowerCut:
            cluster.sometimes.hit("crash-in-recovery")
            self.crash(power=True)
            self._revive()
        except (CorruptLog, CorruptFile) as error:
            self._damaged(error, "start")
        except StorageError as error:
            self.fail("start", error)
        else:
            if self.files.flips:
                cluster.sometimes.hit("flip-harmless")
            if before > tail_bytes(self.files, FOLDER):
                cluster.sometimes.hit("torn-tail-cut")
            self._serve(driver)

    def _start_process(self) -> None:
        """Objects of a node beside its log."""
        cluster, world, life = self._cluster, self._cluster.world, self._life
        transport = NodeTransport(cluster.network, self.name, life)
        self._disk = DiskThread(world, life, cluster.plan.disk, self.fail, self._disk_hang)
        self._disk.slowness = self.disk_slowness
        self._loop = WorldLoop(world, life)
        self._repairing = False
        self._reads = NodeReads(lambda: self.driver if self.alive else None)
        self._calls = PeerCalls(transport, Random(world.random.getrandbits(64)))
        self._server = RepairServer(self.files, self.clock, transport.send, self._report)
        self._journal = open_journal(self.files, "data", self.name, LOG_NAME, self.settings.storage)
        cluster.sometimes.observe(self._journal)
        cluster.network.attach(self.name, life, self._receive)

    def _serve(self, driver: LogDriver) -> None:
        """The log is open: take part."""
        life = self._life
        self.driver, self.log = driver, driver.log
        self._serves, self._repairing, self._acks_unsynced = True, False, False
        self.change_options(self._options)
        if not self._cluster.looks_sound(self, self._cluster.checker.begin_life):
            return  # what opening does not read, the checker does
        try:
            driver.start()
        except PowerCut:
            self.crash(power=True)
            self._revive()
        except StorageError as error:
            self.fail("start", error)
        if life.alive:
            self._tick(life, driver)
            if driver.sound and self._marker.exists:
                self._healed()

    def _open(self, *, sound: bool) -> LogDriver:
        cluster, world, life = self._cluster, self._cluster.world, self._life
        assert self._disk is not None
        services = NodeServices(
            node_id=self.name,
            version="simulated",
            data_folder="data",
            files=self.files,
            storage=self.settings.storage,
            limits=self.settings.limits,
            clock=self.clock,
            disk=self._disk,
            transport=NodeTransport(cluster.network, self.name, life),
            scheduler=WorldScheduler(world, life),
            random=Random(world.random.getrandbits(64)),
            fail=self.fail,
            driver=self.settings.driver,
        )
        log = LogIdentity(name=LOG_NAME, log_id=LOG_ID, durability=self._options.durability)
        group = GroupConfig(voters=cluster.voters)
        mode = RaftMode(
            configured=group,
            config=self.settings.raft,
            preferred_leader=self._options.preferred,
            sound=sound,
        )
        events = ReplicaEvents(healed=self._healed, damaged=partial(self._damaged, found_by="read"))
        return open_replica(services, log, mode, journal=self._journal, events=events).driver

    # --- what goes wrong

    def fail(self, what: str, error: BaseException) -> None:
        """The node gives up: right when its disk fails, a violation otherwise."""
        by_disk = isinstance(error, DiskError) or isinstance(error.__cause__, DiskError)
        if not by_disk or not self.files.is_ill:
            raise Violation(f"{self.name} stopped: {what}: {error!r}") from error
        self._cluster.sometimes.hit("sync-failed" if isinstance(error, SyncFailed) else "disk-error")
        self.crash(power=False)
        self._revive()

    def _report(self, error: StorageError, found_by: str) -> bool:
        damage = as_damage(error)
        if isinstance(damage, CorruptLog):
            self._damaged(damage, found_by)
        return isinstance(damage, CorruptLog)

    def _damaged(self, error: CorruptLog | CorruptFile, found_by: str) -> None:
        """Repair damage that was planted, and what a failing disk does not give; any other is a violation."""
        if not (self.files.flips or self._marker.exists or self.files.is_ill):
            raise Violation(f"{self.name} is damaged: {error!r}") from error
        if self._repairing or not self.is_up:
            return
        cluster = self._cluster
        cluster.sometimes.hit("flip-at-start" if found_by == "start" else "flip-at-read")
        cluster.world.note(f"{self.name} repairs its log: {error}")
        self._repairing = True
        ended = self.driver if self._serves else None
        group = GroupConfig(voters=cluster.voters) if ended is None else ended.group
        if ended is not None:
            self._check_step()
            ended.abandon()
            self._serves = False
        self._mending = LogRepair(
            self,
            DamagedCopy(
                files=self.files,
                folder=FOLDER,
                log_name=LOG_NAME,
                log_id=LOG_ID,
                node_id=self.name,
                voters=group.voters,
                learners=group.learners,
                storage=self.settings.storage,
                marker=self._marker,
                settled_voters=() if ended is None else settled_voters(ended.state),
                is_configured=ended is None,
            ),
            FoundDamage(
                cause=error,
                found_by=found_by,
                sound=not self._marker.exists or self._marker.keeps_promises,
                held_index=NO_INDEX if ended is None else ended.held_index,
            ),
            calls=self._calls,
            clock=self.clock,
        )
        self._loop.create_task(self._repair(ended))

    async def _repair(self, ended: LogDriver | None) -> None:
        """As app.node.repair.registry: once the disk thread has completed its queue, the files are free."""
        assert self._disk is not None
        done = self._loop.create_future()
        self._disk.submit(lambda: None, lambda _result, _error: done.set_result(None))
        await done
        if ended is not None:
            with suppress(StorageError):  # it is not believed any more, so nothing rests on this
                await in_thread(ended.log.close)
        await self._mending.run()

    def find_flip(self, error: CorruptLog) -> None:
        """Damage was found by reading, as the scrub reads."""
        self._damaged(error, "scrub")

    def _healed(self) -> None:
        """The replica holds all that its leader has committed."""
        if not self._marker.intact:
            self._cluster.sometimes.hit("repair-done")
            self.files.forget_repaired()
        if self.may_lack:
            self._hold_all_again()
        assert self._disk is not None
        self._disk.submit(self._marker.remove, self._marker_removed)

    def _hold_all_again(self) -> None:
        self.may_lack = False
        self._cluster.sometimes.hit("caught-up-again")

    def _marker_removed(self, _result: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, StorageFull):
            self.fail("note of a repair", error)

    # app.node.repair.interfaces.RepairHost

    def record(self, event: JournalEvent) -> None:
        try:
            self._journal.append(event.kind, 0, event.data, self.clock.now_ms())
        except StorageFull:
            return
        except DiskError as error:
            self.fail("journal", error)
            return
        assert self._disk is not None
        self._disk.request_sync(self._journal, lambda: None)

    def open_log(self, *, sound: bool) -> LogDriver:
        return self._open(sound=sound)

    def serve(self, driver: LogDriver) -> None:
        if self._mending.result.set_aside:
            self._cluster.sometimes.hit("repair-set-aside")
        self._serve(driver)

    # --- what is done to it

    def _revive(self) -> None:
        self._cluster.world.after(REVIVAL_US, partial(self._cluster.restart, self.name))

    def crash(self, *, power: bool) -> None:
        """kill -9, or a power failure, which takes what no sync has covered where the promise allows it."""
        if self.alive:
            self._check_step()
        self._life.alive = False
        self._cluster.world.note(f"{self.name} is down")
        self._cluster.world.after(0, self._loop.end)
        if power:
            self._lose_power()
        if self._serves:
            self._cluster.checker.end_life(self)

    def _check_step(self) -> None:
        """It ends within a step, in which it may have committed and answered."""
        with suppress(DamagedIndex):  # of a segment that a cut write began: empty
            self._cluster.looks_sound(self, self._cluster.checker.check)

    def close(self) -> None:
        """The run has ended."""
        self._loop.end()

    def _lose_power(self) -> None:
        self.files.power_cut_at = None
        if not self._acks_unsynced:
            self.files.crash()
        elif self._cluster.may_lose_power():
            self.files.crash()
            self.may_lack = True
            self._cluster.sometimes.hit("power-replicated")

    def change_options(self, options: LogOptions) -> None:
        """The node learns of changed settings of the log."""
        self._options = options
        self._acks_unsynced = self._acks_unsynced or options.durability is Durability.REPLICATED
        if self.alive:
            self.driver.change_options(options)

    def stop(self) -> None:
        """A planned stop (R-09); the process ends when it is done."""
        life = self._life

        def done() -> None:
            self._cluster.sometimes.hit("stopped-clean")
            if life.alive:
                self.crash(power=False)

        if self.alive:
            self.driver.stop(done)
        else:
            self.crash(power=False)

    def stall(self, lasting_us: int) -> None:
        """The process does nothing for so long, and then goes on as if nothing had been."""
        term, leads = self.driver.term, self.alive and self.driver.role is Role.LEADER
        world = self._cluster.world
        self._life.stall.extend(world.now_us + lasting_us)
        if leads:

            def woken() -> None:
                leader = self._cluster.leading()
                if leader is not None and self._cluster.members[leader].driver.term > term and self.alive:
                    self._cluster.sometimes.hit("stale-leader-wakes")

            world.after(lasting_us, woken, self._life)

    def slow_disk(self, slowness: int) -> None:
        self.disk_slowness = slowness
        if self._disk is not None:
            self._disk.slowness = slowness

    def hang_disk(self, lasting_us: int) -> None:
        """No work of the disk ends for so long."""
        self._disk_hang.extend(self._cluster.world.now_us + lasting_us)

    def replace_disk(self) -> None:
        """The node, which is down, gets an empty disk."""
        self.files = SickFiles(Random(self._cluster.world.random.getrandbits(64)))
        self._marker = RepairMarker(self.files, "data", LOG_NAME)
        self.may_lack = True

    def copy_disk(self) -> SickFiles:
        """Return a copy of the disk of the node, which is down."""
        copy = SickFiles(Random(self._cluster.world.random.getrandbits(64)))
        self.files.copy_to(copy)
        return copy

    def restore_disk(self, copy: SickFiles) -> None:
        """The node, which is down, gets an older copy of its disk."""
        self.files = copy
        self._marker = RepairMarker(self.files, "data", LOG_NAME)
        self.may_lack = True

    def begin_scrub(self) -> None:
        self._loop.create_task(scrub(self))

    def cure_disk(self) -> None:
        if self.files.space_bytes is not None and self.alive:
            self._was_full = True
        self.files.recover()

    def _receive(self, source: str, log_id: int, message: Any) -> None:
        if isinstance(message, FetchRequest | TermRequest):
            driver = self.driver if self.alive else None
            repaired = self._mending if self._repairing else None
            self._loop.create_task(self._server.answer(source, log_id, driver, message, repaired))
        elif isinstance(message, PeerCall):
            self._calls.answered(source, log_id, message)
        elif self.alive:
            self.driver.deliver(source, message)

    def _tick(self, life: Life, driver: LogDriver) -> None:
        if driver is self.driver and self._serves:
            driver.tick()
            if self.may_lack and driver.sound and not self.files.flips:
                self._hold_all_again()
            tick_us = self.settings.raft.tick_interval_ms * 1_000
            self._cluster.world.after(tick_us, partial(self._tick, life, driver), life)

    # --- the door for clients: a request to a dead node, and the answer of a node that dies, are lost

    def append(self, request: AppendRequest, done: Callable[[AppendResult | CommitlogError], None]) -> None:
        def answered(answer: AppendResult | CommitlogError) -> None:
            self._cluster.checker.answered(self, answer)
            if self._was_full and isinstance(answer, AppendResult):
                self._was_full = False
                self._cluster.sometimes.hit("storage-full-resumed")
            done(answer)

        self._when_awake(lambda: self._groups.append(self.driver, request, answered))

    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None:
        self._when_awake(lambda: self.driver.read_index(done))

    def read_page(self, start_index: int, consistency: Consistency, done: PageDone) -> None:
        self._when_awake(lambda: self._begin_read(partial(self._reads.page, start_index, consistency, done)))

    def read_cursor(self, name: str, done: CursorDone) -> None:
        self._when_awake(lambda: self._begin_read(partial(self._reads.cursor, name, done)))

    def _begin_read(self, read: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._loop.create_task(self._read(read))

    async def _read(self, read: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await read()
        except StorageError as error:
            if not self._report(error, "read") and not self.files.is_ill:
                raise

    def command(self, command: Command, done: Callable[[CommandResult | CommitlogError], None]) -> None:
        self._when_awake(lambda: self.driver.command(command, done))

    def transfer(self, to: str | None) -> None:
        def begin() -> None:
            with suppress(CommitlogError):
                self.driver.transfer(to)

        self._when_awake(begin)

    def _when_awake(self, ask: Callable[[], None]) -> None:
        self._cluster.world.when_awake(self._life, lambda: ask() if self.alive else None)
