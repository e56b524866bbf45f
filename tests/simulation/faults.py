"""The nemesis: crashes nodes and cuts links at random, mends them again, and counts what it did."""

from collections import Counter
from dataclasses import dataclass
from typing import Protocol

from tests.simulation.network import Network
from tests.simulation.world import World


@dataclass(frozen=True, kw_only=True)
class FaultPlan:
    """How wild the run is. Times are microseconds; the weights say how often a fault is which."""

    pause_us: tuple[int, int] = (200_000, 4_000_000)  # between two faults
    lasting_us: tuple[int, int] = (50_000, 5_000_000)  # until a crashed node returns or a cut is mended
    crash_weight: int = 4
    crash_all_weight: int = 1  # the power of the whole cluster fails
    isolate_weight: int = 3  # one node, both ways
    one_way_weight: int = 2  # one node hears but is not heard, or the other way round
    link_weight: int = 2  # one link between two nodes, one way


class Victims(Protocol):
    """The cluster as the nemesis sees it."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def network(self) -> Network: ...
    def is_up(self, name: str) -> bool: ...
    def crash(self, name: str) -> None: ...
    def restart(self, name: str) -> None: ...


class Nemesis:
    """Works until `stop`, which also mends everything and brings every node back."""

    def __init__(self, world: World, cluster: Victims, plan: FaultPlan) -> None:
        self.counts: Counter[str] = Counter()
        self._world = world
        self._cluster = cluster
        self._plan = plan
        self._stopped = False

    def start(self) -> None:
        self._world.after(self._world.random.randint(*self._plan.pause_us), self._strike)

    def stop(self) -> None:
        self._stopped = True
        self._cluster.network.mend()
        for name in self._cluster.names:
            if not self._cluster.is_up(name):
                self._cluster.restart(name)

    def _strike(self) -> None:
        if self._stopped:
            return
        plan, chance = self._plan, self._world.random
        faults = {
            "crash": (plan.crash_weight, self._crash),
            "crash_all": (plan.crash_all_weight, self._crash_all),
            "isolate": (plan.isolate_weight, self._isolate),
            "one_way": (plan.one_way_weight, self._one_way),
            "link": (plan.link_weight, self._link),
        }
        name = chance.choices(list(faults), weights=[weight for weight, _ in faults.values()])[0]
        self.counts[name] += 1
        self._world.note(name)
        faults[name][1]()
        self.start()

    def _crash(self) -> None:
        self._take_down(self._world.random.choice(self._cluster.names))

    def _crash_all(self) -> None:
        for name in self._cluster.names:
            self._take_down(name)

    def _take_down(self, name: str) -> None:
        if self._cluster.is_up(name):
            self._cluster.crash(name)
            self._world.after(
                self._world.random.randint(*self._plan.lasting_us), lambda: self._bring_up(name)
            )

    def _bring_up(self, name: str) -> None:
        if not self._cluster.is_up(name):
            self._cluster.restart(name)

    def _isolate(self) -> None:
        name = self._world.random.choice(self._cluster.names)
        self._cut([pair for other in self._others(name) for pair in ((name, other), (other, name))])

    def _one_way(self) -> None:
        name = self._world.random.choice(self._cluster.names)
        mute = self._world.random.random() < 0.5
        self._cut([(name, other) if mute else (other, name) for other in self._others(name)])

    def _link(self) -> None:
        name = self._world.random.choice(self._cluster.names)
        self._cut([(name, other) for other in self._others(name)[:1]])

    def _others(self, name: str) -> list[str]:
        return [other for other in self._cluster.names if other != name]

    def _cut(self, pairs: list[tuple[str, str]]) -> None:
        network = self._cluster.network
        for source, target in pairs:
            network.cut(source, target)
        self._world.after(self._world.random.randint(*self._plan.lasting_us), network.mend)
