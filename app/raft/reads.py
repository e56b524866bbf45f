"""Linearizable reads that do not depend on clocks (R-08): a quorum confirms that the leader still leads.

Reads that arrive while a round of heartbeats is in flight wait for the next one, so that many readers share
it. A follower collects its readers in the same way and sends one request for all of them to the leader. At
most `max_waiting_reads` wait, each at most `read_index_timeout_ms`, so that abandoned reads do not accumulate
while a leader cannot confirm.
"""

from bisect import bisect_right
from dataclasses import dataclass
from random import Random
from typing import Any

from app.log.contract import ReplicaLog
from app.raft.config import RaftConfig
from app.raft.messages import ReadIndexAnswer, ReadIndexRequest
from app.raft.quorum import quorum_index
from app.raft.state import MemberState, Outbox, is_of_term


def _deadline_ms(queued: tuple[int, Any]) -> int:
    return queued[0]


@dataclass(frozen=True, slots=True)
class PeerReader:
    """A follower that waits for a read index; with `leadership` only for a confirmation of leadership."""

    peer: str
    id: int
    leadership: bool = False


class Confirmation:
    """A reader that wants the leader's read index for this core itself."""

    def __init__(self) -> None:
        self.is_asked = False
        self.index: int | None = None

    def give(self, index: int | None) -> None:
        self.is_asked, self.index = False, index


class LeaderReads:
    """Issues read indexes while its member leads. A reader is a driver's token or a PeerReader.

    Invariant: a read index is a committed index of this term, taken before the round that confirms it. It is
    confirmed by a quorum of sound voters. A question about leadership alone needs no committed record, and
    all voters together (MemberState.every_voter) confirm it too, sound or not.
    """

    def __init__(self, state: MemberState, log: ReplicaLog, outbox: Outbox, config: RaftConfig) -> None:
        self._member = state
        self._log = log
        self._outbox = outbox
        self._config = config
        self._round = 0
        self._answered: dict[str, int] = {}  # peer -> last round that it has answered as a sound member
        self._heard: dict[str, int] = {}  # peer -> last round that it has answered
        self._asking: list[tuple[int, Any]] = []  # as _queued: about leadership alone
        self._proving: list[tuple[int, list[tuple[int, Any]]]] = []  # (round, as asking)
        self._queued: list[tuple[int, Any]] = []  # (deadline, reader), in the order of deadlines
        self._confirming: list[tuple[int, int, list[tuple[int, Any]]]] = []  # (round, read index, as queued)

    def close_term(self) -> None:
        """Leadership is lost: refuse all readers; they must ask again."""
        for waiting in self._lists():
            for _, reader in waiting:
                self._give(reader, None)
        self._round = 0
        self._answered.clear()
        self._heard.clear()
        self._queued, self._confirming, self._asking, self._proving = [], [], [], []

    def _lists(self) -> list[list[tuple[int, Any]]]:
        """Return all lists of waiting readers."""
        confirming = [readers for _, _, readers in self._confirming]
        return [*confirming, self._queued, *(readers for _, readers in self._proving), self._asking]

    @property
    def waiting_count(self) -> int:
        return sum(map(len, self._lists()))

    def ask(self, reader: Any, now_ms: int) -> None:
        if self.waiting_count >= self._config.max_waiting_reads:
            self._give(reader, None)
            return
        about_lead = isinstance(reader, PeerReader) and reader.leadership
        queue = self._asking if about_lead else self._queued
        queue.append((now_ms + self._config.read_index_timeout_ms, reader))

    def tick(self, now_ms: int) -> None:
        """Refuse the readers that were not confirmed in time: the term is not open, or the voters that
        answer are not sound. Such voters keep the leader in office (R-04), but confirm nothing."""
        for waiting in self._lists():
            late = bisect_right(waiting, now_ms, key=_deadline_ms)
            expired = waiting[:late]
            del waiting[:late]
            for _, reader in expired:
                self._give(reader, None)
        self._confirming = [each for each in self._confirming if each[2]]
        self._proving = [each for each in self._proving if each[1]]

    @property
    def wants_round(self) -> bool:
        """Return whether readers wait for a round that can begin now."""
        if self._asking and not self._proving:
            return True
        return bool(self._queued) and not self._confirming and self.term_is_open

    def begin_round(self) -> int:
        """Begin a round of heartbeats; return its number."""
        self._round += 1
        if self._queued and self.term_is_open:
            self._confirming.append((self._round, self._member.committed_index, self._queued))
            self._queued = []
        if self._asking:
            self._proving.append((self._round, self._asking))
            self._asking = []
        self._settle()
        return self._round

    def answered(self, peer: str, number: int, *, sound: bool) -> None:
        """Record a peer's answer to a heartbeat of this term. An unsound peer alone confirms nothing: it
        may have forgotten a newer term."""
        if sound and number > self._answered.get(peer, 0):
            self._answered[peer] = number
        if number > self._heard.get(peer, 0):
            self._heard[peer] = number
            self._settle()

    @property
    def term_is_open(self) -> bool:
        """Return whether a record of the leader's own term is committed."""
        return is_of_term(self._log, self._member.committed_index, self._member.term)

    def _settle(self) -> None:
        if not (self._confirming or self._proving):
            return
        member, own = self._member, {self._member.node_id: self._round}
        answered, heard = self._answered | own, self._heard | own
        confirmed = quorum_index(answered.get(voter, 0) for voter in member.group.voters)
        while self._confirming and self._confirming[0][0] <= confirmed:
            _, index, readers = self._confirming.pop(0)
            for _, reader in readers:
                self._give(reader, index)
        by_all = min(heard.get(voter, 0) for voter in member.every_voter)
        while self._proving and self._proving[0][0] <= max(confirmed, by_all):
            _, readers = self._proving.pop(0)
            for _, reader in readers:
                self._give(reader, member.committed_index)

    def _give(self, reader: Any, index: int | None) -> None:
        if isinstance(reader, PeerReader):
            self._outbox.send(reader.peer, ReadIndexAnswer(self._member.term, reader.id, index))
        else:
            self._outbox.reads.append((reader, index))


