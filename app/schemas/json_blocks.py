"""Blocks of JSON records to columns by Arrow, without a Python object for each value.

Only records of plain values are read so, and only blocks of one layout, as one producer writes them: the same
fields in the same order, with the same white space. A block that this module accepts has the same rows by
`json_values`, for each record is known to be put together from its cells:

- It begins with `{` and ends with `}`, and has no backslash and no control character.
- It is cut at each comma before a quotation mark. That is the border of two fields, or a comma at the end of
  a string: then a cell does not begin as expected.
- Each cell is the name of its column's field, and one JSON value of the field's type: a string has no
  quotation mark inside, a number has the form of RFC 8259.
- Names are those of the first record, each once. Texts are valid UTF-8, times and dates have the usual form,
  numbers are in their range.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from app.schemas.data_types import (
    DAY_MICROS,
    FIRST_DAY,
    INTEGERS,
    Field,
    Primitive,
    StructType,
    integer_range,
)
from app.schemas.fast_json import Unproved, is_covered, rules_of
from app.schemas.json_values import FLOAT_MAX

if TYPE_CHECKING:
    import pyarrow as pa

_COMMA, _SPACE, _BACKSLASH = b", \\"
_ASCII: Final = 0x7F
_BEGIN, _END = b"{}"
_FIRST_CELL: Final = re.compile(rb'{"([^"]+)": ?')
_CELL: Final = re.compile(rb' ?"([^"]+)": ?')
_BYTES_MAX: Final = 1 << 30
_NUMBER: Final = r"^-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?$"
_FORMS: Final = {
    "date": r"^\d{4}-\d{2}-\d{2}$",
    "timestamp": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?Z$",
    "timestamp_ntz": r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?$",
}


class BlockReader:
    """Reads the records of one schema. Thread-safe."""

    def __init__(self, kind: StructType) -> None:
        self._fields = {field.name: field for field in kind.fields}
        self._columns = {field.name: _column_of(field) for field in kind.fields}

    def columns(self, values: "pa.Array", types: Sequence["pa.DataType"]) -> list["pa.Array"]:
        """Return the columns of records that all match and have no unknown fields. values: binary, without
        nulls, at least one. types: of the columns. Raises Unproved."""
        import pyarrow as pa

        try:
            cells = dict(self._cells(values))
            return [
                self._columns[name](cells[name], kind) if name in cells else pa.nulls(len(values), kind)
                for name, kind in zip(self._fields, types, strict=True)
            ]
        except pa.ArrowException:
            raise Unproved from None

    def _cells(self, values: "pa.Array") -> "Iterator[tuple[str, pa.Array]]":
        """Yield the name of each field that the records have, and its JSON values as texts."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        first = values[0].as_py()
        border = b', "' if b', "' in first else b',"'
        heads = self._heads(first, border)
        cells = _cut(values, border, len(heads))
        for place, (name, head) in enumerate(heads):
            taken = cells.take(pa.array(np.arange(place, len(cells), len(heads), dtype=np.int32)))
            if not pc.all(pc.starts_with(taken, str(head, "utf-8"))).as_py():
                raise Unproved
            yield name, _part(taken, len(head), -1 if place == len(heads) - 1 else _BYTES_MAX)

    def _heads(self, first: bytes, border: bytes) -> list[tuple[str, bytes]]:
        """Return the names of the fields of the first record, and the beginning of each cell before the
        value."""
        heads: list[tuple[str, bytes]] = []
        for place, cell in enumerate(first.split(border)):
            found = _CELL.match(border[1:] + cell) if place else _FIRST_CELL.match(cell)
            if found is None:
                raise Unproved
            heads.append((str(found[1], "utf-8", "replace"), border[: min(place, 1)] + found[0]))
        names = {name for name, _ in heads}
        lacking = (field.required for name, field in self._fields.items() if name not in names)
        if len(names) < len(heads) or not names <= self._fields.keys() or any(lacking):
            raise Unproved
        return heads


def _cut(values: "pa.Array", border: bytes, count: int) -> "pa.Array":
    """Return the texts of the fields of all records, record by record, `count` of each: cut before the
    comma of each border, the first one with `{`, the last one with `}`. border: text between two fields.

    Raises Unproved.
    """
    import numpy as np
    import pyarrow as pa

    _, offsets, data = values.buffers()
    places = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
    first = int(places[0])
    text = np.frombuffer(data, np.uint8)[first : places[-1]]
    begins = places[:-1] - first
    ends = places[1:] - first - 1
    if (
        (begins >= ends).any()
        or (text[begins] != _BEGIN).any()
        or (text[ends] != _END).any()
        or text.min() < _SPACE
        or (text == _BACKSLASH).any()
    ):
        raise Unproved
    last = len(border) - 1
    is_border = text[:-last] == _COMMA
    for place in range(1, last + 1):
        is_border &= text[place : len(text) - last + place] == border[place]
    commas = np.flatnonzero(is_border)
    if len(commas) != len(values) * (count - 1):
        raise Unproved
    cuts = np.column_stack((begins, commas.reshape(len(values), count - 1)))
    if np.greater(cuts[:, -1], ends).any() or np.less(cuts.min(axis=1), begins).any():
        raise Unproved  # not every record has so many
    limits = np.append(cuts.ravel() + first, places[-1]).astype(np.int32)
    cells = pa.StringArray.from_buffers(len(limits) - 1, pa.py_buffer(limits), data)
    if text.max() > _ASCII:
        cells.validate(full=True)
    return cells


