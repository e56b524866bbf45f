"""The tables of all logs, as a node has read them from their transaction logs (app/tables)."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path as FilePath
from typing import Any, TypeVar

from app.api.http.log_call import Call
from app.node.hosted_log import HostedLog
from app.node.job_threads import in_thread
from app.tables.catalog import LogTables
from app.tables.delta_log import is_url

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class KnownTables:
    """The tables of all logs, as they were read last. One read of a log's tables at a time, in a thread.

    What was read of a log ends with its driver: a node keeps nothing of logs that are deleted or moved away.
    """

    def __init__(self, root: str | None) -> None:
        self.root = root if root is None or is_url(root) else str(FilePath(root).absolute())
        self._logs: dict[HostedLog, tuple[LogTables, asyncio.Lock]] = {}

    async def query(self, log: HostedLog, ask: Callable[[LogTables], Result]) -> Result | None:
        """Return what `ask` finds, None when [tables] path is not set."""
        if self.root is None:
            return None
        if log not in self._logs:
            self._logs = {each: known for each, known in self._logs.items() if each.driver is not None}
            self._logs[log] = (LogTables(self.root, log.name), asyncio.Lock())
        tables, lock = self._logs[log]
        await lock.acquire()
        reading = asyncio.create_task(in_thread(partial(ask, tables)))
        reading.add_done_callback(lambda _: lock.release())  # later than a call whose client disconnects
        try:
            return await asyncio.shield(reading)
        except asyncio.CancelledError:
            reading.add_done_callback(_log_failure)
            raise


def _log_failure(reading: "asyncio.Task[Any]") -> None:
    """Log why a read has failed whose call has ended."""
    error = None if reading.cancelled() else reading.exception()
    if error is not None:
        logger.error("tables: %s", error)


def known_tables(call: Call) -> KnownTables:
    known: KnownTables = call.request.app.state.tables
    return known
