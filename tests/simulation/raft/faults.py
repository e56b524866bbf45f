"""The nemesis: a list of faults, drawn from the seed before anything runs: any part of it can be replayed.

Every fault has a kind, a time, a node and a duration; `dice` is the source of its other choices.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import NamedTuple, Protocol

from tests.simulation.world.network import Link, Network
from tests.simulation.world.world import World

LEADER = -1  # as a victim: the leader of that moment
CLOCK_JUMP_MS = 10 * 60 * 60 * 1000  # either way: two clocks differ by less than keys are remembered
SLOWNESS = 20  # of a slow disk
FLAPPING_US = 60_000
POWER_CUT_WITHIN = 60  # operations of the disk


class Fault(NamedTuple):
    """victim: number of the node, or LEADER; times are microseconds."""

    number: int
    at_us: int
    kind: str
    victim: int
    lasting_us: int
    dice: int

    def __str__(self) -> str:
        who = "the leader" if self.victim == LEADER else f"n{self.victim + 1}"
        at_s, lasting_s = self.at_us / 1e6, self.lasting_us / 1e6
        return f"#{self.number} at {at_s:.3f} s: {self.kind} {who} for {lasting_s:.3f} s"


WEIGHTS = {
    "kill": 8,  # kill -9: what was written to the operating system stays
    "power": 6,  # of one node: what was not synced is lost or torn
    "power_amid": 6,  # the same in the middle of whatever the disk does next
    "power_all": 2,  # of every node at once
    "isolate": 4,  # one node, both ways
    "one_way": 3,  # one node hears but is not heard, or the other way round
    "link": 3,  # one link between two nodes, one way
    "ring": 2,  # each node sees only its neighbours
    "halves": 2,  # two parts of the cluster do not see each other
    "flapping": 2,  # one node's links come and go
    "slow_links": 3,  # of one node
    "stall": 4,  # the process stops for a while and goes on (as a collector or a hypervisor does)
    "clock": 2,  # the wall clock jumps
    "slow_disk": 3,
    "sync_error": 2,  # the next sync fails: the node stops
    "write_error": 1,
    "read_error": 1,
    "full_disk": 3,
    "flip": 2,  # a bit rots while the node is down
    "flip_running": 3,  # a bit rots while the process runs; a scrub follows
    "stop": 3,  # a planned stop: the lead is handed over
    "transfer": 4,  # of the lead, to anybody
    "trim": 3,
    "fence": 1,
    "change": 8,  # of the members
    "reconnect": 3,  # as isolate, and what the network kept arrives after it
    "hang_disk": 2,  # no work of the disk ends for a while
    "clock_rate": 2,  # a clock runs faster or slower from now on
    "trim_all": 2,  # of everything committed
    "trim_idle": 1,  # of everything on a log without appends for a while, then all nodes crash
    "resize": 3,  # shrink to one or two voters, or grow to all nodes, step by step
    "remove_leader": 2,
    "replace_disk": 2,  # by an empty one
    "restore_copy": 3,  # of a disk, made some time before
    "reconfigure": 1,  # a rolling restart with other settings at each node
    "scrub": 3,  # of one node's log
    "set_schema": 3,
    "options": 3,  # durability and preferred leader of the log
}
# By an operator: no faults, but they come amid them.
OPERATIONS = (
    "transfer",
    "trim",
    "fence",
    "set_schema",
    "change",
    "trim_all",
    "trim_idle",
    "resize",
    "remove_leader",
    "replace_disk",
    "restore_copy",
    "flip_running",
    "reconfigure",
    "scrub",
    "options",
)
AT_LEADER = (
    "transfer", "trim", "fence", "change", "trim_all", "resize", "remove_leader", "set_schema", "options",
)  # fmt: skip
CUT_OFF_SHARE = 0.25  # of the leaders that an operator asks
CLOCK_RATES = (0.95, 1.05)
QUIET_US = 7_000_000  # longer than a snapshot of the log's state takes to come
TRIM_TO_CRASH_US = 1_000_000
COPY_AGE_US = 20_000_000  # of a copy of a disk that is put back
PATIENCE_US = 20_000_000  # of an operator who waits until no other disk may lack something
PATIENCE_LOOK_US = 250_000
RESTART_US = 1_000_000  # of a rolling restart: from one node's stop to its start, and to the next one's stop


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """Intensity of the run. Times are microseconds; the weights are relative frequencies of the faults."""

    pause_us: tuple[int, int] = (300_000, 4_000_000)  # between two faults
    lasting_us: tuple[int, int] = (50_000, 5_000_000)
    leader_share: float = 0.4  # of the faults of one node
    clock_jump_ms: int = CLOCK_JUMP_MS  # either way
    weights: Mapping[str, int] = field(default_factory=lambda: WEIGHTS)


def draw_faults(random: Random, plan: FaultPlan, nodes: int, until_us: int) -> list[Fault]:
    """Return the faults of a run, in order of time."""
    kinds, weights = list(plan.weights), list(plan.weights.values())
    faults: list[Fault] = []
    at_us = random.randint(*plan.pause_us)
    while at_us < until_us:
        kind = random.choices(kinds, weights)[0]
        victim = LEADER if random.random() < plan.leader_share else random.randrange(nodes)
        lasting_us = random.randint(*plan.lasting_us)
        faults.append(Fault(len(faults), at_us, kind, victim, lasting_us, random.getrandbits(32)))
        at_us += random.randint(*plan.pause_us)
    return faults


class Victims(Protocol):
    """The cluster as the nemesis sees it. Numbers are those of the nodes."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def network(self) -> Network: ...
    def leading(self) -> int | None: ...
    def is_up(self, name: str) -> bool: ...
    def crash(self, name: str, *, power: bool) -> None: ...
    def cut_power_amid(self, name: str, operations: int) -> None: ...
    def restart(self, name: str) -> None: ...
    def stop(self, name: str) -> None: ...
    def stall(self, name: str, lasting_us: int) -> None: ...
    def jump_clock(self, name: str, skew_ms: int) -> None: ...
    def slow_disk(self, name: str, slowness: int) -> None: ...
    def sicken_disk(self, name: str, kind: str, dice: int) -> None: ...
    def cure_disk(self, name: str) -> None: ...
    def flip(self, name: str, dice: int) -> bool: ...
    def flip_running(self, name: str, dice: int) -> bool: ...
    def operate(self, kind: str, random: Random) -> bool: ...
    def quieten(self, lasting_us: int) -> None: ...
    def set_clock_rate(self, name: str, rate: float) -> None: ...
    def hang_disk(self, name: str, lasting_us: int) -> None: ...
    def replace_disk(self, name: str) -> bool: ...
    def copy_disk(self, name: str) -> Callable[[], bool]: ...
    def reconfigure(self, name: str, random: Random) -> None: ...
    def scrub(self, name: str) -> bool: ...


class Nemesis:
    """Carry out its faults one by one until `stop`, which ends all faults and starts every node again."""

    def __init__(
        self, world: World, cluster: Victims, faults: Sequence[Fault], clock_jump_ms: int = CLOCK_JUMP_MS
    ) -> None:
        self._clock_jump_ms = clock_jump_ms
        self.counts: Counter[str] = Counter()
        self._world = world
        self._cluster = cluster
        self._faults = faults
        self._next = 0
        self._stopped = False
        self._strikes: dict[str, Callable[[Fault, str], bool | None]] = {
            "kill": self._kill,
            "power": self._power,
            "power_amid": self._power_amid,
            "power_all": self._power_all,
            "isolate": self._isolate,
            "one_way": self._one_way,
            "link": self._link,
            "ring": self._ring,
            "halves": self._halves,
            "flapping": self._flapping,
            "slow_links": self._slow_links,
            "stall": self._stall,
            "clock": self._clock,
            "slow_disk": self._slow_disk,
            "sync_error": self._sicken,
            "write_error": self._sicken,
            "read_error": self._sicken,
            "full_disk": self._sicken,
            "flip": self._flip,
            "flip_running": self._flip_running,
            "stop": self._stop,
            "reconnect": self._reconnect,
            "hang_disk": self._hang_disk,
            "clock_rate": self._clock_rate,
            "replace_disk": self._replace_disk,
            "restore_copy": self._restore_copy,
            "reconfigure": self._reconfigure,
            "trim_idle": self._trim_idle,
            "scrub": lambda _fault, name: self._cluster.scrub(name),
            **dict.fromkeys(AT_LEADER, self._operate),
        }

    def start(self) -> None:
        if self._next < len(self._faults):
            self._world.after(self._faults[self._next].at_us - self._world.now_us, self._strike)

    def stop(self) -> None:
        self._stopped = True
        self._cluster.network.heal()
        for name in self._cluster.names:
            self._cluster.slow_disk(name, 1)
            self._cluster.cure_disk(name)
            self._bring_up(name)

    def _strike(self) -> None:
        if self._stopped:
            return
        fault = self._faults[self._next]
        self._next += 1
        victim = self._cluster.leading() if fault.victim == LEADER else fault.victim
        name = self._cluster.names[fault.dice % len(self._cluster.names) if victim is None else victim]
        self._world.note(f"{fault} ({name})")
        if self._strikes[fault.kind](fault, name) is not False:
            self.counts[fault.kind] += 1
        self.start()

    def _later(self, fault: Fault, action: Callable[[], None]) -> None:
        self._world.after(fault.lasting_us, action)

    # --- processes

    def _kill(self, fault: Fault, name: str) -> bool:
        return self._take_down(fault, name, power=False)

    def _power(self, fault: Fault, name: str) -> bool:
        return self._take_down(fault, name, power=True)

    def _power_amid(self, fault: Fault, name: str) -> None:
        """A node that is down meets the cut in its next recovery."""
        self._cluster.cut_power_amid(name, fault.dice % POWER_CUT_WITHIN)
        self._later(fault, partial(self._bring_up, name))

    def _power_all(self, fault: Fault, _name: str) -> None:
        for number, name in enumerate(self._cluster.names):
            lasting_us = fault.lasting_us * (fault.dice >> 4 * number & 15) // 15
            self._take_down(fault._replace(lasting_us=lasting_us), name, power=True)

    def _take_down(self, fault: Fault, name: str, *, power: bool) -> bool:
        if not self._cluster.is_up(name):
            return False
        self._cluster.crash(name, power=power)
        self._later(fault, partial(self._bring_up, name))
        return True

    def _bring_up(self, name: str) -> None:
        if not self._cluster.is_up(name):
            self._cluster.restart(name)

    def _stop(self, fault: Fault, name: str) -> bool:
        if not self._cluster.is_up(name):
            return False
        self._cluster.stop(name)
        self._later(fault, partial(self._start_anew, name))
        return True

    def _start_anew(self, name: str) -> None:
        """A stop that has not come to its end by now is cut short."""
        if self._cluster.is_up(name):
            self._cluster.crash(name, power=False)
        self._bring_up(name)

    def _stall(self, fault: Fault, name: str) -> None:
        self._cluster.stall(name, fault.lasting_us)

    def _clock(self, fault: Fault, name: str) -> None:
        self._cluster.jump_clock(name, fault.dice % (2 * self._clock_jump_ms) - self._clock_jump_ms)

    def _clock_rate(self, fault: Fault, name: str) -> None:
        self._cluster.set_clock_rate(name, Random(fault.dice).uniform(*CLOCK_RATES))

    def _trim_idle(self, fault: Fault, name: str) -> None:
        """Nothing is written for a while, all is trimmed, and every node crashes before it saves anything."""
        random = Random(fault.dice)
        self._cluster.quieten(QUIET_US + TRIM_TO_CRASH_US)

        def trim() -> None:
            if not self._stopped:
                self._cluster.operate("trim_all", random)
                self._world.after(random.randrange(TRIM_TO_CRASH_US), crash)

        def crash() -> None:
            if not self._stopped:
                self._power_all(fault, name)

        self._world.after(QUIET_US, trim)

    def _reconfigure(self, fault: Fault, _name: str) -> None:
        """Node by node: a stop, and a start with other settings."""
        random = Random(fault.dice)
        for number, name in enumerate(self._order(fault)):
            at_us = 2 * RESTART_US * number
            self._world.after(at_us, partial(self._stop_to_change, name, random))
            self._world.after(at_us + RESTART_US, partial(self._start_anew, name))

    def _stop_to_change(self, name: str, random: Random) -> None:
        if not self._stopped:
            self._cluster.reconfigure(name, random)
            if self._cluster.is_up(name):
                self._cluster.stop(name)

    def _operate(self, fault: Fault, _name: str) -> bool:
        """Some leaders are cut off as soon as they are asked: what they write is undone later."""
        random, leader = Random(fault.dice), self._cluster.leading()
        done = self._cluster.operate(fault.kind, random)
        if leader is not None and random.random() < CUT_OFF_SHARE:
            self._isolate(fault, self._cluster.names[leader])
        return done

    # --- links

    def _isolate(self, fault: Fault, name: str) -> bool:
        return self._cut(fault, _both_ways((name, other) for other in self._others(name)))

    def _reconnect(self, fault: Fault, name: str) -> bool:
        return self._cut(fault, _both_ways((name, other) for other in self._others(name)), keeps=True)

    def _one_way(self, fault: Fault, name: str) -> bool:
        mute = fault.dice & 1
        return self._cut(fault, [(name, other) if mute else (other, name) for other in self._others(name)])

    def _link(self, fault: Fault, name: str) -> bool:
        others = self._others(name)
        return self._cut(fault, [(name, others[fault.dice % len(others)])] if others else [])

    def _ring(self, fault: Fault, _name: str) -> bool:
        """With three nodes, a chain: the ring has a gap."""
        names = self._order(fault)
        size = len(names)
        closed = size > 3
        far = [
            (names[i], names[j])
            for i in range(size)
            for j in range(i + 2, size)
            if not (closed and (i, j) == (0, size - 1))
        ]
        return self._cut(fault, _both_ways(far))

    def _halves(self, fault: Fault, _name: str) -> bool:
        names = self._order(fault)
        middle = len(names) // 2
        return self._cut(fault, _both_ways((a, b) for a in names[:middle] for b in names[middle:]))

    def _flapping(self, fault: Fault, name: str) -> bool:
        links = _both_ways((name, other) for other in self._others(name))
        until_us = self._world.now_us + fault.lasting_us
        random = Random(fault.dice)

        def turn(cut: bool) -> None:
            if self._stopped:
                return
            if cut:
                self._cluster.network.cut(links)
            else:
                self._cluster.network.heal_links(links)
                if self._world.now_us >= until_us:
                    return
            self._world.after(random.randint(1_000, FLAPPING_US), partial(turn, not cut))

        turn(True)
        return bool(links)

    def _slow_links(self, fault: Fault, name: str) -> bool:
        links = _both_ways((name, other) for other in self._others(name))
        self._cluster.network.slow_down(links)
        self._later(fault, partial(self._cluster.network.speed_up, links))
        return bool(links)

    def _cut(self, fault: Fault, links: list[Link], *, keeps: bool = False) -> bool:
        self._cluster.network.cut(links, keeps=keeps)
        self._later(fault, partial(self._cluster.network.heal_links, links))
        return bool(links)

    def _others(self, name: str) -> list[str]:
        return [other for other in self._cluster.names if other != name]

    def _order(self, fault: Fault) -> list[str]:
        names = list(self._cluster.names)
        Random(fault.dice).shuffle(names)
        return names

    # --- disks

    def _slow_disk(self, fault: Fault, name: str) -> None:
        self._cluster.slow_disk(name, SLOWNESS)
        self._later(fault, partial(self._cluster.slow_disk, name, 1))

    def _hang_disk(self, fault: Fault, name: str) -> None:
        self._cluster.hang_disk(name, fault.lasting_us)

    def _replace_disk(self, fault: Fault, name: str) -> bool:
        until_us = self._world.now_us + PATIENCE_US
        self._when_whole(fault, name, partial(self._cluster.replace_disk, name), until_us)
        return False

    def _restore_copy(self, fault: Fault, name: str) -> bool:
        """Copy the disk of a node that is stopped for it, and put the copy back later."""
        if not self._take_down(fault, name, power=True):
            return False
        age_us = fault.lasting_us + Random(fault.dice).randrange(COPY_AGE_US)
        until_us = self._world.now_us + age_us + PATIENCE_US
        restore = self._cluster.copy_disk(name)
        self._world.after(age_us, partial(self._when_whole, fault, name, restore, until_us))
        return False

    def _when_whole(self, fault: Fault, name: str, lose: Callable[[], bool], until_us: int) -> None:
        """Lose what a disk holds as soon as the cluster permits it, and count it. The node restarts later."""
        if self._stopped or self._world.now_us > until_us:
            return
        if lose():
            self.counts[fault.kind] += 1
            self._later(fault, partial(self._bring_up, name))
        else:
            again = partial(self._when_whole, fault, name, lose, until_us)
            self._world.after(PATIENCE_LOOK_US, again)

    def _sicken(self, fault: Fault, name: str) -> None:
        self._cluster.sicken_disk(name, fault.kind, fault.dice)
        self._later(fault, partial(self._cluster.cure_disk, name))

    def _flip(self, fault: Fault, name: str) -> bool:
        if not self._cluster.flip(name, fault.dice):
            return False
        self._later(fault, partial(self._bring_up, name))
        return True

    def _flip_running(self, fault: Fault, name: str) -> bool:
        """Reads and restarts may come upon it before the scrub does."""
        if not self._cluster.flip_running(name, fault.dice):
            return False
        self._later(fault, partial(self._scrub_unless_stopped, name))
        return True

    def _scrub_unless_stopped(self, name: str) -> None:
        if not self._stopped:
            self._cluster.scrub(name)


def _both_ways(links: Iterable[Link]) -> list[Link]:
    return [each for a, b in links for each in ((a, b), (b, a))]
