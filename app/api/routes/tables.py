"""The Delta tables of a log: their progress, and the versions that belong to a point of the log (docs/api.md
§5)."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query
from msgspec import structs
from pydantic import Field
from starlette.responses import Response

from app.api.http.dependencies import LogName, while_connected
from app.api.http.log_call import Call, Served
from app.api.http.openapi import answers
from app.api.http.query import WHOLE, WholeNumber
from app.api.http.query import Query as Parameters
from app.api.read.query import QueryOrdinal
from app.api.tables.known_jobs import known_jobs
from app.api.tables.known_tables import known_tables
from app.api.tables.points import AtQuery, last_index_of
from app.api.tables.progress import FOLLOWING, Lag, LagKey, check_served, is_ours, table_object
from app.errors import InvalidRequest, NoSuchCut, NotYetMaterialized, TableNotFound
from app.errors.tables import no_table
from app.tables.catalog import NONE, LogTables, TableState, is_typed
from app.tables.names import CURRENT, DEAD_LETTERS, ENTRIES, RECORDS

router = APIRouter(tags=["tables"])

_POLL_S: Final = 0.1
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


class WaitQuery(Parameters):
    index: QueryOrdinal = Field(description="Index of the record to wait for")
    timeout_ms: WholeNumber = Field(
        5_000, ge=0, le=60_000, description="Time to wait, ms; after it the response is 504"
    )


class LookQuery(Parameters):
    timeout_ms: Annotated[int, Field(ge=0, le=60_000), WHOLE] | None = Field(
        None, description="Accepted and ignored; this call does not wait"
    )


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
    answer: dict[str, Any] = {"tables": [await table_object(here, state, lags) for state in found]}
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
            content = await table_object(here, state)
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
    return here.answer(await table_object(here, await _found(call, here, table)))


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
    if state is None or not is_ours(here, state):
        raise NoSuchCut(no_table(ENTRIES, here.hosted.name), None)
    held_index = (await table_object(here, state))["materialized_index"]
    check_served(here)
    index = last_index_of(here.driver, query)
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
