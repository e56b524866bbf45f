"""A whole cluster in one thread, and what happens to it."""

from collections.abc import Callable, Sequence
from random import Random

from app.log.contract import NO_INDEX, Role
from storage.errors import CorruptLog, DiskError
from tests.simulation.raft.checks import SafetyChecker
from tests.simulation.raft.clients import Client, Ledger, OneShotClient, ProducingClient, Reader
from tests.simulation.raft.faults import CLOCK_JUMP_MS, Fault, Nemesis, draw_faults
from tests.simulation.raft.liveness import LivenessChecker
from tests.simulation.raft.node import FOLDER, SimulatedNode
from tests.simulation.raft.operators import Operator
from tests.simulation.raft.plans import SWITCHED_OFF, ClusterPlan, draw_settings
from tests.simulation.raft.sometimes import Sometimes
from tests.simulation.world.network import Network
from tests.simulation.world.promises import Violation
from tests.simulation.world.world import NothingDue, World
from tests.support.memory_files import PowerCut

SECOND_US = 1_000_000
SETTLE_S = 30  # a leader, repairs and all that a node lacks; 4.6 s is the longest of 40 seeds
KINDS = (Client, ProducingClient, Client, OneShotClient)  # of clients, in turn
LOOK_EVERY = 64  # steps, when settling


