"""The judge of tables finds every kind of fault in one, in Parquet files as Spark writes them."""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos.spark.table_judge import ROW, TableFiles, differences, records_of
from tests.support.delta_files import DeltaFiles

MOMENT = datetime(2024, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)


def rows(*indexes: int, value: bytes = b"v") -> pa.Table:
    first = {"term": 1, "offset": 100, "timestamp": MOMENT, "key": None}
    headers = [{"name": "n", "value": b"h"}]
    return pa.Table.from_pylist(
        [{**first, "index": index, "value": value, "headers": headers} for index in indexes], ROW
    )


@pytest.mark.parametrize(
    ("table", "fault"),
    [
        (rows(1, 2, 2, 4), r"1 indexes, first \[2\]: is in the table more than once"),
        (rows(1, 4), r"1 indexes, first \[2\]: is missing in the table"),
        (rows(1, 2, 3, 4), r"1 indexes, first \[3\]: is in the table and not in the log"),
        (pa.concat_tables([rows(1, 2), rows(4, value=b"w")]), r"1 values of `value` differ, first at \[4\]"),
    ],
)
def test_each_fault_of_a_table_is_named(table: pa.Table, fault: str) -> None:
    assert differences(rows(1, 2, 4), rows(1, 2, 4)) == []
    with pytest.raises(AssertionError, match=fault):
        raise AssertionError("; ".join(differences(rows(1, 2, 4), table)))


def test_a_table_is_read_as_its_log_names_it(tmp_path: Path) -> None:
    delta = DeltaFiles(tmp_path / "entries")
    table = TableFiles(delta.folder)
    delta.create()
    assert table.rows().num_rows == 0
    for indexes in ((3, 4), (1, 2)):  # files come in any order, timestamps without their zone
        delta.bring(indexes[0], indexes[-1] + 1)
        pq.write_table(
            rows(*indexes),
            delta.folder / f"part-{delta.version}.parquet",
            use_deprecated_int96_timestamps=True,
        )
    (delta.folder / "part-9.parquet").write_bytes(b"of a write that was cut off")
    assert table.rows().equals(rows(1, 2, 3, 4))
    assert [path.name for path in table.unnamed()] == ["part-9.parquet"]
    assert records_of(table.rows()) == [(index, "v") for index in (1, 2, 3, 4)]
