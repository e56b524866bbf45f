"""Reader of JSON records: the fast way for records that provably match, else one by one."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from app.schemas.columns import arrow_schema_of, document_of, struct_of
from app.schemas.data_types import Row
from app.schemas.errors import ValueInvalid
from app.schemas.fast_json import Unproved, fast_reader
from app.schemas.json_blocks import BlockReader, block_reader
from app.schemas.json_schema import compile_validator, count_rules
from app.schemas.json_text import read_json, shown
from app.schemas.json_values import has_unknown, rescuer_of, struct_converter
from app.schemas.schema import LogSchema

if TYPE_CHECKING:
    import pyarrow as pa


class JsonReader:
    """Reads records with one schema of the format json. Thread-safe."""

    def __init__(self, schema: LogSchema) -> None:
        self._schema = schema
        self._kind = struct_of(schema)
        self._convert = struct_converter(self._kind)
        self._rescue = rescuer_of(self._kind)
        document = document_of(schema)
        self._validator = compile_validator(document) if document is not None else None
        self._fast = fast_reader(self._kind, document, self._validator)
        self._document = document
        has_pattern = document is not None and count_rules(document)["pattern"] > 0
        self.is_slow = self._fast is None or self._fast.has_decimals or has_pattern
        self.is_fast = not self.is_slow and self._fast is not None and not self._fast.has_validator

    def accepts(self, values: Sequence[bytes]) -> bool:
        """Return true if all records are known to match. False: `row` decides about each."""
        if self._fast is None:
            return False
        try:
            self._fast.check(values)
        except Unproved:
            return False
        return True

    def columns(self, values: Sequence[bytes]) -> list[Sequence[Any]] | None:
        """Return the columns of records that all match without unknown fields, None if `row` must decide."""
        if self._fast is None:
            return None
        try:
            return self._fast.columns(values)
        except Unproved:
            return None

    @cached_property
    def _blocks(self) -> BlockReader | None:
        return block_reader(self._kind, self._document)

    def block(self, values: "pa.Array") -> "list[pa.Array] | None":
        """Return the same as `columns`, of an array without nulls, as arrays of the schema's types."""
        if self._blocks is None:
            return None
        try:
            return self._blocks.columns(values, arrow_schema_of(self._schema).types)
        except Unproved:
            return None

    def check(self, value: bytes) -> None:
        """Raise ValueInvalid unless a record matches."""
        if self._fast is not None:
            try:
                return self._fast.check_one(value)
            except Unproved:
                pass
        self.exact_row(value)

    def row(self, value: bytes) -> tuple[Row, str | None]:
        """Return the row of a record, and its unknown fields as JSON. Raises ValueInvalid."""
        if self._fast is not None:
            try:
                return self._fast.row(value)
            except Unproved:
                pass
        return self.exact_row(value)

    def exact_row(self, value: bytes) -> tuple[Row, str | None]:
        """Return the same as `row`, always from the rules of `json_values`. Raises ValueInvalid."""
        record = read_json(value)
        row = self._convert(record)
        if self._validator is not None:
            for error in self._validator.iter_errors(record):
                raise ValueInvalid(shown(error.message)[1:-1], tuple(error.instance_path))
        rescued = self._rescue(value) if has_unknown(record, self._kind) else None
        return tuple(row.values()), rescued
