"""A member that may have lost what it acknowledged or voted, and the ways to become sound again. PURE.

An unsound member follows; its acknowledgements and confirmed reads do not count at the leader, and its vote
counts only when every voter grants (elections.py). It becomes sound by one of

- an election that it wins: by every voter, or by a majority of sound ones;
- a leader whose log it holds, up to a record of the leader's term and to all that the leader has committed
  (EntryHandler.holds_all_committed). If it has lost its vote too, it may have helped to elect a leader of a
  newer term than this one's. That is excluded when a quorum of sound voters or every voter has confirmed
  this leader since: members that are in this term now were in no newer one before. The leader counts them:
  this member may not know all of them. Its own vote for this leader excludes nothing: other votes of that
  term may be older than the one that it has lost.
"""

from app.raft.entry_handler import EntryHandler
from app.raft.reads import Confirmation, FollowerReads
from app.raft.state import MemberState


class Doubt:
    """Doubt about one member that is not sound."""

    def __init__(
        self, member: MemberState, handler: EntryHandler, reads: FollowerReads, knows_vote: bool
    ) -> None:
        """knows_vote: the term and vote on its disk are the last that it gave."""
        self._member = member
        self._handler = handler
        self._reads = reads
        self.knows_vote = knows_vote
        self._confirmation = Confirmation()
        self._asked_term = -1

    def tick(self, now_ms: int) -> None:
        """Ask the leader to be confirmed, one question at a time; reads.py limits how long it may take."""
        member, confirmation = self._member, self._confirmation
        if self.knows_vote or member.leader_id is None or confirmation.is_asked:
            return
        if self._asked_term == member.term and confirmation.index is not None:
            return
        confirmation.is_asked, confirmation.index = True, None
        self._asked_term = member.term
        self._reads.ask(confirmation, now_ms)

    @property
    def is_over(self) -> bool:
        return self._handler.holds_all_committed and self.trusts_leader

    @property
    def trusts_leader(self) -> bool:
        """True if this member certainly did not help to elect the leader of a newer term.

        A leader that no majority of such members answers stands down (R-04); all elect the next one.
        """
        return self.knows_vote or self._leader_is_confirmed

    @property
    def _leader_is_confirmed(self) -> bool:
        return self._asked_term == self._member.term and self._confirmation.index is not None
