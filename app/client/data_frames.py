"""Tables in and out: pandas, polars and Arrow. Without the extra `arrow`, ModuleNotFoundError names it.

Columns of a table that is appended: `value` (binary or string), optional `key`, `timestamp` (a timestamp, or
integer milliseconds) and `headers`. Columns of a table that is read: index, term, offset, timestamp, key,
value, headers, type, as in docs/api.md.
"""

import time
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from app.arguments import check_instance, check_whole
from app.client.batches import COLUMNS, arrow_body
from app.client.client import Appended, CommitlogClient
from app.client.errors import InvalidAnswer
from app.extras import naming_the_extra
from storage.units import MIB

if TYPE_CHECKING:
    import pyarrow as pa

APPEND_RECORDS = 10_000
APPEND_BYTES = 8 * MIB
_BEHIND_PAUSE_S = 0.05
_OF_ONE_APPEND = ("idempotency_key", "match_index", "producer_sequence")


def to_arrow(frame: Any) -> "pa.Table":
    """Return a pandas or polars data frame, or anything with the Arrow stream interface, as an Arrow table
    that the service accepts. An index of pandas is a column if its name is that of a column of records.
    Raises TypeError."""
    with naming_the_extra():
        import pyarrow as pa

    if isinstance(frame, pa.RecordBatch):
        table = pa.Table.from_batches([frame])
    elif isinstance(frame, pa.Table):
        table = frame
    elif hasattr(frame, "to_arrow"):  # polars
        table = frame.to_arrow()
    elif type(frame).__module__.partition(".")[0] == "pandas":
        names_columns = not COLUMNS.isdisjoint(frame.index.names)
        table = pa.Table.from_pandas(frame, preserve_index=names_columns)
    elif hasattr(frame, "__arrow_c_stream__"):
        table = pa.table(frame)
    else:
        raise TypeError(f"a pandas, polars or Arrow table is required, got {type(frame).__name__}")
    return _plain(table)


def append_frame(
    client: CommitlogClient, frame: Any, *, max_records: int = APPEND_RECORDS, **options: Any
) -> list[Appended]:
    """Append a table in order, as one or more appends, each of them atomic. options: as of `append`.

    Raises ClientError; the appends before the failed one are in the log. Raises ValueError, before the first
    append, for an option that only one append can have. A producer's `send_arrow` is faster.
    """
    check_instance("client", client, CommitlogClient)
    bodies = arrow_body(to_arrow(frame), max_records, APPEND_BYTES)
    first = list(islice(bodies, 2))
    for name in _OF_ONE_APPEND:
        if len(first) > 1 and options.get(name) is not None:
            raise ValueError(
                f"{name} is of one append, and the table does not fit into one (max_records={max_records}): "
                "append it in parts"
            )
    return [client.append_body(body.content, body.media_type, **options) for body in chain(first, bodies)]


def read_frame(
    client: CommitlogClient, from_index: int = 0, until_index: int | None = None, **query: Any
) -> "pa.Table":
    """Return the records of [from_index, until_index) as an Arrow table; by default up to the committed end
    at the time of the call.

    `polars.from_arrow(table)` and `table.to_pandas()` convert it. Raises ClientError; with the consistency
    `committed`, InvalidAnswer for a replica that receives nothing for the client's give_up_s.
    """
    with naming_the_extra():
        import pyarrow as pa

    check_instance("client", client, CommitlogClient)
    check_whole("from_index", from_index, 0)
    if until_index is not None:
        check_whole("until_index", until_index, 0)
    tail = client.tail()
    from_index = max(from_index, int(tail["begin_index"]))
    end = int(tail["committed_index"]) + 1
    end = end if until_index is None else min(end, until_index)
    tables = []
    behind_since = None
    while True:
        begin = from_index
        for table, next_index, _ in client.arrow_pages(from_index, until_index=end, **query):
            tables.append(table)
            from_index = next_index
        if from_index >= end:
            return pa.concat_tables(tables)
        if from_index > begin or behind_since is None:  # a replica may not have had all of it yet
            behind_since = time.monotonic()
        give_up_s = client.connection.give_up_s
        if time.monotonic() - behind_since > give_up_s:
            raise InvalidAnswer(
                f"the replica has not received the record {from_index} for {give_up_s:g} s; the log is "
                f"committed up to index {end - 1}"
            )
        time.sleep(_BEHIND_PAUSE_S)


def read_pandas(
    client: CommitlogClient, from_index: int = 0, until_index: int | None = None, **query: Any
) -> Any:
    """As `read_frame`, as a pandas data frame."""
    return read_frame(client, from_index, until_index, **query).to_pandas()


def _plain(table: "pa.Table") -> "pa.Table":
    """Return the table with plain binary in place of views, dictionaries and fixed sizes."""
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if pa.types.is_string_view(kind) or kind != field.type:
            table = table.set_column(place, field.name, table.column(place).cast(pa.large_string()))
        elif pa.types.is_binary_view(kind) or pa.types.is_fixed_size_binary(kind):
            table = table.set_column(place, field.name, table.column(place).cast(pa.large_binary()))
    return table.replace_schema_metadata(None)
