"""Query parameters of a read (docs/api.md §5), validated and documented by FastAPI."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from app.api.http.json_decoding import MAX_ORDINAL
from app.api.http.query import WHOLE, Query, WholeNumber
from app.api.read.selection import Consistency, Encoding, Selection
from app.errors import InvalidRequest
from storage.format.records import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from storage.units import MIB

QueryOrdinal = Annotated[int, Field(ge=0, le=MAX_ORDINAL), WHOLE]
QueryTimestampMs = Annotated[int, Field(ge=MIN_TIMESTAMP_MS, le=MAX_TIMESTAMP_MS), WHOLE]


class StartPosition(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


class ConsistencyQuery(Query):
    consistency: Consistency = Field(
        Consistency.LINEARIZABLE,
        description="`linearizable`: all records acknowledged before the call; `committed`: this node's "
        "committed prefix, may be behind; `local`: all this node holds, committed or not",
    )


class RecordQuery(ConsistencyQuery):
    encoding: Encoding = Field(
        Encoding.AUTO,
        description="`auto`: `value` if it is UTF-8, else `value_base64`; `json`: `value_json` if it is JSON",
    )


class ReadQuery(RecordQuery):
    """At most one start of from_index, from_timestamp, last, from and cursor."""

    from_index: QueryOrdinal | None = Field(None, description="Index of the first record")
    from_timestamp: QueryTimestampMs | None = Field(
        None, description="Start at the first record with this timestamp or a later one; ms since 1970 UTC"
    )
    last: Annotated[int, Field(ge=1, le=100_000), WHOLE] | None = Field(
        None, description="The last N data records"
    )
    from_: StartPosition | None = Field(
        None, alias="from", description="Start at earliest (the default) or latest (committed_index + 1)"
    )
    cursor: str | None = Field(None, description="Start at the cursor with this name")
    limit: WholeNumber = Field(1_000, ge=1, le=100_000, description="Maximum number of records")
    max_bytes: WholeNumber = Field(
        4 * MIB,
        ge=1,
        le=64 * MIB,
        description="Maximum bytes of values, keys and headers; at least one record",
    )
    until_index: QueryOrdinal | None = Field(None, description="End index, exclusive")
    until_timestamp: QueryTimestampMs | None = Field(
        None,
        description="End before the first record from the start on with this timestamp or a later one; ms "
        "since 1970 UTC",
    )
    wait_ms: WholeNumber = Field(0, ge=0, le=60_000, description="Long poll: time to wait for a record, ms")
    include: Literal["control"] | None = Field(None, description="Include control records")
    key: str | None = Field(None, description="Only records with this key (text)")
    term: QueryOrdinal | None = Field(None, description="Only records of this term")

    def check_one_start(self) -> None:
        """Raise InvalidRequest when two starts are given."""
        names = ("from_index", "from_timestamp", "last", "from_", "cursor")
        given = [name.rstrip("_") for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidRequest(
                *((f"/query/{name}", f"cannot be used together with {given[0]}") for name in given[1:])
            )

    def selection(self) -> Selection:
        return Selection(
            limit=self.limit,
            max_bytes=self.max_bytes,
            include_control=self.include is not None,
            key=None if self.key is None else self.key.encode(),
            term=self.term,
        )


class EventsQuery(Query):
    from_seq: QueryOrdinal = Field(0, description="Sequence of the first event")
    limit: WholeNumber = Field(1_000, ge=1, le=100_000, description="Maximum number of events")
    wait_ms: WholeNumber = Field(0, ge=0, le=60_000, description="Long poll: time to wait for an event, ms")


class WatermarksQuery(Query):
    term: QueryOrdinal | None = Field(None, description="Only this term; {} when its watermarks are not kept")


class OneLogQuery(Query):
    log: str | None = Field(None, description="Only this log. Default: every Raft log")
