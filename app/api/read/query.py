"""The query parameters of a read (docs/api.md §5), as FastAPI checks and documents them."""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from app.api.http.json_decoding import MAX_ORDINAL
from app.api.http.query import Query
from app.api.read.selection import Consistency, Encoding, Selection
from app.errors import InvalidRequest
from storage.format.records import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS

MIB: Final = 1024 * 1024
Index = Annotated[int, Field(ge=0, le=MAX_ORDINAL)]
TimestampMs = Annotated[int, Field(ge=MIN_TIMESTAMP_MS, le=MAX_TIMESTAMP_MS)]


class Start(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"


class ConsistencyQuery(Query):
    consistency: Consistency = Field(
        Consistency.LINEARIZABLE,
        description="`linearizable`: everything acknowledged before the call; `committed`: this node's "
        "committed prefix, may be behind; `local`: all this node holds, committed or not",
    )


class RecordQuery(ConsistencyQuery):
    encoding: Encoding = Field(
        Encoding.AUTO,
        description="auto: `value` where it is UTF-8, else `value_base64`; json: `value_json` if it parses",
    )


class ReadQuery(RecordQuery):
    """At most one start of from_index, from_timestamp, last, from and cursor."""

    from_index: Index | None = Field(None, description="Start here")
    from_timestamp: TimestampMs | None = Field(
        None, description="Start at the first index whose timestamp is at or after it, ms"
    )
    last: Annotated[int, Field(ge=1, le=100_000)] | None = Field(None, description="The last N data records")
    from_: Start | None = Field(
        None, alias="from", description="earliest (the default) or latest (committed_index + 1)"
    )
    cursor: str | None = Field(None, description="Start at a cursor of this log, by its name")
    limit: int = Field(1_000, ge=1, le=100_000, description="Records")
    max_bytes: int = Field(
        4 * MIB, ge=1, le=64 * MIB, description="Of value, key and headers; one always fits"
    )
    until_index: Index | None = Field(None, description="Exclusive")
    until_timestamp: TimestampMs | None = Field(
        None, description="Exclusive: up to the first index whose timestamp is at or after it, ms"
    )
    wait_ms: int = Field(0, ge=0, le=60_000, description="Long poll: wait so long for a first record")
    include: Literal["control"] | None = Field(None, description="Give control records too")
    key: str | None = Field(None, description="Only records with this key (text)")
    term: Index | None = Field(None, description="Only records of this term")

    def check_one_start(self) -> None:
        """Raises InvalidRequest when two starts are given."""
        names = ("from_index", "from_timestamp", "last", "from_", "cursor")
        given = [name.rstrip("_") for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise InvalidRequest(
                *((f"/query/{name}", f"stands beside {given[0]}: one start is enough") for name in given[1:])
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
    from_seq: Index = Field(0, description="Start here")
    limit: int = Field(1_000, ge=1, le=100_000, description="Events")
    wait_ms: int = Field(0, ge=0, le=60_000, description="Long poll: wait so long for a first event")


class WatermarksQuery(Query):
    term: Index | None = Field(None, description="Only this term; one that is no longer held gives {}")


class OneLogQuery(Query):
    log: str | None = Field(None, description="Of this log alone; without it of every Raft log")
