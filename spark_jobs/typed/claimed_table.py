"""A table that takes the rows of a log in order, each once: `records` and `dead_letters`.

An append claims the index of its first row (tables/claims.py). Which rows are due after the table's last one
is a function of the log, so two drivers that would add the same row claim the same index, or the slower one a
lower index: Delta refuses it. Its rows below the new end of the table are left out, and it claims again.
Rows that other programs insert below the end of the table change no claim. Rows that RESTORE took are added
again (restored.py).
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructField, StructType, TimestampNTZType

from app.tables.delta_log import DeltaLog, DeltaLogError, DeltaSnapshot
from app.tables.names import (
    CLUSTERING_PROPERTY,
    LOG_ID_PROPERTY,
    REFILL_PROPERTY,
    REFILLED,
    application_of,
)
from spark_jobs.errors import ColumnClash, LogClash, RowsLost
from spark_jobs.session.locations import is_url
from spark_jobs.tables.claims import MAX_REFUSALS
from spark_jobs.tables.conflicts import CONFLICTS, SPARK_ERRORS, repeated
from spark_jobs.tables.local.commits import NeedsSpark
from spark_jobs.tables.metadata import set_properties, table_properties
from spark_jobs.tables.removals import Removals
from spark_jobs.tables.restores import Restores
from spark_jobs.tables.table import (
    STATISTICS_PROPERTY,
    Table,
    TableClash,
    create_table,
    identifier,
    is_table,
    quoted,
    quoted_name,
    read_table,
    settings_of_table,
    sql_type,
)
from spark_jobs.tables.table_writer import TableWriter, links_commits, local_table
from spark_jobs.typed.layout import ColumnChange, changes, is_part, is_widened
from spark_jobs.typed.local_rows import LocalRows
from spark_jobs.typed.merge import insert_clause
from storage.units import NO_INDEX

WIDENING = {"delta.enableTypeWidening": "true"}
TIMES_WITHOUT_OFFSET = {"delta.feature.timestampNtz": "supported"}
"""Delta adds this feature only to tables that it creates with such a column."""
MERGE_ATTEMPTS = 5
FILES_ARE_GONE = ("FILE_NOT_EXIST", "DELTA_FILE_NOT_FOUND", "DELTA_VERSION_NOT_FOUND", "VersionNotFound")
CHANGED_MEANWHILE = (*CONFLICTS, "ALREADY_EXISTS")

Unwritten = Callable[[pa.Table], pa.Table]


class ClaimedTable:
    """Table of one log at a path, and its progress.

    position: column with the index. last_index: of the table's rows, NO_INDEX for none. rows: their number.
    is_doubtful: other writers may have added rows since the last own append, and removed some.
    """

    def __init__(
        self, spark: SparkSession, path: str, table: Table, position: str, *, follows: bool = False
    ) -> None:
        """follows: as of `TableWriter`."""
        self.spark = spark
        self.path = path
        self.position = position
        self._follows = follows
        self._own: dict[str, str] = {}  # properties beside those of every claimed table
        self._write_as(table)
        self.last_index = NO_INDEX
        self.rows = 0
        self.is_doubtful = True
        self._refill = REFILLED  # value of REFILL_PROPERTY when the table was opened
        self.restores = Restores(spark, path)
        self._removals = Removals(spark, path, elsewhere=True)
        self._commits = None if is_url(path) else DeltaLog(path)

    def exists(self) -> bool:
        return is_table(self.spark, self.path) if self._commits is None else bool(self._commits.versions())

    def open(
        self,
        log: str,
        log_id: str,
        properties: Mapping[str, str] | None = None,
        *,
        is_removed: bool = False,
    ) -> bool:
        """Create the table if needed, change its columns and clustering if needed, and read its progress.
        Return whether it was created now, or a refill of it is not complete.

        properties: of the table, beside the common ones. is_removed: a table that is created now was there
        before; its first commit notes that its refill is due, until `refilled`. Raises LogClash if it holds
        another log's records, and ColumnClash.
        """
        self.restores = Restores(self.spark, self.path)  # of a table that was removed and made again, from 0
        self._removals.start()
        self._own = dict(properties or {})
        self.is_doubtful = True
        self._refill = uuid.uuid4().hex if is_removed else REFILLED
        refill = {REFILL_PROPERTY: self._refill} if is_removed else {}
        if self._create({LOG_ID_PROPERTY: log_id, **self._due_properties, **refill}):
            self.last_index, self.rows = NO_INDEX, 0
            return True
        known = self.properties()
        if known.get(LOG_ID_PROPERTY, log_id) != log_id:
            raise LogClash(log, f"{self.path} holds the records of the log with id {known[LOG_ID_PROPERTY]}")
        self.lay_out()
        self.refresh()
        self._refill = known.get(REFILL_PROPERTY, REFILLED)
        return self.is_refilling

    @property
    def is_refilling(self) -> bool:
        """It was removed, and may lack rows before the end of the other tables; or `current` may have rows
        that it lacks."""
        return self._refill != REFILLED

    def refill(self) -> None:
        """Note in the table that the next start is to make it from `entries` again."""
        self.set_properties({REFILL_PROPERTY: uuid.uuid4().hex})

    def refilled(self) -> None:
        """Note in the table that the refill is complete that was due when it was opened."""
        if self.is_refilling and self.properties().get(REFILL_PROPERTY) == self._refill:
            self.set_properties({REFILL_PROPERTY: REFILLED})
        self._refill = REFILLED

    def lay_out(self) -> None:
        """Change the columns, the clustering and the properties where they are not those that are due: the
        table is older, or RESTORE took them. The table must be open."""
        self._add_columns()
        known = self.properties()
        changed = {name: text for name, text in self._due_properties.items() if known.get(name) != text}
        if CLUSTERING_PROPERTY in changed:
            self._cluster()
        if changed:
            self.set_properties(changed)

    def set_properties(self, changed: Mapping[str, str]) -> None:
        """Set these properties of the table, which exists."""
        self._repeated(lambda: set_properties(self.spark, self.path, changed))

    def properties(self) -> Mapping[str, str]:
        """Return the properties of the table, which exists."""
        snapshot = self._snapshot()
        return table_properties(self.spark, self.path) if snapshot is None else snapshot.properties

    def _create(self, properties: Mapping[str, str]) -> bool:
        if any(_needs_feature(each.dataType) for each in self.table.schema):
            return create_table(self.spark, self.path, self.table, properties)  # a feature, which Spark adds
        return self._writer.create(properties)

    def _write_as(self, table: Table) -> None:
        self.table = table
        self._writer = TableWriter(self.spark, self.path, table, follows=self._follows)

    @property
    def _due_properties(self) -> dict[str, str]:
        return {**self._own, CLUSTERING_PROPERTY: json.dumps(self.table.cluster_by)}

    def evolve(self, table: Table) -> None:
        """Add the columns of `table` that are missing, widen types, and change the clustering of later files;
        the present files stay as they are."""
        self._write_as(table)
        self.lay_out()

    def _add_columns(self) -> None:
        self._repeated(self._change_columns)

    def _change_columns(self) -> None:
        while due := list(changes(self._columns(), self.table.schema)):
            for each in due:
                if each.held is not None and not is_widened(each.held, each.type):
                    held, wanted = each.held.simpleString(), each.type.simpleString()
                    raise ColumnClash(self.path, ".".join(each.path), held, wanted)
            if not self._add_here(due):
                self._change_by_spark(due)
                break

    def _add_here(self, due: Sequence[ColumnChange]) -> bool:
        """Add the columns that are due, unless another writer was first. Return False if only Spark can make
        these changes."""
        if any(each.held is not None or len(each.path) > 1 or _needs_feature(each.type) for each in due):
            return False
        added = [
            StructField(each.path[0], each.type, metadata={"comment": self._comment(each)}) for each in due
        ]
        return self._writer.add_columns(added)

    def _change_by_spark(self, due: Sequence[ColumnChange]) -> None:
        if any(each.held is not None for each in due):
            set_properties(self.spark, self.path, WIDENING)
        if any(_needs_feature(each.type) for each in due):
            set_properties(self.spark, self.path, TIMES_WITHOUT_OFFSET)
        for each in due:
            self.spark.sql(f"ALTER TABLE {identifier(self.path)} {self._clause(each)}")

    def _columns(self) -> StructType:
        snapshot = self._snapshot()
        if snapshot is None or not snapshot.schema:
            return read_table(self.spark, self.path).schema
        return StructType.fromJson(json.loads(snapshot.schema))

    def _cluster(self) -> None:
        """Cluster by the columns of `table`, of which Delta then needs statistics."""
        settings = settings_of_table(self.table)
        statistics = {name: text for name, text in settings.items() if name == STATISTICS_PROPERTY}
        names = ", ".join(map(quoted_name, self.table.cluster_by))

        def change() -> None:
            set_properties(self.spark, self.path, statistics)
            self.spark.sql(f"ALTER TABLE {identifier(self.path)} CLUSTER BY ({names})")

        self._repeated(change)

    def _repeated(self, change: Callable[[], None]) -> None:
        """Change the table; after a conflict, which may be another driver's same change, again."""
        repeated(change, CHANGED_MEANWHILE, MAX_REFUSALS)

    def _clause(self, change: ColumnChange) -> str:
        path, kind = ".".join(map(quoted_name, change.path)), sql_type(change.type)
        if change.held is not None:
            return f"ALTER COLUMN {path} TYPE {kind}"
        return f"ADD COLUMNS ({path} {kind} COMMENT '{quoted(self._comment(change))}')"

    def _comment(self, change: ColumnChange) -> str:
        return self.table.columns.get(change.path[0], "") if len(change.path) == 1 else ""

    def refresh(self) -> None:
        """Read the progress of the table: from its statistics, if only Spark can read it by a query."""
        self.is_doubtful = True
        snapshot = self._snapshot()
        if snapshot is not None and snapshot.rows is not None:
            self.rows = snapshot.rows
            files = list(snapshot.files.values())
            if all(self.position in file.most for file in files):
                self.last_index = max((file.most[self.position] for file in files), default=NO_INDEX)
                return
        largest = F.coalesce(F.max(self.position), F.lit(NO_INDEX))
        row = read_table(self.spark, self.path).agg(F.count("*"), largest).collect()[0]
        self.rows, self.last_index = int(row[0]), int(row[1])

    def first_index(self) -> int | None:
        """Return an index before which the table has no row; None for a table without rows."""
        snapshot = self._snapshot()
        files = None if snapshot is None else list(snapshot.files.values())
        if files is not None and all(self.position in file.least for file in files):
            return min((file.least[self.position] for file in files), default=None)
        found = read_table(self.spark, self.path).agg(F.min(self.position)).collect()[0][0]
        return None if found is None else int(found)

    def check_end(self) -> None:
        """Raise RowsLost if the table lacks the last rows that it had, after commits that the job could not
        read: a RESTORE among them is not known."""
        if not self.restores.has_gap:
            return
        before = self.last_index
        self.refresh()
        if self.last_index < before:
            missing, self.last_index = self.last_index + 1, before  # the next call reports it again
            raise RowsLost(
                self.path,
                f"commits were removed from its history before the job read them, and the rows from index "
                f"{missing} to {before} are missing since",
            )

    def append(self, rows: pa.Table, note: Mapping[str, int], unwritten: Unwritten | None = None) -> bool:
        """Add those of `rows` that are after the end of the table, in the order of `position`. Return whether
        there was one. note: kept in the commit.

        unwritten: for a table from which other writers remove rows; returns the rows that neither the table
        nor another one has. They are added wherever the table ends. Raises TableClash if the table refuses
        rows that it does not hold, and TableReplaced.
        """
        refusals = 0
        while rows.num_rows:
            if unwritten is not None and self.is_doubtful:
                rows = unwritten(rows)
                self._fill(rows.filter(pc.less_equal(rows[self.position], self.last_index)))
            due = self._after_the_end(rows)
            if not due.num_rows:
                break
            claim = due[self.position][0].as_py()
            application = application_of(self.table.name)
            if not self._writer.is_local:
                self.check_same()
            last = self._writer.append(
                due,
                application=application,
                claim=claim,
                position=self.position,
                note=dict(note),
                is_next=self._is_next,
            )
            if last is not None:
                self.rows += due.num_rows
                self.last_index = max(self.last_index, last)
                self.is_doubtful = False
                return True
            before = self.last_index
            self.refresh()
            refusals = refusals + 1 if self.last_index == before else 0
            if refusals == MAX_REFUSALS:
                if unwritten is None:
                    raise TableClash(self.path, f"the records from index {claim} on")
                self._fill(due)  # they were there once
        return False

    def check_same(self) -> None:
        """Raise TableReplaced unless the table is the one that was opened: another one may have rows after
        `last_index` under a claim before them."""
        self._removals.found()

    def _is_next(self) -> bool:
        """As of `LocalTable.append`: the claim decides, in the table that was opened."""
        self.check_same()
        return True

    def _fill(self, rows: pa.Table) -> None:
        """Add rows that the table lacks before its end or its last claim."""
        if rows.num_rows:
            self.insert_missing(rows)
            self.refresh()

    def _after_the_end(self, rows: pa.Table) -> pa.Table:
        indexes = rows[self.position]
        if rows.num_rows and indexes[0].as_py() > self.last_index:
            return rows
        return rows.filter(pc.greater(indexes, self.last_index))

    def taken(self, version: str) -> pa.Table:
        """Return the rows that RESTORE commits took, in order: `index`, and `version`, the value of that
        column. Raises RowsLost."""
        versions = [restore - 1 for restore in self.restores.due()]
        index = F.col(self.position).alias("index")
        held = read_table(self.spark, self.path).select(index)
        try:
            before = (
                self.spark.read.format("delta").option("versionAsOf", each).load(self.path)
                for each in versions
            )
            known = reduce(
                DataFrame.unionAll, (each.select(index, F.col(version).alias("version")) for each in before)
            )
            found = (
                known.dropDuplicates(["index"]).where("index IS NOT NULL").join(held, "index", "left_anti")
            )
            return found.orderBy("index").toArrow()
        except SPARK_ERRORS as error:
            if not any(cause in str(error) for cause in FILES_ARE_GONE):
                raise
            raise RowsLost(self.path, f"files of version {versions[0]} were removed") from error

    def insert_missing(self, rows: pa.Table) -> None:
        """Add those of `rows`, one or more, whose index the table does not have."""
        if self._change_here(lambda local: local.insert_missing(rows)):
            return
        bounds = pc.min_max(rows[self.position]).as_py()
        span = f"BETWEEN {bounds['min']} AND {bounds['max']}"
        at = quoted_name(self.position)
        self._merge(
            self.spark.createDataFrame(rows, self.table.schema),
            f"t.{at} = s.{at} AND t.{at} {span} WHEN NOT MATCHED THEN {insert_clause(rows.column_names)}",
        )

    def remove(self, indexes: Sequence[int]) -> None:
        """Remove the rows with these indexes, one or more."""
        if not self._change_here(lambda local: local.remove(indexes)):
            self.remove_all(self.spark.createDataFrame(pa.table({"index": indexes})))

    def remove_all(self, indexes: DataFrame) -> None:
        """Remove the rows with the indexes of a column `index`, of any number."""
        self._merge(indexes, f"t.{quoted_name(self.position)} = s.index WHEN MATCHED THEN DELETE")

    def _change_here(self, change: Callable[[LocalRows], None]) -> bool:
        """Change rows without Spark. Return False where that is not possible."""
        if not links_commits(self.spark, self.path):
            return False
        local = local_table(self.spark, self.path, keeps_files=True)
        try:
            change(LocalRows(local, self.table, self.position))
        except (NeedsSpark, DeltaLogError):
            return False
        return True

    def _merge(self, source: DataFrame, clauses: str) -> None:
        """Merge `source`, named s, into the table, named t; after a conflict with another writer, again."""
        view = f"commitlog_{uuid.uuid4().hex}"  # of the session, which threads may share
        source.createOrReplaceTempView(view)
        statement = f"MERGE INTO {identifier(self.path)} t USING {view} s ON {clauses}"
        try:
            repeated(lambda: self.spark.sql(statement).collect(), CONFLICTS, MERGE_ATTEMPTS)
        finally:
            self.spark.catalog.dropTempView(view)

    def _snapshot(self) -> DeltaSnapshot | None:
        try:
            return None if self._commits is None else self._commits.snapshot()
        except DeltaLogError:
            return None


def _needs_feature(kind: DataType) -> bool:
    """Return whether a table needs a feature of Delta for a column of this type, which only Spark adds."""
    return is_part(TimestampNTZType, kind)
