"""Change of a log from `fsync` to acknowledgements before the sync, which needs a note in its folder first.

A power failure loses unsynced records. The next opening must know that they may have been acknowledged
(storage/log/clean_stop.py), so the note is made durable first. Until then the log stays as strict as before.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from app.log.contract import Durability
from app.log.driver_interfaces import Disk
from storage.errors import StorageFull

logger = logging.getLogger(__name__)

RETRY_MS: Final = 1_000  # after the disk had no space for the note


class WeakerDurability:
    """Permits `replicated` once the note is durable; owned by the log's driver."""

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
        note durable, on the disk. noted(): call `allowed` again. fail(what, error): the disk has failed."""
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
        """Return the durability that is permitted now; noted() follows a change. now_ms: monotonic."""
        self._now_ms = now_ms
        if wanted is Durability.FSYNC or self._is_noted:
            self._retry_ms = None
            return wanted
        if not self._is_noting:
            self._begin()
        return Durability.FSYNC

    def tick(self, now_ms: int) -> None:
        """Retry after the disk was full."""
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
            logger.warning(
                "log %s: the disk is full: the change of its durability is not recorded", self._log_name
            )
            self._retry_ms = self._now_ms + RETRY_MS
        else:
            self._fail(f"log {self._log_name}: note of its durability", error)
