"""Decoder of a log's records: checks them at the front end, and turns them into columns in Spark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from app.schemas.avro import AvroReader
from app.schemas.binary_records import BinaryReader
from app.schemas.columns import arrow_schema_of
from app.schemas.errors import Mismatch, SchemaInvalid, ValueInvalid, pointer_of
from app.schemas.json_records import JsonReader
from app.schemas.protobuf import ProtobufReader
from app.schemas.schema import LogSchema

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[Any, ...]
CHUNK_RECORDS: Final = 500
"""Records that become columns together: few enough to stay in the processor's cache."""


class RecordReader(Protocol):
    """Reads the records of one format with one schema."""

    def check(self, value: bytes) -> None:
        """Return if a record matches. Raises ValueInvalid."""

    is_slow: bool
    """True if a byte of a record may take far longer to check than with most schemas."""

    def accepts(self, values: Sequence[bytes]) -> bool:
        """Return true if all records are known to match. False: `row` decides about each."""

    def columns(self, values: Sequence[bytes]) -> list[Sequence[Any]] | None:
        """Return the columns of records that all match without unknown fields, None if `row` must decide."""

    def row(self, value: bytes) -> tuple[Row, str | None]:
        """Return the row of a record, and its unknown fields as JSON. Raises ValueInvalid."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Records as columns.

    rows: the records that match, in order, with the schema of `arrow_schema_of`. positions: of each row in
    the input, from 0. rescued: the unknown fields of each row as a JSON object, null without any. errors: the
    records that do not match, by position. Null values (tombstones) are in none of them.
    """

    rows: "pa.RecordBatch"
    positions: "pa.Int64Array"
    rescued: "pa.StringArray"
    errors: list[Mismatch] = field(default_factory=list)


class RecordDecoder:
    """Reads records with one version of a log's schema. Thread-safe: it changes nothing after its start.

    schemas: all known versions. version: the one to read with. Raises SchemaInvalid for a version that is not
    among them or cannot be read, SchemaLibraryMissing.
    """

    def __init__(self, schemas: Mapping[int, LogSchema], version: int) -> None:
        if version not in schemas:
            raise SchemaInvalid("", f"Schema version {version} is not known.")
        self.schema = schemas[version]
        self._reader = reader_of(self.schema)
        self.is_slow = self._reader.is_slow

    def check(self, values: Sequence[bytes | memoryview | None]) -> Mismatch | None:
        """Return the first record that does not match, None when all do. None values (tombstones) match."""
        records = values if None not in values else [value for value in values if value is not None]
        if self._reader.accepts(records):  # type: ignore[arg-type]  # memoryviews of bytes are read as bytes
            return None
        for position, value in enumerate(values):
            if value is not None:
                try:
                    self._reader.check(bytes(value))
                except ValueInvalid as error:
                    return Mismatch(position, pointer_of(error.path), error.reason)
        return None

    def decode(self, values: "pa.Array") -> Decoded:
        """Return an array of binary values as columns. It fails for no value: errors are in the result."""
        import pyarrow as pa

        schema = arrow_schema_of(self.schema)
        positions: list[int] = []
        rescued: list[str | None] = []
        errors: list[Mismatch] = []
        batches = []
        for start in range(0, len(values), CHUNK_RECORDS):
            found = enumerate(values.slice(start, CHUNK_RECORDS).to_pylist(), start)
            records = [(position, value) for position, value in found if value is not None]
            columns = self._reader.columns([value for _, value in records]) if records else None
            if columns is not None:
                positions += [position for position, _ in records]
                rescued += [None] * len(records)
            else:
                columns = self._one_by_one(records, positions, rescued, errors)
            if columns:
                arrays = [pa.array(column, kind) for column, kind in zip(columns, schema.types, strict=True)]
                batches.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
        table = pa.Table.from_batches(batches, schema=schema).combine_chunks()
        rows = table.to_batches()[0] if table.num_rows else pa.RecordBatch.from_pylist([], schema)
        return Decoded(rows, pa.array(positions, pa.int64()), pa.array(rescued, pa.string()), errors)

    def _one_by_one(
        self,
        records: Sequence[tuple[int, bytes]],
        positions: list[int],
        rescued: list[str | None],
        errors: list[Mismatch],
    ) -> list[Sequence[Any]]:
        rows = []
        for position, value in records:
            try:
                row, unknown = self._reader.row(value)
            except ValueInvalid as error:
                errors.append(Mismatch(position, pointer_of(error.path), error.reason))
            else:
                rows.append(row)
                positions.append(position)
                rescued.append(unknown)
        return list(zip(*rows, strict=True))


def reader_of(schema: LogSchema) -> RecordReader:
    """Return the reader of a schema's format. Raises SchemaInvalid, SchemaLibraryMissing."""
    if schema.format == "avro":
        return BinaryReader(schema, AvroReader(schema))
    if schema.format == "protobuf":
        return BinaryReader(schema, ProtobufReader(schema))
    return JsonReader(schema)
