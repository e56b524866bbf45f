"""Reader of Avro and Protobuf records: row by row, with the checks that are the same for both."""

from collections.abc import Sequence
from typing import Any, Protocol

from app.schemas.columns import struct_of
from app.schemas.data_types import Row
from app.schemas.errors import ValueInvalid
from app.schemas.schema import LogSchema


class RowReader(Protocol):
    """Reads one record of a format."""

    def row(self, value: bytes) -> tuple[Row, str | None]:
        """Return the row of a record, and its unknown fields as JSON. Raises ValueInvalid."""


class BinaryReader:
    """Reads records with one schema of a binary format: columns that are never null have values."""

    is_fast = is_slow = False

    def __init__(self, schema: LogSchema, reader: RowReader) -> None:
        fields = struct_of(schema).fields
        self._reader = reader
        self._required = [(at, field.name) for at, field in enumerate(fields) if not field.is_optional]

    def accepts(self, values: Sequence[bytes]) -> bool:
        """Return true if all records match."""
        try:
            for value in values:
                self.row(value)
        except ValueInvalid:
            return False
        return True

    def columns(self, values: Sequence[bytes]) -> list[Sequence[Any]] | None:
        """Return the columns of records that all match without unknown fields, else None."""
        rows = []
        try:
            for value in values:
                row, rescued = self.row(value)
                if rescued is not None:
                    return None
                rows.append(row)
        except ValueInvalid:
            return None
        return list(zip(*rows, strict=True))

    def block(self, values: object) -> None:
        """Return None: there is no faster way for many records than `columns`."""

    def check(self, value: bytes) -> None:
        """Raise ValueInvalid unless a record matches."""
        self.row(value)

    def row(self, value: bytes) -> tuple[Row, str | None]:
        """Return the row of a record, and its unknown fields as JSON. Raises ValueInvalid."""
        row, rescued = self._reader.row(value)
        for at, name in self._required:
            if row[at] is None:
                raise ValueInvalid("Null is not allowed here.", (name,))
        return row, rescued
