"""A group of AutoSwitch replicas in one thread: production core, driver, store, codecs; a scripted controller
(scripted_controller.py); simulated time, disks and connections."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from app.errors import CommitlogError
from app.ha.auto_switch.core import AutoSwitchCore
from app.ha.config import HaConfig
from app.ha.roles import MANAGER
from app.log.contract import NO_INDEX, AppendRequest, AppendResult, Durability, Role
from app.log.driver_interfaces import DriverConfig
from app.node.opening.open_replica import LogIdentity, open_replica
from app.node.opening.replica_modes import AutoSwitchMode
from app.node.repair.ha_loss import roll_back
from app.node.replica.driver import LogDriver
from app.node.services import NodeServices
from storage.errors import StorageError
from storage.format.batch import Batch, log_id_of
from storage.log.commitlog import Commitlog, CommitlogConfig
from tests.simulation.world.disk import DiskThread, DiskTiming
from tests.simulation.world.world import Life, NothingDue, Standstill, World, WorldClock, WorldScheduler
from tests.support.committed import broken_promise, values_in_receipts
from tests.support.memory_files import MemoryFiles
from tests.unit.ha.clients import Client, Ledger
from tests.unit.ha.scripted_controller import Controller
from tests.unit.ha.streams import StreamNetwork

LOG_NAME = "default"
LOG_ID = log_id_of("ha", LOG_NAME)
TICK_US = 20_000
QUICK = HaConfig(
    ha_send_heartbeat_interval_ms=60,
    ha_housekeeping_interval_ms=400,
    ha_max_time_slave_not_catchup_ms=400,
    ha_reconnect_interval_ms=60,
    ha_handshake_timeout_ms=400,
    ha_transfer_batch_size=1024,
    ha_window_bytes=4096,
)


class Violation(AssertionError):
    """The group broke a promise; the seed replays it."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    max_pending_requests: int = 1_000
    max_pending_bytes: int = 16 * 1024 * 1024
    max_idempotency_keys: int = 100_000
    max_producers: int = 10_000
    max_cursors: int = 1_000
    idempotency_ms: int = 24 * 60 * 60 * 1000


class Node:
    """One replica over all its incarnations; its disk outlives them."""

    driver: LogDriver
    core: AutoSwitchCore
    log: Commitlog

    def __init__(self, group: "Group", name: str) -> None:
        self.name = name
        self.files = MemoryFiles(Random(group.world.random.getrandbits(64)))
        self.life = Life(name, alive=False)
        self.sound = True  # at the next start: nothing that it acknowledged may be missing
        self._group = group

    @property
    def alive(self) -> bool:
        return self.life.alive

    @property
    def held_index(self) -> int:
        return self.log.durable_index if self._group.fsync else self.log.end_index

    def start(self) -> None:
        group = self._group
        life = self.life = Life(self.name)
        host = group.network.attach(
            self.name, life, lambda source, message: self.driver.deliver(source, message)
        )
        world = group.world
        services = NodeServices(
            node_id=self.name,
            version="simulated",
            data_folder="data",
            files=self.files,
            storage=CommitlogConfig(segment_max_bytes=16 * 1024, mark_interval_bytes=8 * 1024),
            limits=Limits(),
            clock=WorldClock(world),
            disk=DiskThread(world, life, group.disk, self._fail, Standstill()),
            transport=host,
            scheduler=WorldScheduler(world, life),
            random=Random(world.random.getrandbits(64)),
            fail=self._fail,
            driver=DriverConfig(snapshot_interval_ms=2_000, checkpoint_interval_ms=300),
        )
        log = LogIdentity(name=LOG_NAME, log_id=LOG_ID, durability=group.durability)
        mode = AutoSwitchMode(
            replicas=group.names,
            config=group.config,
            address=self.name,
            min_in_sync_replicas=group.min_in_sync,
            sound=self.sound,
        )
        try:
            opened = open_replica(services, log, mode)
        except StorageError as error:
            raise Violation(f"{self.name} cannot come back: {error!r}") from error
        self.driver, self.core, self.log = opened.driver, opened.core, opened.driver.log
        self.driver.start()
        self._tick(life)

    def _tick(self, life: Life) -> None:
        if life.alive:
            self.driver.tick()
            self._group.world.after(TICK_US, lambda: self._tick(life), life)

    def _fail(self, what: str, error: BaseException) -> None:
        raise Violation(f"{self.name} stopped: {what}: {error!r}") from error

    def crash(self) -> None:
        """kill -9, and with `fsync` every other time a power cut too."""
        self.life.alive = False
        self._group.network.crashed(self.name)
        if self._group.fsync and self._group.world.random.random() < 0.5:
            self.files.crash()

    def roll_back(self) -> None:
        """The node's reaction when its core has confirmed records that an unclean election lost."""
        rollback = self.core.wanted_rollback
        assert rollback is not None
        self._group.rollbacks += 1
        self.life.alive = False
        self._group.network.crashed(self.name)
        self.log.close()
        roll_back(self.files, "data", LOG_NAME, log_id=LOG_ID, storage=CommitlogConfig(), rollback=rollback)
        self.start()

    def receipts(self) -> list[str]:
        """The values in all receipts of this node."""
        return values_in_receipts(self.files, LOG_NAME)

    def tell(self, message: object) -> None:
        self.driver.deliver(MANAGER, message)

    def append(self, request: AppendRequest, done: Callable[[AppendResult | CommitlogError], None]) -> None:
        if self.alive:
            self.driver.append(request, done)

    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None:
        if self.alive:
            self.driver.read_index(done)


