"""Data files of Delta tables in a local folder: rows as Parquet, and the action that adds a file.

A file is durable before it is returned: a record that a commit has may be trimmed from its log.

Source: the Delta transaction log protocol, sections Add File and Remove File, Per-file Statistics.
"""

import json
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from math import isfinite, nan
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark import __version__ as PYSPARK_VERSION

LONGEST_TEXT = 32  # characters of a string in statistics, as Delta cuts them
LAST_CHARACTER = "\U0010ffff"

# Spark takes dates before 1900 in files of unknown writers for ones of an older calendar.
CALENDAR = {"org.apache.spark.version": PYSPARK_VERSION}

DeltaAction = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class WrittenFile:
    """A file that no commit names yet. statistics: of its rows, as Delta writes them. schema: its columns."""

    name: str
    size_bytes: int
    modified_ms: int
    statistics: Mapping[str, Any]
    schema: pa.Schema

    @property
    def rows(self) -> int:
        return int(self.statistics["numRecords"])

    def most(self, column: str) -> int:
        """Return the largest value of a column of integers that has bounds."""
        return int(self.statistics["maxValues"][column])

    def action(self, *, is_new: bool = True) -> DeltaAction:
        """Return the action that adds the file to its table. is_new: False: its rows were there before."""
        return {
            "add": {
                "path": self.name,
                "partitionValues": {},
                "size": self.size_bytes,
                "modificationTime": self.modified_ms,
                "dataChange": is_new,
                "stats": compact_json(self.statistics),
            }
        }


def write_file(folder: Path, rows: pa.Table, statistics: Sequence[str]) -> WrittenFile:
    """Write rows as one data file. statistics: columns whose bounds the table has."""
    return write_pieces(folder, [rows], rows.schema, statistics)


def write_pieces(
    folder: Path,
    pieces: Iterable[pa.Table],
    schema: pa.Schema,
    statistics: Sequence[str],
    *,
    name: str | None = None,
) -> WrittenFile:
    """Write rows as one data file, each piece as a row group. A failure leaves no file.

    name: unique in the folder, None for a new one.
    """
    place = folder / (name or f"part-00000-{uuid.uuid4()}-c000.snappy.parquet")
    bounds: list[pa.Table] = []  # not the rows, whose buffers would stay in memory
    count, nulls = 0, dict.fromkeys(statistics, 0)
    words = [field.name for field in schema if pa.types.is_string(field.type)]
    # A footer's bounds leave out NaN, which is above all numbers for Spark.
    columns = [each for each in statistics if not pa.types.is_floating(schema.field(each).type)]
    try:
        with pq.ParquetWriter(
            place,
            schema,
            compression="snappy",
            use_dictionary=words,
            write_statistics=columns,
            store_schema=False,
        ) as writer:
            for rows in pieces:
                writer.write_table(rows)
                bounds.append(_bounds_of(rows, statistics))
                count += rows.num_rows
                for each in statistics:
                    nulls[each] += rows[each].null_count
                del rows
            writer.add_key_value_metadata(CALENDAR)
        sync_to_disk(place, folder)
    except BaseException:
        place.unlink(missing_ok=True)
        raise
    found = place.stat()
    whole = pa.concat_tables(bounds) if bounds else schema.empty_table()
    of_file = {**statistics_of(whole, statistics), "numRecords": count, "nullCount": nulls}
    return WrittenFile(place.name, found.st_size, found.st_mtime_ns // 1_000_000, of_file, schema)


def statistics_of(rows: pa.Table, columns: Sequence[str]) -> dict[str, Any]:
    """Return the statistics of a data file with these rows, as Delta writes them."""
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    for name in columns:
        if _has_nan(rows[name]):
            continue
        try:
            bounds = pc.min_max(rows[name]).as_py()
        except (OverflowError, ValueError):  # a time that Python cannot represent
            continue
        low, high = _statistic(bounds["min"]), _statistic(bounds["max"], is_most=True)
        if low is not None and high is not None:
            least[name], most[name] = low, high
    nulls = {name: rows[name].null_count for name in columns}
    return {"numRecords": rows.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _bounds_of(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return two rows with the same bounds, which share no memory with `rows`."""
    bounds = {}
    for name in columns:
        kind = rows.schema.field(name).type
        if _has_nan(rows[name]):
            bounds[name] = pa.array([nan, nan], kind)
        else:
            found = pc.min_max(rows[name])
            bounds[name] = pa.array([found["min"], found["max"]], kind)
    return pa.table(bounds)


def _has_nan(column: pa.ChunkedArray) -> bool:
    """Return whether a column has no bounds: for Spark NaN is above all numbers, Arrow leaves it out."""
    return pa.types.is_floating(column.type) and bool(pc.any(pc.is_nan(column)).as_py())


def _statistic(value: Any, *, is_most: bool = False) -> Any:
    """Return a bound as Delta writes it, None where it has none. Times are truncated to milliseconds, which
    readers of Delta's statistics allow for.

    Each ordered value has a bound if it can: pyarrow's datasets of deltalake 1.6 take a missing bound of a
    column with statistics for one that no row is within. is_most: it is an upper bound.
    """
    match value:
        case datetime():
            zone = "" if value.tzinfo is None else "Z"
            return value.replace(tzinfo=None).isoformat(timespec="milliseconds") + zone
        case date():
            return value.isoformat()
        case bool() | bytes():
            return None
        case Decimal():
            return _number(value)
        case float():
            return value if isfinite(value) else None
        case str() if len(value) > LONGEST_TEXT:
            return _cut(value, is_most=is_most)
    return value


def _number(value: Decimal) -> int | float | None:
    """Return a number that JSON shows with the same digits and without an exponent, None without one."""
    if value == value.to_integral_value():
        return int(value)
    text = repr(float(value))
    return float(value) if "e" not in text and Decimal(text) == value else None


def _cut(text: str, *, is_most: bool) -> str | None:
    """Return a bound of LONGEST_TEXT characters, and one more if it is an upper bound."""
    if not is_most:
        return text[:LONGEST_TEXT]
    return text[:LONGEST_TEXT] + LAST_CHARACTER if text[LONGEST_TEXT] < LAST_CHARACTER else None


def sync_to_disk(*places: Path) -> None:
    """Make the content of files and folders durable."""
    for place in places:
        opened = os.open(place, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def compact_json(value: object) -> str:
    """Return JSON text without escapes beyond those that JSON needs: deltalake 1.6 and Polars 2.1 read
    `\\ud840\\udc00` as U+10000, not U+20000, and so skip files whose bounds have such characters."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
