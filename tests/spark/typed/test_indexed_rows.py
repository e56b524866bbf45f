"""Rows of a table by index, in pieces: each row of the range once, whatever the files are."""

from itertools import chain
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_jobs.tables.local_commits import NeedsSpark
from spark_jobs.tables.table import ENTRIES
from spark_jobs.typed import indexed_rows
from spark_jobs.typed.indexed_rows import IndexedRows
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog
from tests.spark.typed.test_typed_kills import fill_entries


@pytest.mark.parametrize("max_records", [3, 1_000])
def test_each_row_of_a_range_is_in_one_piece(tmp_path: Path, max_records: int) -> None:
    log = FakeLog()
    log.open_term(1, "n1")
    log.append_many(15)
    log.open_term(2, "n2")
    log.append_many(9)
    fill_entries(log, tmp_path)  # files of 10 rows
    reader = IndexedRows(no_spark(), str(tmp_path / ENTRIES.name), ENTRIES, "index")
    data = [each["index"] for each in log.records if each["type"] == "data"]
    for first in range(log.next_index):
        for until in range(first + 1, log.next_index + 2):
            pieces = list(reader.pieces(first, until, ["index"], max_records))
            found = [rows["index"].to_pylist() for _, rows in pieces]
            assert list(chain(*found)) == [index for index in data if first <= index < until]
            for (end, _), indexes in zip(pieces, found, strict=True):
                assert all(index < end for index in indexes)
            assert pieces[-1][0] == until


def test_a_piece_that_spark_reads_has_a_bounded_size(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark refuses a result beyond `spark.driver.maxResultSize`."""

    def needs_spark(*_: object) -> None:
        raise NeedsSpark("as for a table at a URL")

    monkeypatch.setattr(IndexedRows, "_local_piece", needs_spark)
    monkeypatch.setattr(indexed_rows, "PIECE_BYTES", 50)
    log = FakeLog()
    log.open_term(1, "n1")
    log.append(*(bytes(size) for size in (20, 20, 20, 200)), None, b"", bytes(49), key=b"k")
    log.open_term(2, "n2")
    log.append(bytes(50), bytes(1))
    fill_entries(log, tmp_path)
    reader = IndexedRows(spark, str(tmp_path / ENTRIES.name), ENTRIES, "index")
    pieces = reader.pieces(0, log.next_index + 5, ["index", "value"])
    found = [(end, rows["index"].to_pylist()) for end, rows in pieces]
    assert found == [(4, [1, 2, 3]), (5, [4]), (10, [5, 6, 7, 9]), (16, [10])]
    assert [rows.num_rows for _, rows in reader.pieces(0, log.next_index, ["index"])] == [9]
