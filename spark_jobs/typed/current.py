"""The table `current`: the newest row of `records` of each key, unless a tombstone removed it.

A range of the log is applied by one commit, whose transaction version is the end of the range: by the driver
(local_current.py), else by a MERGE of Spark. A version that is not above the last one is refused. A range
that begins earlier than the last one ended gives the same table: each row is replaced only by a newer one,
and the tombstones of the range are applied again.
"""

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from app.tables.delta_log import DeltaLog, DeltaLogError
from app.tables.names import KEYS_PROPERTY, application_of
from spark_jobs.session.locations import is_url
from spark_jobs.session.spark_session import sibling_of
from spark_jobs.tables.claims import newest_claim
from spark_jobs.tables.conflicts import CONFLICTS, Result, repeated
from spark_jobs.tables.local.commits import NeedsSpark
from spark_jobs.tables.metadata import set_properties, table_properties
from spark_jobs.tables.restores import Restores
from spark_jobs.tables.table import (
    ENTRIES,
    identifier,
    quoted_name,
    read_table,
)
from spark_jobs.tables.table_writer import TableWriter, links_commits, local_table
from spark_jobs.typed.claimed_table import MERGE_ATTEMPTS, ClaimedTable
from spark_jobs.typed.indexed_rows import IndexedRows
from spark_jobs.typed.layout import CompatibilityGroup
from spark_jobs.typed.local_current import IS_GONE, REMOVED_AT, LocalCurrent
from spark_jobs.typed.merge import insert_clause, update_clause

TXN_SETTINGS: Final = ("spark.databricks.delta.write.txnAppId", "spark.databricks.delta.write.txnVersion")
CHANGE_DATA_FEED: Final = {"delta.enableChangeDataFeed": "true"}
ONE_AT_A_TIME = threading.Lock()  # of all logs of the process: each takes all cores


