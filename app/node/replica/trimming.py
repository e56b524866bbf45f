"""Removes what a committed trim record allows: the same records at every replica, each in its own time."""

import logging
from collections.abc import Callable
from typing import Any, Final

from app.log.contract import Disk
from app.log.state import LogState
from app.node.replica.checkpoints import Checkpointer
from storage.errors import StorageFull
from storage.log.commitlog import Commitlog, TrimTicket

logger = logging.getLogger(__name__)


RETRY_TICKS: Final = 50  # until a trim that found no room is tried again


class Trimmer:
    """Nothing goes before the state that it led to is safe: else nobody could ever say what it was.

    Invariant: at most one piece of work is at the disk. A segment is removed in a piece of its own, as the
    removal of a large file takes the disk long: the log's syncs run between two pieces.
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
        self._trimmed_index = 0  # up to here it was tried
        self._ticket: TrimTicket | None = None  # of the trim under way
        self._retry_ticks = 0
        self._stopped = False

    def stop(self) -> None:
        """Begin nothing more: the log is given back."""
        self._stopped = True

    def trim(self) -> None:
        """Begin what the state asks for and was not begun before; called with every tick."""
        if self._ticket is not None:
            self._retry()
            return
        until_index = self._state.trim_index
        if until_index <= self._trimmed_index:
            return
        if self._checkpointer.safe_index < until_index - 1:
            self._checkpointer.demand()
            return
        self._trimmed_index = until_index
        ticket = self._log.start_trim(until_index)
        if ticket is not None:
            self._ticket = ticket
            self._disk.submit(ticket.move_begin, self._moved)

    def _retry(self) -> None:
        if self._retry_ticks > 0 and self._ticket is not None:
            self._retry_ticks -= 1
            if self._retry_ticks == 0:
                self._disk.submit(self._ticket.move_begin, self._moved)

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
