"""Data frames as tables of records: no column is lost."""

import pandas as pd
import pyarrow as pa

from app.client.data_frames import to_arrow

FRAME = pd.DataFrame(
    {
        "key": ["a", "b"],
        "value": ["x", None],
        "timestamp": pd.to_datetime([1, 2], unit="ms", utc=True),
        "id": [5, 6],
    }
)


def test_an_index_of_pandas_with_the_name_of_a_column_is_that_column() -> None:
    """Its records would otherwise be stored without key or time."""
    for names in (["key"], ["timestamp"], ["timestamp", "key"]):
        table = to_arrow(FRAME.drop(columns="id").set_index(names))
        assert set(table.schema.names) == {"key", "value", "timestamp"}
        assert [key.as_py() for key in table["key"]] == ["a", "b"]
        assert pa.types.is_timestamp(table.schema.field("timestamp").type)


def test_any_other_index_of_pandas_is_left_out() -> None:
    frame = FRAME.set_index("id")
    for each in (frame, frame[frame["key"] == "b"].reset_index(drop=True), FRAME.drop(columns="id")[1:]):
        assert to_arrow(each).schema.names == ["key", "value", "timestamp"]
