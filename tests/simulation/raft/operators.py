"""A simulated operator: hands the lead over, changes the members, trims, fences, sets schemas, under load."""

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Protocol

from app.errors import CommitlogError, Fenced
from app.log.commands import ChangeMembers, Command, CommandResult, SetFence, Trim
from app.log.contract import ChangeKind, Durability, LogOptions
from app.log.control_records import SchemaRecord
from app.log.set_schema import SetSchema
from tests.simulation.raft.checks import SafetyChecker
from tests.simulation.raft.sometimes import Sometimes
from tests.simulation.world.world import World

KEPT_RECORDS = 20  # that a trim leaves at least
FENCE_US = 500_000  # for how long a fence stands
VOTERS_MIN = 3
RESIZE_STEP_US = 400_000
RESIZE_STEPS = 40  # then it is given up
FORCED_SHARE = 0.3  # of the trims
OPTIONS_KNOWN_US = 10_000_000  # until when every node knows changed settings
TOKEN = "token"

CommandAnswer = CommandResult | CommitlogError


class Operated(Protocol):
    """A node as the operator reaches it; nothing is answered while it is down."""

    @property
    def name(self) -> str: ...
    def command(self, command: Command, done: Callable[[CommandAnswer], None]) -> None: ...
    def transfer(self, to: str | None) -> None: ...
    def change_options(self, options: LogOptions) -> None: ...


