"""The place of this member in its group (R-10): voter, learner, removed, or voter of the previous group.

PURE. A membership record counts from its append. Until it is known to be committed, the voters of the
previous group still campaign: the removed leader may be the only member that can commit the record (Raft
thesis 4.2.2). A member that its leader no longer pushes to learns of its removal from its peers: they refuse
its pre-vote with a GroupNotice.
"""

from collections.abc import Mapping

from app.log.contract import NO_INDEX, GroupConfig, Role
from app.log.control_records import TermRecord
from app.log.events import GroupKnown
from app.raft.messages import GroupNotice
from app.raft.state import MemberState, Outbox

NO_NODES: Mapping[str, tuple[str, str]] = {}


class Standing:
    """Invariant: `member.group` is the group of the record at `index`; NO_INDEX: of the configuration."""

    def __init__(self, member: MemberState, outbox: Outbox) -> None:
        self._member = member
        self._outbox = outbox
        self._nodes = NO_NODES
        self.index = NO_INDEX
        self.notice: GroupNotice | None = None  # from a peer, until a leader or the own log knows better
        self.has_newest_log = False  # a candidate, of which this is a voter, was refused for an older log

    def configure(
        self,
        group: GroupConfig,
        index: int,
        nodes: Mapping[str, tuple[str, str]],
        *,
        settled: bool = False,
    ) -> bool:
        """Adopt the group of the log's newest membership record; return whether the members changed.

        settled: as in ReplicationCore.configure. The first record that names a group replaces none: the
        configuration here may name other nodes than that of the first opening.

        The former voters are witnesses of the record, as in joint consensus (Raft, section 6). When two
        voters become three or one, or four become five, a majority of the new group may hold half of the
        former one. If that half commits the record or elects a leader, and its disks are replaced, the former
        voters may all elect one that lacks the record, perhaps in the same term. When one of three or more
        leaves, no record reaches it any more, and it is not needed: a majority of the rest are former voters.
        """
        member = self._member
        if (group, index) == (member.group, self.index):
            return False
        member.is_named = index != NO_INDEX
        former = member.group.voters if NO_INDEX < self.index < index and not settled else ()
        member.former_voters = former
        changed, member.group, self.index, self._nodes = group != member.group, group, index, nodes
        if self.notice is not None and index > self.notice.index:
            self.notice = None
        self.record()
        return changed

    def record(self) -> None:
        """Record in the journal which members count from now on: readers judge watermarks by it."""
        group = self._member.group
        known = GroupKnown(voters=list(group.voters), learners=list(group.learners), index=self.index)
        self._outbox.record(self._member.term, known)

    def opening_record(self) -> TermRecord:
        """Return the first record of a term that this member leads (R-05)."""
        if self.index != NO_INDEX:
            return TermRecord(leader=self._member.node_id)
        group = self._member.group  # the log's first group: no configuration changes it later
        return TermRecord(leader=self._member.node_id, voters=group.voters, learners=group.learners)

    @property
    def is_settled(self) -> bool:
        """True if the newest group is known to be committed."""
        return self.index <= self._member.committed_index

    @property
    def is_voter(self) -> bool:
        """True if this member votes in the newest group."""
        return self._member.node_id in self._member.group.voters

    @property
    def may_campaign(self) -> bool:
        """True if the group may need this member as its leader.

        An unsound member may campaign: it is elected by all, or by sound voters (elections.py). One that
        knows no other voter may have lost the record that named them. A learner may campaign when a candidate
        that has promoted it needs its vote and lacks records of it: if another voter is lost, no voter can
        win. It leads until the voters have its records. A member that has lost the group, and holds no record
        that names it, does not know which votes it needs.
        """
        member = self._member
        if self.notice is not None or not member.electable or not member.may_take_part:
            return False
        if not member.knows_group and self.index == NO_INDEX:
            return False
        if not member.sound:
            return self.is_voter and len(member.group.voters) > 1
        in_doubt = member.node_id in member.former_voters and not self.is_settled
        is_needed = self.has_newest_log and member.node_id in member.group.learners
        return self.is_voter or in_doubt or is_needed

    @property
    def idle_role(self) -> Role:
        """Role of a member that neither leads nor campaigns. A leader pushes to members only, so a member
        whose log does not contain it yet is a learner while it has a leader."""
        member = self._member
        if self.notice is not None:
            return Role.REMOVED
        if self.is_voter:
            return Role.FOLLOWER
        outside = member.node_id not in member.group.learners and self.index != NO_INDEX
        if outside and self.is_settled and member.leader_id is None:
            return Role.REMOVED
        return Role.LEARNER

    def notice_for(self, source: str, leader_id: str | None, term: int) -> GroupNotice | None:
        """Return the notice for a node outside the committed group; None for a member, or in doubt. term: of
        the record at the committed index, 0 if unknown."""
        member, group = self._member, self._member.group
        if self.index == NO_INDEX or self.notice is not None or not self.is_settled:
            return None
        if not member.electable:  # without the state of the log the group may be older than that index
            return None
        if source in group.members or member.node_id not in group.members:
            return None
        return GroupNotice(self.index, group.voters, group.learners, leader_id, dict(self._nodes), term)

    def take(self, notice: GroupNotice, term: int) -> None:
        """Adopt a peer's notice that this member is outside the group, unless its own log has a newer group.

        term: of the own record at `index`, 0 if unknown. If the peer has committed a record of a newer term,
        and its newest group has a lower index, the own record is on a branch that was given up: a leader that
        was cut off has written it.
        """
        is_given_up = 0 < term < notice.term
        if notice.index < self.index and not is_given_up:
            return
        if self._member.node_id in (*notice.voters, *notice.learners):
            return
        if self.notice is None or notice.index >= self.notice.index:
            self.notice = notice
        self._member.noticed_index = max(self._member.noticed_index, notice.index)
