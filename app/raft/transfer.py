"""Handing the lead to a chosen voter (R-09): take no more appends, make it level, let it campaign."""

from dataclasses import dataclass

from app.errors import AlreadyLeader, TransferFailed
from app.raft.config import RaftConfig
from app.raft.messages import TimeoutNow
from app.raft.peers import Peers
from app.raft.quorum import QuorumChecker
from app.raft.state import MemberState, Outbox
from app.replication import ReplicaLog


@dataclass(slots=True)
class Attempt:
    target: str
    deadline_ms: int
    asked: bool = False


class Transfer:
    """The leader's attempt under way, at most one: the lead is lost, or after `deadline_ms` all goes on."""

    def __init__(
        self,
        member: MemberState,
        log: ReplicaLog,
        outbox: Outbox,
        quorum: QuorumChecker,
        peers: Peers,
        config: RaftConfig,
        preferred_leader: str | None,
    ) -> None:
        self._member = member
        self._log = log
        self._outbox = outbox
        self._quorum = quorum
        self._peers = peers
        self._config = config
        self._preferred_leader = preferred_leader
        self._preferred_ms = 0  # when it was considered last
        self._attempt: Attempt | None = None
        self._full_since_ms: int | None = None  # since when this leader's disk has no room

    @property
    def target(self) -> str | None:
        """Who is to lead next, None while no transfer is under way."""
        return None if self._attempt is None else self._attempt.target

    def begin(self, to: str | None, now_ms: int) -> str:
        """Choose the voter and begin; return it. to: None for the most up to date one.

        Raises AlreadyLeader, and TransferFailed for one that is no voter, is silent or could not lead. An
        attempt to somebody else that is under way is given up.
        """
        member = self._member
        if to == member.node_id:
            raise AlreadyLeader(to)
        awake = [
            voter
            for voter in member.group.voters
            if voter != member.node_id
            and self._peers.dispatchers[voter].peer_may_lead
            and self._peers.is_awake(voter, now_ms)
        ]
        if to is not None and to not in member.group.voters:
            raise TransferFailed(f"{to} is no voter of this log")
        if not awake or (to is not None and to not in awake):
            raise TransferFailed(f"{to or 'no other voter'} could not lead at present, or does not answer")
        target = to or max(awake, key=self._quorum.watermarks.__getitem__)
        if self.target != target:
            self._attempt = Attempt(target, now_ms + self._config.election_timeout_ms[1])
        self.go_on(now_ms)
        return target

    def go_on(self, now_ms: int) -> None:
        """Ask the target once it holds everything, all of it committed; give up when that takes too long."""
        attempt, member = self._attempt, self._member
        if attempt is None:
            return
        end_index = self._log.end_index
        level = self._quorum.watermarks.get(attempt.target) == end_index == member.committed_index
        if now_ms >= attempt.deadline_ms or attempt.target not in member.group.voters:
            self._attempt = None
        elif level and not attempt.asked:
            attempt.asked = True
            self._outbox.send(attempt.target, TimeoutNow(member.term))

    def prefer(self, now_ms: int) -> None:
        """Hand over to the preferred leader once it could lead at once; looked at now and then."""
        if now_ms - self._preferred_ms < self._config.preferred_leader_interval_ms or self._attempt:
            return
        self._preferred_ms = now_ms
        preferred, dispatchers = self._preferred_leader, self._peers.dispatchers
        if preferred is None or preferred not in dispatchers or preferred not in self._member.group.voters:
            return
        has_room = self._peers.has_room.get(preferred, True)
        if dispatchers[preferred].is_level and self._peers.is_awake(preferred, now_ms) and has_room:
            self.begin(preferred, now_ms)

    def leave_full_disk(self, has_room: bool, now_ms: int) -> None:
        """Hand over to a voter with room on its disk once this leader has had none for some time (R-09).

        A shorter lack of room (retention may be at work) is not worth a change of the leader.
        """
        if has_room:
            self._full_since_ms = None
            return
        if self._full_since_ms is None:
            self._full_since_ms = now_ms
        if self._attempt or now_ms - self._full_since_ms < self._config.full_disk_transfer_ms:
            return
        self._full_since_ms = now_ms  # and try again as late if it does not succeed
        roomy = [peer for peer, room in self._peers.has_room.items() if room]
        level = [peer for peer in roomy if peer in self._peers.dispatchers and self._is_next(peer, now_ms)]
        if level:
            self.begin(max(level, key=self._quorum.watermarks.__getitem__), now_ms)

    def _is_next(self, peer: str, now_ms: int) -> bool:
        dispatcher = self._peers.dispatchers[peer]
        may_lead = peer in self._member.group.voters and dispatcher.peer_may_lead
        return may_lead and dispatcher.is_level and self._peers.is_awake(peer, now_ms)

    def open_term(self, now_ms: int) -> None:
        """This member begins to lead; the preferred leader gets time to come level."""
        self._preferred_ms = now_ms
        self._full_since_ms = None

    def close_term(self) -> None:
        """This member leads no more."""
        self._attempt = None
