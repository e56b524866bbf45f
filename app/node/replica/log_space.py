"""Disk space from the view of one log: what may be written when the disk is full."""

import logging
from collections.abc import Callable, Sequence
from typing import Final

from app.errors import CommitlogError, StorageFull
from app.log.driver_interfaces import SpaceReserve
from storage import errors as storage_errors
from storage.format.batch import Batch

logger = logging.getLogger(__name__)

FULL_FOR_MS: Final = 2_000  # after a refused write a replica counts as full for this long
RETRY_MS: Final = 50  # a refused append is undone by syncs: no more often than this, when
TRIES_MAX: Final = 10  # ... this many consecutive ones were refused
WARN_MS: Final = 10_000  # a full disk is reported no more often than this


class LogSpace:
    """Owned by the log's driver. Times are monotonic milliseconds."""

    def __init__(self, log_name: str, node_id: str, reserve: SpaceReserve | None) -> None:
        self._log_name = log_name
        self._node_id = node_id
        self._reserve = reserve
        self._full_ms: int | None = None  # of the last write without space
        self._tries = 0  # consecutive writes without space
        self._warned_ms: int | None = None

    @property
    def in_use(self) -> bool:
        """True if the node is using its reserve."""
        return self._reserve is not None and self._reserve.in_use

    def has_room(self, now_ms: int) -> bool:
        """Return whether this replica can take clients' records, as far as is known."""
        return not self.in_use and (self._full_ms is None or now_ms - self._full_ms >= FULL_FOR_MS)

    def refusal(self, now_ms: int) -> CommitlogError | None:
        """Return why clients' records are refused without an attempt; None when they are not."""
        waits = self._full_ms is not None and now_ms - self._full_ms < RETRY_MS and self._tries >= TRIES_MAX
        return StorageFull(self._node_id) if self.in_use or waits else None

    def write(
        self, append: Callable[[Sequence[Batch]], None], batches: Sequence[Batch], *, leads: bool, now_ms: int
    ) -> bool:
        """Write the batches, all or none; return False if there is no space for them.

        A leader's own control records use the reserve. So do records from a leader, down to one half of it:
        trims may follow, and the other half is for them.
        """
        control = any(batch.is_control for batch in batches)
        while True:
            try:
                append(batches)
                self._tries = 0
                return True
            except storage_errors.StorageFull:
                self._full_ms, self._tries = now_ms, self._tries + 1
                if not self._release(control=control, leads=leads):
                    self._warn(now_ms, leads=leads)
                    return False

    def _warn(self, now_ms: int, *, leads: bool) -> None:
        if self._warned_ms is None or now_ms - self._warned_ms >= WARN_MS:
            self._warned_ms = now_ms
            consequence = "appends are refused" if leads else "records of the leader are not stored"
            advice = "make space (docs/operations.md, section 8)"
            logger.warning("log %s: the disk is full, %s: %s", self._log_name, consequence, advice)

    def _release(self, *, control: bool, leads: bool) -> bool:
        if self._reserve is None or (leads and not control):
            return False
        return self._reserve.release(keep_bytes=0 if control else self._reserve.size_bytes // 2)