class Group:
    """`run` lets it live, `settle` heals it and proves that everything acknowledged is there, everywhere."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 3,
        clients: int = 3,
        durability: Durability = Durability.FSYNC,
        faults: bool = True,
        min_in_sync: int = 1,
        learners: tuple[str, ...] = (),
        config: HaConfig = QUICK,
        unclean: bool = False,
    ) -> None:
        """unclean: the controller elects any living replica when no member of the set is alive (C-05)."""
        self.world = World(seed)
        self.config = config
        self.durability = durability
        self.fsync = durability is Durability.FSYNC
        self.min_in_sync = min_in_sync
        self.disk = DiskTiming(slow_us=60_000)
        self.network = StreamNetwork(self.world)
        self.unclean = unclean
        self.names = tuple(f"n{number + 1}" for number in range(nodes))
        self.nodes = {name: Node(self, name) for name in self.names}
        self.ledger = Ledger(loses=unclean)
        self.controller = Controller(self, never_in_set=dict.fromkeys(learners))
        self.truncations = 0
        self.rollbacks = 0
        self.receipts: dict[str, None] = {}  # values that were written down before they went
        self._faults = faults
        self._committed: dict[int, Batch] = {}  # by base index
        self._committed_index = NO_INDEX
        self._seen: dict[str, tuple[Life, int, int]] = {}  # life, committed index, end index
        self._masters: dict[int, str] = {}
        for node in self.nodes.values():
            node.start()
        doors = list(self.nodes.values())
        for number in range(clients):
            Client(f"c{number}", self.world, doors, self.ledger).start()
        self.controller.start()
        if faults:
            self.world.after(1_000_000, self._strike)

    # --- faults --------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        if not self._faults:
            return
        chance = self.world.random
        self.world.after(chance.randint(30_000, 900_000), self._strike)
        name = chance.choice(self.names)
        lasting_us = chance.randint(20_000, 1_500_000)
        kind = chance.choices(
            ["crash", "crash_all", "cut", "isolate", "operator", "line"], weights=[4, 1, 3, 2, 3, 2]
        )[0]
        self.world.note(f"{kind} {name}")
        if kind == "crash":
            self._down(name, lasting_us)
        elif kind == "crash_all":
            for each in self.names:
                self._down(each, lasting_us)
        elif kind == "cut":  # from its controller only
            self.controller.cut[name] = None
            self.world.after(lasting_us, lambda: self.controller.cut.pop(name, None) and None)
        elif kind == "isolate":
            self.controller.cut[name] = None
            for other in self.names:
                self.network.cuts[name, other] = None
            self.world.after(lasting_us, self._mend)
        elif kind == "line":
            other = chance.choice(self.names)
            self.network.cuts[name, other] = None
            self.world.after(lasting_us, self._mend)
        else:
            self.controller.hand_over(name)

    def _mend(self) -> None:
        self.network.heal()
        self.controller.cut.clear()

    def _down(self, name: str, lasting_us: int) -> None:
        node = self.nodes[name]
        if node.alive:
            node.crash()
            self.world.after(lasting_us, lambda: None if node.alive else node.start())

    # --- running -------------------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        self.run_until(lambda: False, seconds)

    def run_until(self, done: Callable[[], bool], seconds: float) -> bool:
        """Live until done() or for so many simulated seconds; whether it was done. Raises Violation."""
        limit_us = self.world.now_us + int(seconds * 1_000_000)
        highest = self.ledger.highest_index
        while not done():
            try:
                life = self.world.step(limit_us)
            except NothingDue:
                return False
            if life is not None:
                self._check(self.nodes[life.name])
            if self.ledger.violation is not None:
                raise Violation(self.ledger.violation)
            if self.ledger.highest_index > highest:
                highest = self.ledger.highest_index
                self._check_held_by_the_set(highest)
        return True

    def settle(self, seconds: float = 20) -> None:
        """End all faults; soon every replica holds and has confirmed what was acknowledged, all the same."""
        self._faults = False
        self._mend()
        for node in self.nodes.values():
            if not node.alive:
                node.start()
        promised = dict(self.ledger.acknowledged)
        target = self.ledger.highest_index

        def even() -> bool:
            return all(node.driver.committed_index >= target for node in self.nodes.values())

        if not self.run_until(even, seconds):
            ends = {name: (n.driver.committed_index, n.log.end_index) for name, n in self.nodes.items()}
            raise Violation(f"not even: {ends}, {target} was acknowledged")
        if len({node.log.batch_at(target).header.chain for node in self.nodes.values()}) > 1:
            raise Violation(f"the logs differ at {target}")
        for node in self.nodes.values():
            self.receipts.update(dict.fromkeys(node.receipts()))
        for node in self.nodes.values():
            self._check_acknowledged(node, promised)

    # --- what must hold ------------------------------------------------------------------------------------

    def _check(self, node: Node) -> None:
        """After each thing that a node does."""
        if node.core.wanted_rollback is not None:
            node.roll_back()
        committed_index = node.driver.committed_index
        life, before, end_before = self._seen.get(node.name, (node.life, NO_INDEX, NO_INDEX))
        if life is node.life and committed_index < before:
            raise Violation(f"{node.name}: committed index fell from {before} to {committed_index}")
        if committed_index > node.log.end_index:
            raise Violation(f"{node.name}: {committed_index} committed past its end")
        if node.log.end_index < end_before:
            self.truncations += 1
        self._seen[node.name] = (node.life, committed_index, node.log.end_index)
        if life is not node.life or committed_index > before:
            self._check_committed(node, committed_index)
        if node.driver.role is Role.MASTER:
            owner = self._masters.setdefault(node.driver.term, node.name)
            if owner != node.name:
                raise Violation(f"epoch {node.driver.term} has two masters: {owner}, {node.name}")
            current = node.core.accepts_appends and node.driver.term == self.controller.epoch
            if current and node.log.end_index < self._committed_index:
                raise Violation(f"{node.name} is master without {self._committed_index}")

    def _check_committed(self, node: Node, committed_index: int) -> None:
        """Check that a record confirmed by one replica never changes on any."""
        index = max(min(self._committed_index + 1, committed_index), 0)
        while index <= committed_index and not self.unclean:
            batch = node.log.batch_at(index)
            known = self._committed.setdefault(batch.base_index, batch)
            if known != batch:
                raise Violation(f"{node.name}: confirmed {batch}, but {known} was confirmed before")
            index = batch.next_index
        if not self.unclean:
            self._committed_index = max(self._committed_index, committed_index)

    def _check_held_by_the_set(self, index: int) -> None:
        """An ack means that every member of the set has it, as durably as the log asks (C-12)."""
        for name in () if self.unclean else self.controller.members:
            if self.nodes[name].held_index < index:
                raise Violation(
                    f"{index} was acknowledged, {name} of the set {self.controller.members} lacks it"
                )

    def _check_acknowledged(self, node: Node, promised: dict[str, int]) -> None:
        problem = broken_promise(
            node.name,
            node.log,
            node.driver.committed_index,
            self._committed,
            promised,
            lambda value: self.unclean and value in self.receipts,
        )
        if problem is not None:
            raise Violation(problem)
