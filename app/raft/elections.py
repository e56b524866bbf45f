"""Elections: the votes that a candidate counts, the rule by which a member grants its vote, and the time at
which it asks for votes (R-01 to R-03, R-09). PURE."""

import math
from random import Random
from typing import Final

from app.log.contract import ReplicaLog
from app.raft.config import RaftConfig
from app.raft.messages import VoteAnswer, VoteRequest
from app.raft.state import MemberState, Outbox

DISK_WAITS_MAX: Final = 10  # longest extension of an election by a slow disk, in longest election timeouts
REMOVED_PAUSE: Final = 10  # election timeouts between two questions of a removed member for the leader


class Ballot:
    """Requests every voter's vote and counts the answers. `pre_vote`: nothing is decided yet (R-03)."""

    def __init__(self, member: MemberState, log: ReplicaLog, outbox: Outbox) -> None:
        self._member = member
        self._log = log
        self._outbox = outbox
        self._term = 0
        self._request: VoteRequest | None = None
        self._votes: dict[str, VoteAnswer] = {}
        self.pre_vote = False

    def open(self, term: int, *, pre_vote: bool = False, transfer: bool = False) -> None:
        """Request votes for `term`, starting with the own vote. transfer: requested by the leader (R-09)."""
        member, log = self._member, self._log
        self._term, self.pre_vote = term, pre_vote
        self._votes = {member.node_id: VoteAnswer(term, True, pre_vote, sound=member.sound)}
        last_term, last_index = log.last_position
        self._request = VoteRequest(term, last_index, last_term, pre_vote, transfer, weighs=True)
        self.repeat()

    def repeat(self) -> None:
        """Request the votes that have not been answered: a request or an answer may have been lost."""
        assert self._request is not None
        for voter in self._member.every_voter:
            if voter not in self._votes:
                self._outbox.send(voter, self._request)

    def count(self, source: str, answer: VoteAnswer) -> None:
        """Count an answer; one of another election, or of another group, changes nothing."""
        is_of_this = answer.pre_vote is self.pre_vote and (not answer.granted or answer.term == self._term)
        if is_of_this and not self._is_of_another_group(answer):
            self._votes[source] = answer

    def _is_of_another_group(self, answer: VoteAnswer) -> bool:
        """Return whether the voter counts by another group than the candidate, while no record names it to
        either.

        A replaced disk knows the configuration alone, which may have changed since the first opening of the
        log: majorities of the two groups need no common member. So its group gives way to that of a sound
        member.
        """
        member = self._member
        if member.is_named or not answer.voters or (member.sound and not answer.sound):
            return False
        return set(answer.voters) != set(member.group.voters)

    @property
    def is_won(self) -> bool:
        """True if a majority of the present voters, all of them sound, has granted it, and a majority of the
        witnesses, sound or not (MemberState.needed_witnesses); or every voter has (MemberState.every_voter),
        and the candidate is a present one, or all but one of them are sound, and not one alone is present.
        Never, while it lacks what it knows to be committed (MemberState.needed_index).

        An unsound member may have lost what it acknowledged or voted, so it proves nothing. When every voter
        grants, no remaining log holds more than the candidate's, and no other candidate of the term can have
        been elected: so a new group starts, and so a group recovers from a common loss. A member that was
        removed and does not know that its removal is committed does not count for that: the group may have
        new voters since, whose log holds more. That of two voters may not if one of them is sound: it would
        hold the record of the change.
        """
        member, voters = self._member, self._member.group.voters
        if self._log.last_position[1] < member.needed_index:
            return False
        granted = {voter: vote.sound for voter, vote in self._votes.items() if vote.granted}
        every = member.every_voter
        is_known = member.node_id in voters or (
            len(voters) > 1 and sum(granted.get(voter, False) for voter in every) >= len(every) - 1
        )
        by_all = set(every) <= granted.keys() and is_known
        by_majority = sum(granted.get(voter, False) for voter in voters) >= member.majority
        witnesses = member.needed_witnesses or voters
        by_witnesses = sum(voter in granted for voter in witnesses) > len(witnesses) // 2
        return by_all or (by_majority and by_witnesses)


def grants(
    member: MemberState, log: ReplicaLog, source: str, request: VoteRequest, *, hears_leader: bool
) -> bool:
    """Return whether the member's vote may go to the candidate; the term of a real request is adopted before.

    An unsound member grants nothing to a candidate that would count it as sound (R-01, R-02). No candidate
    may lack what this member knows to be committed (MemberState.needed_index): a crash during a reset leaves
    an empty log, which compares by its beginning. A removed member with an empty log knows it by a notice
    alone: otherwise it would elect a voter whose disk was replaced, and whose configuration still names it.
    """
    if not (member.sound or request.weighs) or not member.may_take_part:
        return False
    if (request.last_term, request.last_index) < log.last_position:
        return False
    if request.last_index < member.needed_index:
        return False
    if request.pre_vote:
        return request.term > member.term and not hears_leader
    return member.voted_for in (None, source) and member.leader_id is None


class ElectionTimer:
    """`due_ms`: the time at which the member asks for votes, or a removed one for the leader.

    `repeat_ms`: the time at which a candidate that waits repeats its question, which may have been lost.
    """

    def __init__(self, config: RaftConfig, random: Random) -> None:
        self._timeout_ms = config.election_timeout_ms
        self._random = random
        self._saving_since_ms = 0  # of the hard state that waits for the disk
        self.due_ms: float = 0
        self.repeat_ms: float = math.inf

    def restart(self, now_ms: int, *, removed: bool = False) -> None:
        self.due_ms = now_ms + self._random.randint(*self._timeout_ms) * (REMOVED_PAUSE if removed else 1)
        self.repeat_ms = math.inf

    def saving(self, now_ms: int) -> None:
        """Term or vote are being written."""
        self._saving_since_ms = now_ms

    def saved(self, now_ms: int) -> None:
        """Restart when term or vote are on disk: messages that depend on them leave only now.

        The wait for votes, or for the leader that got the vote, is extended by the time that this disk took:
        the disks of the other voters are probably as slow.
        """
        self.restart(now_ms)
        self.due_ms += min(now_ms - self._saving_since_ms, DISK_WAITS_MAX * self._timeout_ms[1])
        self.wait_to_repeat(now_ms)

    def wait_to_repeat(self, now_ms: int) -> None:
        self.repeat_ms = now_ms + self._timeout_ms[1]