class Cluster(Protocol):
    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def checker(self) -> SafetyChecker: ...
    @property
    def sometimes(self) -> Sometimes: ...
    def leading(self) -> int | None: ...
    def group(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Voters and learners, as the leader knows them."""
        ...

    def is_whole(self) -> bool:
        """True if every disk holds what its node has acknowledged: a group of one loses nothing."""
        ...


class Operator:
    """Carry out one operation at the leader, as the nemesis chooses; a refused one is not repeated."""

    def __init__(self, world: World, nodes: Sequence[Operated], cluster: Cluster) -> None:
        self._world = world
        self._nodes = nodes
        self._cluster = cluster
        self._actions: dict[str, Callable[[Operated, Random], bool | None]] = {
            "transfer": self._transfer,
            "trim": self._trim,
            "fence": self._fence,
            "change": self._change,
            "trim_all": self._trim_all,
            "resize": self._resize,
            "remove_leader": self._remove_leader,
            "set_schema": self._set_schema,
            "options": self._change_options,
        }
        self._schemas = 0  # that were asked for
        self._target: tuple[str, ...] | None = None  # voters of the resize that is under way

    def act(self, kind: str, random: Random) -> bool:
        """Return True if there was a leader to ask. random: source of the remaining choices."""
        leader = self._cluster.leading()
        if leader is None:
            return False
        return self._actions[kind](self._nodes[leader], random) is not False

    @property
    def is_resizing(self) -> bool:
        """Return True if a group smaller than VOTERS_MIN is under way."""
        return self._target is not None and len(self._target) < VOTERS_MIN

    def _transfer(self, node: Operated, random: Random) -> None:
        node.transfer(random.choice((None, *self._cluster.names)))

    def _trim(self, node: Operated, random: Random) -> None:
        committed_index = self._cluster.checker.committed_index
        until_index = random.randrange(max(1, committed_index - KEPT_RECORDS))
        self._command(node, Trim(until_index, force=random.random() < FORCED_SHARE), "trimmed")

    def _trim_all(self, node: Operated, _random: Random) -> None:
        """Up to the end: what stays is the record of the trim."""
        self._command(node, Trim(self._cluster.checker.committed_index + 1), "trimmed-all")

    def _remove_leader(self, node: Operated, _random: Random) -> bool:
        voters, _ = self._cluster.group()
        if len(voters) <= VOTERS_MIN and not self._cluster.is_whole():
            return False
        if len(voters) < 2:
            return False
        self._command(node, ChangeMembers(ChangeKind.REMOVE, node.name), "leader-removed")
        return True

    def _resize(self, _node: Operated, random: Random) -> bool:
        """Shrink the group, or grow it to all nodes, one change after the other."""
        voters, _ = self._cluster.group()
        names = self._cluster.names
        if self._target is not None or len(names) < 2:
            return False
        if len(voters) < VOTERS_MIN:
            self._target = names
        else:
            size = random.choice((1, 1, 2, len(names)))
            self._target = names if size == len(names) else tuple(random.sample(voters, size))
        self._step_resize(RESIZE_STEPS)
        return True

    def _step_resize(self, steps: int) -> None:
        target = self._target
        if target is None:
            return
        voters, learners = self._cluster.group()
        shrinks = len(target) < VOTERS_MIN
        if not steps or (shrinks and not self._cluster.is_whole()):
            self._target = None
            return
        if set(voters) == set(target) and not learners:
            self._target = None
            point = "grown-to-all" if len(target) == len(self._cluster.names) else "shrunk"
            self._cluster.sometimes.hit("shrunk-to-one" if len(target) == 1 else point)
            return
        leader = self._cluster.leading()
        change = self._next_change(target, voters, learners)
        if leader is not None and change is not None:
            self._command(self._nodes[leader], change, "member-changed")
        self._world.after(RESIZE_STEP_US, partial(self._step_resize, steps - 1))

    @staticmethod
    def _next_change(
        target: Sequence[str], voters: Sequence[str], learners: Sequence[str]
    ) -> ChangeMembers | None:
        for name in target:
            if name in learners:
                return ChangeMembers(ChangeKind.PROMOTE, name)
            if name not in voters:
                return ChangeMembers(ChangeKind.ADD, name)
        surplus = [name for name in (*learners, *voters) if name not in target]
        return ChangeMembers(ChangeKind.REMOVE, surplus[0]) if surplus else None

    def stop(self) -> None:
        """Give up a resize that is under way."""
        self._target = None

    def _fence(self, node: Operated, _random: Random) -> None:
        self._command(node, SetFence(TOKEN), "fenced")
        self._world.after(FENCE_US, self._lift_fence)

    def _lift_fence(self) -> None:
        self.lift_fence()
        self._world.after(FENCE_US, self.lift_fence)

    def lift_fence(self) -> None:
        """Remove every fence, if there is a leader."""
        leader = self._cluster.leading()
        if leader is not None:
            self._nodes[leader].command(SetFence(None), lambda _answer: None)

    def _set_schema(self, node: Operated, _random: Random) -> None:
        self._schemas += 1
        schema = SchemaRecord(
            version=0, format="json", definition=f"a{self._schemas} INT", compatibility="none"
        )
        self._command(node, SetSchema(schema), "schema-set")

    def _change_options(self, _node: Operated, random: Random) -> None:
        """Change settings of the log: each node learns of them at another time."""
        durability = random.choice(tuple(Durability))
        options = LogOptions(durability=durability, preferred=random.choice((None, *self._cluster.names)))
        for node in self._nodes:
            self._world.after(random.randrange(OPTIONS_KNOWN_US), partial(node.change_options, options))
        self._cluster.sometimes.hit(f"options-{durability.value}")

    def _change(self, node: Operated, random: Random) -> None:
        voters, learners = self._cluster.group()
        chance = random.random
        absent = [name for name in self._cluster.names if name not in voters and name not in learners]
        if learners and chance() < 0.7:
            kind, name, point = ChangeKind.PROMOTE, learners[0], "member-promoted"
        elif absent and chance() < 0.8:
            kind, name, point = ChangeKind.ADD, absent[0], "member-added"
        elif len(voters) > VOTERS_MIN or (learners and chance() < 0.3):
            choice = voters if len(voters) > VOTERS_MIN else learners
            kind, name, point = ChangeKind.REMOVE, random.choice(choice), "member-removed"
        else:
            return
        self._command(node, ChangeMembers(kind, name), point)

    def _command(self, node: Operated, command: Command, point: str) -> None:
        node.command(command, partial(self._done, point))

    def _done(self, point: str, answer: CommandAnswer) -> None:
        if isinstance(answer, Fenced):
            return
        if isinstance(answer, CommitlogError):
            self._cluster.sometimes.hit("command-refused")
        elif answer.changed:
            self._cluster.sometimes.hit(point)
