"""Decoder of a log's records: checks them at the front end, and turns them into columns in Spark."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Protocol

from app.schemas.avro import AvroReader
from app.schemas.binary_records import BinaryReader
from app.schemas.columns import arrow_schema_of
from app.schemas.data_types import Row
from app.schemas.errors import Mismatch, SchemaInvalid, ValueInvalid, pointer_of
from app.schemas.json_records import JsonReader
from app.schemas.protobuf import ProtobufReader
from app.schemas.schema import LogSchema

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_RECORDS: Final = 500
"""Records that become columns together: few enough to stay in the processor's cache."""
FEW_RECORDS: Final = 16
"""A chunk that does not match as a whole is halved down to this number, then read record by record."""
JSON_BLOCK_RECORDS: Final = 16_384
JSON_BLOCK_BYTES: Final = 4 * 1024 * 1024
"""Records that are read as one block, and their bytes on average."""
BLOCK_THREADS: Final = 2
"""Threads that read the blocks of a call side by side."""


class RecordReader(Protocol):
    """Reads the records of one format with one schema."""

    def check(self, value: bytes) -> None:
        """Raise ValueInvalid unless a record matches."""

    is_fast: bool
    """True if `accepts` takes a few ns a byte, whatever the records are."""
    is_slow: bool
    """True if a byte of a record may take far longer to check than with most schemas."""

    def accepts(self, values: Sequence[bytes]) -> bool:
        """Return true if all records are known to match. False: `row` decides about each."""

    def columns(self, values: Sequence[bytes]) -> list[Sequence[Any]] | None:
        """Return the columns of records that all match without unknown fields, None if `row` must decide."""

    def block(self, values: "pa.Array") -> "list[pa.Array] | None":
        """Return the same as `columns`, of an array without nulls, as arrays of the schema's types."""

    def row(self, value: bytes) -> tuple[Row, str | None]:
        """Return the row of a record, and its unknown fields as JSON. Raises ValueInvalid."""


