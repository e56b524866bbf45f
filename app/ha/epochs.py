"""Divergence of two logs, determined by their epochs alone (A-03, A-04). PURE."""

from collections.abc import Sequence
from dataclasses import dataclass

from app.ha.frames import EpochStart


@dataclass(frozen=True, slots=True)
class EpochSpan:
    """One epoch of a log: bytes start_offset to end_offset, exclusive."""

    epoch: int
    start_offset: int
    end_offset: int


def spans(starts: Sequence[EpochStart], max_offset: int) -> tuple[EpochSpan, ...]:
    """Return the epochs with their ends: where the next one starts, of the last one the log's end (A-03).

    starts: oldest first. An epoch that starts at or after max_offset holds nothing and is left out: an empty
    epoch must not hide where two logs diverge.
    """
    held = [start for start in starts if start.start_offset < max_offset]
    bounds = [*(start.start_offset for start in held), max_offset]
    return tuple(
        EpochSpan(start.epoch, start.start_offset, bounds[position + 1])
        for position, start in enumerate(held)
    )


def truncation_point(slave: Sequence[EpochSpan], master: Sequence[EpochSpan]) -> int | None:
    """Return the byte up to which both logs are the same, None when they have no epoch in common (A-04).

    slave, master: oldest first. From the slave's newest epoch back: the first that the master also has, with
    the same start, gives the smaller of its two ends. The start of a log's first epoch may only be where that
    log begins (the rest is trimmed, or was never fetched), so there the epoch decides alone: one epoch has
    one master, which writes it once. A point outside either log is None too.
    """
    by_epoch = {span.epoch: span for span in master}
    for position in range(len(slave) - 1, -1, -1):
        ours = slave[position]
        theirs = by_epoch.get(ours.epoch)
        if theirs is None:
            continue
        first = position == 0 or theirs is master[0]
        if ours.start_offset == theirs.start_offset or first:
            point = min(ours.end_offset, theirs.end_offset)
            return point if point > slave[0].start_offset else None
    return None
