"""The progress of a table: the last record that it covers, and its lag against this node's committed index.

Control records are never rows: those after the last row count as held.

The tables beside `entries` and the typed ones describe the log, and an index is in them if they cover its
commit: the tables of epochs up to the record before the first epoch that they lack; the tables of the
journals up to the newest committed index that a leader has reported in `events`.
"""

import asyncio
from typing import Any, Final

from app.api.http.log_call import Served
from app.api.read.reader import Reader
from app.api.read.selection import Consistency
from app.node.replica.driver import LogDriver
from app.tables.catalog import NONE, TableState, is_typed
from app.tables.names import ENTRIES, EPOCH_TABLES, JOURNAL_TABLES
from storage.units import MIB

FOLLOWING: Final = (ENTRIES, *EPOCH_TABLES, *JOURNAL_TABLES)
_READ_BYTES: Final = MIB  # at once
_COUNT_BYTES: Final = 16 * MIB  # of log, for an exact lag; beyond it control records count as data
Lag = tuple[int, int, int | None]  # as _lag returns it
LagKey = tuple[int, bool]  # index, and whether it is that of a typed table


def check_served(here: Served) -> None:
    """As Reader.check_served: the files of a driver that has ended are those of another log by now."""
    Reader(here, Consistency.COMMITTED).check_served()


async def table_object(
    here: Served, state: TableState, lags: dict[LagKey, Lag] | None = None
) -> dict[str, Any]:
    """lags: those that the same response has computed. Raises Repairing, LogDeleting."""
    check_served(here)
    held_index, lag_records, lag_ms = None, None, None
    held = _held_index(here, state)
    if held is not None:
        known = {} if lags is None else lags
        key = (held, is_typed(state.name))
        if key not in known:
            known[key] = await _lag(here.driver, held, state.begin_index, is_typed=key[1])
        through, lag_records, oldest_ms = known[key]
        has_rows = state.name == ENTRIES or is_typed(state.name)
        held_index = through if has_rows else held  # no row is due for a control record
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
    if not is_ours(here, state):
        return NONE
    committed_index = here.driver.committed_index
    if state.last_epoch is None:
        return None if state.held_index is None else min(state.held_index, committed_index)
    missing = (epoch for epoch in here.driver.log.epochs if epoch.epoch > state.last_epoch)
    first = next(missing, None)
    return committed_index if first is None else min(first.start_index - 1, committed_index)


def is_ours(here: Served, state: TableState) -> bool:
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
