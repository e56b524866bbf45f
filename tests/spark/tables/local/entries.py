"""A table `entries` in a local folder with some rows, for tests of the writers."""

from collections.abc import Callable
from datetime import UTC, datetime

import pyarrow as pa

from spark_jobs.tables.local.commits import LocalTable
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.snapshot import read_plain
from spark_jobs.tables.table import ENTRIES, settings_of_table

AT = datetime(2026, 1, 2, 3, 4, 5, 678_901, UTC)


BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
LONG_AGO = datetime(1, 1, 1, 0, 0, 0, 1_000, UTC)


def table_at(path: str, due: Callable[[str], None] = lambda path: None) -> LocalTable:
    return LocalTable(path, due, keeps_files=True)


def rows(first: int, until: int) -> pa.Table:
    headers = [{"name": "a", "value": b"1"}]
    reported = [
        {"log": "l", "index": index, "term": 1, "offset": 100 * index, "timestamp": AT, "headers": headers}
        for index in range(first, until)
    ]
    if first == 0:
        reported[0]["timestamp"] = LONG_AGO
    return pa.Table.from_pylist(
        [{**row, "key": b"k", "value": f"v{row['index']}".encode()} for row in reported],
        arrow_schema(ENTRIES.schema),
    )


def create(table: LocalTable) -> bool:
    return table.create(
        ENTRIES.schema,
        cluster_by=ENTRIES.cluster_by,
        comments=ENTRIES.columns,
        properties=settings_of_table(ENTRIES, {"commitlog.owner": "me"}),
    )


def append(table: LocalTable, first: int, until: int, claim: int | None = None) -> bool:
    claim = first if claim is None else claim
    return table.append(
        rows(first, until), statistics=ENTRIES.statistics, application="a", claim=claim, note={"first": first}
    )


def indexes(table: LocalTable) -> list[int]:
    held = read_plain(str(table.path), ENTRIES.schema, ["index"])
    assert held is not None
    return sorted(held["index"].to_pylist())
