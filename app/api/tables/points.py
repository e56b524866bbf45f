"""A point of the log, given by an index, a time or an epoch."""

from pydantic import Field

from app.api.http.query import Query as Parameters
from app.api.http.query import WholeNumber
from app.api.read.query import QueryOrdinal, QueryTimestampMs
from app.errors import NoSuchCut
from app.node.replica.driver import LogDriver
from storage.format.records import MIN_TIMESTAMP_MS
from storage.log.commitlog import Commitlog


class AtQuery(Parameters):
    """Exactly one of index, timestamp and epoch."""

    index: QueryOrdinal | None = Field(None, description="All records up to this index, inclusive")
    timestamp: QueryTimestampMs | None = Field(
        None, description="All records before the first later one; ms since 1970 UTC"
    )
    epoch: QueryOrdinal | None = Field(None, description="All records up to the end of this epoch")
    timeout_ms: WholeNumber = Field(0, ge=0, le=60_000, description="Time to wait for the tables, ms")


def last_index_of(driver: LogDriver, query: AtQuery) -> int:
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
