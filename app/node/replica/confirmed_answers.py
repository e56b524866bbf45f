"""Answers decided by the log's state without a new record: a condition failed, or nothing has to change.

Such an answer reports the state to the caller, so it is a linearizable read of it. It is given when all
records that it depends on are committed, and leadership was confirmed after the decision (R-08). Otherwise it
could report a value that is truncated later, or that another leader has changed since.

In classic mode a refusal is given at once: the master truncates nothing, and keeps the records that decided
it. A success waits there too: until slaves have these records, the master's disk is the only one with them.
"""

from collections.abc import Callable
from typing import Final

from app.errors import CommitlogError, NoLeader
from app.log.contract import Acks, AppendFate, PendingAppend

_UNCONFIRMED: Final = "leadership, or the commit of earlier records, was not confirmed: nothing was applied"


class ConfirmedAnswer:
    """One such answer, called back once: `give`, or `fail` with a refusal after which nothing was applied."""

    __slots__ = ("_fail", "_give", "_waits", "deadline_ms", "end_index", "needs_commit", "term")

    def __init__(
        self,
        give: Callable[[], None],
        fail: Callable[[CommitlogError], None],
        *,
        end_index: int,
        term: int,
        deadline_ms: int,
        needs_commit: bool,
    ) -> None:
        """end_index: the last record that it depends on. term: the leader's. deadline_ms: monotonic.
        needs_commit: of these records."""
        self._give: Callable[[], None] | None = give
        self._fail = fail
        self._waits = 0
        self.needs_commit = needs_commit
        self.end_index = end_index
        self.term = term
        self.deadline_ms = deadline_ms

    def pending(self) -> PendingAppend:
        """Return what the core keeps until the records that it depends on are committed."""
        self._waits += 1
        return PendingAppend(self.end_index, self.end_index, Acks.QUORUM, self.deadline_ms, self)

    def reader(self) -> Callable[[int | CommitlogError], None]:
        """Return the reader that asks the core whether it still leads."""
        self._waits += 1
        return self._confirmed

    def settle(self, fate: AppendFate) -> None:
        """Record the fate of `pending`."""
        self._ended(fate is AppendFate.ACKNOWLEDGED)

    def give(self) -> None:
        """Give the answer: it needs no confirmation."""
        give, self._give = self._give, None
        if give is not None:
            give()

    def fail(self, refusal: CommitlogError) -> None:
        """Withdraw the answer: the decision does not count."""
        give, self._give = self._give, None
        if give is not None:
            self._fail(refusal)

    def waits_until(self, now_ms: int) -> bool:
        """True if it is still to be given; after its deadline it fails."""
        if self._give is not None and self.deadline_ms <= now_ms:
            self.fail(NoLeader(_UNCONFIRMED))
        return self._give is not None

    def _confirmed(self, result: int | CommitlogError) -> None:
        self._ended(not isinstance(result, CommitlogError))

    def _ended(self, well: bool) -> None:
        self._waits -= 1
        if not well:
            self.fail(NoLeader(_UNCONFIRMED))
        elif self._waits == 0:
            self.give()
