"""Linearizable reads from the request until this replica has the records that they must see (R-08)."""

from collections import deque
from collections.abc import Callable
from typing import Final

from app.errors import CommitlogError, ReadIndexUnavailable
from app.node.replica.commit_waiters import Waiter, answer

ReadDone = Callable[[int | CommitlogError], None]
ASKING_MAX: Final = 10_000
WhenCommitted = Callable[[int, Callable[[], None]], Waiter]


class ReadGate:
    """Readers that wait for a confirmation of leadership, and then for the index that they got."""

    def __init__(self, timeout_ms: int, when_committed: WhenCommitted) -> None:
        """timeout_ms: of a read that gets no turn, or whose index this replica does not reach."""
        self._timeout_ms = timeout_ms
        self._when_committed = when_committed
        self._asking: deque[tuple[int, ReadDone]] = deque()  # deadline, reader
        self._confirmed: deque[tuple[int, Waiter, ReadDone]] = deque()  # deadline, waiter

    @property
    def waiting_count(self) -> int:
        """Number of readers that wait for their turn, or for their index."""
        return len(self._asking) + len(self._confirmed)

    def ask(self, done: ReadDone, now_ms: int) -> None:
        """Wait for the next turn; with too many waiting, as while a disk hangs, the reader is refused."""
        if len(self._asking) >= ASKING_MAX:
            answer(done, ReadIndexUnavailable())
        else:
            self._asking.append((now_ms + self._timeout_ms, done))

    def take(self) -> list[ReadDone]:
        """Return the readers of this turn: tokens for the core."""
        if not self._asking:
            return []
        asking = [done for _, done in self._asking]
        self._asking.clear()
        return asking

    def give(self, done: ReadDone, index: int | None, now_ms: int) -> None:
        """Handle the core's answer; None: leadership was not confirmed."""
        if index is None:
            answer(done, ReadIndexUnavailable())
            return
        waiter = self._when_committed(index, lambda: done(index))
        if waiter.done is not None:  # confirmed, but this replica has not reached the index
            self._confirmed.append((now_ms + self._timeout_ms, waiter, done))

    def give_up(self, now_ms: float) -> None:
        """Refuse the readers without a turn or their index by now_ms, and forget those that have it."""
        while self._asking and self._asking[0][0] <= now_ms:
            answer(self._asking.popleft()[1], ReadIndexUnavailable())
        confirmed = self._confirmed
        while confirmed and (confirmed[0][1].done is None or confirmed[0][0] <= now_ms):
            _, waiter, done = confirmed.popleft()
            if waiter.done is not None:
                waiter.cancel()
                answer(done, ReadIndexUnavailable())

    def refuse_all(self) -> None:
        for done in self.take():
            answer(done, ReadIndexUnavailable())
