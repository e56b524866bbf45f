"""The Delta tables of a log: the meaning of each column, the layout of each table, their creation."""

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

from app.errors import ConfigError
from app.tables.delta_log import LOG_FOLDER, DeltaLog
from spark_jobs.errors import SourceError
from spark_jobs.session.locations import is_url, location
from spark_jobs.session.spark_session import is_remote
from spark_jobs.tables import schemas
from spark_jobs.tables.conflicts import PROTOCOL_CHANGED, SPARK_ERRORS
from spark_jobs.tables.snapshot import read_plain

TABLE_IS_THERE = "TABLE_OR_VIEW_ALREADY_EXISTS"
NOT_EMPTY = "DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"  # in an object store, while its creator is running
NO_TABLE = ("DELTA_MISSING_DELTA_TABLE", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST")
MADE_WITHIN_S = 5.0  # the table exists, once its folder exists
CREATE_POLL_S = 0.2

STATISTICS_PROPERTY = "delta.dataSkippingStatsColumns"
PROPERTIES = {
    "delta.checkpointInterval": "100",
    "delta.logRetentionDuration": "interval 7 days",  # as for files: each known version can be read
    "delta.deletedFileRetentionDuration": "interval 7 days",
}


@dataclass(frozen=True)
class Table:
    """One table. cluster_by: the columns that a reader's filter names. columns: the meaning of each."""

    name: str
    schema: StructType
    cluster_by: tuple[str, ...]
    statistics: tuple[str, ...]
    columns: Mapping[str, str] = field(repr=False)


LOG = "name of the log"
TERM = "Raft term"
ENTRIES = Table(
    "entries",
    schemas.ENTRIES,
    cluster_by=("index",),
    statistics=("index", "term", "offset", "timestamp"),
    columns={
        "log": LOG,
        "index": "position of the record in its log, from 0; the key",
        "term": "Raft term that wrote the record",
        "offset": "byte position in the log of the batch that holds the record",
        "timestamp": "the client's time for the record, else the leader's clock",
        "key": "the client's key, null for none",
        "value": "the record, null for a tombstone",
        "headers": "the client's headers in their order, null for none",
    },
)
"""Each data record of the log exactly once, in the log's order. Key: `index`. Gaps are control records.

Written by `spark_jobs/materialize/entries.py` from the committed records.
"""
EVENTS = Table(
    "events",
    schemas.EVENTS,
    cluster_by=("node", "seq"),
    statistics=("node", "seq", "timestamp", "kind", "term"),
    columns={
        "log": LOG,
        "node": "the node whose journal holds the event; key, with seq",
        "seq": "position in that journal, from 0 without gaps",
        "timestamp": "the node's clock",
        "kind": "what happened: start, stop, role, term, watermarks, epoch, truncate, sync_state_set, "
        "election, membership, corruption, repair",
        "term": "the node's term then",
        "data": "JSON object, by kind",
    },
)
"""Events of all nodes' journals. Key: `node`, `seq`. The events of a node that was down follow later.

Written by `spark_jobs/materialize/events.py`.
"""
WATERMARKS = Table(
    "watermarks",
    schemas.WATERMARKS,
    cluster_by=("term", "seq"),
    statistics=("term", "peer", "node", "seq", "timestamp", "watermark"),
    columns={
        "log": LOG,
        "term": "the leader's term; key, with peer, node and seq",
        "peer": "the peer whose watermark this is; the leader has rows of its own too",
        "node": "the leader, in whose journal the event is",
        "seq": "position in that journal",
        "timestamp": "the leader's clock",
        "role": "the node's role then",
        "watermark": "last index that the peer has acknowledged in this term, -1 for none; inclusive",
        "begin_index": "first index that the leader holds, -1 for none",
        "end_index": "last index that the leader holds, -1 for none",
        "committed_index": "last committed index that the leader knows, -1 for none",
    },
)
"""Watermarks of each peer as its leader knew them (D-22). Key: `term`, `peer`, `node`, `seq`.

Written by `spark_jobs/materialize/derived.py` from the events of kind `watermarks` that name peers. The
function `latest_watermarks` of `spark_jobs/tables/transforms.py` returns the newest state.
"""
EPOCHS = Table(
    "epochs",
    schemas.EPOCHS,
    cluster_by=("epoch",),
    statistics=("epoch", "start_index", "end_index"),
    columns={
        "log": LOG,
        "epoch": "number of the epoch, its term in Raft mode; the key",
        "term": TERM,
        "leader": "the node that opened it",
        "start_index": "its first index, of the control record that opens it",
        "start_offset": "byte position of that record",
        "end_index": "its last index, inclusive; null while it is the last one",
        "end_offset": "byte position after its last record; null while it is the last one",
        "started": "when it opened, by its leader's clock",
    },
)
"""Beginning and end of each term in the committed log. Key: `epoch`.

Written by `spark_jobs/materialize/epochs.py`: the epochs on which the epoch files of all nodes agree, up to
their committed index. Two files that disagree stop the job.
"""
EPOCH_FILES = Table(
    "epoch_files",
    schemas.EPOCH_FILES,
    cluster_by=("node", "epoch"),
    statistics=("node", "epoch", "start_index", "end_index"),
    columns={**EPOCHS.columns, "node": "node whose file this is, as last read; key, with epoch"},
)
"""Epoch file of each node, committed or not, as last read. Key: `node`, `epoch`.

Written by `spark_jobs/materialize/epochs.py`, which replaces a node's rows when its file has changed. The
function `epoch_differences` of `spark_jobs/tables/transforms.py` compares it with `epochs`; no row means that
they agree.
"""
SYNC_STATE_SETS = Table(
    "sync_state_sets",
    schemas.SYNC_STATE_SETS,
    cluster_by=("epoch", "set_epoch"),
    statistics=("epoch", "set_epoch", "node", "seq", "timestamp"),
    columns={
        "log": LOG,
        "epoch": "the master's epoch; key, with set_epoch",
        "set_epoch": "number of the set, one more with each change",
        "master": "the master",
        "members": "the nodes in sync, the master among them",
        "confirm_offset": "byte position before which all members held the log when the set began",
        "node": "the master, in whose journal the event is",
        "seq": "position in that journal",
        "timestamp": "the master's clock when the set began",
    },
)
"""SyncStateSets of a log in controller mode. Key: `epoch`, `set_epoch`.

Written by `spark_jobs/materialize/derived.py` from the events of kind `sync_state_set`: each set once, from
its first event.
"""
QUARANTINE_TRUNCATED = Table(
    "quarantine_truncated",
    schemas.QUARANTINE_TRUNCATED,
    cluster_by=("node", "seq"),
    statistics=("node", "seq", "epoch", "index", "term", "timestamp"),
    columns={
        **ENTRIES.columns,
        "index": "the record's index in that node's copy; key, with node and seq",
        "type": "data or control",
        "node": "whose copy lost the record",
        "seq": "position in that node's journal of the event that records the loss",
        "epoch": "of the unclean election",
        "truncated": "when the record was removed, by the node's clock",
        "receipt": "the file below the node's data folder that holds it",
    },
)
"""Records that an unclean election removed from a node's copy. Key: `node`, `seq`, `index`.

They may have been acknowledged, and another record may have their index now. Written by
`spark_jobs/materialize/derived.py` from the receipts that the events of kind `truncate` name. What Raft
truncates was never committed and has no receipt.
"""
TYPED_COLUMNS = {
    "_index": "position of the record in its log; the key of `records`",
    "_term": "term that wrote the record",
    "_timestamp": "the client's time for the record, else the leader's clock",
    "_key": "the client's key, null for none",
    "_schema_version": "version of the log's schema with which the record was read",
    "_rescued": "fields of the record that the schema does not have, as a JSON object; null for none",
}
RECORDS = Table(
    "records",
    schemas.TYPED,
    cluster_by=("_index",),
    statistics=("_index", "_timestamp"),
    columns=TYPED_COLUMNS,
)
"""Each data record of a log with a schema that matches it, exactly once, as the columns of the schema, which
follow these. Key: `_index`. Clustered by the schema's `cluster_by`, if it has one, instead of `_index`.

Written by `spark_jobs/materialize/typed.py` from `entries`. A tombstone is not a row. New columns and wider
types are added in place. An incompatible version n of the schema begins a table of its own, `records_v{n}`.
"""
DEAD_LETTERS = Table(
    "dead_letters",
    schemas.DEAD_LETTERS,
    cluster_by=("index",),
    statistics=("index", "term", "timestamp", "schema_version"),
    columns={
        "index": "position of the record in its log; the key",
        "term": TERM,
        "timestamp": "the client's time for the record, else the leader's clock",
        "schema_version": "version of the schema that it does not match, or an unknown one that it names",
        "error": "why it does not match",
        "path": "JSON pointer of the part that does not match, empty for the whole record",
        "value": "the record",
        "key": "the client's key, null for none",
        "headers": "the client's headers in their order, null for none",
    },
)
"""Each data record of a log with a schema that does not match it. Key: `index`.

Written by `spark_jobs/materialize/typed.py` from `entries`. `commitlog schema replay` reads them again
with the newest version of the schema, and moves those that match to `records`.
"""
CURRENT = Table(
    "current",
    schemas.TYPED,
    cluster_by=("_index",),
    statistics=("_index",),
    columns=TYPED_COLUMNS,
)
"""The newest row of `records` of each key: of the schema's `key_columns`, else of `_key`. A tombstone removes
the rows whose `_key` is its key. Records without a key are not in it. Clustered by the `key_columns`, if the
schema has them, instead of `_index`.

Written by `spark_jobs/materialize/typed.py` some seconds after `records`. Belongs to one table of records:
`current_v{n}` to `records_v{n}`.
"""
TYPED_TABLES = (RECORDS, DEAD_LETTERS, CURRENT)
TABLES = (ENTRIES, EVENTS, WATERMARKS, EPOCHS, EPOCH_FILES, SYNC_STATE_SETS, QUARANTINE_TRUNCATED)


class TableClash(SourceError):
    """A table refuses rows that it does not hold, so rows were removed from it: an operator must decide."""

    condition = "COMMITLOG_TABLE_CLASH"
    is_final = True

    def __init__(self, path: str, rows: str) -> None:
        super().__init__(
            f"{path} refuses {rows}, which it does not hold: rows were taken out of it, by RESTORE or "
            f"DELETE. DESCRIBE HISTORY {identifier(path)} shows the version before that; RESTORE TABLE "
            f"{identifier(path)} TO VERSION AS OF that version puts them back. Or give the job an empty "
            "folder of tables."
        )


def table_path(tables: Path | str, log: str, table: Table) -> str:
    """Return the folder, or URL, of a log's table. tables: a relative path starts at the current folder."""
    return f"{location(str(tables)).rstrip('/')}/{log}/{table.name}"


def identifier(path: str) -> str:
    """Return a table's path as SQL names it. Spark reads a relative path in SQL as the name of a table."""
    return f"delta.`{location(path).replace('`', '``')}`"


def newest_commits(spark: SparkSession, path: str, count: int) -> list[Row]:
    """Return the newest commits of a table that are left in its history, as Spark describes them, oldest
    first. Raises AnalysisException when there is no table."""
    found = spark.sql(f"DESCRIBE HISTORY {identifier(path)} LIMIT {count}").collect()
    return sorted(found, key=lambda row: int(row["version"]))


def settings_of_table(table: Table, properties: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the properties of a new table. properties: beside the common ones."""
    return {
        **PROPERTIES,
        STATISTICS_PROPERTY: ",".join(table.statistics),
        **(properties or {}),
    }


def create_table(
    spark: SparkSession, path: str, table: Table, properties: Mapping[str, str] | None = None
) -> bool:
    """Create the table unless it exists; return whether it was created now. Statistics leave out the payload.

    properties: of the table, beside the common ones. An attempt costs a tenth of a query of the table, for
    which Delta would compute its whole state. Raises ConfigError for an incomplete table that only Spark can
    access.
    """
    columns = ", ".join(
        f"{quoted_name(each.name)} {sql_type(each.dataType)} COMMENT '{quoted(table.columns[each.name])}'"
        for each in table.schema
    )
    clustering = ", ".join(map(quoted_name, table.cluster_by))
    settings = settings_of_table(table, properties)
    clear_at_s = time.monotonic() + MADE_WITHIN_S
    is_here = can_clear = not is_url(path) and not is_remote(spark)
    while True:
        try:
            spark.sql(
                f"CREATE TABLE {identifier(path)} ({columns}) USING delta "
                f"CLUSTER BY ({clustering}) TBLPROPERTIES ({property_list(settings)})"
            )
            return True
        except SPARK_ERRORS as error:
            if PROTOCOL_CHANGED in str(error):
                return False
            if not isinstance(error, AnalysisException):
                raise
            if error.getCondition() not in (TABLE_IS_THERE, NOT_EMPTY):
                raise
            refusal = error
        if (is_here and DeltaLog(path).versions()) or is_table(spark, path):
            return False
        # A folder for its log without a commit: Spark refuses to create the table, since it exists, and to
        # read it.
        if time.monotonic() < clear_at_s:  # its creator may be running
            time.sleep(CREATE_POLL_S)
            continue
        if refusal.getCondition() == NOT_EMPTY:
            raise refusal
        log = f"{path}/{LOG_FOLDER}"
        if not can_clear:
            raise ConfigError(
                f"{path}: the process that created this table was killed before it was complete. Delete {log}"
            )
        _clear(Path(log))
        can_clear, clear_at_s = False, time.monotonic() + MADE_WITHIN_S


def _clear(log: Path) -> None:
    """Remove the folder of a log, unless a commit was added meanwhile: that one is kept in every case."""
    with contextlib.suppress(OSError):  # the next attempt to create the table shows it
        for left in sorted(log.rglob("*"), reverse=True):
            if left.is_dir():
                left.rmdir()
            elif left.suffix != ".json":
                left.unlink()
        log.rmdir()


def is_table(spark: SparkSession, path: str) -> bool:
    """Return whether a Delta table exists there. Uses SQL, which Spark Connect supports too."""
    try:
        spark.sql(f"SHOW TBLPROPERTIES {identifier(path)}").collect()
    except AnalysisException as error:
        if error.getCondition() in NO_TABLE:
            return False
        raise
    return True


def read_table(spark: SparkSession, path: str) -> DataFrame:
    return spark.read.format("delta").load(path)


def collect_table(spark: SparkSession, path: str, table: Table, columns: Sequence[str]) -> pa.Table:
    """Return all rows of a small table, in no order. Spark is used only where it is needed."""
    rows = read_plain(path, table.schema, columns)
    return read_table(spark, path).select(*columns).toArrow() if rows is None else rows


def property_list(properties: Mapping[str, str]) -> str:
    return ", ".join(f"'{name}' = '{quoted(value)}'" for name, value in properties.items())


def quoted(text: str) -> str:
    """Return a text for a string literal of SQL."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


def quoted_name(name: str) -> str:
    """Return the name of a column for SQL."""
    return f"`{name.replace('`', '``')}`"


def sql_type(kind: DataType) -> str:
    """Return a type as SQL writes it."""
    match kind:
        case StructType():
            parts = (f"{quoted_name(each.name)}:{sql_type(each.dataType)}" for each in kind.fields)
            return f"struct<{','.join(parts)}>"
        case ArrayType():
            return f"array<{sql_type(kind.elementType)}>"
        case MapType():
            return f"map<{sql_type(kind.keyType)},{sql_type(kind.valueType)}>"
    return kind.simpleString()
