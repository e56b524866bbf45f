"""The typed tables of a log with a schema: `records`, `dead_letters` and `current`, made from `entries`.

They follow `entries`: what they lack is read from there. So recovery, a schema that is set on a log with
history, and the records of the last micro-batch take one path. The rows of a range are written in this order:
`dead_letters`, the records of older compatibility groups, those of the newest one. So each range before
the last row of the newest group is complete in all of them. `current` follows `records`: at once in a
job that does not follow the log, else every CURRENT_EACH_S.
A table without a row of the last records gets a commit that claims its end (typed/table_ends.py).
"""

import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from app.schemas import LogSchema
from app.tables.names import MOVED_PROPERTY, end_application_of
from spark_jobs.errors import LogTrimmed, StrayRows, is_disk_full
from spark_jobs.job_lines import warn
from spark_jobs.materialize.supervisor import MAX_FAILURES, REPORT_EACH_S, reason_of
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.table import DEAD_LETTERS, ENTRIES, Table, TableClash
from spark_jobs.tables.table_writer import TableWriter
from spark_jobs.typed.claimed_table import ClaimedTable
from spark_jobs.typed.current import CurrentTable
from spark_jobs.typed.decoding import COLUMNS, TypedDecoder, TypedRows
from spark_jobs.typed.indexed_rows import IndexedRows
from spark_jobs.typed.layout import CompatibilityGroup, compatibility_groups
from spark_jobs.typed.prefetch import prefetch
from spark_jobs.typed.restored import RestoredTables
from spark_jobs.typed.table_ends import TableEnds
from storage.units import NO_INDEX

COMMIT_RECORDS = 100_000  # of one piece of `entries`: as many as a file of a backlog there
CURRENT_EACH_S = 5.0
CURRENT_PAUSES = 4  # pause after a change of `current`, in times of its duration: large tables change rarely
CURRENT_PAUSE_MAX_S = 600.0  # of that pause: a change lasts for hours if the machine is suspended meanwhile


