"""When a log that was opened with `fsync` may acknowledge what is not synced: after a note in its folder.

A power failure takes what was not synced. The next opening must know that it may have been acknowledged
(storage/log/clean_stop.py), so the note is durable first. Until then the log stays as strict as it was.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from app.log.contract import Disk, Durability
from storage.errors import StorageFull

logger = logging.getLogger(__name__)

RETRY_MS: Final = 1_000  # after the disk had no room for the note


class Loosening:
    """Owned by the log's driver. Invariant: `replicated` is allowed only after the note is durable."""

    def __init__(
        self,
        log_name: str,
        durability: Durability,
        disk: Disk,
        note: Callable[[], None],
        noted: Callable[[], None],
        fail: Callable[[str, BaseException], None],
    ) -> None:
        """durability: that the log was opened with; its opening has noted `replicated`. note(): makes the
        note durable, on the disk. noted(): ask `allowed` again. fail(what, error): the disk has failed."""
        self._log_name = log_name
        self._disk = disk
        self._note = note
        self._noted = noted
        self._fail = fail
        self._is_noted = durability is Durability.REPLICATED
        self._is_noting = False
        self._retry_ms: int | None = None
        self._now_ms = 0

    def allowed(self, wanted: Durability, now_ms: int) -> Durability:
        """Return what the log may be now; noted() follows when that changes. now_ms: monotonic."""
        self._now_ms = now_ms
        if wanted is Durability.FSYNC or self._is_noted:
            self._retry_ms = None
            return wanted
        if not self._is_noting:
            self._begin()
        return Durability.FSYNC

    def tick(self, now_ms: int) -> None:
        """Try again after the disk was full."""
        self._now_ms = now_ms
        if self._retry_ms is not None and now_ms >= self._retry_ms and not self._is_noting:
            self._begin()

    def _begin(self) -> None:
        self._is_noting, self._retry_ms = True, None
        self._disk.submit(self._note, self._done)

    def _done(self, _result: Any, error: BaseException | None) -> None:
        self._is_noting = False
        if error is None:
            self._is_noted = True
            self._noted()
        elif isinstance(error, StorageFull):
            logger.warning("log %s: no room to note that its durability is changed", self._log_name)
            self._retry_ms = self._now_ms + RETRY_MS
        else:
            self._fail(f"log {self._log_name}: note of its durability", error)
