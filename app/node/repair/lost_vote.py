"""Terms in which a node may have given a vote that it has lost (R-01). PURE.

The node asks all that may campaign for their terms and votes for itself in the latest, so it votes for no
other node in any of them. A peer names the candidates that it knows: this log may lack the records of their
membership. If not all of them answer, the silent ones may have reached later terms, one per campaign:
VOTE_GAP is more than they can have had. A majority of the voters is enough to go on with it. Without one the
node waits, unless so many voters have lost their own terms, too, that they would wait for one another: then
all open in doubt (app/raft/doubt.py), and every voter elects the next leader. A term is not used a second
time then either: a learner may hold records of the lost one.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from app.log.terms import TERM_UNKNOWN, is_plausible_term
from app.node.network.repair_messages import TermAnswer

VOTE_GAP: Final = 1 << 20  # campaigns: a term takes at least an election timeout, so this is days of them


class LostVote:
    """`asked`: the nodes whose terms are not known yet."""

    def __init__(
        self,
        node_id: str,
        term: int,
        voters: Sequence[str],
        named: Sequence[str],
        others: Sequence[str],
        majority: int,
    ) -> None:
        """term: of the last record of the log. voters: of each group that may be the newest, beside this
        node. named: voters that the log names, if any. others: that may campaign, too. majority: of the
        largest of these groups."""
        self._term = term
        self._voters = [voter for voter in dict.fromkeys((*voters, *named)) if voter != node_id]
        self._silent_max = len(self._voters) + 1 - majority
        self._group = tuple(named or (*voters, node_id))  # also if others that may be voters are gone
        self._known = {node_id: None}
        self._unknown: dict[str, None] = {}  # peers that may have lost their own terms
        self.asked: list[str] = []
        self._ask((*self._voters, *others))

    def _ask(self, candidates: Iterable[str]) -> None:
        added = [each for each in dict.fromkeys(candidates) if each not in self._known]
        self._known.update(dict.fromkeys(added))
        self.asked += added

    def take(self, peer: str, answer: TermAnswer | None) -> None:
        """Take the answer of a peer that was asked; None: none in time."""
        if answer is None:
            return
        if answer.term == TERM_UNKNOWN:
            self._unknown[peer] = None
        elif is_plausible_term(self._term, answer.term):
            self._term = max(self._term, answer.term)
            self.asked.remove(peer)
            self._unknown.pop(peer, None)
            self._ask(answer.candidates)

    @property
    def has_majority(self) -> bool:
        """True if a majority of the voters is known, this node among it."""
        return sum(voter in self.asked for voter in self._voters) <= self._silent_max

    @property
    def is_hopeless(self) -> bool:
        """True if no majority will ever be known: so many voters have lost their own terms, and wait too."""
        majority = len(self._group) // 2 + 1
        return sum(voter in self._unknown for voter in self._group) > len(self._group) - majority

    @property
    def safe_term(self) -> int:
        """The term in which this node votes for itself."""
        return self._term + VOTE_GAP if self.asked else self._term
