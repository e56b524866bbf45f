"""Rendered batches that the event streams of one log share: all readers at its end need the same bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Final

ENTRIES: Final = 32  # kept for a log: one selection each, mostly
EVENT_MAX_BYTES: Final = 128 * 1024  # a larger one is not kept


class SharedBatches:
    """The batches of one log that were rendered last, by everything that determines their bytes.

    With 300 event streams, each commit rendered the same batch 300 times, and appends waited behind that.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, tuple[int, bytes | None]] = OrderedDict()

    def get(self, key: Hashable) -> tuple[int, bytes | None] | None:
        """Return (next index, event), or None when it is not kept. event: None when no record is selected."""
        return self._kept.get(key)

    def put(self, key: Hashable, next_index: int, event: bytes | None) -> None:
        """Keep a batch, and drop the one that was kept first when there are too many."""
        if event is not None and len(event) > EVENT_MAX_BYTES:
            return
        self._kept[key] = (next_index, event)
        if len(self._kept) > ENTRIES:
            self._kept.popitem(last=False)