@dataclass(frozen=True, slots=True)
class Decoded:
    """Records as columns.

    rows: the records that match, in order, with the schema of `arrow_schema_of`. positions: of each row in
    the input, from 0. rescued: the unknown fields of each row as a JSON object, null without any. errors: the
    records that do not match, by position. Null values (tombstones) are in none of them.
    """

    rows: "pa.Table"
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
        self.is_fast, self.is_slow = self._reader.is_fast, self._reader.is_slow

    def check(self, values: Sequence[bytes | memoryview | None]) -> Mismatch | None:
        """Return the first record that does not match, None when all do. None values (tombstones) match."""
        if self.accepts(values):
            return None
        for position, value in enumerate(values):
            if value is not None:
                try:
                    self._reader.check(bytes(value))
                except ValueInvalid as error:
                    return Mismatch(position, pointer_of(error.path), error.reason)
        return None

    def accepts(self, values: Sequence[bytes | memoryview | None]) -> bool:
        """Return true if all records are known to match. False: `check` decides about each."""
        records = values if None not in values else [value for value in values if value is not None]
        return self._reader.accepts(records)  # type: ignore[arg-type]  # memoryviews are read as bytes

    def decode(self, values: "pa.Array") -> Decoded:
        """Return an array of binary values as columns. It fails for no value: errors are in the result."""
        from concurrent.futures import ThreadPoolExecutor

        import pyarrow as pa

        schema = arrow_schema_of(self.schema)
        found = _Found(schema)
        size = max(1, min(JSON_BLOCK_RECORDS, JSON_BLOCK_BYTES * len(values) // max(1, values.nbytes)))
        starts = range(0, len(values), size)
        blocks = [values.slice(start, size) for start in starts]
        with ThreadPoolExecutor(BLOCK_THREADS) as threads:  # which begin with the first of several blocks
            read = threads.map(self._as_block, blocks) if len(blocks) > 1 else map(self._as_block, blocks)
            for start, block, arrays in zip(starts, blocks, read, strict=True):
                self._take_block(block, arrays, start, found)
        rows = pa.Table.from_batches(found.batches, schema=schema)
        positions = pa.concat_arrays([pa.array([], pa.int64()), *found.positions])
        rescued = pa.concat_arrays([pa.array([], pa.string()), *found.rescued])
        return Decoded(rows, positions, rescued, found.errors)

    def _as_block(self, values: "pa.Array") -> "list[pa.Array] | None":
        """Return the columns of records that all match, None if they must be read as smaller ones."""
        return None if values.null_count else self._reader.block(values)

    def _take_block(
        self, block: "pa.Array", arrays: "list[pa.Array] | None", start: int, found: "_Found"
    ) -> None:
        """Take the columns of records from the position `start` on, or read them as smaller blocks."""
        import pyarrow as pa

        if arrays is not None:
            found.add(
                range(start, start + len(block)), pa.RecordBatch.from_arrays(arrays, schema=found.schema)
            )
        elif len(block) > CHUNK_RECORDS:
            for first in range(0, len(block), CHUNK_RECORDS):
                part = block.slice(first, CHUNK_RECORDS)
                self._take_block(part, self._as_block(part), start + first, found)
        else:
            records = enumerate(block.to_pylist(), start)
            self._read([(position, value) for position, value in records if value is not None], found)

    def _read(self, records: Sequence[tuple[int, bytes]], found: "_Found") -> None:
        """Read records by their positions: together if they match, else in halves."""
        if not records:
            return
        columns = self._reader.columns([value for _, value in records])
        if columns is not None:
            found.add_columns([position for position, _ in records], columns)
        elif len(records) > FEW_RECORDS:
            middle = len(records) // 2
            self._read(records[:middle], found)
            self._read(records[middle:], found)
        else:
            self._read_each(records, found)

    def _read_each(self, records: Sequence[tuple[int, bytes]], found: "_Found") -> None:
        rows, positions, rescued = [], [], []
        for position, value in records:
            try:
                row, unknown = self._reader.row(value)
            except ValueInvalid as error:
                found.errors.append(Mismatch(position, pointer_of(error.path), error.reason))
            else:
                rows.append(row)
                positions.append(position)
                rescued.append(unknown)
        if rows:
            found.add_columns(positions, list(zip(*rows, strict=True)), rescued)


class _Found:
    """Parts of a `Decoded`, while records are read."""

    def __init__(self, schema: "pa.Schema") -> None:
        self.schema = schema
        self.batches: list[pa.RecordBatch] = []
        self.positions: list[pa.Array] = []
        self.rescued: list[pa.Array] = []
        self.errors: list[Mismatch] = []

    def add(
        self, positions: Sequence[int], batch: "pa.RecordBatch", rescued: Sequence[str | None] = ()
    ) -> None:
        import numpy as np
        import pyarrow as pa

        self.batches.append(batch)
        places = np.arange(positions[0], positions[-1] + 1) if isinstance(positions, range) else positions
        self.positions.append(pa.array(places, pa.int64()))
        self.rescued.append(
            pa.array(rescued, pa.string()) if rescued else pa.nulls(len(positions), pa.string())
        )

    def add_columns(
        self,
        positions: Sequence[int],
        columns: Sequence[Sequence[Any]],
        rescued: Sequence[str | None] = (),
    ) -> None:
        import pyarrow as pa

        arrays = [pa.array(column, kind) for column, kind in zip(columns, self.schema.types, strict=True)]
        self.add(positions, pa.RecordBatch.from_arrays(arrays, schema=self.schema), rescued)


def reader_of(schema: LogSchema) -> RecordReader:
    """Return the reader of a schema's format. Raises SchemaInvalid, SchemaLibraryMissing."""
    if schema.format == "avro":
        return BinaryReader(schema, AvroReader(schema))
    if schema.format == "protobuf":
        return BinaryReader(schema, ProtobufReader(schema))
    return JsonReader(schema)
