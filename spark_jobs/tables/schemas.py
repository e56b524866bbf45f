"""Columns of the source and of each table; docs/tables.md lists units and keys."""

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

HEADERS = ArrayType(StructType([StructField("name", StringType()), StructField("value", BinaryType())]))


def _columns(**types: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in types.items()])


RECORDS = _columns(
    log=StringType(),
    index=LongType(),
    term=LongType(),
    offset=LongType(),
    timestamp=TimestampType(),
    key=BinaryType(),
    value=BinaryType(),
    headers=HEADERS,
    type=StringType(),
)
EVENTS = _columns(
    log=StringType(),
    node=StringType(),
    seq=LongType(),
    timestamp=TimestampType(),
    kind=StringType(),
    term=LongType(),
    data=StringType(),
)
ENTRIES = StructType([field for field in RECORDS if field.name != "type"])
WATERMARKS = _columns(
    log=StringType(),
    term=LongType(),
    peer=StringType(),
    node=StringType(),
    seq=LongType(),
    timestamp=TimestampType(),
    role=StringType(),
    watermark=LongType(),
    begin_index=LongType(),
    end_index=LongType(),
    committed_index=LongType(),
)
EPOCHS = _columns(
    log=StringType(),
    epoch=LongType(),
    term=LongType(),
    leader=StringType(),
    start_index=LongType(),
    start_offset=LongType(),
    end_index=LongType(),
    end_offset=LongType(),
    started=TimestampType(),
)
SYNC_STATE_SETS = _columns(
    log=StringType(),
    epoch=LongType(),
    set_epoch=LongType(),
    master=StringType(),
    members=ArrayType(StringType()),
    confirm_offset=LongType(),
    node=StringType(),
    seq=LongType(),
    timestamp=TimestampType(),
)
QUARANTINE_TRUNCATED = StructType(
    [
        RECORDS["log"],
        StructField("node", StringType()),
        StructField("seq", LongType()),
        StructField("epoch", LongType()),
        StructField("truncated", TimestampType()),
        StructField("receipt", StringType()),
        *RECORDS.fields[1:],
    ]
)
TYPED = _columns(  # and the columns of the log's schema
    _index=LongType(),
    _term=LongType(),
    _timestamp=TimestampType(),
    _key=BinaryType(),
    _schema_version=IntegerType(),
    _rescued=StringType(),
)
DEAD_LETTERS = _columns(
    index=LongType(),
    term=LongType(),
    timestamp=TimestampType(),
    schema_version=IntegerType(),
    error=StringType(),
    path=StringType(),
    value=BinaryType(),
    key=BinaryType(),
    headers=HEADERS,
)
EPOCH_FILES = StructType([EPOCHS["log"], StructField("node", StringType()), *EPOCHS.fields[1:]])


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the exact schema that Spark requires of the record batches of a source."""
    return to_arrow_schema(schema, timezone="UTC")
