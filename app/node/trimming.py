"""Removes what a committed trim record allows: the same records at every replica, each in its own time."""

import logging
from collections.abc import Callable
from typing import Any

from app.log_state import LogState
from app.node.checkpoints import Checkpointer
from app.replication import Disk
from storage.commitlog import Commitlog
from storage.errors import StorageFull

logger = logging.getLogger(__name__)


class Trimmer:
    """Nothing goes before the state that it led to is safe: else nobody could ever say what it was."""

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

    def look(self) -> None:
        """Begin what the state asks for and was not begun before; called with every tick."""
        until_index = self._state.trim_index
        if until_index <= self._trimmed_index:
            return
        if self._checkpointer.safe_index < until_index - 1:
            self._checkpointer.demand()
            return
        self._trimmed_index = until_index
        ticket = self._log.start_trim(until_index)
        if ticket is not None:
            self._disk.submit(ticket.run, self._ended)

    def _ended(self, _result: Any, error: BaseException | None) -> None:
        if isinstance(error, StorageFull):
            self._trimmed_index = 0  # tried again with the next tick: all of it may be repeated
            logger.warning("no room to note a trim: %s", error)
        elif error is not None:
            self._fail("trim", error)
