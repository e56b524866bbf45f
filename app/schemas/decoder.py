"""Decoder of a log's records: checks them at the front end, and turns them into columns in Spark."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from app.schemas.columns import arrow_schema_of, document_of, struct_of
from app.schemas.errors import Mismatch, SchemaInvalid, ValueInvalid, pointer_of
from app.schemas.json_schema import compile_validator
from app.schemas.json_text import read_json, shown
from app.schemas.json_values import has_unknown, rescued_of, struct_converter
from app.schemas.schema import LogSchema

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
ReadRecord = Callable[[bytes], tuple[Row, str | None]]
"""Function from a record's value to its row, and its unknown fields as JSON. Raises ValueInvalid."""


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
        self._read = _reader_of(self.schema)

    def check(self, values: Sequence[bytes | memoryview | None]) -> Mismatch | None:
        """Return the first record that does not match, None when all do. None values (tombstones) match."""
        for position, value in enumerate(values):
            if value is not None:
                try:
                    self._read(bytes(value))
                except ValueInvalid as error:
                    return Mismatch(position, pointer_of(error.path), error.reason)
        return None

    def decode(self, values: "pa.Array") -> Decoded:
        """Return an array of binary values as columns. It fails for no value: errors are in the result."""
        import pyarrow as pa

        rows: list[Row] = []
        positions: list[int] = []
        rescued: list[str | None] = []
        errors = []
        for position, value in enumerate(values.to_pylist()):
            if value is None:
                continue
            try:
                row, unknown = self._read(value)
            except ValueInvalid as error:
                errors.append(Mismatch(position, pointer_of(error.path), error.reason))
            else:
                rows.append(row)
                positions.append(position)
                rescued.append(unknown)
        return Decoded(
            pa.RecordBatch.from_pylist(rows, schema=arrow_schema_of(self.schema)),
            pa.array(positions, pa.int64()),
            pa.array(rescued, pa.string()),
            errors,
        )


def _reader_of(schema: LogSchema) -> ReadRecord:
    return _json_reader(schema)


def _json_reader(schema: LogSchema) -> ReadRecord:
    kind = struct_of(schema)
    document = document_of(schema)
    validator = compile_validator(document) if document is not None else None
    convert = struct_converter(kind)

    def read(value: bytes) -> tuple[Row, str | None]:
        record = read_json(value)
        row = convert(record)
        if validator is not None:
            for error in validator.iter_errors(record):
                raise ValueInvalid(shown(error.message)[1:-1], tuple(error.instance_path))
        return row, rescued_of(value, kind) if has_unknown(record, kind) else None

    return read
