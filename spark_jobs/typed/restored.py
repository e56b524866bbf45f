"""Rows that RESTORE took from typed tables, made from `entries` again.

RESTORE keeps the claims of the commits that it undoes, so no later append would add these rows. They are the
rows of the version before the RESTORE that the table lacks now. A merge by index adds them, which may be
repeated, also by two drivers. What the user deleted before the RESTORE is not among them.

A RESTORE that was removed from the history before the job read it, after a suspension longer than
`delta.logRetentionDuration`, does not show what it took. Then `current` is brought up to date as a whole, and
a table `records` or `dead_letters` whose last rows are missing is an error.
"""

from collections.abc import Callable, Iterator, Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.errors import RowsLost
from spark_jobs.tables.table import read_table
from spark_jobs.typed.claimed_table import ClaimedTable
from spark_jobs.typed.current import CurrentTable
from spark_jobs.typed.decoding import COLUMNS, TypedDecoder
from spark_jobs.typed.indexed_rows import IndexedRows


class RestoredTables:
    """The typed tables of one log. records, current: by the first version of their group.

    until: `entries` holds all records before it. log_end: returns the index after the last record of the log.
    note_moved: notes in `dead_letters` again which letters were moved, once `records` is complete.
    """

    def __init__(
        self,
        spark: SparkSession,
        entries: IndexedRows,
        letters: ClaimedTable,
        records: Mapping[int, ClaimedTable],
        current: Mapping[int, CurrentTable],
        until: int,
        log_end: Callable[[], int],
        note_moved: Callable[[], None],
    ) -> None:
        self.spark = spark
        self.entries = entries
        self.letters = letters
        self.records = records
        self.current = current
        self.until = until
        self.log_end = log_end
        self.note_moved = note_moved

    def repair(self, decoder: TypedDecoder) -> set[int]:
        """Add the rows that the tables lack after a RESTORE, and note it in them. Return the groups whose
        `current` is due to be brought up to date as a whole: those with such a table `records` or `current`,
        and all after a RESTORE or a removal of `dead_letters`.

        `finish` follows. Raises RowsLost if rows cannot be made again.
        """
        current = {first: table.restores for first, table in self.current.items()}
        restored = {first for first, restores in current.items() if restores.due() or restores.has_gap}
        for first, table in self.records.items():
            if table.restores.due():
                self._add_records(decoder, first)
                restored.add(first)
            if table.is_refilling:
                restored.add(first)  # `current` has letters that a replay had moved to the removed table
            table.check_end()
        if is_restored := bool(self.letters.restores.due()):
            self._add_letters(decoder)
        if is_restored or self.letters.is_refilling:
            # without the letters that a killed replay has added to `records` alone
            restored |= self.current.keys()
        if is_restored or self.letters.is_refilling or self.letters.restores.has_gap:
            self.note_moved()  # the notes were taken too
        self.letters.check_end()
        return restored

    def finish(self) -> None:
        """Note in the tables that all is repaired."""
        for each in (self.letters, *self.records.values()):
            each.restores.done()
        for table in self.current.values():
            table.restores.done()

    def _add_records(self, decoder: TypedDecoder, first: int) -> None:
        """Add the records that were taken; a letter that a replay had moved is read as the replay did."""
        table = self.records[first]
        table.lay_out()
        for rows, versions in self._again(table.path, table.taken("_schema_version")):
            typed = decoder.decode(rows)
            self._insert(table, typed.records.get(first))
            is_letter = pc.is_in(rows["index"].combine_chunks(), typed.dead_letters["index"].combine_chunks())
            for version in pc.unique(pc.drop_null(versions.filter(is_letter))).to_pylist():
                moved = rows.filter(pc.and_(is_letter, pc.equal(versions, version)))
                self._insert(table, decoder.decode(moved, version).records.get(first))
        table.refresh()

    def _insert(self, table: ClaimedTable, rows: pa.Table | None) -> None:
        if rows is not None and rows.num_rows:
            table.insert_missing(rows)

    def _add_letters(self, decoder: TypedDecoder) -> None:
        """Add the letters that were taken, and remove those that a replay has moved to `records`: one that
        was killed may not have moved them to `current` yet."""
        self.letters.lay_out()
        for rows, _ in self._again(self.letters.path, self.letters.taken("schema_version")):
            self._insert(self.letters, decoder.decode(rows).dead_letters)
        for table in self.records.values():
            self.letters.remove_all(read_table(self.spark, table.path).select(F.col("_index").alias("index")))
        self.letters.refresh()

    def _again(self, path: str, taken: pa.Table) -> Iterator[tuple[pa.Table, pa.Array]]:
        """Yield the rows of `entries` of taken rows, piece by piece, each with the column `version`.

        Rows that are of no record of the log are left out. Raises RowsLost.
        """
        if not taken.num_rows:
            return
        bounds = pc.min_max(taken["index"]).as_py()
        if bounds["max"] >= self.until:
            log_end = self.log_end()
            behind = pc.and_(pc.greater_equal(taken["index"], self.until), pc.less(taken["index"], log_end))
            if pc.any(behind).as_py():
                raise RowsLost(path, f"`entries` ends before index {self.until}; restore it first")
        indexes, versions = taken["index"].combine_chunks(), taken["version"].combine_chunks()
        for _, rows in self.entries.pieces(
            max(0, bounds["min"]), min(self.until, bounds["max"] + 1), COLUMNS
        ):
            at = pc.index_in(rows["index"], indexes)
            rows, at = rows.filter(pc.is_valid(at)), pc.drop_null(at)
            yield rows, pc.take(versions, at.combine_chunks())