class FollowerReads:
    """Sends requests to the leader for this member's readers, one at a time."""

    def __init__(self, state: MemberState, outbox: Outbox, config: RaftConfig, random: Random) -> None:
        self._member = state
        self._outbox = outbox
        self._config = config
        self._random = random
        self._queued: list[Any] = []
        self._asking: list[Any] = []
        self._id = 0
        self._asked_ms = 0

    @property
    def waiting_count(self) -> int:
        return len(self._queued) + len(self._asking)

    def ask(self, token: Any, now_ms: int) -> None:
        """Add a reader; without a leader, or with too many waiting readers, it is refused at once."""
        if self._member.leader_id is None or self.waiting_count >= self._config.max_waiting_reads:
            self._give(token, None)
            return
        self._queued.append(token)
        if not self._asking:
            self._send(now_ms)

    def answered(self, answer: ReadIndexAnswer, now_ms: int) -> None:
        if not self._asking or answer.id != self._id:
            return
        self._finish(answer.index)
        if self._queued:
            self._send(now_ms)

    def tick(self, now_ms: int) -> None:
        if self._asking and now_ms - self._asked_ms > self._config.read_index_timeout_ms:
            self._finish(None)
            if self._queued:
                self._send(now_ms)

    def fail(self) -> None:
        """The leader changed: refuse all readers; they must ask again."""
        self._asking += self._queued
        self._queued = []
        self._finish(None)

    def _finish(self, index: int | None) -> None:
        asking, self._asking = self._asking, []
        for token in asking:
            self._give(token, index)

    def _give(self, token: Any, index: int | None) -> None:
        if isinstance(token, Confirmation):
            token.give(index)
        else:
            self._outbox.reads.append((token, index))

    def _send(self, now_ms: int) -> None:
        leader = self._member.leader_id
        if leader is None:
            self.fail()
            return
        about_lead = [token for token in self._queued if isinstance(token, Confirmation)]
        if about_lead:
            self._queued = [token for token in self._queued if not isinstance(token, Confirmation)]
            self._asking = about_lead
        else:
            self._asking, self._queued = self._queued, []
        self._id = self._random.getrandbits(53)
        self._asked_ms = now_ms
        self._outbox.send(leader, ReadIndexRequest(self._member.term, self._id, bool(about_lead)))
