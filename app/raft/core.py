"""Raft core of one log at one member: terms, votes and leadership.

Pure (app/log/contract.py describes how a driver runs it). Elections: a follower that misses its leader asks
for pre-votes (R-03), then for votes (R-02); a leader that misses its majority stands down (R-04). Rules for a
member that may have lost data (`sound` is false): doubt.py.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from app.errors import InvariantError, TransferFailed
from app.log.contract import (
    NO_INDEX,
    ChangeKind,
    GroupConfig,
    LogOptions,
    PendingAppend,
    Ready,
    ReplicaLog,
    Role,
)
from app.log.core_start import CoreStart
from app.raft.config import RaftConfig
from app.raft.elections import grants
from app.raft.member import RaftMember
from app.raft.membership import changed
from app.raft.messages import (
    Heartbeat,
    HeartbeatAnswer,
    PushAnswer,
    PushRequest,
    RaftMessage,
    ReadIndexAnswer,
    ReadIndexRequest,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from app.raft.reads import PeerReader
from app.raft.refusals import refuse_older, refuse_push
from app.raft.standing import NO_NODES
from storage.format.batch import Batch
from storage.log.hard_state import HardState


class RaftCore(RaftMember):
    """One member of one Raft group. Satisfies ReplicationCore.

    Invariants: the term never falls; what depends on a term or vote leaves in the same Ready as the hard
    state that holds it, or later (R-01); the committed index never falls.
    """

    def __init__(
        self,
        start: CoreStart,
        log: ReplicaLog,
        *,
        config: RaftConfig,
        sound: bool = True,
        knows_vote: bool = True,
        knows_group: bool = True,
        preferred_leader: str | None = None,
    ) -> None:
        """sound: false when this member's disk may have lost what it acknowledged or voted. knows_vote: false
        when it may have lost its term and vote; then it is not sound either. knows_group: false when `start`
        may name another group than that of the log's first opening.
        """
        super().__init__(
            start,
            log,
            config=config,
            sound=sound,
            knows_vote=knows_vote,
            knows_group=knows_group,
            preferred_leader=preferred_leader,
        )
        self._take: dict[type[RaftMessage], Callable[[str, Any, int], None]] = {
            PushRequest: self._take_push,
            PushAnswer: self._take_push_answer,
            Heartbeat: self._take_heartbeat,
            HeartbeatAnswer: self._take_heartbeat_answer,
            VoteRequest: self._vote,
            VoteAnswer: self._take_vote,
            TimeoutNow: self._take_lead,
            ReadIndexRequest: self._take_read,
            ReadIndexAnswer: self._take_read_index,
        }

    # --- events --------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        if self._standing.index == NO_INDEX:  # otherwise the log contains the group, which was adopted
            self._standing.record()
        self._restart_election_timer(now_ms)
        if self._member.group.voters == (self._member.node_id,) and self._standing.may_campaign:
            self._campaign(now_ms)
        self._settle(now_ms)

    def step(self, source: str, message: RaftMessage, now_ms: int) -> None:
        """Handle a message of another node; most messages of non-members are dropped."""
        if source not in self._peers.dispatchers and not self._concerns(source, message):
            return
        if not self._term_guard.allows(source, message.term):
            self._announce()
            return
        if message.term > self._member.term and not self._adopt_term(message, now_ms):
            return
        if message.term < self._member.term:
            refuse_older(self._member, self._log, self._outbox, source, message)
        else:
            self._take[type(message)](source, message, now_ms)
        self._settle(now_ms)

    def _concerns(self, source: str, message: RaftMessage) -> bool:
        """Return whether a message of a node that is not a member matters. Its group may be newer than that
        of this log: it may lead, or ask for a vote (R-10). A voter that the newest group removes is asked
        until that is committed."""
        if isinstance(message, (VoteAnswer, HeartbeatAnswer)):
            return source in self._member.every_voter
        return isinstance(message, (VoteRequest, PushRequest, Heartbeat, TimeoutNow))

    # Each takes one kind of message, of the current term.

    def _take_push(self, source: str, request: PushRequest, now_ms: int) -> None:
        if self._follow(source, request.leader_id, now_ms):
            self._handler.handle(request, now_ms)
        else:
            refuse_push(self._member, self._log, self._outbox, source, request)

    def _take_push_answer(self, source: str, answer: PushAnswer, now_ms: int) -> None:
        if self._member.leads:
            self._peers.hear(source, now_ms)
            self._peers.dispatchers[source].answer(answer, now_ms)

    def _take_heartbeat(self, source: str, heartbeat: Heartbeat, now_ms: int) -> None:
        if self._follow(source, heartbeat.leader_id, now_ms):
            self._answer_heartbeat(source, heartbeat)
            self._handler.adopt_committed(heartbeat.committed_index)

    def _take_heartbeat_answer(self, source: str, answer: HeartbeatAnswer, now_ms: int) -> None:
        if self._member.leads:
            self._peers.hear_answer(source, answer, now_ms)
            self._leader_reads.answered(source, answer.round, sound=answer.sound)

    def _take_vote(self, source: str, answer: VoteAnswer, now_ms: int) -> None:
        """A late answer does not count: its voter may have lost its disk, and so have forgotten its vote,
        and may follow another leader again."""
        if self._member.role is Role.CANDIDATE and now_ms < self._timer.due_ms:
            self._ballot.count(source, answer)
            self._count_votes(now_ms)
        if answer.group is not None and self._member.leader_id is None:
            self._standing.take(answer.group, self._term_of(self._standing.index))
            self._idle()

    def _take_lead(self, source: str, _request: TimeoutNow, now_ms: int) -> None:
        if source == self._member.leader_id and self._standing.may_campaign and self._member.sound:
            self._campaign(now_ms, transfer=True)

    def _take_read(self, source: str, request: ReadIndexRequest, now_ms: int) -> None:
        if self._member.leads:
            self._leader_reads.ask(PeerReader(source, request.id, request.leadership), now_ms)
        else:
            self._outbox.send(source, ReadIndexAnswer(self._member.term, request.id, None))

    def _take_read_index(self, _source: str, answer: ReadIndexAnswer, now_ms: int) -> None:
        self._follower_reads.answered(answer, now_ms)

    def tick(self, now_ms: int) -> None:
        member, config = self._member, self._config
        if member.leads:
            if now_ms - self._peers.majority_heard_ms(now_ms) > config.election_timeout_ms[1]:
                self._stand_down(now_ms)
            else:
                if now_ms >= self._heartbeat_due_ms:
                    self._broadcast(now_ms)
                self._peers.step(now_ms)
                self._quorum.tick(now_ms)
                self._leader_reads.tick(now_ms)
                if self._opening is None:
                    self._transfer.prefer(now_ms)
                    self._transfer.leave_full_disk(self.has_room, now_ms)
                self._transfer.go_on(now_ms)
        else:
            self._handler.tick(now_ms)
            self._follower_reads.tick(now_ms)
            if self._doubt is not None:
                self._doubt.tick(now_ms)
            if now_ms >= self._timer.due_ms:
                self._ask_pre_votes(now_ms)
            elif now_ms >= self._timer.repeat_ms:
                self._timer.wait_to_repeat(now_ms)
                if member.role is Role.CANDIDATE:
                    self._ballot.repeat()
        self._settle(now_ms)

    def propose(self, batch: Batch, appends: Sequence[PendingAppend], now_ms: int) -> None:
        """Adopt a batch that the driver stamped for the log's end, in this term; appends: those in it."""
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
            self._leader_reads.ask(token, now_ms)
        else:
            self._follower_reads.ask(token, now_ms)
        self._settle(now_ms)

    def configure(
        self,
        group: GroupConfig,
        index: int,
        now_ms: int,
        nodes: Mapping[str, tuple[str, str]] = NO_NODES,
        *,
        settled: bool = False,
    ) -> None:
        if group != self._member.group:
            self._member.group_index = index
        if not self._standing.configure(group, index, nodes, settled=settled):
            return
        self._peers.regroup(now_ms)
        if self._member.role is not Role.CANDIDATE or not self._standing.may_campaign:
            self._idle()
        self._settle(now_ms)

    def change(self, kind: ChangeKind, node_id: str, now_ms: int) -> GroupConfig | None:
        """Return the group after the change of one member; None if it is already so (R-10).

        The driver writes it into the log. A leader that has removed itself changes nothing more: its record
        could keep the others from being elected, while it is no candidate itself. Raises what
        membership.changed raises.
        """
        standing = self._standing
        settled = standing.is_voter and standing.is_settled and self._leader_reads.term_is_open
        return changed(self._peers.view(now_ms, settled=settled), kind, node_id)

    def transfer(self, to: str | None, now_ms: int) -> str:
        if not self._member.leads or self._opening is not None:
            raise TransferFailed("this node does not lead, or has only begun to")
        target = self._transfer.begin(to, now_ms)
        self._settle(now_ms)
        return target

    def hand_over(self, now_ms: int) -> None:
        with suppress(TransferFailed):
            self.transfer(None, now_ms)

    def apply_options(self, options: LogOptions, now_ms: int) -> None:
        self._member.durability = options.durability
        self._transfer.change_preferred(options.preferred)

    def synced(self, now_ms: int) -> None:
        if self._member.leads:
            self._quorum.needs_check = True
        else:
            self._handler.synced()
        self._settle(now_ms)

    def advance(self, ready: Ready, now_ms: int) -> None:
        if not ready.batches and ready.truncate is None and ready.hard_state is None:
            return  # what was sent and answered changes nothing
        if ready.hard_state is not None and not self._member.leads:
            self._timer.saved(now_ms)
        if self._member.leads:
            if ready.batches:
                self._quorum.wrote()
                self._peers.step(now_ms, ready.batches)
        elif ready.batches or ready.truncate is not None:
            self._handler.written(now_ms)
        self._settle(now_ms)

    def abandon(self, ready: Ready, now_ms: int) -> None:
        if not self._member.leads:
            self._handler.not_written()
        elif self._log.last_term != self._member.term:
            self._stand_down(now_ms)  # a leader that cannot open its term is useless
        else:
            self._quorum.drop(ready.batches[0].base_index)
        self._settle(now_ms)

    def stop(self, now_ms: int) -> None:
        if self._member.leads:
            self._stand_down(now_ms)
        self._follower_reads.fail()
        self._announce()

    def _settle(self, now_ms: int) -> None:
        """Derive the next actions from whatever has changed."""
        if self._member.leads:
            if self._quorum.needs_check:
                self._quorum.check()
            if self._leader_reads.wants_round:
                self._broadcast(now_ms)
            self._transfer.go_on(now_ms)
            outside = not self._standing.is_voter and self._standing.is_settled
            if outside and self._leader_reads.term_is_open and not self._transfer.leaves(now_ms):
                self._stand_down(now_ms)
        elif self._doubt is not None and self._doubt.is_over:
            self._member.sound, self._doubt = True, None
        self._announce()

    # --- terms and votes -----------------------------------------------------------------------------------

    def _adopt_term(self, message: RaftMessage, now_ms: int) -> bool:
        """Adopt a newer term (D-21), unless the message only asks about it. Return whether the message
        counts."""
        if isinstance(message, VoteRequest):
            if message.pre_vote:
                return True
            if not message.transfer and self._hears_leader(now_ms):
                return False  # a healthy group is not disturbed
        elif isinstance(message, VoteAnswer) and message.pre_vote and message.granted:
            return True  # the term of our own question
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
        self._save(now_ms)
        self._rest(now_ms)

    def _idle(self) -> None:
        """Take the role of a member that neither leads nor campaigns; a leader continues."""
        if not self._member.leads:
            self._member.role = self._standing.idle_role

    def _lose_leader(self) -> None:
        self._member.leader_id = None
        self._handler.reset()
        self._follower_reads.fail()

    def _stand_down(self, now_ms: int) -> None:
        """Stop leading without a newer term: the others will elect a leader."""
        self._close_term(now_ms)
        self._rest(now_ms)

    def _rest(self, now_ms: int) -> None:
        """Neither follow nor lead until a leader is heard or elected."""
        self._lose_leader()
        self._member.role = self._standing.idle_role
        self._restart_election_timer(now_ms)

    def _close_term(self, now_ms: int) -> None:
        self._opening = None
        self._quorum.close_term(now_ms)
        self._leader_reads.close_term()
        self._transfer.close_term()

    def _save(self, now_ms: int) -> None:
        self._outbox.hard_state = HardState(self._member.term, self._member.voted_for)
        self._timer.saving(now_ms)

    def _restart_election_timer(self, now_ms: int) -> None:
        self._timer.restart(now_ms, removed=self._standing.notice is not None)

    def _ask_pre_votes(self, now_ms: int) -> None:
        """Determine whether an election could be won before any term is raised (R-03). For a member that
        may not campaign, the answers only show whether it is still a member (R-10)."""
        if (member := self._member).leader_id is not None:
            self._lose_leader()
        member.role = Role.CANDIDATE if self._standing.may_campaign else self._standing.idle_role
        self._restart_election_timer(now_ms)
        self._ballot.open(member.term + 1, pre_vote=True)
        if member.role is Role.CANDIDATE:
            self._count_votes(now_ms)

    def _campaign(self, now_ms: int, *, transfer: bool = False) -> None:
        (member := self._member).role = Role.CANDIDATE
        member.term, member.voted_for = member.term + 1, member.node_id
        self._save(now_ms)
        self._lose_leader()
        self._restart_election_timer(now_ms)
        self._ballot.open(member.term, transfer=transfer)
        self._count_votes(now_ms)

    def _vote(self, source: str, request: VoteRequest, now_ms: int) -> None:
        member = self._member
        granted = grants(member, self._log, source, request, hears_leader=self._hears_leader(now_ms))
        if granted and not request.pre_vote:
            if member.voted_for is None:
                member.voted_for = source
                self._save(now_ms)
            self._restart_election_timer(now_ms)
        if granted:
            voters = () if member.is_named else member.group.voters
            answer = VoteAnswer(request.term, True, request.pre_vote, sound=member.sound, voters=voters)
            self._outbox.send(source, answer)
            return
        if member.leader_id is None and (request.last_term, request.last_index) < self._log.last_position:
            self._standing.has_newest_log = True
        notice = None
        if request.pre_vote:
            committed_term = self._term_of(member.committed_index)
            notice = self._standing.notice_for(source, member.leader_id, committed_term)
        self._outbox.send(source, VoteAnswer(member.term, False, request.pre_vote, notice, member.sound))

    def _term_of(self, index: int) -> int:
        """Return the term of the record at `index`, 0 if the log does not hold it."""
        log = self._log
        return log.term_at(index) if NO_INDEX < log.begin_index <= index <= log.end_index else 0

    def _count_votes(self, now_ms: int) -> None:
        if not self._ballot.is_won:
            return
        if self._ballot.pre_vote:
            self._campaign(now_ms)
        else:
            self._lead(now_ms)

    def _lead(self, now_ms: int) -> None:
        """Open the term: first a control record (R-05), then a comparison with every peer (D-02)."""
        member = self._member
        member.role, member.leader_id = Role.LEADER, member.node_id
        member.sound, self._doubt = True, None  # this leader's log is the log from now on
        member.stated_index = NO_INDEX
        self._handler.reset()
        self._opening = self._standing.opening_record()
        self._peers.open_term(now_ms)
        self._transfer.open_term(now_ms)
        self._quorum.open_term(now_ms)
        self._broadcast(now_ms)

    # --- leading and following -----------------------------------------------------------------------------

    def _broadcast(self, now_ms: int) -> None:
        """One round of heartbeats. The next one is due at a multiple of the interval, within an interval from
        now: the heartbeats of all logs that a node leads leave together."""
        member, interval_ms = self._member, self._config.heartbeat_interval_ms
        self._heartbeat_due_ms = now_ms - now_ms % interval_ms + interval_ms
        number = self._leader_reads.begin_round()
        heartbeat = Heartbeat(member.term, member.node_id, member.committed_index, number)
        for peer in dict.fromkeys((*self._peers.dispatchers, *member.every_voter)):
            if peer != member.node_id:
                self._outbox.send(peer, heartbeat)

    def _answer_heartbeat(self, source: str, heartbeat: Heartbeat) -> None:
        trusts = self._doubt is None or self._doubt.trusts_leader
        answer = HeartbeatAnswer(heartbeat.term, heartbeat.round, self.has_room, self._member.sound, trusts)
        self._outbox.send(source, answer)

    def _follow(self, source: str, leader_id: str, now_ms: int) -> bool:
        """Return whether the sender is the leader of this term (D-21); if so, record that it was heard."""
        member = self._member
        if member.leads or source != leader_id or member.leader_id not in (None, leader_id):
            return False
        if member.leader_id is None:
            self._handler.reset()
            member.leader_id = leader_id
            self._standing.notice = None
            self._standing.has_newest_log = False
            self._transfer.found_leader(leader_id, now_ms)
            member.role = self._standing.idle_role
        self._leader_heard_ms = now_ms
        self._restart_election_timer(now_ms)
        return True