class SimulatedCluster:
    """`run` lets it live under faults, `settle` heals it. Raises Violation as soon as a promise is broken."""

    def __init__(
        self,
        seed: int,
        plan: ClusterPlan | None = None,
        *,
        seconds: float = 0,
        only: Sequence[int] | None = None,
        tell: bool = False,
    ) -> None:
        """seconds: for how long faults are drawn. only: the numbers of those that happen, None: all."""
        self.plan = plan or ClusterPlan(faults=None)
        self.world = World(seed, tell=tell)
        self.names = tuple(f"n{number + 1}" for number in range(self.plan.nodes + self.plan.spares))
        self.voters = self.names[: self.plan.nodes]
        self.nodes: dict[str, SimulatedNode] = {}
        self.sometimes = Sometimes(self.nodes)
        self.network = Network(
            self.world, self.plan.links, self.sometimes.message, lambda: self.sometimes.hit("late-frame")
        )
        self.checker = SafetyChecker(self.nodes, self.sometimes)
        self.ledger = Ledger(
            self.checker, self.sometimes, self.plan.idempotency_ms, reads_cursors=self.plan.reads_cursors
        )
        self.faults = self._draw(seed, seconds, only)
        jump_ms = CLOCK_JUMP_MS if self.plan.faults is None else self.plan.faults.clock_jump_ms
        self.nemesis = Nemesis(self.world, self, self.faults, jump_ms)
        self.nodes.update({name: SimulatedNode(self, name) for name in self.names})
        self.members = list(self.nodes.values())
        self.operator = Operator(self.world, self.members, self)
        self.liveness = LivenessChecker(
            self.world, self.nodes, self.network, within_us=self.plan.leader_within_us
        )
        self.liveness.start()
        for node in self.members:
            node.start()
        for number in range(self.plan.clients):
            kind = KINDS[number % len(KINDS)]
            kind(f"c{number}", self.world, self.members, self.ledger, self.plan.think_us).start()
        if self.plan.read_pause_us is not None:
            Reader(self.world, self.members, self.ledger, self.plan.read_pause_us).start()
        self.nemesis.start()

    def _draw(self, seed: int, seconds: float, only: Sequence[int] | None) -> list[Fault]:
        if self.plan.faults is None:
            return []
        faults = draw_faults(Random(seed), self.plan.faults, len(self.names), int(seconds * SECOND_US))
        return faults if only is None else [faults[number] for number in only]

    # --- what the nemesis does

    def leading(self) -> int | None:
        """The number of the living leader of the newest term."""
        leaders = [
            (node.driver.term, number)
            for number, node in enumerate(self.members)
            if node.alive and node.driver.role is Role.LEADER
        ]
        return max(leaders)[1] if leaders else None

    def is_up(self, name: str) -> bool:
        return self.nodes[name].is_up

    def crash(self, name: str, *, power: bool) -> None:
        self.nodes[name].crash(power=power)

    def cut_power_amid(self, name: str, operations: int) -> None:
        """The power of the node fails that many operations of its disk from now."""
        files = self.nodes[name].files
        files.power_cut_at = files.operations + operations

    def restart(self, name: str) -> None:
        if not self.is_up(name):
            self.world.note(f"restart {name}")
            self.nodes[name].start()

    def stop(self, name: str) -> None:
        self.nodes[name].stop()

    def stall(self, name: str, lasting_us: int) -> None:
        if self.is_up(name):
            self.nodes[name].stall(lasting_us)

    def jump_clock(self, name: str, skew_ms: int) -> None:
        self.nodes[name].clock.skew_ms = skew_ms

    def slow_disk(self, name: str, slowness: int) -> None:
        self.nodes[name].slow_disk(slowness)

    def sicken_disk(self, name: str, kind: str, dice: int) -> None:
        self.nodes[name].files.sicken(kind, dice)

    def cure_disk(self, name: str) -> None:
        self.nodes[name].cure_disk()

    def quieten(self, lasting_us: int) -> None:
        """Let no client begin anything for so long."""
        self.ledger.quiet_until_us = self.world.now_us + lasting_us

    def set_clock_rate(self, name: str, rate: float) -> None:
        self.nodes[name].clock.set_rate(rate)

    def hang_disk(self, name: str, lasting_us: int) -> None:
        self.nodes[name].hang_disk(lasting_us)

    def flip(self, name: str, dice: int) -> bool:
        """Flip a bit of a node that goes down for it, unless another disk may lack something already."""
        if self.nodes[name].files.is_ill or not self.may_lose_disk() or not self.is_up(name):
            return False
        self.crash(name, power=True)
        return self.nodes[name].files.flip(FOLDER, dice) is not None

    def flip_running(self, name: str, dice: int) -> bool:
        """Flip a bit of what is durable at a node that goes on, unless another disk may lack something."""
        node = self.nodes[name]
        if node.files.is_ill or not self.may_lose_disk() or not node.alive:
            return False
        flip = node.files.flip(FOLDER, dice)
        if flip is not None:
            self.world.note(f"{name}: {flip}")
            self.sometimes.hit("flip-running")
        return flip is not None

    def replace_disk(self, name: str) -> bool:
        """Give a node an empty disk, if that is the only one that may lack something."""
        if not self.may_lose_disk():
            return False
        if self.is_up(name):
            self.crash(name, power=True)
        self.nodes[name].replace_disk()
        self.sometimes.hit("disk-replaced")
        return True

    def copy_disk(self, name: str) -> Callable[[], bool]:
        """Copy the disk of a node that is down; return what puts the copy back in its place later."""
        copy = self.nodes[name].copy_disk()
        if self.nodes[name].files.flips:
            return lambda: False

        def restore() -> bool:
            if not self.may_lose_disk():
                return False
            if self.is_up(name):
                self.crash(name, power=True)
            self.nodes[name].restore_disk(copy)
            self.sometimes.hit("copy-restored")
            return True

        return restore

    def reconfigure(self, name: str, random: Random) -> None:
        self.nodes[name].settings = draw_settings(self.plan, random)

    def scrub(self, name: str) -> bool:
        node = self.nodes[name]
        if node.alive:
            node.begin_scrub()
        return node.alive

    def is_whole(self) -> bool:
        """Return True if every disk holds what its node has acknowledged and the state before its beginning,
        and no voter is in doubt.

        At the first start all are in doubt, and with one damaged disk more they could not elect a leader."""
        voters, _ = self.group()
        in_doubt = any(self.nodes[name].is_in_doubt for name in voters)
        return not (in_doubt or any(map(_may_lack, self.members)))

    def may_lose_power(self) -> bool:
        """Return True if a node may lose what it never synced, with `replicated`: one at a time."""
        return "power_replicated" not in SWITCHED_OFF and self.may_lose_disk()

    def may_lose_disk(self) -> bool:
        """Return True if one disk may be lost now: all others are whole, of three voters or more."""
        voters = [set(node.driver.group.voters) for node in self.members]
        return self.is_whole() and min(map(len, voters)) >= 3 and not self.operator.is_resizing

    def operate(self, kind: str, random: Random) -> bool:
        return self.operator.act(kind, random)

    def group(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Voters and learners, as the leader knows them."""
        leader = self.leading()
        membership = None if leader is None else self.members[leader].driver.state.membership
        return (self.voters, ()) if membership is None else (membership.voters, membership.learners)

    # --- time

    def run(self, seconds: float) -> None:
        """Live for so many simulated seconds. Raises Violation."""
        limit_us = self.world.now_us + int(seconds * SECOND_US)
        while self._step(limit_us):
            pass

    def settle(self, within_seconds: float = SETTLE_S) -> None:
        """End all faults; within that time every node has committed all that was promised, and holds it."""
        self.nemesis.stop()
        self.operator.stop()
        target = self.ledger.highest_index
        limit_us = self.world.now_us + int(within_seconds * SECOND_US)
        while not self._settled(target) or self._finds_flip():
            if not all(self._step(limit_us) for _ in range(LOOK_EVERY)):
                if (node := self._half_removed()) is not None:
                    self._empty(node)
                    limit_us = self.world.now_us + int(within_seconds * SECOND_US)
                    continue
                late = [
                    f"{node.name} ({'up' if node.alive else 'down'}) has {node.driver.committed_index}"
                    for node in self.members
                ]
                raise Violation(f"{self.group()} have not caught up with {target}: {', '.join(late)}")
        self.ledger.verify()
        self.ledger.verify_refusals()

    def close(self) -> None:
        """End every process; nothing more can be done with this cluster."""
        for node in self.members:
            node.close()

    def _half_removed(self) -> SimulatedNode | None:
        """Return the node that keeps all others from leading: its log is the newest, its removal is in it and
        not committed, and too few of the others are sound to elect it (docs/design.md, section 4)."""
        if self.leading() is not None:
            return None
        for node in self.members:
            voters = node.driver.group.voters
            sound = sum(self.nodes[name].driver.sound for name in voters)
            if node.name not in voters and 2 * sound <= len(voters):
                return node
        return None

    def _empty(self, node: SimulatedNode) -> None:
        """Start a half removed node without its copy (docs/operations.md, section 7)."""
        self.crash(node.name, power=True)
        node.replace_disk()
        self.restart(node.name)
        self.world.note(f"{node.name} was half removed: its copy is taken away")

    def _settled(self, target: int) -> bool:
        voters, learners = self.group()
        if self.leading() is None:
            return False
        if self.checker.fence is not None:
            self.operator.lift_fence()
            return False
        nodes = [self.nodes[name] for name in (*voters, *learners)]
        return all(
            node.alive and node.driver.sound and node.driver.committed_index >= target for node in nodes
        )

    def _step(self, limit_us: int) -> bool:
        """Do one thing and check what came of it; False when nothing more is due."""
        world = self.world
        try:
            life = world.step(limit_us)
        except NothingDue:
            return False
        except PowerCut:
            self._power_failed()
            return True
        if life is not None and (node := self.nodes[life.name]).alive:
            self.looks_sound(node, self.checker.check)
        if self.ledger.news:
            self.ledger.verify()
        return True

    def looks_sound(self, node: SimulatedNode, look: Callable[[SimulatedNode], None]) -> bool:
        """Look at a node: its disk's errors are not for us, what has rotted is found; whether nothing has."""
        try:
            look(node)
        except CorruptLog as error:
            node.find_flip(error)
            return False
        except DiskError:
            ill = [(each.files, each.files.refuse) for each in self.members]
            if all(refuse is None for _, refuse in ill):
                raise
            for files, _ in ill:
                files.refuse = None
            sound = self.looks_sound(node, look)
            for files, refuse in ill:
                files.refuse = refuse
            return sound
        return True

    def _power_failed(self) -> None:
        """The power of a node has failed in the middle of a step."""
        for node in self.members:
            if node.files.power_cut_at == node.files.operations:
                node.files.power_cut_at = None
                node.crash(power=True)

    def _finds_flip(self) -> bool:
        """Read all that is committed, where a bit has rotted and at one node more; whether that found it."""
        chosen = int(self.world.random.random() * len(self.members))
        for number, node in enumerate(self.members):
            if not node.alive or not (node.files.flips or number == chosen):
                continue  # not alive: a spare that no leader knows of, which no peer can repair
            try:
                self._check_committed(node)
            except CorruptLog as error:
                node.find_flip(error)
                return True
        return False

    def _check_committed(self, node: SimulatedNode) -> None:
        """Batch by batch, from the disk: what is committed at the node is what was ever committed."""
        index = node.log.begin_index
        if index == NO_INDEX:
            return  # empty: new, or since a reset
        while index <= node.driver.committed_index:
            batch = node.log.batch_at(index)
            if self.checker.committed.get(batch.base_index) != batch:
                raise Violation(f"{node.name}: {batch} is not what was committed there")
            index = batch.next_index


def _may_lack(node: SimulatedNode) -> bool:
    """True if the node may lack records that it acknowledged, or lacks the state of the trimmed ones."""
    lacks_state = node.driver.state.applied_index < node.log.first_index - 1
    return bool(node.files.flips) or node.may_lack or lacks_state
