"""Reads as the API answers them, pages of records and cursors, and the check of what they return; the scrub
of a node, which reads all of its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from app.api.http.log_call import Served
from app.api.read.query import ReadQuery
from app.api.read.reader import Reader
from app.api.read.selection import Consistency
from app.errors import CommitlogError, CursorNotFound, NotLeader, ReadIndexUnavailable
from app.log.contract import Role
from app.log.state import LogCursor
from app.node.replica.driver import LogDriver
from app.node.request_waits import Waits
from storage.care.scrub import Scrub
from storage.errors import CorruptFile, CorruptLog, DiskError
from tests.simulation.raft.checks import SafetyChecker
from tests.simulation.raft.sometimes import Sometimes
from tests.simulation.world.world_loop import in_thread

if TYPE_CHECKING:
    from tests.simulation.raft.node import SimulatedNode

LEADER_WAIT_MS = 1_000
PAGE_RECORDS = 60
SHOWN_BEFORE = 25  # indexes before the newest acknowledged record at which a read begins


class Shown(NamedTuple):
    """Content of one page: the records (index, value) of [start_index, next_index)."""

    consistency: Consistency
    start_index: int
    next_index: int
    records: list[tuple[int, str]]
    is_full: bool


class Asked(NamedTuple):
    """Knowledge of a client when its read began: no linearizable answer may be older."""

    acknowledged_index: int
    cursor: str
    revision: int  # of the cursor's last acknowledged move


PageDone = Callable[[Shown | CommitlogError], None]
CursorDone = Callable[[LogCursor | CommitlogError], None]


class NodeReads:
    """The read side of the API at one incarnation of a node."""

    def __init__(self, current: Callable[[], LogDriver | None]) -> None:
        """current(): the driver that serves the log now, None while there is none."""
        self._current = current
        self._waits = Waits(LEADER_WAIT_MS)

    async def page(self, start_index: int, consistency: Consistency, done: PageDone) -> None:
        """Answer GET /v1/logs/{log}/records. Raises StorageError."""
        try:
            done(await self._page(start_index, consistency))
        except CommitlogError as refusal:
            done(refusal)

    async def _page(self, start_index: int, consistency: Consistency) -> Shown:
        reader = Reader(self._here(), consistency)
        await reader.confirm()
        query = ReadQuery(from_index=start_index, limit=PAGE_RECORDS)  # type: ignore[call-arg]
        range_ = await reader.range_of(query)
        page = await reader.page(range_, query.selection(), 0)
        records = [
            (row["index"], row["value"].decode())
            for columns in page.columns
            for row in columns.select(["index", "value"]).to_pylist()
        ]
        return Shown(consistency, start_index, page.next_index, records, page.full)

    async def cursor(self, name: str, done: CursorDone) -> None:
        """Answer GET /v1/logs/{log}/cursors/{name} at the leader."""
        try:
            driver = self._here().driver
            if driver.role not in (Role.LEADER, Role.MASTER):
                raise NotLeader(driver.leader_id or "")
            await self._waits.read_index(self._here().hosted)
            found = driver.state.committed_cursor(name)
            done(CursorNotFound(name) if found is None else found)
        except CommitlogError as refusal:
            done(refusal)

    def _here(self) -> Served:
        driver = self._current()
        if driver is None:
            raise ReadIndexUnavailable
        hosted: Any = SimpleNamespace(
            name="log",
            driver=driver,
            removed=driver.role is Role.REMOVED,
            leads=driver.role in (Role.LEADER, Role.MASTER),
            leadership_changed=asyncio.sleep,
        )
        broker: Any = SimpleNamespace(waits=self._waits)
        return Served(broker, hosted, driver)


class ReadChecker:
    """Compares what reads returned with what was committed. Its findings wait for the end of the step."""

    def __init__(self, checker: SafetyChecker, sometimes: Sometimes) -> None:
        self.pages = self.cursors = 0
        self._checker = checker
        self._sometimes = sometimes
        self._shown: list[tuple[Shown, Asked]] = []
        self._cursors: list[tuple[LogCursor | None, Asked]] = []

    def page(self, shown: Shown, asked: Asked) -> None:
        self._shown.append((shown, asked))

    def cursor(self, cursor: LogCursor | None, asked: Asked) -> None:
        """cursor: None when the answer was that there is none."""
        self._cursors.append((cursor, asked))

    def problem(self) -> str | None:
        """Return what is wrong with an answer since the last call, None when all are right."""
        shown, self._shown = self._shown, []
        cursors, self._cursors = self._cursors, []
        self.pages += len(shown)
        self.cursors += len(cursors)
        problems = [
            *(self._page_problem(*each) for each in shown),
            *(self._cursor_problem(*each) for each in cursors),
        ]
        return next((problem for problem in problems if problem is not None), None)

    def _page_problem(self, page: Shown, asked: Asked) -> str | None:
        checker = self._checker
        end_index = page.next_index - 1
        if end_index > checker.committed_index:
            return f"a read showed {page.start_index} to {end_index}; committed is {checker.committed_index}"
        known = [
            (index, value)
            for index in range(page.start_index, page.next_index)
            if (value := checker.values.get(index)) is not None
        ]
        if known != page.records:
            return f"a read showed {page.records} of {page.start_index} to {end_index}, committed is {known}"
        is_linearizable = page.consistency is Consistency.LINEARIZABLE
        if is_linearizable and not page.is_full and end_index < asked.acknowledged_index:
            return f"a read ended at {end_index} after {asked.acknowledged_index} was acknowledged"
        self._sometimes.hit("page-read")
        return None

    def _cursor_problem(self, cursor: LogCursor | None, asked: Asked) -> str | None:
        if cursor is None:
            stale = asked.revision >= 0
            return f"no cursor {asked.cursor} after its move at {asked.revision}" if stale else None
        committed = self._checker.cursors.get(cursor.revision)
        if committed != (asked.cursor, cursor.position):
            return f"a read showed {cursor} of {asked.cursor}; committed there is {committed}"
        if cursor.revision < asked.revision:
            return f"a read showed {cursor} after the move at {asked.revision}"
        self._sometimes.hit("cursor-read")
        return None


async def scrub(node: SimulatedNode) -> None:
    """Read the whole log of a node again, as the production scrub does: what has rotted is found, or put
    right."""
    driver, flips = node.driver, list(node.files.flips)
    try:
        for step in Scrub(node.files, driver.log):
            await in_thread(step.run)
            if driver is not node.driver or not node._serves:
                return
    except (CorruptLog, CorruptFile) as error:
        node._damaged(error, "scrub")
    except DiskError:
        if not node.files.is_ill:
            raise
    else:
        node._cluster.sometimes.hit("scrubbed")
        if flips == node.files.flips and driver.log.end_index <= driver.committed_index:
            node.files.flips.clear()  # every byte of the log has been read
