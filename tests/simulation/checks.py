"""What must hold after every step of a simulated cluster, whatever happened."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from app.replication import NO_INDEX, Role
from storage.batch import Batch
from storage.commitlog import Commitlog


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
    def log(self) -> Commitlog: ...
    @property
    def held_index(self) -> int: ...
    def watermarks(self) -> Mapping[str, int]: ...


class SafetyChecker:
    """Remembers everything that was ever committed, and compares each step with it.

    Batches are compared by their headers, in which the chain value stands for a batch and all before it: one
    comparison at the newest batch proves log matching (R-06) for the whole prefix.
    """

    def __init__(self) -> None:
        self.committed: dict[int, Batch] = {}  # by base index
        self.committed_index = NO_INDEX
        self.elections = 0
        self.truncations = 0
        self._leaders: dict[int, str] = {}  # by term
        self._seen: dict[str, _Seen] = {}
        self._chains: dict[tuple[int, int], bytes] = {}  # (base index, term) -> chain

    def check(self, acted: Member, members: Mapping[str, Member]) -> None:
        """Look at the member that has just done something, or crashed. Raises Violation."""
        seen = self._seen.get(acted.name)
        if seen is None or seen.life_number != acted.life_number:
            seen = self._seen[acted.name] = _Seen(acted.life_number)
            self._check_watermarks_of(acted, members)
        if not acted.alive:
            self._check_watermarks_of(acted, members)
            return
        log = acted.log
        if acted.committed_index != seen.committed_index:
            self._check_commit(acted, seen)
        if log.last_chain != seen.last_chain:
            if log.end_index < seen.end_index:
                self.truncations += 1
                self._check_watermarks_of(acted, members)
            seen.end_index, seen.last_chain = log.end_index, log.last_chain
            self._check_matching(acted)
        if acted.role is Role.LEADER:
            self._check_leader(acted, members)

    def _check_matching(self, member: Member) -> None:
        """The same index and term mean the same record and the same prefix, committed or not (R-06)."""
        if member.log.end_index == NO_INDEX:
            return
        batch = member.log.batch_at(member.log.end_index)
        chain = self._chains.setdefault((batch.base_index, batch.term), batch.header.chain)
        if chain != batch.header.chain:
            raise Violation(f"{member.name}: {batch} is not what another log holds at that index and term")

    def _check_commit(self, member: Member, seen: "_Seen") -> None:
        """Committed records never change, and the committed index of a life never falls (D-20, R-05)."""
        before, now = seen.committed_index, member.committed_index
        if now < before:
            raise Violation(f"{member.name}: committed index fell from {before} to {now}")
        if now > member.log.end_index:
            raise Violation(f"{member.name}: committed index {now} past its end {member.log.end_index}")
        seen.committed_index = now
        index = min(self.committed_index + 1, member.log.batch_at(now).base_index)
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

    def _check_leader(self, member: Member, members: Mapping[str, Member]) -> None:
        """One leader a term (R-01), which holds all that is committed, and believes no peer too much."""
        leader = self._leaders.get(member.term)
        if leader is None:
            self._leaders[member.term] = member.name
            self.elections += 1
            self._check_completeness(member)
        elif leader != member.name:
            raise Violation(f"term {member.term} has two leaders: {leader} and {member.name}")
        for peer, watermark in member.watermarks().items():
            _check_watermark(member, members[peer], watermark)

    def _check_watermarks_of(self, peer: Member, members: Mapping[str, Member]) -> None:
        """The peer may hold less than before: no leader may believe that it still has what is gone."""
        for leader in members.values():
            if leader.alive and leader.role is Role.LEADER:
                _check_watermark(leader, peer, leader.watermarks().get(peer.name, NO_INDEX))

    def _check_completeness(self, member: Member) -> None:
        if self.committed_index == NO_INDEX:
            return
        if member.log.end_index >= self.committed_index:
            batch = member.log.batch_at(self.committed_index)
            if self.committed.get(batch.base_index) == batch:
                return
        raise Violation(f"{member.name} leads term {member.term} without committed {self.committed_index}")


@dataclass(slots=True)
class _Seen:
    """One life of a member as it was when it acted last."""

    life_number: int
    committed_index: int = NO_INDEX
    end_index: int = NO_INDEX
    last_chain: bytes = b""


def _check_watermark(leader: Member, peer: Member, watermark: int) -> None:
    if watermark > peer.held_index and peer.term <= leader.term:
        raise Violation(f"{leader.name} counts {peer.name} at {watermark}, which holds {peer.held_index}")