class TypedTables:
    """Typed tables of one log, which `EntriesJob` extends after `entries`. Other drivers may do the same.

    next_index: every record of the log before it is in the tables, or a tombstone. Without a schema there are
    no tables.
    """

    def __init__(
        self,
        spark: SparkSession,
        client: LogReads,
        path_of: Callable[[Table], str],
        *,
        follows: bool = True,
        change_data_feed: bool = False,
    ) -> None:
        """client: of the log. path_of: returns the folder or URL of a table. follows: as of `EntriesJob`.
        change_data_feed: as of `CurrentTable`."""
        self.spark = spark
        self.client = client
        self.path_of = path_of
        self.follows = follows
        self.change_data_feed = change_data_feed
        self.next_index = 0
        self.until_index = NO_INDEX  # of the last call of `extend` since the tables were opened
        self.held_until = 0  # the tables had rows and claims before it alone when they were opened
        self.current: dict[int, CurrentTable] = {}
        self.decoder: TypedDecoder | None = None
        self.records: dict[int, ClaimedTable] = {}  # by the first version of their group
        self.dead_letters = self._claimed(DEAD_LETTERS, "index")
        self.entries = IndexedRows(spark, path_of(ENTRIES), ENTRIES, "index")
        self._versions: Sequence[LogSchema] = ()
        self._term: int | None = None  # of the last record that was handed to `extend`
        self._changed: set[int] = set()  # groups with records that may have a row in `current`
        self._applying = threading.Lock()
        self._noting = threading.Lock()  # protects next_index, _changed and _ends
        self._ends = TableEnds()
        self._timer: threading.Timer | None = None
        self._applied_at_s = -math.inf
        self._pause_s = CURRENT_EACH_S
        self._failed: Exception | None = None  # of the thread of the timer
        self._failures = 0  # of that thread, in a row, without those of a full disk
        self._reported_at_s = -math.inf  # that it waits for space

    def open(self) -> None:
        """Forget what is known of the tables: the next write reads their progress. Other drivers may have
        written."""
        self.decoder, self.records, self.current, self.until_index = None, {}, {}, NO_INDEX
        self._versions, self._failed, self._failures = (), None, 0
        self._ends = TableEnds()

    def _claimed(self, table: Table, position: str) -> ClaimedTable:
        return ClaimedTable(self.spark, self.path_of(table), table, position, follows=self.follows)

    def extend(self, until: int, term: int | None = None, *, schemas_until: int = 0) -> None:
        """Write the rows of all records before `until`, which `entries` holds. term: of the record before it.
        schemas_until: the versions of the schema before this index are known too.

        Raises TableClash, LogClash, StrayRows, SchemaInvalid, SchemaLibraryMissing, and the errors of
        `LogReads`.
        """
        if self._failed is not None:
            raise self._failed
        if term != self._term:  # an unclean election may have replaced a version by another of that number
            self._term, self._versions = term, ()
        self._read_schemas(max(until, schemas_until))
        if self.decoder is None:
            return
        if self.held_until > until:
            self._check_strays()
        restored = self._restored(until)
        outdated = self._repair(restored, self.decoder)
        self.until_index = until
        pieces = self.entries.pieces(self.next_index, until, COLUMNS, COMMIT_RECORDS)
        with prefetch(pieces) as read, prefetch(_decoded(self.decoder, read)) as decoded:
            for end, rows, typed in decoded:
                self._write_piece(self.decoder, end, rows, typed)
        if not self._is_whole:
            return
        self._rebuild(restored, outdated)
        for table in (self.dead_letters, *self.records.values()):
            table.refilled()
        if not self.follows:
            self.apply()
        elif self._is_behind and self._timer is None:
            self._start_timer()

    def _write_piece(self, decoder: TypedDecoder, end: int, rows: pa.Table, typed: TypedRows) -> None:
        """Write the typed rows of the next piece of `entries`, which ends before `end`."""
        self._write_rows(decoder, typed, end)
        has_keys = rows["key"].null_count < rows.num_rows
        with self._noting:
            self.next_index = end
            if rows.num_rows:
                self._ends.until = rows["index"][-1].as_py() + 1
            self._changed |= {
                each.first for each in decoder.layout if has_keys or (rows.num_rows and each.key_columns)
            }

    @property
    def _is_whole(self) -> bool:
        """The tables are open, and `entries` holds all records that they had then. Otherwise it has lost
        rows, also tombstones, without which `current` would get rows that stay."""
        return self.until_index >= self.held_until

    def _check_strays(self) -> None:
        """Raise StrayRows if a table whose end counts for `held_until` has rows after the end of the log."""
        log_end = self.client.tail(confirmed=True).next_index
        ends = [(table.path, table.last_index + 1) for table in self.records.values()]
        ends += [(table.path, table.next_index) for table in self.current.values()]
        for path, end in ends:
            if end > log_end:
                raise StrayRows(path, self.client.log, log_end, end - 1)

    def check_entries(self) -> None:
        """Raise TableClash if `entries` has lost records that the tables had, or that `extend` was to read.

        What is made from `entries` is complete only if this holds afterwards: otherwise it may lack rows, and
        have rows whose tombstones are missing.
        """
        first, until = self.entries.end(), max(self.until_index, self.held_until)
        try:
            lost = self.client.first_data_index(first, until)
        except LogTrimmed:
            lost = first
        if lost is not None:
            raise TableClash(self.path_of(ENTRIES), f"the records from index {lost} on")

    @property
    def _is_behind(self) -> bool:
        return bool(self._changed) or self._ends.is_unclaimed

    def apply(self) -> None:
        """Bring `current` to the state of `records`, and claim the ends of tables if that is due; leave it as
        it is while `entries` lacks rows."""
        with self._applying:
            if not self._is_whole:
                return
            with self._noting:
                changed, self._changed = self._changed, set()
                until, tables = self._ends.until, dict(self.current)
                claims = not self.follows or self._ends.is_due(time.monotonic())
            try:
                for first in sorted(changed & tables.keys()):
                    tables[first].extend(until)
            except Exception:
                with self._noting:
                    self._changed |= changed  # what was applied already is found by its transaction
                raise
            if claims:
                self._claim(until, tables.values())

    def _claim(self, until: int, current: Iterable[CurrentTable]) -> None:
        """Claim the end of the tables that have no commit with it. All changes before it are applied."""
        for table in current:
            table.claim(until)
        decoder = self.decoder  # None after `open`, by another thread
        if self._ends.noted < until and decoder is not None:
            newest = decoder.layout[-1].records()
            writer = TableWriter(self.spark, self.path_of(newest), newest)  # of this thread alone
            writer.claim(end_application_of(newest.name), until)
        with self._noting:
            self._ends.claimed(until, time.monotonic())

    def _start_timer(self) -> None:
        """Apply the changes some time after the last ones: this costs more than an append."""
        pause_s = max(0.0, self._applied_at_s + self._pause_s - time.monotonic())
        self._timer = threading.Timer(pause_s, self._apply_late)
        self._timer.daemon = True
        self._timer.start()

    def _apply_late(self) -> None:
        """Apply the changes. An error is repeated here, so that the other tables of the log continue."""
        began_s = time.monotonic()
        try:
            self.apply()
            self._failures = 0
        except Exception as error:
            waits = is_disk_full(error)
            self._failures += not waits
            if self._failures > MAX_FAILURES:
                self._failed = error
            elif not waits or began_s >= self._reported_at_s + REPORT_EACH_S:
                self._reported_at_s = began_s if waits else -math.inf
                warn(f"{self.client.log}: current: {reason_of(error)}; trying again")
        self._applied_at_s = time.monotonic()
        self._pause_s = pause_after_change(self._applied_at_s - began_s)
        self._timer = None
        if self._is_behind and self._failed is None:
            self._start_timer()

    def progress(self) -> dict[str, Any] | None:
        """Return how far the tables are, also while `extend` is running; None without a schema.

        typed_index: every record up to it is in the tables or a tombstone, -1 for none. target_index: up to
        which they are being written. records_rows, dead_letters_rows: numbers of their rows.
        """
        if self.decoder is None:
            return None
        return {
            "typed_index": self.next_index - 1,
            "target_index": max(self.until_index, self.next_index) - 1,
            "records_rows": sum(table.rows for table in list(self.records.values())),
            "dead_letters_rows": self.dead_letters.rows,
        }

    def _read_schemas(self, until: int) -> None:
        """Learn the versions of the schema that records before `until` may have."""
        versions = self.client.schemas(until - 1, self._versions[-1].version if self._versions else 0)
        if not versions:
            return
        layout = compatibility_groups(versions)
        self._open_tables(layout)
        self.decoder, self._versions = TypedDecoder(versions, layout), versions

    def _restored(self, until: int) -> RestoredTables:
        return RestoredTables(
            self.spark,
            self.entries,
            self.dead_letters,
            self.records,
            self.current,
            until,
            lambda: self.client.tail(confirmed=True).next_index,
            self._note_moved_again,
        )

    def _repair(self, restored: RestoredTables, decoder: TypedDecoder) -> set[int]:
        """Add the rows that RESTORE took from tables. Return the groups whose `current` is due as a whole;
        none if the tables are ahead of `entries`, which may lack rows itself. Raises RowsLost."""
        if restored.until < self.next_index:
            return set()
        with self._applying:
            return restored.repair(decoder)

    def _rebuild(self, restored: RestoredTables, groups: set[int]) -> None:
        """Bring the `current` of these groups up to date as a whole, once `records` is complete: it may have
        been removed too. Raises TableClash."""
        with self._applying:
            for first in sorted(groups):
                with self._noting:  # another driver may have written records to any group meanwhile
                    self._changed |= self.current.keys()
                if first in self.current:
                    others = [table for group, table in self.records.items() if group != first]
                    others.append(self.dead_letters)
                    self.current[first].rebuild(self.next_index, restored.until, others)
            if groups:
                self.check_entries()
            restored.finish()

    def _complete_before(self, layout: Sequence[CompatibilityGroup]) -> int:
        ends = [self.records[group.first].last_index for group in layout]
        return complete_before([each.from_index for each in layout], ends)

    def _open_tables(self, layout: Sequence[CompatibilityGroup]) -> None:
        log, log_id = self.client.log, self.client.log_id()
        is_first = not self.records
        begin = math.inf  # of the tables that are created now, which may have been removed, or refilled
        if is_first and self.dead_letters.open(log, log_id, is_removed=self._is_removed(None, layout)):
            begin = 0
        for group in layout:
            table = group.records()
            held = self.records.get(group.first)
            if held is None:
                held = self._claimed(table, "_index")
                if held.open(log, log_id, is_removed=is_first and self._is_removed(group, layout)):
                    begin = min(begin, self._refill_from(group))
                self.records[group.first] = held
            elif held.table != table:
                held.evolve(table)
            self._open_current(group, log_id)
        if is_first:
            complete = self._complete_before(layout)
            self.next_index = int(min(begin, complete))
            # no later call applies to `current` what it has applied, such as tombstones after its last row
            self.held_until = max((complete, *(each.next_index for each in self.current.values())))
            self._ends.until = self._ends.noted = self.next_index

    def _is_removed(self, group: CompatibilityGroup | None, layout: Sequence[CompatibilityGroup]) -> bool:
        """Return whether the table of a group, None for `dead_letters`, was removed: tables that are made
        after it are there."""
        if (self.dead_letters if group is None else self._claimed(group.records(), "_index")).exists():
            return False
        if group is not None and self._refill_from(group) < group.from_index:
            return True
        later = [each.records() for each in layout if group is None or each.first > group.first]
        later += [] if group is None else [group.current()]  # which may have rows that the table lacks now
        return any(self._claimed(each, "_index").exists() for each in later)

    def note_moved(self, group: CompatibilityGroup, version: int, index: int) -> None:
        """A replay with this version moves letters from this index on to the table of the group. If that is
        removed later, the letters that are older than the group must be read again too.

        Each version has a note of its own: replays with others may write theirs at the same time.
        """
        if index < self._moved_from(group):
            self.dead_letters.set_properties({f"{MOVED_PROPERTY}.{version}": str(index)})

    def _note_moved_again(self) -> None:
        """Note of each group from which index on its table has letters: RESTORE, or the removal of
        `dead_letters`, took the notes of the replays."""
        for group in self.decoder.layout if self.decoder is not None else ():
            first = self.records[group.first].first_index()
            if first is not None and first < self._moved_from(group):
                self.dead_letters.set_properties({_name_of_rows(group): str(first)})

    def _refill_from(self, group: CompatibilityGroup) -> int:
        """Return an index before which no record was in the table of the group, which is made again."""
        return 0 if self.dead_letters.restores.due() else self._moved_from(group)

    def _moved_from(self, group: CompatibilityGroup) -> int:
        """Return an index before which no record is in the table of the group, as noted."""
        known = self.dead_letters.properties()
        versions = range(group.first, group.last + 1)
        names = (_name_of_rows(group), *(f"{MOVED_PROPERTY}.{version}" for version in versions))
        earlier: dict[str, int] = json.loads(known.get(MOVED_PROPERTY, "{}"))
        notes = (earlier.get(str(group.first)), *(known.get(name) for name in names))
        return min([group.from_index, *(int(note) for note in notes if note is not None)])

    def _open_current(self, group: CompatibilityGroup, log_id: str) -> None:
        table = self.current.get(group.first)
        if table is not None and table.group == group:
            return
        with self._applying:
            table = CurrentTable(
                self.spark,
                self.path_of(group.current()),
                self.path_of(group.records()),
                self.path_of(ENTRIES),
                change_data_feed=self.change_data_feed,
            )
            table.open(group, self.client.log, log_id)
        with self._noting:
            self.current[group.first] = table
            self._changed.add(group.first)

    def _write_rows(self, decoder: TypedDecoder, typed: TypedRows, until: int) -> None:
        note = {"first_index": self.next_index, "until_index": until}
        if any(table.last_index >= self.next_index for table in self.records.values()):
            self.dead_letters.is_doubtful = True  # a replay may have moved letters of this range
        pending = [(self.dead_letters, typed.dead_letters)]
        pending += [(self.records[each.first], typed.records.get(each.first)) for each in decoder.layout]
        due = [(table, rows) for table, rows in pending if rows is not None and rows.num_rows]
        is_noted = False
        for table, found in due:
            unwritten = self._unwritten if table is self.dead_letters else None
            is_noted = table.append(found, note if table is due[-1][0] else {}, unwritten)
        if is_noted:  # else the rows were there, as after a repair: the end is claimed
            self._ends.noted = until

    def _unwritten(self, letters: pa.Table) -> pa.Table:
        """Return the letters that no table has. A replay moves letters to `records`, first into that table;
        the user may have removed letters, or a table with moved ones."""
        first, until = letters["index"][0].as_py(), letters["index"][-1].as_py() + 1
        for table in (self.dead_letters, *self.records.values()):
            rows = IndexedRows(self.spark, table.path, table.table, table.position)
            for _, held in rows.pieces(first, until, [table.position]):
                is_held = pc.is_in(letters["index"], held[table.position].combine_chunks())
                letters = letters.filter(pc.invert(is_held))
        return letters


def _name_of_rows(group: CompatibilityGroup) -> str:
    """Return the property for what was found in the table of a group: a replay may note more meanwhile."""
    return f"{MOVED_PROPERTY}.rows.{group.first}"


def pause_after_change(seconds: float) -> float:
    """Return the seconds to wait after a change of `current` that took so long."""
    return min(CURRENT_PAUSE_MAX_S, max(CURRENT_EACH_S, CURRENT_PAUSES * seconds))


def _decoded(
    decoder: TypedDecoder, pieces: Iterable[tuple[int, pa.Table]]
) -> Iterator[tuple[int, pa.Table, TypedRows]]:
    for end, rows in pieces:
        yield end, rows, decoder.decode(rows)


def complete_before(from_indexes: Sequence[int], ends: Sequence[int]) -> int:
    """Return an index before which the tables hold all rows.

    from_indexes: of the groups, oldest first. ends: index of the last row of each, NO_INDEX for none.
    Rows of a range are written to the newest group last, which has no row before its `from_index`.
    """
    complete = 0
    for from_index, end in zip(from_indexes, ends, strict=True):
        complete = max(end + 1, min(complete, from_index))
    return complete
