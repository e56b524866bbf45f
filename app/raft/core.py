"""Raft's core of one log at one member: terms, votes and leadership; the other files here do the rest.

Pure (app/replication.py says how a driver runs it). Elections: a follower that misses its leader asks for
pre-votes (R-03), then for votes (R-02); a leader that misses its majority stands down (R-04).
"""

from collections.abc import Sequence
from random import Random
from typing import Any

from app.errors import InvariantError
from app.raft.config import RaftConfig
from app.raft.dispatcher import Dispatcher
from app.raft.entry_handler import EntryHandler
from app.raft.messages import (
    Heartbeat,
    HeartbeatAnswer,
    PushAnswer,
    PushCode,
    PushRequest,
    RaftMessage,
    ReadIndexAnswer,
    ReadIndexRequest,
    VoteAnswer,
    VoteRequest,
)
from app.raft.quorum import QuorumChecker, quorum_index
from app.raft.reads import FollowerReads, LeaderReads, PeerReader
from app.raft.state import MemberState, Outbox
from app.replication import (
    NO_INDEX,
    CoreStatus,
    Durability,
    GroupConfig,
    PendingAppend,
    Ready,
    ReplicaLog,
    Role,
)
from storage.batch import Batch
from storage.hard_state import HardState


class RaftCore:
    """One member of one Raft group. Satisfies ReplicationCore.

    Invariants: the term never falls; whatever rests on a term or vote leaves in the same Ready as the hard
    state that holds it, or later (R-01); the committed index never falls.
    """

    def __init__(
        self,
        *,
        node_id: str,
        group: GroupConfig,
        log: ReplicaLog,
        durability: Durability,
        hard_state: HardState,
        committed_index: int,
        config: RaftConfig,
        random: Random,
    ) -> None:
        """committed_index: of the checkpoint. random: draws timeouts, and ids that no other life uses."""
        self._config = config
        self._random = random
        self._log = log
        self._idle_role = Role.FOLLOWER if node_id in group.voters else Role.LEARNER
        self._member = MemberState(
            node_id=node_id,
            group=group,
            durability=durability,
            role=self._idle_role,
            term=hard_state.term,
            voted_for=hard_state.voted_for,
            committed_index=min(committed_index, log.end_index),
        )
        self._outbox = Outbox()
        self._quorum = QuorumChecker(self._member, log, self._outbox, config)
        self._peers = tuple(peer for peer in (*group.voters, *group.learners) if peer != node_id)
        self._dispatchers = {
            peer: Dispatcher(peer, self._member, log, self._outbox, self._quorum, config)
            for peer in self._peers
        }
        self._handler = EntryHandler(self._member, log, self._outbox, config, random.getrandbits(53))
        self._leader_reads = LeaderReads(self._member, log, self._outbox)
        self._follower_reads = FollowerReads(self._member, self._outbox, config, random)
        self._votes: dict[str, bool] = {}
        self._pre_voting = False
        self._opening: dict[str, Any] | None = None
        self._heard_ms: dict[str, int] = {}  # peer -> when it last answered this leader
        self._leader_heard_ms = -config.election_timeout_ms[1]
        self._election_due_ms = 0
        self._heartbeat_ms = 0
        self._announced: tuple[Role, str | None, int] = (self._idle_role, None, hard_state.term)

    # --- what the driver asks ------------------------------------------------------------------------------

    @property
    def role(self) -> Role:
        return self._member.role

    @property
    def term(self) -> int:
        return self._member.term

    @property
    def leader_id(self) -> str | None:
        return self._member.leader_id

    @property
    def committed_index(self) -> int:
        return self._member.committed_index

    @property
    def accepts_appends(self) -> bool:
        return self._member.leads and self._opening is None

    @property
    def wants_control(self) -> dict[str, Any] | None:
        return self._opening

    @property
    def pending_appends(self) -> int:
        return self._quorum.pending_count

    def status(self) -> CoreStatus:
        member = self._member
        return CoreStatus(
            role=member.role,
            term=member.term,
            leader_id=member.leader_id,
            committed_index=member.committed_index,
            peers=tuple(each.status() for each in self._dispatchers.values()) if member.leads else (),
            learners=member.group.learners,
            epoch=member.term,
        )

    def watermarks(self, term: int | None = None) -> dict[int, dict[str, int]]:
        """Watermarks by term and peer; only those of the current term are held, and only while leading."""
        member = self._member
        if not member.leads or (term is not None and term != member.term):
            return {}
        return {member.term: dict(self._quorum.watermarks)}

    # --- events --------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        self._restart_election_timer(now_ms)
        if self._member.group.voters == (self._member.node_id,):
            self._campaign(now_ms)
        self._settle(now_ms)

    def step(self, source: str, message: RaftMessage, now_ms: int) -> None:
        """Take a message of a member of the group; those of strangers are dropped."""
        if source not in self._dispatchers:
            return
        if message.term > self._member.term and not self._adopt_term(message, now_ms):
            return
        if message.term < self._member.term:
            self._refuse_older(source, message)
        elif isinstance(message, PushRequest):
            if self._follow(source, message.leader_id, now_ms):
                self._handler.handle(message, now_ms)
            else:
                self._refuse_push(source, message)
        elif isinstance(message, PushAnswer):
            if self._member.leads:
                self._hear(source, now_ms)
                self._dispatchers[source].answer(message, now_ms)
        elif isinstance(message, Heartbeat):
            if self._follow(source, message.leader_id, now_ms):
                self._outbox.send(source, HeartbeatAnswer(message.term, message.round))
                self._handler.adopt_committed(message.committed_index)
        elif isinstance(message, HeartbeatAnswer):
            if self._member.leads:
                self._hear(source, now_ms)
                self._leader_reads.answered(source, message.round)
        elif isinstance(message, VoteRequest):
            self._vote(source, message, now_ms)
        elif isinstance(message, VoteAnswer):
            self._count_vote(source, message, now_ms)
        elif isinstance(message, ReadIndexRequest):
            if self._member.leads:
                self._leader_reads.ask(PeerReader(source, message.id))
            else:
                self._outbox.send(source, ReadIndexAnswer(self._member.term, message.id, None))
        else:
            self._follower_reads.answered(message, now_ms)
        self._settle(now_ms)

    def tick(self, now_ms: int) -> None:
        member, config = self._member, self._config
        if member.leads:
            heard = {**self._heard_ms, member.node_id: now_ms}
            majority_ms = quorum_index(heard[voter] for voter in member.group.voters)
            if now_ms - majority_ms > config.election_timeout_ms[1]:
                self._stand_down(now_ms)
            else:
                if now_ms - self._heartbeat_ms >= config.heartbeat_interval_ms:
                    self._broadcast(now_ms)
                for dispatcher in self._dispatchers.values():
                    dispatcher.step(now_ms)
                self._quorum.tick(now_ms)
        else:
            self._handler.tick(now_ms)
            self._follower_reads.tick(now_ms)
            if now_ms >= self._election_due_ms and member.role is not Role.LEARNER:
                self._ask_pre_votes(now_ms)
        self._settle(now_ms)

    def propose(self, batch: Batch, appends: Sequence[PendingAppend], now_ms: int) -> None:
        """Take a batch that the driver stamped for the log's end, in this term; appends: those in it."""
        if not self._member.leads or batch.term != self._member.term:
            raise InvariantError("a batch was proposed to a member that does not lead its term")
        if batch.is_control:
            self._opening = None
        self._outbox.batches.append(batch)
        self._quorum.add(appends)

    def join(self, append: PendingAppend, now_ms: int) -> None:
        self._quorum.join(append)
        self._settle(now_ms)

    def read_index(self, token: Any, now_ms: int) -> None:
        if self._member.leads:
            self._leader_reads.ask(token)
        else:
            self._follower_reads.ask(token, now_ms)
        self._settle(now_ms)

    def synced(self, now_ms: int) -> None:
        if self._member.leads:
            self._quorum.needs_check = True
        else:
            self._handler.synced()
        self._settle(now_ms)

    def ready(self) -> Ready | None:
        return self._outbox.take()

    def advance(self, ready: Ready, now_ms: int) -> None:
        if self._member.leads:
            if ready.batches:
                self._quorum.needs_check = True
                for dispatcher in self._dispatchers.values():
                    dispatcher.step(now_ms, ready.batches)
        elif ready.batches or ready.truncate is not None:
            self._handler.written(now_ms)
        self._settle(now_ms)

    def abandon(self, ready: Ready, now_ms: int) -> None:
        if not self._member.leads:
            self._handler.not_written()
        elif any(batch.is_control for batch in ready.batches):
            self._stand_down(now_ms)  # a leader that cannot open its term is of no use
        else:
            self._quorum.drop(ready.batches[0].base_index)
        self._settle(now_ms)

    def stop(self, now_ms: int) -> None:
        if self._member.leads:
            self._stand_down(now_ms)
        self._follower_reads.fail()
        self._announce()

    def _settle(self, now_ms: int) -> None:
        """What follows from whatever has just happened."""
        if self._member.leads:
            if self._quorum.needs_check:
                self._quorum.check(now_ms)
            if self._leader_reads.wants_round:
                self._broadcast(now_ms)
        self._announce()

    def _announce(self) -> None:
        member = self._member
        role, leader_id, term = self._announced
        if (member.role, member.leader_id, member.term) == self._announced:
            return
        self._announced = (member.role, member.leader_id, member.term)
        if member.leader_id is not None and (member.leader_id, member.term) != (leader_id, term):
            self._outbox.tell("term", member.term, {"term": member.term, "leader": member.leader_id})
        if (member.role, member.leader_id) != (role, leader_id):
            self._outbox.tell("role", member.term, {"role": member.role.value, "leader": member.leader_id})

    # --- terms and votes -----------------------------------------------------------------------------------

    def _adopt_term(self, message: RaftMessage, now_ms: int) -> bool:
        """A newer term: take it over (D-21), unless it is only asked about. Whether the message counts."""
        if isinstance(message, VoteRequest):
            if message.pre_vote:
                return True
            if self._hears_leader(now_ms):
                return False  # a healthy group is not disturbed
        elif isinstance(message, VoteAnswer) and message.pre_vote and message.granted:
            return True  # the term that we asked about
        self._become_follower(message.term, now_ms)
        return True

    def _hears_leader(self, now_ms: int) -> bool:
        if self._member.leads:
            return True
        silent_ms = now_ms - self._leader_heard_ms
        return self._member.leader_id is not None and silent_ms < self._config.election_timeout_ms[0]

    def _become_follower(self, term: int, now_ms: int) -> None:
        """Begin a newer term without a leader."""
        if self._member.leads:
            self._close_term(now_ms)
        self._member.term, self._member.voted_for = term, None
        self._save()
        self._lose_leader()
        self._member.role = self._idle_role
        self._restart_election_timer(now_ms)

    def _lose_leader(self) -> None:
        self._member.leader_id = None
        self._handler.reset()
        self._follower_reads.fail()

    def _stand_down(self, now_ms: int) -> None:
        """Stop leading without a newer term: the others will elect one."""
        self._close_term(now_ms)
        self._lose_leader()
        self._member.role = self._idle_role
        self._restart_election_timer(now_ms)

    def _close_term(self, now_ms: int) -> None:
        self._opening = None
        self._quorum.close_term(now_ms)
        self._leader_reads.close_term()

    def _save(self) -> None:
        self._outbox.hard_state = HardState(self._member.term, self._member.voted_for)

    def _restart_election_timer(self, now_ms: int) -> None:
        self._election_due_ms = now_ms + self._random.randint(*self._config.election_timeout_ms)

    def _ask_pre_votes(self, now_ms: int) -> None:
        """Find out whether an election could be won before any term is raised (R-03)."""
        member = self._member
        member.role = Role.CANDIDATE
        if member.leader_id is not None:
            self._lose_leader()
        self._restart_election_timer(now_ms)
        self._pre_voting = True
        self._ask_votes(member.term + 1, now_ms)

    def _campaign(self, now_ms: int) -> None:
        member = self._member
        member.role = Role.CANDIDATE
        member.term, member.voted_for = member.term + 1, member.node_id
        self._save()
        self._lose_leader()
        self._restart_election_timer(now_ms)
        self._pre_voting = False
        self._ask_votes(member.term, now_ms)

    def _ask_votes(self, term: int, now_ms: int) -> None:
        member, log = self._member, self._log
        request = VoteRequest(term, log.end_index, log.last_term, self._pre_voting)
        for voter in member.group.voters:
            if voter != member.node_id:
                self._outbox.send(voter, request)
        self._votes = {member.node_id: True}
        self._count_votes(now_ms)

    def _vote(self, source: str, request: VoteRequest, now_ms: int) -> None:
        member, log = self._member, self._log
        up_to_date = (request.last_term, request.last_index) >= (log.last_term, log.end_index)
        if request.pre_vote:
            granted = request.term > member.term and up_to_date and not self._hears_leader(now_ms)
        else:
            granted = member.voted_for in (None, source) and member.leader_id is None and up_to_date
        if granted and not request.pre_vote:
            if member.voted_for is None:
                member.voted_for = source
                self._save()
            self._restart_election_timer(now_ms)
        term = request.term if granted else member.term
        self._outbox.send(source, VoteAnswer(term, granted, request.pre_vote))

    def _count_vote(self, source: str, answer: VoteAnswer, now_ms: int) -> None:
        member = self._member
        if member.role is not Role.CANDIDATE or answer.pre_vote is not self._pre_voting:
            return
        asked_term = member.term + 1 if self._pre_voting else member.term
        if answer.granted and answer.term != asked_term:
            return
        self._votes[source] = answer.granted
        self._count_votes(now_ms)

    def _count_votes(self, now_ms: int) -> None:
        votes = sum(self._votes.get(voter, False) for voter in self._member.group.voters)
        if votes < self._member.majority:
            return
        if self._pre_voting:
            self._campaign(now_ms)
        else:
            self._lead(now_ms)

    def _lead(self, now_ms: int) -> None:
        """Open the term: first a control record (R-05), and every peer is compared (D-02)."""
        member = self._member
        member.role, member.leader_id = Role.LEADER, member.node_id
        self._handler.reset()
        self._opening = {"kind": "term", "leader": member.node_id}
        self._heard_ms = dict.fromkeys(self._peers, now_ms)
        self._quorum.open_term(now_ms)
        self._broadcast(now_ms)

    # --- leading and following -----------------------------------------------------------------------------

    def _broadcast(self, now_ms: int) -> None:
        """One round of heartbeats."""
        member = self._member
        self._heartbeat_ms = now_ms
        number = self._leader_reads.begin_round()
        heartbeat = Heartbeat(member.term, member.node_id, member.committed_index, number)
        for peer in self._peers:
            self._outbox.send(peer, heartbeat)

    def _hear(self, peer: str, now_ms: int) -> None:
        if now_ms - self._heard_ms[peer] > self._config.max_push_timeout_ms:
            self._dispatchers[peer].revive()
        self._heard_ms[peer] = now_ms

    def _follow(self, source: str, leader_id: str, now_ms: int) -> bool:
        """Whether the sender is the one leader of this term (D-21); if so, it has been heard now."""
        member = self._member
        if member.leads or source != leader_id or member.leader_id not in (None, leader_id):
            return False
        if member.leader_id is None:
            self._handler.reset()
            member.leader_id = leader_id
            member.role = self._idle_role
        self._leader_heard_ms = now_ms
        self._restart_election_timer(now_ms)
        return True

    def _refuse_older(self, source: str, message: RaftMessage) -> None:
        """The sender lives in an older term: tell it ours (D-21)."""
        term = self._member.term
        if isinstance(message, PushRequest):
            self._refuse_push(source, message)
        elif isinstance(message, Heartbeat):
            self._outbox.send(source, HeartbeatAnswer(term, NO_INDEX))
        elif isinstance(message, VoteRequest):
            self._outbox.send(source, VoteAnswer(term, False, message.pre_vote))
        elif isinstance(message, ReadIndexRequest):
            self._outbox.send(source, ReadIndexAnswer(term, message.id, None))

    def _refuse_push(self, source: str, request: PushRequest) -> None:
        log = self._log
        self._outbox.send(
            source,
            PushAnswer(
                self._member.term,
                request.type,
                PushCode.REFUSED,
                request.session,
                0,
                request.index,
                log.begin_index,
                log.end_index,
            ),
        )
