"""One election as a candidate sees it, and how a member judges somebody else's (R-01 to R-03, R-09)."""

from app.log.contract import ReplicaLog
from app.raft.messages import VoteAnswer, VoteRequest
from app.raft.state import MemberState, Outbox


class Ballot:
    """Asks every voter once and counts what they say. `pre_vote`: nothing is decided yet (R-03)."""

    def __init__(self, member: MemberState, log: ReplicaLog, outbox: Outbox) -> None:
        self._member = member
        self._log = log
        self._outbox = outbox
        self._term = 0
        self._votes: dict[str, VoteAnswer] = {}
        self.pre_vote = False

    def open(self, term: int, *, pre_vote: bool = False, transfer: bool = False) -> None:
        """Ask for `term`, starting with the own vote. transfer: the leader itself wants it so (R-09)."""
        member, log = self._member, self._log
        self._term, self.pre_vote = term, pre_vote
        self._votes = {member.node_id: VoteAnswer(term, True, pre_vote, sound=member.sound)}
        request = VoteRequest(term, log.end_index, log.last_term, pre_vote, transfer, weighs=True)
        for voter in member.group.voters:
            if voter != member.node_id:
                self._outbox.send(voter, request)

    def count(self, source: str, answer: VoteAnswer) -> None:
        """Take in an answer; one of another election changes nothing."""
        if answer.pre_vote is self.pre_vote and (not answer.granted or answer.term == self._term):
            self._votes[source] = answer

    @property
    def is_won(self) -> bool:
        """Whether a majority of the present voters has granted it, all of them sound; or every voter has.

        An unsound member may have forgotten what it acknowledged or voted, so it is no witness. When every
        voter grants, no log that is left holds more than the candidate's, and no other candidate of the term
        can have been elected: so a group begins, and so it comes back after a common loss.
        """
        voters = self._member.group.voters
        granted = [vote for voter in voters if (vote := self._votes.get(voter)) and vote.granted]
        return sum(vote.sound for vote in granted) >= self._member.majority or len(granted) == len(voters)


def grants(
    member: MemberState, log: ReplicaLog, source: str, request: VoteRequest, *, hears_leader: bool
) -> bool:
    """Whether the member's vote may go to the candidate; the term of a real request is adopted before.

    An unsound member grants nothing to a candidate that would take it for a witness (R-01, R-02).
    """
    if not (member.sound or request.weighs):
        return False
    if (request.last_term, request.last_index) < (log.last_term, log.end_index):
        return False
    if request.pre_vote:
        return request.term > member.term and not hears_leader
    return member.voted_for in (None, source) and member.leader_id is None
