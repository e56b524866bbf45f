"""Raft's core of one log at one member: terms, votes and leadership; the other files here do the rest.

Pure (app/replication.py says how a driver runs it). Elections: a follower that misses its leader asks for
pre-votes (R-03), then for votes (R-02); a leader that misses its majority stands down (R-04). A member that
lost what it had promised (`sound` is false) only follows, until it holds all that its leader has committed.
"""

from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

from app.errors import CommitlogError, InvariantError, StorageFull, TransferFailed
from app.raft.ballot import Ballot, grants
from app.raft.config import RaftConfig
from app.raft.entry_handler import EntryHandler
from app.raft.member_core import MemberCore
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
from app.raft.peers import Peers
from app.raft.quorum import QuorumChecker
from app.raft.reads import FollowerReads, LeaderReads, PeerReader
from app.raft.refusals import refuse_older, refuse_push
from app.raft.state import MemberState, committed_at_open, is_of_term
from app.raft.transfer import Transfer
from app.replication import (
    NO_INDEX,
    ChangeKind,
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

DISK_WAITS_MAX = 10  # longest extension of an election by a slow disk, in longest election timeouts


class RaftCore(MemberCore):
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
        sound: bool = True,
        preferred_leader: str | None = None,
    ) -> None:
        """committed_index: of the checkpoint. random: draws timeouts, and ids that no other life uses.

        sound: false when this member's disk may have lost what it acknowledged or voted.
        """
        self._config = config
        self._random = random
        self._log = log
        super().__init__(
            MemberState(
                node_id=node_id,
                group=group,
                durability=durability,
                role=_idle_role(group, node_id),
                term=hard_state.term,
                voted_for=hard_state.voted_for,
                committed_index=committed_at_open(log, committed_index),
                sound=sound,
            )
        )
        self._leaving = False  # this leader is no member any more
        self._group_index = NO_INDEX  # of the record that made the group what it is
        self._quorum = QuorumChecker(self._member, log, self._outbox, config)
        self._peers = Peers(self._member, log, self._outbox, self._quorum, config)
        self._handler = EntryHandler(self._member, log, self._outbox, config, random.getrandbits(53))
        self._leader_reads = LeaderReads(self._member, log, self._outbox)
        self._follower_reads = FollowerReads(self._member, self._outbox, config, random)
        self._ballot = Ballot(self._member, log, self._outbox)
        self._transfer = Transfer(
            self._member, log, self._outbox, self._quorum, self._peers, config, preferred_leader
        )
        self._opening: dict[str, Any] | None = None
        self._leader_heard_ms = -config.election_timeout_ms[1]
        self._election_due_ms = 0
        self._saving_since_ms = 0  # of the hard state that waits for the disk
        self._heartbeat_ms = 0

    # --- what the driver asks ------------------------------------------------------------------------------

    @property
    def accepts_appends(self) -> bool:
        return self._member.leads and self._opening is None and not self.is_transferring

    @property
    def is_transferring(self) -> bool:
        return self._transfer.target is not None

    @property
    def sound(self) -> bool:
        return self._member.sound

    @property
    def electable(self) -> bool:
        return self._member.electable

    @electable.setter
    def electable(self, electable: bool) -> None:
        self._member.electable = electable

    @property
    def refusal(self) -> CommitlogError | None:
        """Refuse records that no majority of the voters has room for; its own disk is asked by the driver."""
        rooms = [self._peers.has_room.get(voter, True) for voter in self._member.group.voters]
        return None if sum(rooms) >= self._member.majority else StorageFull()

    @property
    def group(self) -> GroupConfig:
        return self._member.group

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
            peers=tuple(each.status() for each in self._peers.dispatchers.values()) if member.leads else (),
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
        if self._group_index == NO_INDEX:  # else the log has named the group, and it is told
            self._tell_group()
        self._restart_election_timer(now_ms)
        if self._member.group.voters == (self._member.node_id,) and self._may_campaign:
            self._campaign(now_ms)
        self._settle(now_ms)

    def step(self, source: str, message: RaftMessage, now_ms: int) -> None:
        """Take a message of another node. One that this log does not know as a member yet may lead or ask for
        a vote, as its group may be newer than ours (R-10); anything else of a stranger is dropped."""
        if source not in self._peers.dispatchers and not isinstance(
            message, (VoteRequest, PushRequest, Heartbeat, TimeoutNow)
        ):
            return
        if message.term > self._member.term and not self._adopt_term(message, now_ms):
            return
        if message.term < self._member.term:
            refuse_older(self._member, self._log, self._outbox, source, message)
        elif isinstance(message, PushRequest):
            if self._follow(source, message.leader_id, now_ms):
                self._handler.handle(message, now_ms)
            else:
                refuse_push(self._member, self._log, self._outbox, source, message)
        elif isinstance(message, PushAnswer):
            if self._member.leads:
                self._peers.hear(source, now_ms)
                self._peers.dispatchers[source].answer(message, now_ms)
        elif isinstance(message, Heartbeat):
            if self._follow(source, message.leader_id, now_ms):
                self._outbox.send(source, HeartbeatAnswer(message.term, message.round, self.has_room))
                self._handler.adopt_committed(message.committed_index)
        elif isinstance(message, HeartbeatAnswer):
            if self._member.leads:
                self._peers.hear(source, now_ms)
                self._peers.has_room[source] = message.has_room
                self._leader_reads.answered(source, message.round)
        elif isinstance(message, VoteRequest):
            self._vote(source, message, now_ms)
        elif isinstance(message, VoteAnswer):
            if self._member.role is Role.CANDIDATE:
                self._ballot.count(source, message)
                self._count_votes(now_ms)
        elif isinstance(message, TimeoutNow):
            if source == self._member.leader_id and self._may_campaign:
                self._campaign(now_ms, transfer=True)
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
            if now_ms - self._peers.majority_heard_ms(now_ms) > config.election_timeout_ms[1]:
                self._stand_down(now_ms)
            else:
                if now_ms - self._heartbeat_ms >= config.heartbeat_interval_ms:
                    self._broadcast(now_ms)
                self._peers.step(now_ms)
                self._quorum.tick(now_ms)
                if self._opening is None:
                    self._transfer.prefer(now_ms)
                    self._transfer.leave_full_disk(self.has_room, now_ms)
                self._transfer.go_on(now_ms)
        else:
            self._handler.tick(now_ms)
            self._follower_reads.tick(now_ms)
            if now_ms >= self._election_due_ms and self._may_campaign:
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

    def configure(self, group: GroupConfig, index: int, now_ms: int) -> None:
        member = self._member
        if (group, index) == (member.group, self._group_index):
            return
        same, member.group, self._group_index = group == member.group, group, index
        self._tell_group()
        if same:
            return
        self._peers.regroup(now_ms)
        if not member.leads and (member.role is not Role.CANDIDATE or member.node_id not in group.voters):
            member.role = _idle_role(group, member.node_id)
        self._settle(now_ms)

    def _tell_group(self) -> None:
        """Who counts from here on: readers of the journal judge this member's watermarks by it."""
        group = self._member.group
        data = {"voters": list(group.voters), "learners": list(group.learners), "index": self._group_index}
        self._outbox.tell("membership", self._member.term, data)

    def change(self, kind: ChangeKind, node_id: str, now_ms: int) -> GroupConfig | None:
        """Return the group with one member more, promoted or less; None when it is so already (R-10).

        The driver writes it into the log. Raises what membership.changed raises.
        """
        member, log = self._member, self._log
        committed_index = member.committed_index
        settled = self._group_index <= committed_index and is_of_term(log, committed_index, member.term)
        return changed(self._peers.view(now_ms, settled=settled), kind, node_id)

    def transfer(self, to: str | None, now_ms: int) -> str:
        if not self._member.leads or self._opening is not None:
            raise TransferFailed("this node does not lead, or has only begun to")
        target = self._transfer.begin(to, now_ms)
        self._settle(now_ms)
        return target

    def synced(self, now_ms: int) -> None:
        if self._member.leads:
            self._quorum.needs_check = True
        else:
            self._handler.synced()
        self._settle(now_ms)

    def advance(self, ready: Ready, now_ms: int) -> None:
        if ready.hard_state is not None and not self._member.leads:
            self._hard_state_saved(now_ms)
        if self._member.leads:
            if ready.batches:
                self._quorum.needs_check = True
                self._peers.step(now_ms, ready.batches)
        elif ready.batches or ready.truncate is not None:
            self._handler.written(now_ms)
        self._settle(now_ms)

    def abandon(self, ready: Ready, now_ms: int) -> None:
        if not self._member.leads:
            self._handler.not_written()
        elif self._log.last_term != self._member.term:
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
            self._transfer.go_on(now_ms)
            if self._is_removed:
                self._leave(now_ms)
        elif not self._member.sound:
            self._member.sound = self._handler.holds_all_committed
        self._announce()

    # --- terms and votes -----------------------------------------------------------------------------------

    def _adopt_term(self, message: RaftMessage, now_ms: int) -> bool:
        """A newer term: take it over (D-21), unless it is only asked about. Whether the message counts."""
        if isinstance(message, VoteRequest):
            if message.pre_vote:
                return True
            if not message.transfer and self._hears_leader(now_ms):
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
        self._save(now_ms)
        self._lose_leader()
        self._member.role = _idle_role(self._member.group, self._member.node_id)
        self._restart_election_timer(now_ms)

    def _lose_leader(self) -> None:
        self._member.leader_id = None
        self._handler.reset()
        self._follower_reads.fail()

    def _stand_down(self, now_ms: int) -> None:
        """Stop leading without a newer term: the others will elect one."""
        self._close_term(now_ms)
        self._lose_leader()
        self._member.role = _idle_role(self._member.group, self._member.node_id)
        self._restart_election_timer(now_ms)

    def _close_term(self, now_ms: int) -> None:
        self._leaving = False
        self._opening = None
        self._quorum.close_term(now_ms)
        self._leader_reads.close_term()
        self._transfer.close_term()

    def _save(self, now_ms: int) -> None:
        self._outbox.hard_state = HardState(self._member.term, self._member.voted_for)
        self._saving_since_ms = now_ms

    def _hard_state_saved(self, now_ms: int) -> None:
        """Restart the election timer when term or vote are on disk: what rests on them leaves only now.

        The wait for votes, or for the leader that was voted for, is longer by the time that this disk took:
        the disks of the other voters have about as much to do.
        """
        self._restart_election_timer(now_ms)
        disk_ms = now_ms - self._saving_since_ms
        self._election_due_ms += min(disk_ms, DISK_WAITS_MAX * self._config.election_timeout_ms[1])

    def _restart_election_timer(self, now_ms: int) -> None:
        self._election_due_ms = now_ms + self._random.randint(*self._config.election_timeout_ms)

    @property
    def _may_campaign(self) -> bool:
        member = self._member
        return member.sound and member.electable and member.node_id in member.group.voters

    def _ask_pre_votes(self, now_ms: int) -> None:
        """Find out whether an election could be won before any term is raised (R-03)."""
        member = self._member
        member.role = Role.CANDIDATE
        if member.leader_id is not None:
            self._lose_leader()
        self._restart_election_timer(now_ms)
        self._ballot.open(member.term + 1, pre_vote=True)
        self._count_votes(now_ms)

    def _campaign(self, now_ms: int, *, transfer: bool = False) -> None:
        member = self._member
        member.role = Role.CANDIDATE
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
        term = request.term if granted else member.term
        self._outbox.send(source, VoteAnswer(term, granted, request.pre_vote))

    def _count_votes(self, now_ms: int) -> None:
        if not self._ballot.is_won:
            return
        if self._ballot.pre_vote:
            self._campaign(now_ms)
        else:
            self._lead(now_ms)

    def _lead(self, now_ms: int) -> None:
        """Open the term: first a control record (R-05), and every peer is compared (D-02)."""
        member = self._member
        member.role, member.leader_id = Role.LEADER, member.node_id
        self._handler.reset()
        self._opening = {"kind": "term", "leader": member.node_id}
        self._peers.open_term(now_ms)
        self._transfer.open_term(now_ms)
        self._quorum.open_term(now_ms)
        self._broadcast(now_ms)

    # --- the group (R-09, R-10) ---------------------------------------------------------------------------

    @property
    def _is_removed(self) -> bool:
        """Whether this leader has led its own removal to the end."""
        member = self._member
        return member.node_id not in member.group.voters and self._group_index <= member.committed_index

    def _leave(self, now_ms: int) -> None:
        """Make room for a leader that is a member: hand over to it, or give up when that takes too long."""
        if not self._leaving:
            self._leaving = True
            with suppress(TransferFailed):
                self._transfer.begin(None, now_ms)
        if not self.is_transferring:
            self._stand_down(now_ms)

    # --- leading and following -----------------------------------------------------------------------------

    def _broadcast(self, now_ms: int) -> None:
        """One round of heartbeats."""
        member = self._member
        self._heartbeat_ms = now_ms
        number = self._leader_reads.begin_round()
        heartbeat = Heartbeat(member.term, member.node_id, member.committed_index, number)
        for peer in self._peers.dispatchers:
            self._outbox.send(peer, heartbeat)

    def _follow(self, source: str, leader_id: str, now_ms: int) -> bool:
        """Whether the sender is the one leader of this term (D-21); if so, it has been heard now."""
        member = self._member
        if member.leads or source != leader_id or member.leader_id not in (None, leader_id):
            return False
        if member.leader_id is None:
            self._handler.reset()
            member.leader_id = leader_id
            member.role = _idle_role(member.group, member.node_id)
        self._leader_heard_ms = now_ms
        self._restart_election_timer(now_ms)
        return True


def _idle_role(group: GroupConfig, node_id: str) -> Role:
    """What a member is that neither leads nor campaigns."""
    return Role.FOLLOWER if node_id in group.voters else Role.LEARNER
