"""Rows of a table by index, in pieces: each row of the range once, whatever the files are."""

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.materialize.replay import DeadLetterReplay
from spark_jobs.materialize.typed import TypedTables
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables import merging
from spark_jobs.tables.file_rows import rows_of_file
from spark_jobs.tables.local.commits import NeedsSpark
from spark_jobs.tables.table import ENTRIES
from spark_jobs.typed import indexed_rows
from spark_jobs.typed.decoding import COLUMNS
from spark_jobs.typed.indexed_rows import IndexedRows
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
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


def test_a_piece_of_a_large_file_reads_the_row_groups_that_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a file of a gigabyte is read again for each of its pieces."""
    log = FakeLog()
    log.append_many(40)
    fill_entries(log, tmp_path)  # files of 10 rows
    monkeypatch.setattr(merging, "GROUP_BYTES", 1)  # each file a row group
    assert merging.merge_small_files(str(tmp_path / ENTRIES.name), 1) == 4
    read: list[int] = []

    def counted(*given: Any) -> Iterator[pa.RecordBatch]:
        for rows in rows_of_file(*given):
            read.append(rows.num_rows)
            yield rows

    monkeypatch.setattr(indexed_rows, "rows_of_file", counted)
    reader = IndexedRows(no_spark(), str(tmp_path / ENTRIES.name), ENTRIES, "index")
    found = [rows["index"].to_pylist() for _, rows in reader.pieces(5, 35, ["index"], 10)]
    assert list(chain(*found)) == list(range(5, 35))
    assert sum(read) == 60  # each piece is in two of them


def needs_spark(*_: object) -> None:
    raise NeedsSpark("as for a table at a URL")


def test_a_piece_that_spark_reads_has_a_bounded_size(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark refuses a result beyond `spark.driver.maxResultSize`."""
    monkeypatch.setattr(IndexedRows, "_local_piece", needs_spark)
    monkeypatch.setattr(indexed_rows, "PIECE_BYTES", 53)
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


def test_spark_reads_large_records_about_once(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each piece sorts all records of its query, and yields those that fit."""
    asked: list[tuple[int, int]] = []
    by_spark = IndexedRows._by_spark

    def noted(rows: IndexedRows, first: int, until: int, columns: Sequence[str]) -> DataFrame:
        asked.append((first, until))
        return by_spark(rows, first, until, columns)

    monkeypatch.setattr(IndexedRows, "_local_piece", needs_spark)
    monkeypatch.setattr(IndexedRows, "_by_spark", noted)
    monkeypatch.setattr(indexed_rows, "PIECE_BYTES", 160)
    monkeypatch.setattr(indexed_rows, "FIRST_SPARK_RECORDS", 64)
    log = FakeLog()
    log.append(*(bytes(20) for _ in range(160)), *(bytes(1) for _ in range(160)))
    fill_entries(log, tmp_path)
    reader = IndexedRows(spark, str(tmp_path / ENTRIES.name), ENTRIES, "index")
    found = [rows["index"].to_pylist() for _, rows in reader.pieces(0, 320, ["index", "value"])]
    assert list(chain(*found)) == list(range(320))
    assert sum(until - first for first, until in asked) < 3 * 320
    assert len(asked) < 40
    sizes = [until - first for first, until in asked]
    assert sizes[:3] == [64, 16, 8]
    assert max(sizes[-4:]) >= 64  # small ones again


def test_large_keys_and_headers_bound_a_piece_too(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(IndexedRows, "_local_piece", needs_spark)
    monkeypatch.setattr(indexed_rows, "PIECE_BYTES", 53)
    log = FakeLog()
    log.append(b"", None, key=bytes(40))
    log.append(b"", headers=(("ab", bytes(20)), ("c", bytes(29))))
    log.append(bytes(1), bytes(1), bytes(1))
    fill_entries(log, tmp_path)
    reader = IndexedRows(spark, str(tmp_path / ENTRIES.name), ENTRIES, "index")
    found = [(end, rows["index"].to_pylist()) for end, rows in reader.pieces(0, 6, COLUMNS)]
    assert found == [(2, [0, 1]), (4, [2, 3]), (6, [4, 5])]


def test_a_replay_reads_letters_in_pieces_of_a_bounded_size(
    spark: SparkSession, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = replicas[0].log
    log.records.clear()
    log.open_term(1, "n1")
    log.set_schema("id INT")
    log.append(*(bytes(size) for size in (30, 30, 200, 1)), b'{"id":1}', bytes(1))
    fill_entries(log, tmp_path)
    client = LogReads([replica.url for replica in replicas], "default")
    replay = DeadLetterReplay(spark, client, lambda table: str(tmp_path / table.name))
    TypedTables(no_spark(), client, replay.tables.path_of, follows=False).extend(log.next_index)
    monkeypatch.setattr(indexed_rows, "PIECE_BYTES", 53)
    found = [piece["index"].to_pylist() for piece in replay._pieces(log.next_index)]
    assert found == [[2, 3], [4], [5, 7]]
