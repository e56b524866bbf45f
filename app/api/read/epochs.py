"""This node's epoch file in the form of docs/api.md §2: start of each epoch, and start of the next one."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from storage.format.epoch_file import Epoch


def epoch_object(epochs: Sequence[Epoch], position: int) -> dict[str, Any]:
    """Return the epoch at `position`; its end is null while it is open."""
    epoch = epochs[position]
    following = epochs[position + 1] if position + 1 < len(epochs) else None
    return {
        "epoch": epoch.epoch,
        "term": epoch.term,
        "leader": epoch.leader,
        "start_index": epoch.start_index,
        "start_offset": epoch.start_offset,
        "end_index": None if following is None else following.start_index - 1,
        "end_offset": None if following is None else following.start_offset,
        "started_ms": epoch.started_ms,
    }


def position_at(epochs: Sequence[Epoch], index: int) -> int | None:
    """Return the position of the epoch that `index` belongs to, or will; None before the first one."""
    position = bisect_right(epochs, index, key=lambda epoch: epoch.start_index) - 1
    return position if position >= 0 else None
