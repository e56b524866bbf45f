"""The invariants of the typed tables, checked without Spark on the rows of one log."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from app.tables.delta_log import DeltaLog
from spark_jobs.tables.snapshot import read_rows
from storage.units import NO_INDEX
from tests.spark.source.log_server import FakeLog

EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
PLACE = ("index", "term", "timestamp", "key")


def rows_of(table: Path) -> Iterator[dict[str, Any]]:
    """Return the rows of a table in the plain format, with the columns of its newest version. Files from
    before a column became wider hold its values in the former type."""
    snapshot = DeltaLog(str(table)).snapshot()
    assert snapshot is not None
    assert {*snapshot.reader_features} <= {"typeWidening"}
    names = [field["name"] for field in json.loads(snapshot.schema)["fields"]]
    for file in snapshot.files.values():
        for rows in read_rows(file, names):
            yield from ({name: row.get(name) for name in names} for row in rows.to_pylist())


def check_law(log: FakeLog, folder: Path, keys: Sequence[str] = ("_key",)) -> None:
    """Check that each record is once in a typed table, unless it is a tombstone, and that each `current`
    holds the newest record of each key. keys: columns that identify its rows."""
    data = [each for each in log.records if each["type"] == "data"]
    records = {table.name: list(rows_of(table)) for table in folder.glob("records*")}
    typed = [place_of(row, "_") for rows in records.values() for row in rows]
    typed += [place_of(row) for row in rows_of(folder / "dead_letters")]
    due = [tuple(each[name] for name in PLACE) for each in data if each["value"] is not None]
    assert sorted(typed) == sorted(due)
    removed = {each["key"]: each["index"] for each in data if each["value"] is None}
    for name, rows in records.items():
        held = [key_and_index(row, keys) for row in rows_of(folder / name.replace("records", "current"))]
        assert sorted(held) == sorted(newest(rows, removed, keys)), name


def place_of(row: Mapping[str, Any], prefix: str = "") -> tuple[Any, ...]:
    """Return what a table has of the place of a record in the log, with the log's times. Times in files of
    Spark have no zone; all are UTC."""
    held = {name: row[prefix + name] for name in PLACE}
    held["timestamp"] = (held["timestamp"].replace(tzinfo=UTC) - EPOCH) // MICROSECOND
    return tuple(held.values())


def newest(
    records: Sequence[Mapping[str, Any]], removed: Mapping[bytes, int], keys: Sequence[str]
) -> list[tuple[Any, ...]]:
    """Return key and index of the newest record of each key that no later tombstone removed."""
    found: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in sorted(records, key=lambda row: row["_index"]):
        key = tuple(row[name] for name in keys)
        if None not in key:
            found[key] = row
    left = (row for row in found.values() if row["_index"] > removed.get(row["_key"], NO_INDEX))
    return [key_and_index(row, keys) for row in left]


def key_and_index(row: Mapping[str, Any], keys: Sequence[str]) -> tuple[Any, ...]:
    return (*(row[name] for name in keys), row["_index"])
