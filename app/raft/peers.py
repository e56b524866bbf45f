"""The other members from the leader's view: a dispatcher each, and when each was last heard. PURE."""

from collections.abc import Sequence

from app.errors import StorageFull
from app.log.contract import NO_INDEX, PeerStatus, ReplicaLog
from app.raft.config import RaftConfig
from app.raft.dispatcher import Dispatcher
from app.raft.membership import GroupView
from app.raft.messages import HeartbeatAnswer
from app.raft.quorum import QuorumChecker, quorum_index
from app.raft.state import MemberState, Outbox
from storage.format.batch import Batch


class Peers:
    """All members of the group except this one.

    dispatchers: by peer, at every member, whether it leads or not. heard_ms: when each peer last answered
    this leader; at the beginning of its term or of the peer's membership, that time. has_room: the peers'
    reports about their disks in this term.
    """

    def __init__(
        self,
        member: MemberState,
        log: ReplicaLog,
        outbox: Outbox,
        quorum: QuorumChecker,
        config: RaftConfig,
    ) -> None:
        self._member = member
        self._log = log
        self._outbox = outbox
        self._quorum = quorum
        self._config = config
        self._sessions: dict[str, int] = {}  # by peer, also of those who left: within a term none repeats
        self.dispatchers: dict[str, Dispatcher] = {}
        self.heard_ms: dict[str, int] = {}
        self._doubting_ms: dict[str, int] = {}  # since when a peer may have forgotten a newer term
        self.has_room: dict[str, bool] = {}
        self._set_dispatchers()

    def _set_dispatchers(self) -> None:
        """Keep one dispatcher per other member; existing ones stay, a returning member continues its
        sessions."""
        member, known = self._member, self.dispatchers
        for peer, dispatcher in known.items():
            self._sessions[peer] = dispatcher.session
        self.dispatchers = {
            peer: known.get(peer)
            or Dispatcher(
                peer,
                member,
                self._log,
                self._outbox,
                self._quorum,
                self._config,
                session=self._sessions.get(peer, 0),
            )
            for peer in member.group.members
            if peer != member.node_id
        }

    def regroup(self, now_ms: int) -> None:
        """Adopt another group."""
        self._set_dispatchers()
        if self._member.leads:
            self.heard_ms = {peer: self.heard_ms.get(peer, now_ms) for peer in self.dispatchers}
            self._quorum.regroup()

    def open_term(self, now_ms: int) -> None:
        """This member begins to lead."""
        self.heard_ms = dict.fromkeys(self.dispatchers, now_ms)
        self._doubting_ms = {}
        self.has_room = {}

    def hear(self, peer: str, now_ms: int) -> None:
        if now_ms - self.heard_ms[peer] > self._config.max_push_timeout_ms:
            self.dispatchers[peer].revive()
        self.heard_ms[peer] = now_ms

    def set_trust(self, peer: str, trusts: bool, now_ms: int) -> None:
        """Record whether the peer excludes that it helped to elect the leader of a newer term."""
        if trusts:
            self._doubting_ms.pop(peer, None)
        else:
            self._doubting_ms.setdefault(peer, now_ms)

    def hear_answer(self, peer: str, answer: HeartbeatAnswer, now_ms: int) -> None:
        """Record a peer's answer to a heartbeat of this term; that of a former voter only confirms the
        leader (reads.py)."""
        if peer not in self.dispatchers:
            return
        self.hear(peer, now_ms)
        self.set_trust(peer, answer.trusts, now_ms)
        self.has_room[peer] = answer.has_room
        if not answer.sound:  # only a push's answer of this session shows that it is one again
            self._quorum.set_sound(peer, False)

    @property
    def refusal(self) -> StorageFull | None:
        """Refuse records for which no majority of the voters has space; the driver checks its own disk."""
        if False not in self.has_room.values():  # the usual case, asked for each append
            return None
        voters = self._member.group.voters
        full = [voter for voter in voters if not self.has_room.get(voter, True)]
        return None if len(voters) - len(full) >= self._member.majority else StorageFull(*full)

    def step(self, now_ms: int, batches: Sequence[Batch] = ()) -> None:
        for dispatcher in self.dispatchers.values():
            dispatcher.step(now_ms, batches)

    def majority_heard_ms(self, now_ms: int) -> int:
        """Return when a majority of the voters, including this leader, was last heard (R-04), and a majority
        of the witnesses (MemberState.needed_witnesses), without which nothing is committed either.

        A peer in doubt does not count: with such peers and a minority nothing could be committed, and the
        doubt could never end.
        """
        member = self._member
        heard = {**self.heard_ms, **self._doubting_ms, member.node_id: now_ms}
        majority_ms = quorum_index(heard[voter] for voter in member.group.voters)
        if witnesses := member.needed_witnesses:
            majority_ms = min(majority_ms, quorum_index(heard[voter] for voter in witnesses))
        return majority_ms

    def status(self) -> tuple[PeerStatus, ...]:
        return tuple(
            dispatcher.status(self.heard_ms[peer], has_room=self.has_room.get(peer, True))
            for peer, dispatcher in self.dispatchers.items()
        )

    def is_awake(self, peer: str, now_ms: int) -> bool:
        """Return whether it was heard within the shortest election timeout."""
        return now_ms - self.heard_ms[peer] <= self._config.election_timeout_ms[0]

    def view(self, now_ms: int, *, settled: bool) -> GroupView:
        """Return the conditions of a change of the group. settled: no earlier change is in progress."""
        member, marks = self._member, self._quorum.watermarks
        awake_ms = now_ms - self._config.election_timeout_ms[1]
        awake = tuple(  # without a watermark a peer has not answered in this term: it may be down
            peer
            for peer, heard_ms in self.heard_ms.items()
            if heard_ms >= awake_ms and marks.get(peer, NO_INDEX) != NO_INDEX
        )
        level = tuple(peer for peer, dispatcher in self.dispatchers.items() if dispatcher.is_level)
        awake = (*awake, member.node_id)
        counted = tuple(peer for peer in awake if self._quorum.is_sound(peer))
        return GroupView(member.group, settled, level, awake, counted)
