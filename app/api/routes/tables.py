"""The Delta tables of a log: their progress, and the versions that belong to a point of the log (docs/api.md
§5).

The content of the tables is read from their transaction logs (app/tables); their lag is computed against this
node's committed index. Control records are never rows: those after the last row count as held.

The other tables describe the log, and an index is in them if they cover its commit: the tables of epochs up
to the record before the first epoch that they lack; the tables of the journals up to the newest committed
index that a leader has reported in `events`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path as FilePath
from typing import Annotated, Any, Final, TypeVar

from fastapi import APIRouter, Path, Query, Request
from msgspec import structs
from pydantic import Field
from starlette.responses import Response

from app.api.http.dependencies import LogName, while_connected
from app.api.http.log_call import Call, Served
from app.api.http.openapi import answers
from app.api.http.query import WHOLE, WholeNumber
from app.api.http.query import Query as Parameters
from app.api.read.query import QueryOrdinal, QueryTimestampMs
from app.api.read.reader import Reader
from app.api.read.selection import Consistency
from app.errors import InvalidRequest, NoSuchCut, NotYetMaterialized, TableNotFound
from app.errors.tables import no_table
from app.node.hosted_log import HostedLog
from app.node.job_threads import in_thread
from app.node.replica.driver import LogDriver
from app.tables.catalog import NONE, LogTables, TableState, is_typed
from app.tables.delta_log import is_url
from app.tables.job_reports import JobReport, JobReports
from app.tables.names import CURRENT, DEAD_LETTERS, ENTRIES, EPOCH_TABLES, JOURNAL_TABLES, RECORDS
from storage.format.records import MIN_TIMESTAMP_MS
from storage.log.commitlog import Commitlog
from storage.units import MIB

logger = logging.getLogger(__name__)
router = APIRouter(tags=["tables"])

_POLL_S: Final = 0.1
_JOBS_WAIT_S: Final = 0.5
_READ_BYTES: Final = MIB  # at once
_COUNT_BYTES: Final = 16 * MIB  # of log, for an exact lag; beyond it control records count as data
TABLE_EXAMPLE: Final[dict[str, Any]] = {
    "name": "entries",
    "path": "/data/tables/default/entries",
    "version": 17,
    "materialized_index": 44,
    "lag_records": 0,
    "lag_ms": 0,
    "committed_ms": 1730000000000,
    "catalog_name": "orders_cat.stream.default_entries",
}
JOB_EXAMPLE: Final[dict[str, Any]] = {
    "state": "failed",
    "updated_ms": 1730000060000,
    "error": "[COMMITLOG_LEASE_LOST] entries: another job has taken over its table",
    "failed_ms": 1730000000000,
}
CUT_EXAMPLE: Final[dict[str, Any]] = {
    "index": 42,
    "tables": {"entries": 17, "epochs": 3, "events": 9},
    "exact": True,
}
TableName = Annotated[str, Path(description="Name of a table of the log", examples=[ENTRIES])]
TYPED: Final = (RECORDS, DEAD_LETTERS, CURRENT)
FOLLOWING: Final = (ENTRIES, *EPOCH_TABLES, *JOURNAL_TABLES)
Lag = tuple[int, int, int | None]  # as _lag returns it
LagKey = tuple[int, bool]  # index, and whether it is that of a typed table
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


class KnownJobs:
    """The last reports of the jobs that write the tables, by log.

    One read at a time, in a thread. A file system that does not answer holds no more threads, delays no call
    by more than _JOBS_WAIT_S (the answer is then what was read before), and no stop of the node.
    """

    def __init__(self, root: str | None) -> None:
        self._reports = None if root is None else JobReports(root)
        self._reading: asyncio.Task[Mapping[str, JobReport]] | None = None
        self._began_s = 0.0
        self._last: Mapping[str, JobReport] = {}

    async def last(self) -> Mapping[str, JobReport]:
        """Return the last report about each log that has one, none when [tables] path is not set."""
        if self._reports is None:
            return {}
        loop = asyncio.get_running_loop()
        reading = self._reading
        if reading is None or reading.done():
            reading = self._reading = loop.create_task(in_thread(self._reports.read))
            self._began_s = loop.time()
        await asyncio.wait((reading,), timeout=max(0.0, self._began_s + _JOBS_WAIT_S - loop.time()))
        if reading.done():
            self._last = reading.result()
        return self._last


class WaitQuery(Parameters):
    index: QueryOrdinal = Field(description="Index of the record to wait for")
    timeout_ms: WholeNumber = Field(
        5_000, ge=0, le=60_000, description="Time to wait, ms; after it the response is 504"
    )


class LookQuery(Parameters):
    timeout_ms: Annotated[int, Field(ge=0, le=60_000), WHOLE] | None = Field(
        None, description="Accepted and ignored; this call does not wait"
    )


class AtQuery(Parameters):
    """Exactly one of index, timestamp and epoch."""

    index: QueryOrdinal | None = Field(None, description="All records up to this index, inclusive")
    timestamp: QueryTimestampMs | None = Field(
        None, description="All records before the first later one; ms since 1970 UTC"
    )
    epoch: QueryOrdinal | None = Field(None, description="All records up to the end of this epoch")
    timeout_ms: WholeNumber = Field(0, ge=0, le=60_000, description="Time to wait for the tables, ms")


def known_tables(call: Call) -> KnownTables:
    known: KnownTables = call.request.app.state.tables
    return known


def known_jobs(request: Request) -> KnownJobs:
    known: KnownJobs = request.app.state.jobs
    return known


def job_of(log: str, jobs: Mapping[str, JobReport]) -> dict[str, str]:
    """Return the state that the Spark job of a log has reported, as a field of the log; none without a
    report."""
    return {"tables_job": jobs[log].state} if log in jobs else {}


@router.get(
    "/v1/logs/{log}/tables",
    summary="List the Delta tables of a log",
    description="`materialized_index`: all committed data records up to this index are in `entries`; the "
    "other tables describe the log up to the commit of this index. `lag_records`: number of committed data "
    "records after it; `lag_ms`: age of the oldest of them. All three are null for tables of other jobs, and "
    "for tables of the journals until a leader's watermarks are in them. `committed_ms`: time of the newest "
    "commit; null if its file was removed. `catalog_name`: name in a catalog of Spark, as the job with "
    "`--catalog` registered it; null without one. `job`: the last report of the Spark job that writes the "
    "tables, from `progress*.json` in their folder; absent if there is none.",
    responses=answers(example={"tables": [TABLE_EXAMPLE], "job": JOB_EXAMPLE}),
    response_class=Response,
)
async def tables(call: Call, log: LogName, query: Annotated[LookQuery, Query()]) -> Response:
    here = await call.replica(log)
    found = await known_tables(call).query(here.hosted, LogTables.all) or []
    lags: dict[LagKey, Lag] = {}  # most tables end at the same index
    answer: dict[str, Any] = {"tables": [await _table_object(here, state, lags) for state in found]}
    if (job := (await known_jobs(call.request).last()).get(log)) is not None:
        answer["job"] = structs.asdict(job)
    return here.answer(answer)


@router.get(
    "/v1/logs/{log}/tables/{table}:wait",
    summary="Wait until a record is in a table",
    description="For tables other than `entries`: until the table describes the log up to the commit of the "
    "record.",
    responses=answers("table-not-found", "not-yet-materialized", example=TABLE_EXAMPLE),
    response_class=Response,
)
async def wait(call: Call, log: LogName, table: TableName, query: Annotated[WaitQuery, Query()]) -> Response:
    return await while_connected(call.request, _wait(call, log, table, query))


async def _wait(call: Call, log: str, table: str, query: WaitQuery) -> Response:
    here = await call.replica(log)
    if table not in FOLLOWING and not is_typed(table):
        await _found(call, here, table)
        raise InvalidRequest(
            ("/path/table", f"must be one of {', '.join((*FOLLOWING, *TYPED))}, got {table!r}")
        )
    broker = call.broker
    deadline_ms = broker.clock.monotonic_ms() + query.timeout_ms
    while True:
        left_ms = deadline_ms - broker.clock.monotonic_ms()
        over = left_ms <= 0 or broker.waits.stopping
        state = await known_tables(call).query(here.hosted, lambda found: found.find(table))
        if state is None:  # the job that creates it may just have started
            if over or known_tables(call).root is None:
                raise TableNotFound(table, log)
        else:
            content = await _table_object(here, state)
            held_index = content["materialized_index"]
            if held_index is not None and held_index >= query.index:
                return here.answer(content)
            if over:
                raise NotYetMaterialized(query.index, NONE if held_index is None else held_index)
        await broker.waits.pause(max(0.0, min(_POLL_S, left_ms / 1000)))


@router.get(
    "/v1/logs/{log}/tables/{table}",
    summary="Get a Delta table of a log",
    responses=answers("table-not-found", example=TABLE_EXAMPLE),
    response_class=Response,
)
async def one_table(
    call: Call, log: LogName, table: TableName, query: Annotated[LookQuery, Query()]
) -> Response:
    here = await call.replica(log)
    return here.answer(await _table_object(here, await _found(call, here, table)))


@router.get(
    "/v1/logs/{log}/tables:at",
    summary="Get the versions of all tables at a point of the log",
    description="For `entries`: the first version that contains every record up to `index`; `exact` is true "
    "if it contains no later record. For the other tables: the newest version committed before the next "
    "version of `entries`.",
    responses=answers("no-such-cut", example=CUT_EXAMPLE),
    response_class=Response,
)
async def at(call: Call, log: LogName, query: Annotated[AtQuery, Query()]) -> Response:
    return await while_connected(call.request, _at(call, log, query))


async def _at(call: Call, log: str, query: AtQuery) -> Response:
    hosted = call.find(log)
    if len(query.model_fields_set - {"timeout_ms"}) != 1:
        raise InvalidRequest(("/query", "exactly one of index, timestamp and epoch is required"))
    here = await call.replica_of(hosted)
    broker = call.broker
    deadline_ms = broker.clock.monotonic_ms() + query.timeout_ms
    while True:
        try:
            return here.answer(await _cut(call, here, query))
        except NoSuchCut:
            left_ms = deadline_ms - broker.clock.monotonic_ms()
            if left_ms <= 0 or broker.waits.stopping:
                raise
        await broker.waits.pause(min(_POLL_S, left_ms / 1000))


async def _cut(call: Call, here: Served, query: AtQuery) -> dict[str, Any]:
    """Return the versions of all tables at one point of the log. Raises NoSuchCut, Repairing, LogDeleting."""
    state = await known_tables(call).query(here.hosted, lambda found: found.find(ENTRIES))
    if state is None or not _is_ours(here, state):
        raise NoSuchCut(no_table(ENTRIES, here.hosted.name), None)
    held_index = (await _table_object(here, state))["materialized_index"]
    _check_served(here)
    index = _point(here.driver, query)
    if index > held_index:
        raise NoSuchCut(
            f"index {index} is not in the tables yet; they contain the log up to index {held_index}",
            held_index,
        )
    cut = await known_tables(call).query(here.hosted, lambda found: found.cut(index, held_index))
    if cut is None:
        raise NoSuchCut(f"no known version of the tables contains index {index}", held_index)
    return {"index": index, "tables": dict(cut.versions), "exact": cut.exact}


async def _found(call: Call, here: Served, table: str) -> TableState:
    """Return the state of a table. Raises TableNotFound."""
    state = await known_tables(call).query(here.hosted, lambda found: found.find(table))
    if state is None:
        raise TableNotFound(table, here.hosted.name)
    return state


def _check_served(here: Served) -> None:
    """As Reader.check_served: the files of a driver that has ended are those of another log by now."""
    Reader(here, Consistency.COMMITTED).check_served()


async def _table_object(
    here: Served, state: TableState, lags: dict[LagKey, Lag] | None = None
) -> dict[str, Any]:
    """lags: those that the same response has computed. Raises Repairing, LogDeleting."""
    _check_served(here)
    held_index, lag_records, lag_ms = None, None, None
    held = _held_index(here, state)
    if held is not None:
        known = {} if lags is None else lags
        key = (held, is_typed(state.name))
        if key not in known:
            known[key] = await _lag(here.driver, held, state.begin_index, is_typed=key[1])
        through, lag_records, oldest_ms = known[key]
        held_index = (
            through if state.name == ENTRIES or is_typed(state.name) else held
        )  # no row is due for a control record
        lag_ms = 0 if oldest_ms is None else max(0, here.broker.clock.now_ms() - oldest_ms)
    return {
        "name": state.name,
        "path": state.path,
        "version": state.version,
        "materialized_index": held_index,
        "lag_records": lag_records,
        "lag_ms": lag_ms,
        "committed_ms": state.committed_ms,
        "catalog_name": state.catalog_name,
    }


def _held_index(here: Served, state: TableState) -> int | None:
    """Return the last index that the table covers; None if that is not known, or for another job's table."""
    if state.name not in FOLLOWING and not is_typed(state.name):
        return None
    if not _is_ours(here, state):
        return NONE
    committed_index = here.driver.committed_index
    if state.last_epoch is None:
        return None if state.held_index is None else min(state.held_index, committed_index)
    missing = (epoch for epoch in here.driver.log.epochs if epoch.epoch > state.last_epoch)
    first = next(missing, None)
    return committed_index if first is None else min(first.start_index - 1, committed_index)


def _is_ours(here: Served, state: TableState) -> bool:
    """Return whether it holds the records of this log, not of an earlier one of its name."""
    return state.log_id in (None, f"{here.hosted.log_id:016x}")


async def _lag(driver: LogDriver, held_index: int, begin_index: int, *, is_typed: bool) -> Lag:
    """Return the end of a table that holds every record from `begin_index` to `held_index`, and its lag.

    Control records after `held_index` are not rows, so the end may be larger. The lag is the number of
    missing records and the time of the first one. When the log begins after what the table holds, the table
    ends before the trimmed records: a typed table lacks them still, and gets them from `entries`; `entries`
    itself never gets them. The cursor of the job shows neither: `entries` may be restored to an earlier
    version, and the typed tables follow it later.
    """
    log = driver.log
    committed_index = driver.committed_index
    trimmed = max(0, log.first_index - max(held_index + 1, begin_index))
    at = max(held_index + 1, log.first_index)
    missing, first, oldest_ms, read_bytes = trimmed if is_typed else 0, None, None, 0
    while read_bytes < _COUNT_BYTES:
        at = max(at, log.first_index)  # a trim or a reset may have happened in between
        if at > min(committed_index, log.end_index) or driver.is_truncating:
            break
        for batch in log.read_batches(at, _READ_BYTES, committed_index):
            if not batch.is_control:
                if first is None:
                    first, oldest_ms = max(at, batch.base_index), batch.timestamp_ms
                missing += batch.next_index - max(at, batch.base_index)
            read_bytes += batch.size_bytes
            at = batch.next_index
        await asyncio.sleep(0)  # replication has priority
    missing += max(0, committed_index + 1 - at)
    through = (at if first is None else first) - 1
    return held_index if trimmed else max(held_index, through), missing, oldest_ms


def _point(driver: LogDriver, query: AtQuery) -> int:
    """Return the last index of the requested point. Raises NoSuchCut."""
    if query.index is not None:
        return query.index
    log, committed_index = driver.log, driver.committed_index
    if query.timestamp is not None:
        return _last_before(log, query.timestamp + 1, committed_index)
    epochs = [epoch.epoch for epoch in log.epochs]
    if query.epoch not in epochs or log.epochs[epochs.index(query.epoch)].start_index > committed_index:
        raise NoSuchCut(f"epoch {query.epoch} is not a committed epoch known to this node", None)
    position = epochs.index(query.epoch)
    if position + 1 < len(epochs):
        return min(log.epochs[position + 1].start_index - 1, committed_index)
    return committed_index


def _last_before(log: Commitlog, timestamp_ms: int, committed_index: int) -> int:
    """Return the index before the first record at or after a time. Raises NoSuchCut if the log does not
    contain it."""
    found = log.first_index_at_or_after(timestamp_ms)
    index = committed_index if found is None else min(found - 1, committed_index)
    first = log.first_index_at_or_after(MIN_TIMESTAMP_MS)
    if first is None or index < first:
        raise NoSuchCut(
            f"the timestamp is before the beginning of the log, index {max(0, log.begin_index)}", None
        )
    return index
