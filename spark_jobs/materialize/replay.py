"""Replay of dead letters: read again with a version of the schema, those that match move to `records`.

A letter is moved by three commits: to `records`, to `current`, out of `dead_letters`. A replay that was
killed between them is repeated: a letter that is in `records` already is not added again. Two replays at once
with versions of one compatibility group add a letter once, for the table refuses the second. With versions of
two groups both may add it: the one that adds it later finds both rows, and the row of the older group stays.
If it is killed before, the next replay finds them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from spark_jobs.errors import OptionError
from spark_jobs.materialize.typed import TypedTables
from spark_jobs.session.spark_session import kept_active
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.table import Table, quoted_name, read_table
from spark_jobs.typed.current import CurrentTable
from spark_jobs.typed.indexed_rows import first_rows
from spark_jobs.typed.layout import CompatibilityGroup

PIECE_LETTERS: Final = 20_000


@dataclass(frozen=True)
class Replayed:
    """Result of a replay. version: of the schema. moved, left: numbers of dead letters."""

    version: int
    moved: int
    left: int


class DeadLetterReplay:
    """Replays the dead letters of one log. `entries` must exist."""

    def __init__(self, spark: SparkSession, client: LogReads, path_of: Callable[[Table], str]) -> None:
        self.spark = spark
        self.client = client
        self.tables = TypedTables(spark, client, path_of, follows=False)

    def run(self, version: int | None = None) -> Replayed:
        """version: to read with; None: the newest one that the leader has, which a replica may not know yet.

        Raises OptionError for a version that the log does not have, TableClash if `entries` has lost records,
        and the errors of `TypedTables.extend`.
        """
        until = self.tables.entries.end()
        log_end = self.client.tail(confirmed=True).next_index
        self.tables.open()
        # every dead letter before `until` is handled, whatever other drivers do
        self.tables.extend(until, schemas_until=log_end)
        self.tables.check_entries()  # a lost tombstone would not be applied to its letter
        decoder = self.tables.decoder
        if decoder is None:
            raise OptionError(f"log {self.client.log!r} has no schema")
        wanted = decoder.versions[-1].version if version is None else version
        if wanted not in {each.version for each in decoder.versions}:
            raise OptionError(f"version: log {self.client.log!r} has no schema version {wanted}")
        self._separate(decoder.layout)
        moved = left = 0
        for piece in self._pieces(until):
            held = self._held(piece)
            letters = piece.filter(pc.invert(pc.is_in(piece["index"], pa.array(held, pa.int64()))))
            typed = decoder.decode(letters, wanted)
            for group in decoder.layout:
                rows = typed.records.get(group.first)
                if rows is not None:
                    self.tables.note_moved(group, wanted, rows["_index"][0].as_py())
                    self.tables.records[group.first].insert_missing(rows)
                    held |= dict.fromkeys(rows["_index"].to_pylist(), group.first)
            if len(decoder.layout) > 1:
                held = self._held(piece)
            self._settle(held)
            moved += len(held)
            left += typed.dead_letters.num_rows
        return Replayed(wanted, moved, left)

    def _pieces(self, until: int) -> Iterator[pa.Table]:
        """Yield the letters before `until`, in order, in pieces of a bounded size."""
        first, most = 0, PIECE_LETTERS
        while True:
            letters = read_table(self.spark, self.tables.dead_letters.path)
            due = letters.where((F.col("index") >= first) & (F.col("index") < until))
            next_indexes = due.select("index").orderBy("index").limit(most)
            last = next_indexes.agg(F.max("index")).collect()[0][0]
            if last is None:
                return
            piece, is_whole = first_rows(due.where(F.col("index") <= last), "index")
            yield piece
            first = last + 1 if is_whole else piece["index"][-1].as_py() + 1
            most = min(PIECE_LETTERS, 2 * max(1, piece.num_rows))  # not many more than fit into a piece

    def _held(self, letters: pa.Table) -> dict[int, int]:
        """Return the letters that are records already: the index, and the first version of the compatibility
        group. Of a letter that is in the tables of two groups the row of the older one stays."""
        indexes = self.spark.createDataFrame(letters.select(["index"]).rename_columns(["_index"]))
        held: dict[int, int] = {}
        for first, table in sorted(self.tables.records.items()):
            rows = read_table(self.spark, table.path).select("_index")
            found = {row[0] for row in rows.join(F.broadcast(indexes), "_index", "left_semi").collect()}
            self._take_out(first, {index: held[index] for index in found & held.keys()})
            held |= dict.fromkeys(found - held.keys(), first)
        return held

    def _separate(self, layout: Sequence[CompatibilityGroup]) -> None:
        """Remove each letter from the tables of a group if an older group has it too."""
        older: DataFrame | None = None
        for group in layout:
            rows = read_table(self.spark, self.tables.records[group.first].path).select("_index")
            if older is not None:
                is_before = F.col("_index") < group.from_index  # of letters alone in `rows`, else in `older`
                both = rows.where(is_before).join(older, "_index")
                both = both.union(older.where(~is_before).join(rows, "_index"))
                owners = sorted(((row[0], row[1]) for row in both.collect()), reverse=True)
                self._take_out(group.first, dict(owners))  # the oldest group of each
            named = rows.withColumn("group", F.lit(group.first))
            older = named if older is None else older.union(named)

    def _take_out(self, first: int, owners: Mapping[int, int]) -> None:
        """Remove letters from the tables of a group. owners: the older group that has each of them."""
        if not owners:
            return
        self._apply(owners)  # before it is known from the tables no more that this is due
        indexes, path = sorted(owners), self.tables.records[first].path
        table, current = self.tables.records[first], self.tables.current[first]
        table.refill()  # the next start removes what a kill leaves, or what others apply that have read them
        with kept_active(self.spark):
            due = current.session.createDataFrame(pa.table({"_index": indexes}))
            keys = _keys_of(current, path, due)
            known = current.session.createDataFrame(keys.toArrow(), keys.schema)
            table.remove(indexes)
            current.remove(indexes)
            current.apply_again(partial(_of_keys, current, path, known), 0, indexes[-1] + 1, are_few=True)

    def _settle(self, moved: Mapping[int, int]) -> None:
        """Apply records that were dead letters to `current`, and remove the letters."""
        if not moved:
            return
        self._apply(moved)
        self.tables.check_entries()
        for first in set(moved.values()):
            self.tables.records[first].check_same()  # else the letter may be in no table
        self.tables.dead_letters.remove(list(moved))

    def _apply(self, moved: Mapping[int, int]) -> None:
        """Apply records that were dead letters to `current`. moved: the group of each."""
        with kept_active(self.spark):
            for first in sorted(set(moved.values())):
                current, path = self.tables.current[first], self.tables.records[first].path
                own = [index for index, group in moved.items() if group == first]
                indexes = current.session.createDataFrame(pa.table({"_index": own}))
                rows = partial(_of_same_keys, current, path, indexes)
                current.apply_again(rows, min(own), max(own) + 1, are_few=True)


def _of_same_keys(current: CurrentTable, path: str, indexes: DataFrame) -> DataFrame:
    """Return all rows of `records` with the keys of the rows at these indexes. A newer row of a key counts
    although a tombstone of another record key has removed it from `current`."""
    return _of_keys(current, path, _keys_of(current, path, indexes))


def _of_keys(current: CurrentTable, path: str, keys: DataFrame) -> DataFrame:
    return read_table(current.session, path).join(keys, list(current.keys), "left_semi")


def _keys_of(current: CurrentTable, path: str, indexes: DataFrame) -> DataFrame:
    """Return the keys of the rows of `records` at these indexes."""
    rows = read_table(current.session, path).join(F.broadcast(indexes), "_index", "left_semi")
    return rows.select(*map(quoted_name, current.keys))
