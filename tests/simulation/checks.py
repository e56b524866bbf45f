"""What must hold after every step of a simulated cluster, whatever happened."""

from collections.abc import Iterable, Mapping
from typing import Protocol

from app.replication import NO_INDEX, ReplicaLog, Role
from storage.batch import Batch


class Violation(AssertionError):
    """The cluster broke a promise; the message says which, and the seed replays it."""


class Member(Protocol):
    """A node as the checker sees it; a dead one keeps what its disk surely holds."""

    @property
    def name(self) -> str: ...
    @property
    def alive(self) -> bool: ...
    @property
    def life_number(self) -> int: ...
    @property
    def role(self) -> Role: ...
    @property
    def term(self) -> int: ...
    @property
    def committed_index(self) -> int: ...
    @property
    def log(self) -> ReplicaLog: ...
    @property
    def held_index(self) -> int: ...
    def watermarks(self) -> Mapping[str, int]: ...


class SafetyChecker:
    """Remembers everything that was ever committed or acknowledged, and compares each step with it.

    Batches are compared by their headers, in which the chain value stands for a batch and all before it: one
    comparison at the newest committed batch proves log matching (R-06) for the whole prefix.
    """

    def __init__(self) -> None:
        self.committed: dict[int, Batch] = {}  # by base index
        self.committed_index = NO_INDEX
        self.elections = 0
        self._leaders: dict[int, str] = {}  # by term
        self._seen: dict[tuple[str, int], int] = {}  # (node, life) -> committed index

    def check(self, members: Iterable[Member]) -> None:
        """Raises Violation. Cheap when nothing has moved."""
        by_name = {member.name: member for member in members}
        for member in by_name.values():
            if member.alive:
                self._check_commit(member)
                if member.role is Role.LEADER:
                    self._check_leader(member, by_name)

    def _check_commit(self, member: Member) -> None:
        """Committed records never change, and the committed index of a life never falls (D-20, R-05)."""
        place = (member.name, member.life_number)
        before, now = self._seen.get(place, NO_INDEX), member.committed_index
        if now == before:
            return
        if now < before:
            raise Violation(f"{member.name}: committed index fell from {before} to {now}")
        if now > member.log.end_index:
            raise Violation(f"{member.name}: committed index {now} past its end {member.log.end_index}")
        self._seen[place] = now
        index = max(before + 1, member.log.begin_index)
        while index <= now:
            batch = member.log.batch_at(index)
            if batch.last_index > now:
                raise Violation(f"{member.name}: committed index {now} within {batch}")
            self._commit(member.name, batch)
            index = batch.next_index

    def _commit(self, name: str, batch: Batch) -> None:
        known = self.committed.get(batch.base_index)
        if known is None:
            if batch.base_index <= self.committed_index:
                raise Violation(f"{name}: {batch} was committed with other bounds before")
            self.committed[batch.base_index] = batch
            self.committed_index = batch.last_index
        elif known.header != batch.header:
            raise Violation(f"{name}: committed {batch}, but {known} was committed before")

    def _check_leader(self, member: Member, by_name: Mapping[str, Member]) -> None:
        """One leader a term (R-01), which holds all that is committed, and believes no peer too much."""
        leader = self._leaders.get(member.term)
        if leader is None:
            self._leaders[member.term] = member.name
            self.elections += 1
            self._check_completeness(member)
        elif leader != member.name:
            raise Violation(f"term {member.term} has two leaders: {leader} and {member.name}")
        for peer, watermark in member.watermarks().items():
            other = by_name[peer]
            if watermark > other.held_index and other.term <= member.term:
                raise Violation(f"{member.name} counts {peer} at {watermark}, which holds {other.held_index}")

    def _check_completeness(self, member: Member) -> None:
        if self.committed_index == NO_INDEX:
            return
        if member.log.end_index >= self.committed_index:
            batch = member.log.batch_at(self.committed_index)
            if self.committed.get(batch.base_index) == batch:
                return
        raise Violation(f"{member.name} leads term {member.term} without committed {self.committed_index}")
