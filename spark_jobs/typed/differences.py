"""Comparison of the typed tables of a log with `entries`, by Spark: the first differences of each, as text
(invariants.py, values.py)."""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from app.client.tables import MaterializedTable, Tables
from app.tables.names import DEAD_LETTERS, ENTRIES, RECORDS
from spark_jobs.source.log_reads import LogReads
from spark_jobs.typed.invariants import misplaced, outdated
from spark_jobs.typed.layout import CompatibilityGroup, compatibility_groups
from spark_jobs.typed.values import wrong_copies, wrong_letters, wrong_records
from storage.units import NO_INDEX

OF_A_GROUP = re.compile(r"(records|current)(_v\d+)?")
REPORTED_MAX = 10  # differences of one table that are reported
_ATTEMPTS = 5  # to compare tables that do not change meanwhile
_PAUSE_S = 1.0


@dataclass(frozen=True)
class _Versions:
    """One version of each table of a log, by name."""

    spark: SparkSession
    tables: Mapping[str, MaterializedTable]

    def rows(self, name: str) -> DataFrame:
        table = self.tables[name]
        return self.spark.read.format("delta").option("versionAsOf", table.version).load(table.path)

    def records(self, layout: Sequence[CompatibilityGroup]) -> dict[int, DataFrame]:
        """Return `records` of each compatibility group, by the group's first version."""
        return {each.first: self.rows(each.records().name) for each in layout}


def typed_differences(
    spark: SparkSession, known: Tables, reads: LogReads
) -> tuple[tuple[str, ...], int | None]:
    """Return the first differences of each typed table, and the index before which the tables are compared,
    None without them. Tables that change meanwhile are compared again."""
    found: tuple[str, ...] = ()
    until, compared = None, None
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_PAUSE_S)  # the job makes typed tables, and extends them, after `entries`
        tables = {table.name: table for table in known.all()}
        versions = {name: table.version for name, table in tables.items()}
        if versions != compared:
            found, until = tuple(typed_problems(spark, tables, reads)), typed_until(tables)
            compared = versions
        if not found:
            break
    return found, until


def typed_until(tables: Mapping[str, MaterializedTable]) -> int | None:
    """Return the index before which the typed tables hold every record of `entries`; None without them."""
    ends = [tables[name].materialized_index for name in (RECORDS, DEAD_LETTERS) if name in tables]
    entries_end = tables[ENTRIES].materialized_index
    if not ends or entries_end is None:
        return None
    return min(entries_end, max(NO_INDEX if end is None else end for end in ends)) + 1


def typed_problems(
    spark: SparkSession, tables: Mapping[str, MaterializedTable], reads: LogReads
) -> Iterator[str]:
    """Yield the first differences of these versions of the tables."""
    entries_end = tables[ENTRIES].materialized_index
    assert entries_end is not None
    versions = reads.schemas(NO_INDEX) or []
    named = _typed_names(compatibility_groups(versions))  # also of versions that the job has not seen
    for name in sorted(tables):
        if OF_A_GROUP.fullmatch(name) and name not in named:
            yield f"{name}: no version of the schema begins this table"
    versions = [each for each in versions if each.index <= entries_end]
    if not versions:
        return
    layout = compatibility_groups(versions)
    if missing := sorted(_typed_names(layout) - tables.keys()):
        yield f"missing: {', '.join(missing)}"
        return
    until = typed_until(tables)
    assert until is not None
    known = _Versions(spark, tables)
    records = known.records(layout)
    entries, letters = known.rows(ENTRIES), known.rows(DEAD_LETTERS)
    log_end = reads.tail(confirmed=True).next_index
    wrong = misplaced(entries, list(records.values()), letters, until, log_end)
    misplacements = [*_at("typed tables", wrong)]
    yield from misplacements
    if not misplacements:  # else their rows are reported again
        yield from _at(DEAD_LETTERS, wrong_letters(entries, records, letters, versions, until))
        for each in layout:
            yield from _at(each.records().name, wrong_records(entries, records, versions, each.first, until))
    for each in layout:
        yield from _problems_of_current(known, each, records[each.first])


def _problems_of_current(known: _Versions, group: CompatibilityGroup, records: DataFrame) -> Iterator[str]:
    name = group.current().name
    end = known.tables[name].materialized_index
    if end is None:
        return
    rows = known.rows(name)
    late = outdated(known.rows(ENTRIES), records, rows, group.keys, end + 1)
    for row in late.orderBy("problem").limit(REPORTED_MAX).collect():
        yield f"{name}, {row['problem']}"
    yield from _at(name, wrong_copies(records, rows, group.schema))


def _at(name: str, wrong: DataFrame) -> Iterator[str]:
    """Yield the first wrong rows of a table (index, problem)."""
    for row in wrong.orderBy("index").limit(REPORTED_MAX).collect():
        yield f"{name}, index {row['index']}: {row['problem']}"


def _typed_names(layout: Sequence[CompatibilityGroup]) -> set[str]:
    return {DEAD_LETTERS, *(name for each in layout for name in (each.records().name, each.current().name))}