class CurrentTable:
    """`current` of one compatibility group. next_index: the records before it are applied. Not safe for use
    by two threads."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        records_path: str,
        entries_path: str,
        *,
        change_data_feed: bool = False,
    ) -> None:
        """change_data_feed: record the changes of rows from now on; False leaves the table as it is."""
        self.spark = spark
        self.path = path
        self.records_path = records_path
        self.entries_path = entries_path
        self._has_feed = change_data_feed
        self._entries = IndexedRows(spark, entries_path, ENTRIES, "index")
        self.next_index = 0
        self.restores = Restores(spark, path)
        self.group: CompatibilityGroup | None = None
        self._claimed: ClaimedTable | None = None  # its layout
        self._writer: TableWriter | None = None
        self._local: LocalCurrent | None = None  # None where only Spark can change the table
        self._own: SparkSession | None = None  # its settings are of one MERGE at a time

    def open(self, group: CompatibilityGroup, log: str, log_id: str) -> None:
        """Create the table if needed, change its columns if needed, and read its progress."""
        self.group = group
        self._claimed = ClaimedTable(self.spark, self.path, group.current(), "_index")
        self._claimed.open(log, log_id, {KEYS_PROPERTY: json.dumps(group.keys)})
        self._set_feed()
        self._writer = TableWriter(self.spark, self.path, group.current())
        if links_commits(self.spark, self.path):
            self._local = LocalCurrent(
                group.current(),
                group.keys,
                local_table(self.spark, self.path, keeps_files=True),
                self._application,
            )
            self._records = IndexedRows(self.spark, self.records_path, group.records(), "_index")
        # its last row may be one that a replay has moved, beyond records that are not applied
        applied = self._applied()
        self.next_index = self._claimed.last_index + 1 if applied is None else applied

    def _set_feed(self) -> None:
        if self._has_feed and CHANGE_DATA_FEED.items() - table_properties(self.spark, self.path).items():
            set_properties(self.spark, self.path, CHANGE_DATA_FEED)

    def _applied(self) -> int | None:
        """Return the end of the newest range that was applied, None where that cannot be read."""
        try:
            snapshot = None if is_url(self.path) else DeltaLog(self.path).snapshot()
        except DeltaLogError:
            snapshot = None
        if snapshot is not None:
            return snapshot.transactions.get(self._application, 0)
        return newest_claim(self.spark, self.path, self._application)

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        assert self.group is not None
        return self.group.keys

    @property
    def _application(self) -> str:
        assert self.group is not None
        return application_of(self.group.current().name)

    def extend(self, until: int) -> None:
        """Apply the records before `until`, which are in `records` and `entries`. Raises TableReplaced, and
        TableClash if `entries` has lost rows meanwhile: one may be a tombstone."""
        first = self.next_index
        if until <= first:
            return
        self._check_same()
        if not self._extend_here(first, until):
            self._entries.check_end(until)
            inside = (F.col("_index") >= first) & (F.col("_index") < until)
            rows = read_table(self.session, self.records_path).where(inside)
            self.apply(rows, self.tombstones(first, until), until)
        self.next_index = until

    def rebuild(self, next_index: int, until: int, others: Iterable[ClaimedTable]) -> None:
        """Apply all records before `next_index`, and what was applied after it, again: rows were taken from
        the table or from `records`. RESTORE may have taken columns and properties too.

        until: rows before it may have been added to `records` again. others: the other tables that a record
        may be in.
        """
        assert self._claimed is not None
        self._claimed.lay_out()
        self._set_feed()
        self.next_index = max(self.next_index, next_index)  # the last records may be tombstones
        self._remove_strays(others)
        self.apply_again(lambda: read_table(self.session, self.records_path), 0, until)

    def _remove_strays(self, others: Iterable[ClaimedTable]) -> None:
        """Remove the rows of records that other tables have: a replay took them out of `records` after the
        version that was restored, or had moved letters to a table that was made again. Rows that a user has
        deleted from `records` alone stay. `apply_again` follows: it adds rows that `records` got meanwhile.
        """
        found = (f"SELECT {quoted_name(each.position)} i FROM {identifier(each.path)}" for each in others)
        statement = f"MERGE INTO {identifier(self.path)} t USING ({' UNION '.join(found)}) s "
        statement += "ON t._index = s.i WHEN MATCHED THEN DELETE"
        self._repeated(lambda: self.session.sql(statement).collect())

    def remove(self, indexes: Sequence[int]) -> None:
        """Remove the rows with these indexes, one or more, which `records` has lost. `apply_again` of the
        other rows of their keys follows."""
        assert self._claimed is not None
        self._claimed.remove(indexes)

    def apply_again(
        self, rows: Callable[[], DataFrame], first: int, until: int, *, are_few: bool = False
    ) -> None:
        """Apply rows of `records` that may be older than what is applied, and all tombstones from `first` on.

        Another driver may apply a newer tombstone before an older row is there, and never again: so the rows
        and tombstones are those of all records that any driver has applied. What was applied until the rows
        were there is applied to them in a second step, which adds no row: a later tombstone may have removed
        it. What is applied later finds the rows.

        rows: returns them as they are now, with all other rows of their keys. until: after the last row that
        this driver has added to `records`. are_few: the newest rows of all keys fit into memory.
        """
        end = self._repeated(lambda: self._apply_rows(rows, first, until, are_few=are_few))
        applied = self._applied_at_most()
        if applied > end:
            self._repeated(lambda: self._apply_before(rows, end, applied, adds=False, are_few=are_few))

    def _repeated(self, change: Callable[[], Result]) -> Result:
        return repeated(change, CONFLICTS, MERGE_ATTEMPTS)

    def _apply_rows(self, rows: Callable[[], DataFrame], first: int, until: int, *, are_few: bool) -> int:
        """Apply rows and tombstones before an index from which on no driver has applied records yet, at least
        `until`; return that index."""
        end = max(self.next_index, self._applied_at_most(), until)
        self._apply_before(rows, first, end, adds=True, are_few=are_few)
        return end

    def _apply_before(
        self, rows: Callable[[], DataFrame], first: int, until: int, *, adds: bool, are_few: bool
    ) -> None:
        """Apply rows before `until`, and tombstones of [first, until)."""
        found, tombstones = rows().where(F.col("_index") < until), self.tombstones(first, until)
        if are_few:
            newest = self._newest(found)
            here = newest.toArrow()
            keys = self.session.createDataFrame(here.select(["_key"]), newest.select("_key").schema)
            tombstones = tombstones.join(F.broadcast(keys), "_key", "left_semi")
            removed = tombstones.toArrow()
            if self._apply_here(here, removed, adds=adds):
                return
            # a MERGE conflicts with what others change while it runs: it reads no large table for these rows
            found = self.session.createDataFrame(here, newest.schema)
            tombstones = self.session.createDataFrame(removed, tombstones.schema)
        self.apply(found, tombstones, None, adds=adds)

    def _apply_here(self, rows: pa.Table, removed: pa.Table, *, adds: bool) -> bool:
        """Apply rows, and tombstones of their record keys, without Spark: its MERGE of a large table takes
        longer than the pause of a job between two changes. Return False where that is not possible."""
        if self._local is None:
            return False
        try:
            with ONE_AT_A_TIME:
                self._local.apply(rows, removed.rename_columns(["key", "index"]), adds=adds)
        except (NeedsSpark, DeltaLogError):
            return False
        return True

    def _applied_at_most(self) -> int:
        """Return an index from which on no driver has applied records."""
        applied = self._applied()
        return self._entries.end() if applied is None else applied

    def claim(self, until: int) -> None:
        """Note in the table that the records before `until` are applied: none of them is after the last
        change. Readers take the claim for the end of the table. Raises TableReplaced."""
        assert self._writer is not None
        self._check_same()
        self._writer.claim(self._application, until)
        self.next_index = max(self.next_index, until)

    def _check_same(self) -> None:
        """Raise TableReplaced for a table that another driver has made again: it may lack what the one before
        had, and a claim of this driver would be of more than it adds."""
        assert self._claimed is not None
        self._claimed.check_same()

    def _extend_here(self, first: int, until: int) -> bool:
        """Apply the records without Spark; return false where that is not possible."""
        if self._local is None or self.group is None:
            return False
        try:
            with ONE_AT_A_TIME:
                self._local.extend(self._records, self._entries, first, until)
        except (NeedsSpark, DeltaLogError):
            return False
        return True

    def tombstones(self, first: int, until: int) -> DataFrame:
        """Return the newest tombstone of each key in a range: `_key` and REMOVED_AT."""
        entries = read_table(self.session, self.entries_path)
        inside = (F.col("index") >= first) & (F.col("index") < until)
        found = entries.where(inside & F.col("value").isNull() & F.col("key").isNotNull())
        return found.groupBy(F.col("key").alias("_key")).agg(F.max("index").alias(REMOVED_AT))

    def apply(self, rows: DataFrame, tombstones: DataFrame, until: int | None, *, adds: bool = True) -> None:
        """Apply rows of `records`, and tombstones. until: the transaction version, None for none: then an
        error reports a conflict with another driver. adds: False: change and remove rows alone."""
        assert self.group is not None
        session, keys = self.session, list(self.group.keys)
        held = read_table(session, self.path)
        names = held.columns
        newest = self._newest(rows)
        is_gone = F.coalesce(F.col(REMOVED_AT) > F.col("_index"), F.lit(False)).alias(IS_GONE)
        changed = newest.join(F.broadcast(tombstones), "_key", "left")
        changed = changed.select(*map(quoted_name, newest.columns), REMOVED_AT, is_gone)
        removed = held.join(F.broadcast(tombstones), "_key").where(F.col(REMOVED_AT) > F.col("_index"))
        removed = removed.join(changed.select(*map(quoted_name, keys)), keys, "left_anti")
        removed = removed.select(*map(quoted_name, names), REMOVED_AT, F.lit(True).alias(IS_GONE))
        source = changed.unionByName(removed, allowMissingColumns=True)
        self._merge(source, names, keys, until, adds=adds)

    def _newest(self, rows: DataFrame) -> DataFrame:
        """Return the newest row of each key."""
        keys = [quoted_name(name) for name in self.keys]
        known = rows.where(" AND ".join(f"{name} IS NOT NULL" for name in keys))
        row = F.max_by(F.struct(*(quoted_name(name) for name in known.columns)), "_index").alias("newest row")
        return known.groupBy(*keys).agg(row).select("`newest row`.*")

    def _merge(
        self, source: DataFrame, names: list[str], keys: list[str], until: int | None, *, adds: bool
    ) -> None:
        source.createOrReplaceTempView("commitlog_changes")
        matched = " AND ".join(f"t.{quoted_name(name)} = s.{quoted_name(name)}" for name in keys)
        statement = (
            f"MERGE INTO {identifier(self.path)} t USING commitlog_changes s ON {matched} "
            f"WHEN MATCHED AND s.`{IS_GONE}` AND t._index < s.`{REMOVED_AT}` THEN DELETE "
            f"WHEN MATCHED AND NOT s.`{IS_GONE}` AND t._index < s._index THEN {update_clause(names)}"
        )
        if adds:
            statement += f" WHEN NOT MATCHED AND NOT s.`{IS_GONE}` THEN {insert_clause(names)}"

        def merge() -> None:
            session = self.session
            for name, value in zip(TXN_SETTINGS, (self._application, str(until)), strict=True):
                if until is None:
                    session.conf.unset(name)
                else:
                    session.conf.set(name, value)
            try:
                with ONE_AT_A_TIME:
                    session.sql(statement).collect()
            finally:
                for name in TXN_SETTINGS:
                    session.conf.unset(name)

        repeated(merge, CONFLICTS, MERGE_ATTEMPTS if until is not None else 1)

    @property
    def session(self) -> SparkSession:
        """The session of this table's statements, with settings of its own."""
        if self._own is None:
            self._own = sibling_of(self.spark)
        return self._own
