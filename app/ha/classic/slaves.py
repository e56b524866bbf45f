"""One slave from a classic master's view: its history, what it acknowledged, whether it is in sync. PURE.

A report is a number of bytes: it does not prove which bytes they are (H-02). Three kinds of slaves differ:

- A slave that sends its history (frames.py) is compared at once: the chain of its last batch is a digest of
  everything before it. Equal: it holds the master's log, and counts for all of it. Different: it is refused.
- A replica that sends none (an older version) stores a batch only when its chain continues the slave's own.
  It counts for everything once it has acknowledged a batch of this connection.
- An unidentified slave of the seed's protocol compares offsets alone. It counts for those batches that this
  connection has carried to it, and for nothing that it may have held before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from app.ha.frames import History
from app.ha.log import HaLog, index_before, is_empty, offset_after
from app.ha.slave_link import SlaveLink
from app.log.contract import NO_INDEX
from storage.format.batch import follows_chain

RANGES_MAX: Final = 64  # one more with each connection of a slave of the seed's protocol


class Unfit(Exception):
    """The slave's log is not a beginning of the master's. kind: the same for the same cause."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Start:
    """Beginning of a transfer. held_index: last index of what the slave holds, NO_INDEX for none.

    first_index: the slave counts for appends from there. verified: its history is the master's. restart: its
    log ends before the master's begins, so it must empty its log first.
    """

    next_index: int
    offset: int
    held_index: int
    first_index: int
    verified: bool
    restart: bool = False


@dataclass(slots=True, kw_only=True)
class Slave(SlaveLink):
    """One connection. id: of its node if it is identified, else the connection's key."""

    id: str
    is_replica: bool
    history: History | None
    first_index: int = 0
    verified: bool = False
    noted: tuple[int, int] = (0, 0)  # (the master's end, when): what the slave must reach to be in sync
    caught_up_ms: int = 0

    @property
    def acked_index(self) -> int:
        return NO_INDEX if self.sender is None else self.sender.acked_index

    @property
    def acked_offset(self) -> int:
        return 0 if self.sender is None else self.sender.acked_offset

    @property
    def mark(self) -> int:
        """The last index that it is assumed to hold; for a replica only what it provably holds."""
        return self.acked_index if self.verified or not self.is_replica else NO_INDEX

    @property
    def stretch(self) -> tuple[int, int] | None:
        """(first, last) index of the records that it provably holds, None for none."""
        if not self.verified and self.is_replica:
            return None
        return (self.first_index, self.acked_index) if self.acked_index >= self.first_index else None

    def lacks(self, begin_index: int) -> str | None:
        """Return the index from which it got the log, as text, if it began empty after the log's beginning.

        begin_index: of the master's log. It never counts for appends before that index (H-06, H-07).
        """
        if not self.is_replica or not self.verified or self.first_index <= max(begin_index, 0):
            return None
        return (
            f"it began empty, at index {self.first_index}: repeats of earlier appends that were not "
            "acknowledged get flush-slave-timeout while they wait for this replica"
        )

    def note(self, end_offset: int, now_ms: int) -> None:
        """The master sends, and its durable log ends at end_offset: the next target of the slave (C-07)."""
        if self.acked_offset >= self.noted[0]:
            self.caught_up()
            self.noted = (end_offset, now_ms)

    def caught_up(self) -> None:
        """Check whether it has reached a recorded target."""
        if self.acked_offset >= self.noted[0]:
            self.caught_up_ms = max(self.caught_up_ms, self.noted[1])

    def in_sync(self, end_offset: int, now_ms: int, limit_ms: int) -> bool:
        """Return whether it had everything within the last limit_ms. end_offset: of the master's durable
        log."""
        if self.sender is None or (self.is_replica and not self.verified):
            return False
        return self.acked_offset >= end_offset or now_ms - self.caught_up_ms <= limit_ms


def start_of(log: HaLog, report: int, history: History | None, *, is_replica: bool) -> Start:
    """Return where the transfer to a slave that reports `report` bytes begins. Raises Unfit.

    H-06: a slave without data starts at the newest segment, any other at the byte it reports.
    """
    if history is not None and history.end_offset != report:
        raise Unfit("report", f"it reports {report} bytes, but its history ends at byte {history.end_offset}")
    if report == 0:
        index = max(log.last_segment_index, 0)
        return Start(index, offset_after(log, index - 1), NO_INDEX, index, verified=is_replica)
    if is_empty(log):
        raise Unfit("ahead", f"it holds {report} bytes, but this master's log is empty")
    if report > log.end_offset:
        raise Unfit("ahead", f"it holds {report} bytes, but this master's log ends at byte {log.end_offset}")
    if report < log.begin_offset:
        if history is None:
            raise Unfit(
                "trimmed", f"it holds {report} bytes, but this master's log begins at byte {log.begin_offset}"
            )
        if history.epoch > log.last_term:
            raise Unfit(
                "newer", f"it has epoch {history.epoch}, but this master's log ends in {log.last_term}"
            )
        begin = log.begin_index
        return Start(begin, log.begin_offset, NO_INDEX, begin, verified=True, restart=True)
    held = index_before(log, report)
    next_index = log.begin_index if held == NO_INDEX else held + 1
    if history is not None:
        if not _same(log, held, history):
            raise Unfit(
                "history",
                f"its records up to index {history.next_index - 1} are of another history than this master's",
            )
        return Start(next_index, report, held, history.begin_index, verified=True)
    first_index = next_index
    if next_index <= log.end_index and report > (batch := log.batch_at(next_index)).offset:
        first_index = batch.next_index  # the rest of a batch: the beginning of it at the slave is unknown
    return Start(next_index, report, held, first_index, verified=False)


def _same(log: HaLog, held: int, history: History) -> bool:
    """Return whether the batch that ends where the slave's log ends has the same chain."""
    if held == NO_INDEX:  # it ends exactly where the master's log begins
        first = log.batch_at(log.begin_index)
        return history.next_index == first.base_index and follows_chain(first, history.chain)
    last = log.batch_at(held)
    return (last.next_offset, last.next_index, last.header.chain) == (
        history.end_offset,
        history.next_index,
        history.chain,
    )


def held_by(stretches: Sequence[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Return the ranges of indexes that at least `count` (>= 1) stretches hold.

    stretches: (first, last), inclusive. The ranges are disjoint and ascending; where a stretch begins a new
    one may begin.
    """
    cuts = sorted({first for first, _ in stretches})
    found = []
    for position, cut in enumerate(cuts):
        lasts = sorted((last for first, last in stretches if first <= cut), reverse=True)
        if len(lasts) >= count and lasts[count - 1] >= cut:
            last = lasts[count - 1]
            if position + 1 < len(cuts):
                last = min(last, cuts[position + 1] - 1)
            found.append((cut, last))
    return found


class Ranges:
    """Disjoint ranges of indexes, inclusive and ascending; adjacent ones are joined. At most RANGES_MAX."""

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._ranges)

    def add(self, first: int, last: int) -> None:
        """Include first to last; no effect if it is empty. The oldest range is dropped for space."""
        if last < first:
            return
        apart = [(low, high) for low, high in self._ranges if high < first - 1 or low > last + 1]
        touching = [each for each in self._ranges if each not in apart]
        low = min([first, *(each[0] for each in touching)])
        high = max([last, *(each[1] for each in touching)])
        self._ranges = sorted([*apart, (low, high)])[-RANGES_MAX:]