def _part(texts: "pa.Array", start: int, stop: int = _BYTES_MAX) -> "pa.Array":
    """Return the same part of each text; what is cut off is ASCII."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.binary_slice(texts.view(pa.binary()), start, stop).view(pa.string())


def block_reader(kind: StructType, document: object) -> BlockReader | None:
    """Return a reader for the columns `kind`, None where some are not plain values. document: the JSON Schema
    whose keywords must be checked, None without any."""
    names = {_name_of(field) for field in kind.fields}
    if not names or not names <= {"boolean", *INTEGERS, "float", "double", "string", *_FORMS}:
        return None
    return BlockReader(kind) if is_covered(kind, document) else None


def _name_of(field: Field) -> str:
    return field.type.name if isinstance(field.type, Primitive) else ""


ConvertColumn = Callable[["pa.Array", "pa.DataType"], "pa.Array"]
Parse = Callable[["pa.Array"], "pa.Array"]


def _column_of(field: Field) -> ConvertColumn:
    """Return the function from JSON values, as texts, to a column. It raises ArrowException, Unproved."""
    import pyarrow.compute as pc

    parse, convert, check = _parser_of(field), _converter_of(field), _check_of(field)

    def column(texts: "pa.Array", kind: "pa.DataType") -> "pa.Array":
        if field.nullable:
            texts = pc.if_else(pc.equal(texts, "null"), None, texts)
        values = parse(texts)
        found = convert(values, kind)
        if not check(values):
            raise Unproved
        return found

    return column


def _parser_of(field: Field) -> Parse:
    """Return the function from JSON values, as texts or null, to values. It raises ArrowException,
    Unproved."""
    name = _name_of(field)
    if name == "boolean":
        return _booleans
    if name in INTEGERS:
        return _integers
    return _doubles if name in ("float", "double") else _strings


def _booleans(texts: "pa.Array") -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    _require(pc.is_in(texts, pa.array(["true", "false", None])))
    return pc.equal(texts, "true")


def _integers(texts: "pa.Array") -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    has_more = pc.greater(pc.binary_length(texts), 1)
    _require(pc.invert(pc.and_(pc.starts_with(texts, "0"), has_more)))  # Arrow also reads 007 and 0x7
    _require(pc.invert(pc.starts_with(texts, "-0")))
    return texts.cast(pa.int64())


def _doubles(texts: "pa.Array") -> "pa.Array":
    import pyarrow as pa
    import pyarrow.compute as pc

    _require(pc.match_substring_regex(texts, _NUMBER))
    return texts.cast(pa.float64())


def _strings(texts: "pa.Array") -> "pa.Array":
    import pyarrow.compute as pc

    _require(pc.and_(pc.starts_with(texts, '"'), pc.ends_with(texts, '"')))
    _require(pc.greater(pc.binary_length(texts), 1))
    found = _part(texts, 1, -1)
    _require(pc.invert(pc.match_substring(found, '"')))
    return found


def _require(condition: "pa.Array") -> None:
    """Raise Unproved unless a condition holds for all values; null does not count as a value."""
    import pyarrow.compute as pc

    if not pc.all(condition, min_count=0).as_py():
        raise Unproved


def _converter_of(field: Field) -> ConvertColumn:
    """Return the function from a parsed column to one of the schema's type. It raises ArrowException,
    Unproved."""
    import pyarrow as pa
    import pyarrow.compute as pc

    name = _name_of(field)
    if name in _FORMS:
        form = _FORMS[name]
        # Arrow reads the year 0 too
        first = FIRST_DAY if name == "date" else FIRST_DAY * DAY_MICROS

        def converted(column: pa.Array, kind: pa.DataType) -> pa.Array:
            if not pc.all(pc.match_substring_regex(column, form), min_count=0).as_py():
                raise Unproved
            found = column.cast(kind)
            least = pc.min(found.cast(pa.int32() if name == "date" else pa.int64())).as_py()
            if least is not None and least < first:
                raise Unproved
            return found

        return converted
    if name in ("float", "double"):
        most = FLOAT_MAX if name == "float" else math.inf

        def in_range(column: pa.Array, kind: pa.DataType) -> pa.Array:
            has_negative_zero = pc.min(pc.divide(1.0, column)).as_py() == -math.inf  # `-0` is read as 0.0
            if has_negative_zero or not pc.all(pc.less(pc.abs(column), most), min_count=0).as_py():
                raise Unproved
            return column.cast(kind)

        return in_range
    return lambda column, kind: column.cast(kind)


def _check_of(field: Field) -> Callable[["pa.Array"], bool]:
    """Return the check of the keywords of a field, as `fast_json` has them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    rules = rules_of(field)
    if not rules:
        return lambda column: True
    if "enum" in rules:
        allowed = pa.array([item for item in rules["enum"] if item is not None], pa.string())
        return lambda column: bool(pc.all(pc.is_in(column.drop_null(), allowed), min_count=0).as_py())
    if field.type == Primitive("string"):
        low, high = rules.get("minLength", 0), rules.get("maxLength", math.inf)
        return lambda column: _is_within(pc.utf8_length(column), low, high)
    if _name_of(field) in INTEGERS:
        least, most = integer_range(_name_of(field), rules)
        return lambda column: _is_within(column, least, most)
    # a double at the rounded limit may be read from a number beyond the limit
    above = [float(rules[key]) for key in ("minimum", "exclusiveMinimum") if key in rules]
    below = [float(rules[key]) for key in ("maximum", "exclusiveMaximum") if key in rules]
    return lambda column: _is_within(column, max(above, default=None), min(below, default=None), is_open=True)


def _is_within(column: Any, low: float | None, high: float | None, *, is_open: bool = False) -> bool:
    import pyarrow.compute as pc

    found = pc.min_max(column).as_py()
    if found["min"] is None:
        return True
    if is_open:
        return (low is None or found["min"] > low) and (high is None or found["max"] < high)
    return (low is None or found["min"] >= low) and (high is None or found["max"] <= high)
