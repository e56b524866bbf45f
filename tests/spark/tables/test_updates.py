"""Small tables that are replaced as a whole, by Spark as at a URL."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from spark_jobs.tables import table_writer
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.table import EPOCH_FILES, collect_table
from spark_jobs.tables.table_writer import TableWriter


def test_a_writer_that_pauses_after_it_has_read_keeps_the_rows_of_another_one(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_writer, "links_commits", lambda *_: False)
    path = str(tmp_path / EPOCH_FILES.name)
    paused, other = (TableWriter(spark, path, EPOCH_FILES) for _ in range(2))
    assert paused.create()

    def held() -> pa.Table:
        return collect_table(spark, path, EPOCH_FILES, EPOCH_FILES.schema.names)

    def with_row_of(node: str, pauses: Sequence[Callable[[], None]] = ()) -> Callable[[], pa.Table]:
        due = list(pauses)
        row = {"log": "default", "node": node, "epoch": 1}

        def rows_of() -> pa.Table:
            found = pa.concat_tables([held(), pa.Table.from_pylist([row], arrow_schema(EPOCH_FILES.schema))])
            while due:
                due.pop()()
            return found

        return rows_of

    paused.update(with_row_of("n1", [lambda: other.update(with_row_of("n2"), "epoch")]), "epoch")
    assert sorted(held()["node"].to_pylist()) == ["n1", "n2"]
    other.update(arrow_schema(EPOCH_FILES.schema).empty_table, "epoch")
    assert held().num_rows == 0
