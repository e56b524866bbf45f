"""Appends at a leader or master that wait for their acks (D-25, C-12, H-07). PURE."""

from bisect import insort
from collections import deque
from collections.abc import Mapping, Sequence

from app.log.contract import Acks, AppendFate, PendingAppend
from storage.units import NEVER_MS


def _last_index(append: PendingAppend) -> int:
    return append.last_index


Answers = list[tuple[PendingAppend, AppendFate]]


class PendingAppends:
    """Every append leaves exactly once, by one of the methods that return answers, in order of index."""

    def __init__(self) -> None:
        self._waiting: dict[Acks, deque[PendingAppend]] = {acks: deque() for acks in Acks}
        self._next_deadline_ms = NEVER_MS  # none times out before it

    @property
    def wait(self) -> bool:
        """Return whether any append waits."""
        return any(self._waiting.values())

    def add(self, appends: Sequence[PendingAppend]) -> None:
        """Add new appends of one batch, in index order, after all that wait."""
        for append in appends:
            self._waiting[append.acks].append(append)
            self._next_deadline_ms = min(self._next_deadline_ms, append.deadline_ms)

    def join(self, append: PendingAppend) -> None:
        """Add an append that is already in the log at its place among those that wait."""
        insort(self._waiting[append.acks], append, key=_last_index)
        self._next_deadline_ms = min(self._next_deadline_ms, append.deadline_ms)

    def drop(self, first_index: int) -> Answers:
        """Refuse the appends from first_index on, which were never stored."""
        dropped: list[PendingAppend] = []
        for waiting in self._waiting.values():
            while waiting and waiting[-1].first_index >= first_index:
                dropped.append(waiting.pop())
        return _answers(dropped, AppendFate.REFUSED)

    def release(self, reached: Mapping[Acks, int]) -> Answers:
        """reached: the last index whose acks of that kind are complete."""
        done: list[PendingAppend] = []
        for acks, waiting in self._waiting.items():
            while waiting and waiting[0].last_index <= reached[acks]:
                done.append(waiting.popleft())
        return _answers(done, AppendFate.ACKNOWLEDGED)

    def release_between(self, acks: Acks, first_index: int, last_index: int) -> Answers:
        """Release the appends of that kind that lie wholly within the two indexes, inclusive."""
        waiting = self._waiting[acks]
        done: list[PendingAppend] = []
        while waiting and first_index <= waiting[0].first_index and waiting[0].last_index <= last_index:
            done.append(waiting.popleft())
        if waiting and waiting[0].first_index < first_index <= waiting[-1].last_index:
            kept: deque[PendingAppend] = deque()
            for append in waiting:
                inside = first_index <= append.first_index and append.last_index <= last_index
                (done if inside else kept).append(append)
            self._waiting[acks] = kept
        return _answers(done, AppendFate.ACKNOWLEDGED)

    def time_out(self, now_ms: int, fate: AppendFate) -> Answers:
        """Return the answers to appends whose deadline has passed (D-26)."""
        if now_ms < self._next_deadline_ms:
            return []
        late: list[PendingAppend] = []
        for acks, waiting in self._waiting.items():
            late += (append for append in waiting if append.deadline_ms <= now_ms)
            self._waiting[acks] = deque(append for append in waiting if append.deadline_ms > now_ms)
        left = (append.deadline_ms for waiting in self._waiting.values() for append in waiting)
        self._next_deadline_ms = min(left, default=NEVER_MS)
        return _answers(late, fate)

    def close(self) -> Answers:
        """The term or epoch is over: the outcome of waiting appends is unknown (D-23)."""
        left = [append for waiting in self._waiting.values() for append in waiting]
        for waiting in self._waiting.values():
            waiting.clear()
        return _answers(left, AppendFate.TERM_CHANGED)


def _answers(appends: list[PendingAppend], fate: AppendFate) -> Answers:
    return [(append, fate) for append in sorted(appends, key=_last_index)]
