"""Log lines of calls that are retried for long, so that no program waits for a cluster in silence."""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

NOTICE_AFTER_S, NOTICE_EACH_S = 2.0, 10.0

logger = logging.getLogger(__name__)


class RetryNotices:
    """Log lines of one call: the first one after NOTICE_AFTER_S, then one each NOTICE_EACH_S.

    give_up_at: by the clock of `now`, when the last error is raised.
    """

    def __init__(self, now: float, give_up_at: float) -> None:
        self._due = now + NOTICE_AFTER_S
        self._give_up_at = give_up_at

    def failed(self, now: float, reason: object) -> None:
        """Log the failure of an attempt that is followed by another one, if a line is due."""
        if now < self._due:
            return
        self._due = now + NOTICE_EACH_S
        logger.warning("%s; trying again for %.0f s", reason, self._give_up_at - now)


class _Handler(logging.Handler):
    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(record.getMessage())


@contextmanager
def notices_to(write: Callable[[str], None]) -> Iterator[None]:
    """Let `write` have the lines for the length of a `with`, and no other handler."""
    handler, propagates = _Handler(write), logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates
