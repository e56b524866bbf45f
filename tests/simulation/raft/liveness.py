"""Liveness: a healthy majority has a leader within a bound, or a reason from the list excuses it.

A majority is healthy while its members run, are connected both ways at full speed, and have working disks and
whole logs. The bound counts from the last moment at which it was not so.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from app.log.contract import Role
from app.node.replica.driver import LogDriver
from tests.simulation.world.network import Network
from tests.simulation.world.promises import Violation
from tests.simulation.world.world import World

LOOK_US = 250_000
COMMIT_FACTOR = 4  # a follower far behind may have to be brought up first, through a narrow window

# Why a log may be without a leader. Nothing else excuses it.
REASONS: dict[str, str] = {
    "down": "too few voters of the group run, or serve the log: stopped, stalled, or in repair; or one of two"
    " voters that become one or three, which both must hold the record of that (R-10)",
    "network": "no majority of the voters that run is connected both ways at full speed",
    "disk": "no majority of the connected voters has a disk that works at its usual speed",
    "not-whole": "no majority of the voters may vote: a log lacks what was promised, or its state",
    "recent": "the cause has ended, and the bound has not passed since",
}


class LiveMember(Protocol):
    """A node as the liveness check sees it."""

    @property
    def name(self) -> str: ...
    @property
    def alive(self) -> bool: ...
    @property
    def is_stalled(self) -> bool: ...
    @property
    def has_healthy_disk(self) -> bool: ...
    @property
    def driver(self) -> LogDriver: ...


class Bound:
    """How long a healthy majority may miss something. longest_us: how long one did."""

    def __init__(self, what: str, within_us: int) -> None:
        self.what = what
        self.longest_us = 0
        self._within_us = within_us
        self._since_us: int | None = None
        self._healthy: frozenset[str] = frozenset()

    def restart(self) -> None:
        """Count from the next call of `judge` on."""
        self._since_us = None

    def judge(self, holds: bool, healthy: frozenset[str], now_us: int) -> None:
        """healthy: the healthy voters now, empty when they are no majority. Raises Violation."""
        if holds or not healthy:
            self._since_us = None
        elif self._since_us is None or not self._healthy <= healthy:
            self._since_us, self._healthy = now_us, healthy
        else:
            missed_us = now_us - self._since_us
            self.longest_us = max(self.longest_us, missed_us)
            if missed_us > self._within_us:
                names = ", ".join(sorted(self._healthy))
                raise Violation(f"{self.what} for {missed_us / 1e6:.1f} s; healthy are {names}")


class LivenessChecker:
    """Looks at the cluster each LOOK_US.

    leaderless: looks without a leader, by reason.
    """

    def __init__(
        self, world: World, members: Mapping[str, LiveMember], network: Network, *, within_us: int
    ) -> None:
        """within_us: the bound of a leader; that of its first commit is COMMIT_FACTOR times as long."""
        self.leaderless: Counter[str] = Counter()
        self.looks = 0
        self.leader = Bound("no leader", within_us)
        self.commit = Bound("no commit in the term of the leader", COMMIT_FACTOR * within_us)
        self._world = world
        self._members = members
        self._network = network

    def start(self) -> None:
        self._world.after(LOOK_US, self._tick)

    def _tick(self) -> None:
        self.judge()
        self.start()

    def judge(self) -> None:
        """Raises Violation when a majority has been healthy for too long without a leader, or a commit."""
        self.looks += 1
        now_us = self._world.now_us
        reason, healthy = self._reason()
        leader = self._leader()
        if leader is None:
            self.leaderless[reason or "recent"] += 1
        self.leader.judge(leader is not None, healthy, now_us)
        self.commit.judge(leader is not None and _has_committed(leader.driver), healthy, now_us)

    def _leader(self) -> LiveMember | None:
        """Return the leader that a majority of its group follows."""
        running = [each for each in self._members.values() if each.alive and not each.is_stalled]
        for member in running:
            driver = member.driver
            if driver.role is Role.LEADER:
                voters = driver.group.voters
                followers = sum(
                    each.name in voters
                    and (each.driver.leader_id, each.driver.term) == (member.name, driver.term)
                    for each in running
                )
                if 2 * followers > len(voters):
                    return member
        return None

    def _reason(self) -> tuple[str | None, frozenset[str]]:
        """Return why no leader can be expected; None and the healthy voters when one can."""
        running = [each for each in self._members.values() if each.alive and not each.is_stalled]
        groups = {each.driver.group.voters for each in running}
        # a majority of these is needed, as of any group
        groups |= {former for each in running if (former := _witnesses(each.driver))}
        checks: tuple[tuple[str, Callable[[Sequence[LiveMember]], list[LiveMember]]], ...] = (
            ("network", self._connected),
            ("disk", lambda members: [each for each in members if each.has_healthy_disk]),
            ("not-whole", lambda members: [each for each in members if _may_vote(each)]),
        )
        voters = [each for each in running if any(each.name in group for group in groups)]
        if not _is_majority(voters, groups):
            return "down", frozenset()
        for reason, keep in checks:
            voters = keep(voters)
            if not _is_majority(voters, groups):
                return reason, frozenset()
        return None, frozenset(each.name for each in voters)

    def _connected(self, members: Sequence[LiveMember]) -> list[LiveMember]:
        """Return the members that all reach one another."""
        clear = self._network.is_clear
        kept = list(members)
        while True:
            bad = Counter(
                a.name
                for a in kept
                for b in kept
                if a is not b and not (clear(a.name, b.name) and clear(b.name, a.name))
            )
            if not bad:
                return kept
            worst = max(bad, key=lambda name: (bad[name], name))
            kept = [each for each in kept if each.name != worst]


def _witnesses(driver: LogDriver) -> tuple[str, ...]:
    return driver._core._member.needed_witnesses  # type: ignore[attr-defined]


def _has_committed(driver: LogDriver) -> bool:
    """Return whether a record of the leader's term is committed. Reads nothing from the disk."""
    epochs = driver.log.epochs
    opened = bool(epochs) and epochs[-1].term == driver.term
    return opened and epochs[-1].start_index <= driver.committed_index


def _may_vote(member: LiveMember) -> bool:
    return member.driver.sound and member.driver._core.electable


def _is_majority(members: Sequence[LiveMember], groups: set[tuple[str, ...]]) -> bool:
    """Return whether the members are a majority of every group that a running replica believes in."""
    names = {each.name for each in members}
    return bool(groups) and all(2 * sum(voter in names for voter in group) > len(group) for group in groups)
