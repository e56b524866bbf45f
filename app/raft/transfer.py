"""Transfer of leadership to a chosen voter (R-09): it catches up, appends pause, it campaigns.

Appends continue while the target catches up, in rounds: a round ends when the target holds what the leader
held at its beginning. A short round shows that the rest will take no longer: only then appends wait (Raft
thesis 3.10, and the rounds of 4.2.1). A target without progress, as with a disk that hangs, never stops
appends.
"""

from contextlib import suppress
from dataclasses import dataclass

from app.errors import AlreadyLeader, TransferFailed
from app.log.contract import NO_INDEX, ReplicaLog
from app.raft.config import RaftConfig
from app.raft.messages import TimeoutNow
from app.raft.peers import Peers
from app.raft.quorum import QuorumChecker
from app.raft.state import MemberState, Outbox


@dataclass(slots=True)
class Attempt:
    """goal_index, round_ms: the leader's end when the round began, and when. paused: appends wait."""

    target: str
    deadline_ms: int
    goal_index: int
    round_ms: int
    preferred: bool = False
    paused: bool = False
    asked: bool = False


class Transfer:
    """The leader's transfer in progress, at most one. It ends when leadership is lost, or at `deadline_ms`.

    A preferred leader that did not take over, or lost leadership within `preferred_leader_kept_ms`, is
    offered it again after a pause that doubles each time.
    """

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
        self._offer_ms = 0  # time of the next attempt for the preferred leader
        self._failures = 0  # of the preferred leader, consecutive
        self._reign_ms: int | None = None  # since when it has led
        self._attempt: Attempt | None = None
        self._full_since_ms: int | None = None  # since when this leader's disk has had no space
        self._full_end = NO_INDEX  # the end of the log then
        self._leaving = False

    def change_preferred(self, node_id: str | None) -> None:
        """Set the node that should lead, None for no preference."""
        self._preferred_leader = node_id

    @property
    def is_under_way(self) -> bool:
        return self._attempt is not None

    @property
    def pauses_appends(self) -> bool:
        """True if appends wait until the next leader is known."""
        return self._attempt is not None and self._attempt.paused

    def begin(self, to: str | None, now_ms: int) -> str:
        """Choose the voter and begin; return it. to: None for the most up-to-date one, if possible of those
        with disk space.

        Raises AlreadyLeader, and TransferFailed for a target that is not a voter, is silent or could not
        lead. A transfer to another voter in progress is given up.
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
            raise TransferFailed(f"{to} is not a voter of this log")
        if not awake or (to is not None and to not in awake):
            raise TransferFailed(f"{to or 'each other voter'} could not lead at present, or does not answer")
        has_room, watermarks = self._peers.has_room, self._quorum.watermarks
        target = to or max(awake, key=lambda voter: (has_room.get(voter, True), watermarks[voter]))
        if self._attempt is None or self._attempt.target != target:
            deadline_ms = now_ms + self._config.transfer_catch_up_ms
            self._attempt = Attempt(target, deadline_ms, self._log.end_index, now_ms)
        self.go_on(now_ms)
        return target

    def go_on(self, now_ms: int) -> None:
        """Start the target's election once it holds everything, all of it committed; give up after the
        time limit."""
        attempt, end_index = self._attempt, self._log.end_index
        if attempt is None:
            return
        held_index = self._quorum.watermarks.get(attempt.target, NO_INDEX)
        if now_ms >= attempt.deadline_ms or attempt.target not in self._member.group.voters:
            self._attempt = None
            if attempt.preferred:
                self._failed(now_ms)
            return
        if not attempt.paused and held_index >= attempt.goal_index:
            if now_ms - attempt.round_ms <= self._config.transfer_round_ms:
                attempt.paused = True
                attempt.deadline_ms = now_ms + self._config.election_timeout_ms[1]
            else:
                attempt.goal_index, attempt.round_ms = end_index, now_ms
        level = held_index == end_index == self._member.committed_index
        if attempt.paused and level and not attempt.asked:
            attempt.asked = True
            self._outbox.send(attempt.target, TimeoutNow(self._member.term))

    def leaves(self, now_ms: int) -> bool:
        """Transfer to a member, because this leader is outside its group. False: failed, or took too long."""
        if not self._leaving:
            self._leaving = True
            with suppress(TransferFailed):
                self.begin(None, now_ms)
        return self.is_under_way

    # --- the preferred leader ------------------------------------------------------------------------------

    def prefer(self, now_ms: int) -> None:
        """Transfer to the preferred leader once it could lead at once; checked periodically."""
        if now_ms < self._offer_ms or self._attempt:
            return
        self._offer_ms = now_ms + self._config.preferred_leader_interval_ms
        preferred, dispatchers = self._preferred_leader, self._peers.dispatchers
        if preferred is None or preferred not in dispatchers or preferred not in self._member.group.voters:
            return
        has_room = self._peers.has_room.get(preferred, True)
        if dispatchers[preferred].is_level and self._peers.is_awake(preferred, now_ms) and has_room:
            self.begin(preferred, now_ms)
            if self._attempt is not None:
                self._attempt.preferred = True

    def _failed(self, now_ms: int) -> None:
        self._failures += 1
        self._pause(now_ms)

    def _pause(self, now_ms: int) -> None:
        config = self._config
        pause_ms = config.preferred_leader_interval_ms << min(self._failures, 16)
        self._offer_ms = now_ms + min(pause_ms, config.preferred_leader_pause_max_ms)

    def found_leader(self, leader_id: str, now_ms: int) -> None:
        """A member, this one or another, begins to lead. Every member judges how long the preferred leader
        leads."""
        if leader_id == self._preferred_leader:
            self._reign_ms = now_ms
        elif self._reign_ms is not None:
            kept = now_ms - self._reign_ms >= self._config.preferred_leader_kept_ms
            self._failures = 0 if kept else self._failures + 1
            self._reign_ms = None

    # --- terms ---------------------------------------------------------------------------------------------

    def leave_full_disk(self, has_room: bool, now_ms: int) -> None:
        """Transfer to a voter with disk space once this leader has had none for some time (R-09).

        A shorter lack of space (retention may be freeing some) is not worth a change of the leader. has_room:
        False for a short time after a refused write, so it has no space until the log grows.
        """
        if has_room:
            if self._log.end_index > self._full_end:
                self._full_since_ms = None
            return
        if self._full_since_ms is None:
            self._full_since_ms, self._full_end = now_ms, self._log.end_index
        if self._attempt or now_ms - self._full_since_ms < self._config.full_disk_transfer_ms:
            return
        self._full_since_ms = now_ms  # and retry after the same time if it does not succeed
        roomy = [peer for peer, room in self._peers.has_room.items() if room]
        level = [peer for peer in roomy if peer in self._peers.dispatchers and self._is_next(peer, now_ms)]
        if level:
            self.begin(max(level, key=self._quorum.watermarks.__getitem__), now_ms)

    def _is_next(self, peer: str, now_ms: int) -> bool:
        dispatcher = self._peers.dispatchers[peer]
        may_lead = peer in self._member.group.voters and dispatcher.peer_may_lead
        return may_lead and dispatcher.is_level and self._peers.is_awake(peer, now_ms)

    def open_term(self, now_ms: int) -> None:
        """This member begins to lead; the preferred leader gets time to catch up."""
        self.found_leader(self._member.node_id, now_ms)
        self._pause(now_ms)
        self._full_since_ms = None

    def close_term(self) -> None:
        """This member stops leading."""
        self._attempt = None
        self._leaving = False
