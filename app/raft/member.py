"""Parts of one Raft member, and what they report to the driver. PURE."""

from app.errors import CommitlogError
from app.log.contract import CoreStatus, ReplicaLog, Role
from app.log.control_records import TermRecord
from app.log.core_start import CoreStart
from app.raft.config import RaftConfig
from app.raft.doubt import Doubt
from app.raft.elections import Ballot, ElectionTimer
from app.raft.entry_handler import EntryHandler
from app.raft.member_core import MemberCore
from app.raft.messages import GroupNotice
from app.raft.peers import Peers
from app.raft.quorum import QuorumChecker
from app.raft.reads import FollowerReads, LeaderReads
from app.raft.refusals import TermGuard
from app.raft.standing import Standing
from app.raft.state import MemberState, committed_at_open
from app.raft.transfer import Transfer


class RaftMember(MemberCore):
    """The parts of a member, over the state that they share. RaftCore handles the events."""

    def __init__(
        self,
        start: CoreStart,
        log: ReplicaLog,
        *,
        config: RaftConfig,
        sound: bool,
        knows_vote: bool,
        knows_group: bool,
        preferred_leader: str | None,
    ) -> None:
        """Arguments: as of RaftCore."""
        node_id, group, random = start.node_id, start.group, start.random
        self._config = config
        self._log = log
        super().__init__(
            MemberState(
                node_id=node_id,
                group=group,
                durability=start.durability,
                role=Role.FOLLOWER if node_id in group.voters else Role.LEARNER,
                term=start.hard_state.term,
                voted_for=start.hard_state.voted_for,
                committed_index=committed_at_open(log, start.committed_index),
                sound=sound,
                knows_group=knows_group,
            )
        )
        self._standing = Standing(self._member, self._outbox)
        self._term_guard = TermGuard(self._member, self._outbox)
        self._quorum = QuorumChecker(self._member, log, self._outbox, config)
        self._peers = Peers(self._member, log, self._outbox, self._quorum, config)
        self._handler = EntryHandler(self._member, log, self._outbox, config, random.getrandbits(53))
        self._leader_reads = LeaderReads(self._member, log, self._outbox, config)
        self._follower_reads = FollowerReads(self._member, self._outbox, config, random)
        self._ballot = Ballot(self._member, log, self._outbox)
        self._doubt = None if sound else Doubt(self._member, self._handler, self._follower_reads, knows_vote)
        self._transfer = Transfer(
            self._member, log, self._outbox, self._quorum, self._peers, config, preferred_leader
        )
        self._opening: TermRecord | None = None
        self._leader_heard_ms = -config.election_timeout_ms[1]
        self._timer = ElectionTimer(config, random)
        self._heartbeat_due_ms = 0

    @property
    def accepts_appends(self) -> bool:
        return self._member.leads and self._opening is None and not self.pauses_appends

    @property
    def is_transferring(self) -> bool:
        return self._transfer.is_under_way

    @property
    def pauses_appends(self) -> bool:
        return self._transfer.pauses_appends

    @property
    def knows_vote(self) -> bool:
        return self._doubt is None or self._doubt.knows_vote

    @property
    def refusal(self) -> CommitlogError | None:
        return self._peers.refusal

    @property
    def leader_id(self) -> str | None:
        """The leader that this member follows; for a removed member the leader that a peer reported."""
        notice = self._standing.notice
        return self._member.leader_id if notice is None else notice.leader_id

    @property
    def notice(self) -> GroupNotice | None:
        return self._standing.notice

    @property
    def wants_control(self) -> TermRecord | None:
        return self._opening

    @property
    def due_ms(self) -> float:
        """The next round of heartbeats, the election timer, or the next repeat of a question for votes."""
        if self._member.leads:
            return self._heartbeat_due_ms
        return min(self._timer.due_ms, self._timer.repeat_ms)

    @property
    def waiting_reads(self) -> int:
        return self._leader_reads.waiting_count + self._follower_reads.waiting_count

    def status(self) -> CoreStatus:
        member = self._member
        return CoreStatus(
            role=member.role,
            term=member.term,
            leader_id=self.leader_id,
            committed_index=member.committed_index,
            peers=self._peers.status() if member.leads else (),
            learners=member.group.learners,
            epoch=member.term,
        )

    def watermarks(self, term: int | None = None) -> dict[int, dict[str, int]]:
        """Watermarks by term and peer; only those of the current term are held, and only while leading."""
        leads = self._member.leads and term in (None, self._member.term)
        return {self._member.term: dict(self._quorum.watermarks)} if leads else {}
