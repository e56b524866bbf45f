"""Removal of records that a committed trim record allows: the same ones at every replica, at its own time."""

import logging
from collections.abc import Callable
from typing import Any, Final

from app.log.driver_interfaces import Disk
from app.log.state import LogState
from app.node.state.checkpoints import Checkpointer
from storage.errors import StorageFull
from storage.log.commitlog import Commitlog, TrimTicket

logger = logging.getLogger(__name__)


RETRY_TICKS: Final = 50  # pause after a trim that failed for lack of space


class Trimmer:
    """Records are removed only after the state that they led to is safe: otherwise that state would be lost.

    What is safe already is removed at once: on a full disk the next snapshot may need that space.

    Invariant: at most one piece of work is at the disk. Each segment is removed in a piece of its own,
    because the removal of a large file takes long: the log's syncs run between two pieces.
    """

    def __init__(
        self,
        log: Commitlog,
        state: LogState,
        checkpointer: Checkpointer,
        disk: Disk,
        fail: Callable[[str, BaseException], None],
    ) -> None:
        self._log = log
        self._state = state
        self._checkpointer = checkpointer
        self._disk = disk
        self._fail = fail
        self._trimmed_index = 0  # index up to which a trim was attempted
        self._truncation_count = log.truncation_count  # of the log at that attempt
        self._ticket: TrimTicket | None = None  # of the trim in progress
        self._retry_ticks = 0
        self._stopped = False

    def stop(self) -> None:
        """Start nothing more: the log is being closed."""
        self._stopped = True

    def trim(self) -> None:
        """Start the work that the state requires and that was not started before; called with every tick."""
        if self._ticket is not None:
            self._retry()
            return
        until_index = self._state.trim_index
        if self._was_attempted(until_index):
            return
        if min(self._log.settled_index, self._log.durable_index) < until_index:
            return  # it was reset, or its end was removed, and it gets the records again
        safe_index = self._checkpointer.safe_index
        if safe_index < until_index - 1:
            self._checkpointer.demand()
            until_index = safe_index + 1
            if self._was_attempted(until_index):
                return
        self._trimmed_index, self._truncation_count = until_index, self._log.truncation_count
        ticket = self._log.start_trim(until_index)
        if ticket is not None:
            self._ticket = ticket
            self._disk.submit(ticket.move_begin, self._moved)

    def _was_attempted(self, until_index: int) -> bool:
        is_same_log = self._log.truncation_count == self._truncation_count
        return until_index <= self._trimmed_index and is_same_log

    def _retry(self) -> None:
        """Repeat a trim that had no space, unless the log was reset since: it has another beginning then."""
        ticket = self._ticket
        if self._retry_ticks == 0 or ticket is None:
            return
        self._retry_ticks -= 1
        if self._log.first_index != ticket.base_index:
            self._retry_ticks, self._ticket = 0, None
        elif self._retry_ticks == 0:
            self._disk.submit(ticket.move_begin, self._moved)

    def _moved(self, _result: Any, error: BaseException | None) -> None:
        if isinstance(error, StorageFull):
            self._retry_ticks = RETRY_TICKS
            logger.warning("the disk is full: a trim is not recorded: %s", error)
        elif error is not None:
            self._fail("trim", error)
        else:
            self._remove()

    def _remove(self) -> None:
        if self._ticket is not None and not self._stopped:
            self._disk.submit(self._ticket.remove_oldest, self._removed)

    def _removed(self, more: Any, error: BaseException | None) -> None:
        if error is not None:
            self._fail("trim", error)
        elif more:
            self._remove()
        else:
            self._ticket = None
