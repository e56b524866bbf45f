"""Terms in which a node may have given a vote that it has lost (R-01). PURE.

The node asks all that may campaign for their terms and votes for itself in the latest, so it votes for no
other node in any of them. A peer names the candidates that it knows: this log may lack the records of their
membership. If not all of them answer, the silent ones may have reached later terms, one per campaign:
VOTE_GAP is more than they can have had. So may candidates that a peer does not name: one of an older version,
or under repair. A voter that adds the gap may be elected in the next terms by one that then loses its own
vote, and knows no later term than it did: so the gap grows with the time, faster than terms pass. A majority
of the voters is enough to go on with it. Without one the node waits, unless so many voters have lost their
own terms, too, that they would wait for one another: then all open in doubt (app/raft/doubt.py), and every
voter elects the next leader. A term is not used a second time then either: a learner may hold records of the
lost one.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from app.log.terms import TERM_JUMP_MAX, TERM_UNKNOWN, is_plausible_term
from app.node.network.repair_messages import TermAnswer

VOTE_GAP: Final = 1 << 20  # campaigns: a term takes at least an election timeout, so this is days of them
_SHORTEST_TERM_MS: Final = 100
_TIME_MAX: Final = TERM_JUMP_MAX // 16  # a wrong clock: peers adopt no term beyond a jump (app/log/terms.py)


class LostVote:
    """`asked`: the nodes whose terms are not known yet."""

    def __init__(
        self, node_id: str, term: int, groups: Sequence[Sequence[str]], others: Sequence[str]
    ) -> None:
        """term: of the last record of the log. groups: the voters of each group that may be the newest; that
        of the log is the first one. others: that may campaign, too."""
        self._term = term
        # A file that names one node alone decides nothing: it may not name those that have joined.
        decisive = [group for group in groups if len(group) > 1 or group is groups[0]]
        self._groups = [tuple(voter for voter in group if voter != node_id) for group in decisive]
        self._lost_max = [(len(group) - 1) // 2 for group in decisive]  # voters without an answer
        self._known = {node_id: None}
        self._unknown: dict[str, None] = {}  # peers that may have lost their own terms
        self._all_named = True  # each peer has named the candidates that it knows
        self.asked: list[str] = []
        self._ask((*(voter for group in groups for voter in group), *others))

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
            self._all_named = self._all_named and bool(answer.candidates)
            self._ask(answer.candidates)

    @property
    def has_majority(self) -> bool:
        """True if a majority of a group is known, this node among it. The voters of another one, to which
        the group was changed or from which it was, may be gone."""
        groups = zip(self._groups, self._lost_max, strict=True)
        return any(sum(voter in self.asked for voter in group) <= lost_max for group, lost_max in groups)

    @property
    def is_hopeless(self) -> bool:
        """True if no majority will ever be known: so many voters have lost their own terms, and wait too."""
        return sum(voter in self._unknown for voter in self._groups[0]) > self._lost_max[0]

    def safe_term(self, now_ms: int) -> int:
        """Return the term in which this node votes for itself. now_ms: since 1970."""
        if self._all_named and not self.asked:
            return self._term
        return self._term + VOTE_GAP + min(now_ms // _SHORTEST_TERM_MS, _TIME_MAX)
