"""Avro: a schema to columns, and records (plain, or after the 5-byte prefix of registries) to rows."""

import io
import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, Final

from app.schemas.data_types import (
    DECIMAL_DIGITS_MAX,
    DEPTH_MAX,
    Convert,
    DataType,
    DecimalType,
    Field,
    FieldCount,
    ListType,
    MapType,
    Primitive,
    Row,
    StructType,
    check_days,
    check_int,
    check_micros,
)
from app.schemas.errors import SchemaInvalid, SchemaLibraryMissing, ValueInvalid
from app.schemas.json_text import read_json, shown
from app.schemas.schema import AVRO_PREFIX_BYTES, LogSchema, prefix_version

PRIMITIVES: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "bytes": "binary",
    "string": "string",
    "fixed": "binary",
    "enum": "string",
}
"""Types of Avro without parts, and the columns that they become."""
LOGICAL_TYPES: Final = {
    "date": ("int", "date"),
    "time-millis": ("int", "int"),
    "time-micros": ("long", "bigint"),
    "timestamp-millis": ("long", "timestamp"),
    "timestamp-micros": ("long", "timestamp"),
    "timestamp-nanos": ("long", "timestamp"),
    "local-timestamp-millis": ("long", "timestamp_ntz"),
    "local-timestamp-micros": ("long", "timestamp_ntz"),
    "local-timestamp-nanos": ("long", "timestamp_ntz"),
    "uuid": ("string", "string"),
    "duration": ("fixed", "binary"),
}
"""Logical types of Avro, the type that they annotate, and the column; besides `decimal`."""
_MICROS: Final[dict[str, Convert]] = {
    "millis": lambda value: check_micros(value * 1_000),
    "micros": check_micros,
    "nanos": lambda value: check_micros(value // 1_000),
}

_Skip = Callable[[bytes, int], int]
"""Function from the beginning of a value to its end. It raises ValueInvalid for a number beyond 64 bits."""
_LOW_BYTES: Final = bytes(range(0x80))
_HIGH_BITS: Final = bytes(byte & 0x80 for byte in range(256))
_NUMBER_BYTES_MAX: Final = 10
_LONG_RUN: Final = b"\x80" * (_NUMBER_BYTES_MAX - 1)
_SIZES: Final = {"null": 0, "boolean": 1, "float": 4, "double": 8}


def struct_of_avro(definition: str) -> StructType:
    """Return the columns of an Avro schema. Raises SchemaInvalid, SchemaLibraryMissing."""
    return _read(definition).kind


class AvroReader:
    """Reads records with one schema of the format avro. Thread-safe."""

    def __init__(self, schema: LogSchema) -> None:
        import fastavro

        found = _read(schema.definition)
        self._version = schema.version
        parsed = fastavro.parse_schema(found.plain)
        self._check_numbers = _skipper(parsed, {})
        self._schema = _strict(parsed)
        self._decode = fastavro.schemaless_reader
        self._converts = found.converts

    def row(self, value: bytes) -> tuple[Row, str | None]:
        """Return the row of a record; Avro has no unknown fields. Raises ValueInvalid."""
        if prefix_version(value) == self._version:
            try:
                return self._row(value, AVRO_PREFIX_BYTES), None
            except ValueInvalid as error:
                try:
                    return self._row(value, 0), None
                except ValueInvalid:
                    raise error from None
        return self._row(value, 0), None

    def _row(self, value: bytes, start: int) -> Row:
        source = io.BytesIO(value)
        source.seek(start)
        try:
            record: Any = self._decode(source, self._schema, None)
        except KeyError as error:
            raise ValueInvalid(f"A union or an enum of the schema has no index {error}.") from None
        except Exception as error:  # fastavro raises EOFError, IndexError, ValueError and others
            detail = shown(str(error) or type(error).__name__)
            raise ValueInvalid(f"The record is not valid Avro for the schema: {detail}.") from None
        if source.tell() != len(value):
            raise ValueInvalid(f"{len(value) - source.tell()} bytes follow the end of the record.")
        if _has_long_run(bytes(value)):  # of the front end a memoryview
            self._check_numbers(value, start)
        for name, convert in self._converts:
            part = record[name]
            if part is not None:
                try:
                    record[name] = convert(part)
                except ValueInvalid as error:
                    error.path.insert(0, name)
                    raise
        return tuple(record.values())


class _Definition:
    """A schema that was read: its columns, its converters by field, and itself without logical types."""

    def __init__(self, kind: StructType, converts: list[tuple[str, Convert]], plain: Any) -> None:
        self.kind, self.converts, self.plain = kind, converts, plain


def _read(definition: str) -> _Definition:
    try:
        import fastavro
    except ImportError:
        raise SchemaLibraryMissing("fastavro", "avro") from None
    try:
        read_json(definition.encode("utf-8", "surrogatepass"), "definition")
        document = json.loads(definition)
        if not isinstance(document, dict) or document.get("type") != "record":
            raise SchemaInvalid("", "The definition must be an Avro schema of the type record.")
        parsed: Any = fastavro.parse_schema(document)
    except ValueInvalid as error:
        raise SchemaInvalid("", error.reason) from None
    except SchemaInvalid:
        raise
    except Exception as error:  # fastavro raises SchemaParseException, UnknownType, TypeError and others
        raise SchemaInvalid("", f"Not valid as Avro schema: {shown(str(error))}.") from None
    walker = _Walker()
    kind, _ = walker.record(parsed, "", ())
    plain = json.loads(json.dumps(document), object_hook=_without_logical_type)
    return _Definition(kind, walker.converts_of(parsed), plain)


def _without_logical_type(members: dict[str, Any]) -> dict[str, Any]:
    if isinstance(members.get("logicalType"), str):
        del members["logicalType"]
    return members


def _strict(schema: Any) -> Any:
    """Return a parsed schema, changed, with which fastavro reads what it would misread.

    fastavro takes an index of a record as one of Python: -1 would be the last symbol of an enum. A dict has
    no such index: unions and enums raise KeyError for an index beyond their ends. A union must be a list: it
    is an empty one, to whose length no index is relative, and its items are those of a dict. So the check
    costs nothing measurable. It takes each byte but 0 for true: a boolean is read as a byte for `_Booleans`.
    """
    if isinstance(schema, list):
        branches = dict(enumerate(map(_strict, schema)))
        return type("Union", (list,), {"__getitem__": branches.__getitem__})()
    if schema == "boolean":
        return {"type": "fixed", "name": "boolean", "size": 1}
    if isinstance(schema, dict):
        if schema["type"] == "boolean":
            return _strict("boolean")
        for part in ("type", "items", "values"):
            if part in schema:
                schema[part] = _strict(schema[part])
        for field in schema.get("fields", ()):
            field["type"] = _strict(field["type"])
        if "symbols" in schema:
            schema["symbols"] = dict(enumerate(schema["symbols"]))
    return schema


class _Walker:
    """Walks a schema that fastavro has parsed: names are full, each is defined at its first place."""

    def __init__(self) -> None:
        self._named: dict[str, Mapping[str, Any]] = {}
        self._converts: dict[int, list[tuple[str, Convert]]] = {}
        self._count = FieldCount()

    def converts_of(self, schema: Mapping[str, Any]) -> list[tuple[str, Convert]]:
        return self._converts[id(schema)]

    def record(
        self, schema: Mapping[str, Any], pointer: str, parents: tuple[str, ...]
    ) -> tuple[StructType, Convert]:
        name = schema["name"]
        if name in parents:
            raise SchemaInvalid(pointer, f"{name} contains itself; recursive types have no columns.")
        if len(parents) > DEPTH_MAX:
            raise SchemaInvalid(pointer, f"The schema has more than {DEPTH_MAX} levels.")
        self._named[name] = schema
        if not schema["fields"]:
            raise SchemaInvalid(pointer, f"The record {name} has no fields.")
        fields, converts = [], []
        for at, part in enumerate(schema["fields"]):
            self._count.add()
            place = f"{pointer}/fields/{at}"
            kind, nullable, convert = self._type(part["type"], f"{place}/type", (*parents, name))
            comment = str(part.get("doc") or "")
            fields.append(Field(part["name"], kind, nullable, not nullable, comment))
            if convert is not None:
                converts.append((part["name"], convert))
        self._converts[id(schema)] = converts

        def converted(value: Any) -> Any:
            for name, convert in converts:
                if value[name] is not None:
                    try:
                        value[name] = convert(value[name])
                    except ValueInvalid as error:
                        error.path.insert(0, name)
                        raise
            return value

        return StructType(tuple(fields)), converted

    def _type(
        self, schema: Any, pointer: str, parents: tuple[str, ...]
    ) -> tuple[DataType, bool, Convert | None]:
        """Return the type, true if null is allowed, and the function to a value for Arrow, if any."""
        if isinstance(schema, list):
            others = [each for each in schema if each != "null"]
            if len(others) != 1:
                raise SchemaInvalid(pointer, 'A union can only be of "null" and one type.')
            kind, nullable, convert = self._type(others[0], pointer, parents)
            return kind, nullable or len(schema) > 1, convert
        if isinstance(schema, str):
            schema = self._named.get(schema, {"type": schema})
        name = schema["type"]
        if isinstance(name, dict | list):
            return self._type(name, f"{pointer}/type", parents)
        if name == "record":
            struct, convert = self.record(schema, pointer, parents)
            return struct, False, convert
        if name in ("array", "map"):
            of = "items" if name == "array" else "values"
            kind, nullable, convert = self._type(schema[of], f"{pointer}/{of}", (*parents, f"{len(parents)}"))
            if len(parents) > DEPTH_MAX:
                raise SchemaInvalid(pointer, f"The schema has more than {DEPTH_MAX} levels.")
            if name == "array":
                return ListType(kind, nullable), False, None if convert is None else _each(convert)
            return MapType(Primitive("string"), kind, nullable), False, _entries(convert)
        if name in ("fixed", "enum"):
            self._named[schema["name"]] = schema
            if name == "fixed" and schema["size"] < 1:
                raise SchemaInvalid(f"{pointer}/size", "A fixed type needs at least one byte.")
        if name not in PRIMITIVES:
            raise SchemaInvalid(pointer, f"{shown(name)} is not the type of a column.")
        return self._column(name, schema, pointer), False, self._convert(name, schema)

    def _column(self, name: str, schema: Mapping[str, Any], pointer: str) -> DataType:
        logical = schema.get("logicalType")
        if logical == "decimal" and name in ("bytes", "fixed"):
            precision, scale = schema.get("precision"), schema.get("scale", 0)
            if not (
                isinstance(precision, int)
                and isinstance(scale, int)
                and 1 <= precision <= DECIMAL_DIGITS_MAX
                and 0 <= scale <= precision
            ):
                raise SchemaInvalid(
                    pointer,
                    f"A decimal has a precision between 1 and {DECIMAL_DIGITS_MAX}, and a scale up to that.",
                )
            return DecimalType(precision, scale)
        base, column = LOGICAL_TYPES.get(logical, ("", "")) if isinstance(logical, str) else ("", "")
        if base != name:
            return Primitive(PRIMITIVES[name])
        return Primitive(column, unit=str(logical) if str(logical).startswith("time-") else "")

    def _convert(self, name: str, schema: Mapping[str, Any]) -> Convert | None:
        logical = schema.get("logicalType")
        if logical == "decimal" and name in ("bytes", "fixed"):
            return _decimal_of(schema["precision"], schema.get("scale", 0))
        if name == "boolean":
            return _BOOLEANS.__getitem__
        if name == "int":  # fastavro reads numbers of up to 64 bits
            return check_days if logical == "date" else check_int
        if not isinstance(logical, str) or LOGICAL_TYPES.get(logical, ("", ""))[0] != name:
            return None
        return _MICROS[logical.rpartition("-")[2]] if "timestamp" in logical else None


def _each(convert: Convert) -> Convert:
    def converted(items: Any) -> Any:
        for position, item in enumerate(items):
            if item is not None:
                try:
                    items[position] = convert(item)
                except ValueInvalid as error:
                    error.path.insert(0, position)
                    raise
        return items

    return converted


def _entries(convert: Convert | None) -> Convert:
    def converted(members: Any) -> Any:
        if convert is None:
            return list(members.items())
        entries = []
        for name, item in members.items():
            try:
                entries.append((name, None if item is None else convert(item)))
            except ValueInvalid as error:
                error.path.insert(0, name)
                raise
        return entries

    return converted


def _decimal_of(precision: int, scale: int) -> Convert:
    limit = 10**precision

    def converted(value: Any) -> Any:
        unscaled = int.from_bytes(value, "big", signed=True)
        if abs(unscaled) >= limit:
            raise ValueInvalid(f"The number has more than {precision} digits.")
        return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -scale))

    return converted


class _Booleans(dict[bytes, bool]):
    """Booleans by their byte."""

    def __missing__(self, value: bytes) -> bool:
        raise ValueInvalid(f"A boolean is the byte 0 or 1, got {value[0]}.")


_BOOLEANS: Final = _Booleans({b"\x00": False, b"\x01": True})


def _has_long_run(value: bytes) -> bool:
    """Return true if a number in the record may have more than 64 bits, false for most records."""
    if len(value.translate(None, _LOW_BYTES)) < len(_LONG_RUN):  # the faster test
        return False
    return _LONG_RUN in value.translate(_HIGH_BITS)


def _skipper(schema: Any, named: dict[str, _Skip]) -> _Skip:
    """Return the check of the numbers in values that fastavro has read. named: of earlier types."""
    if isinstance(schema, list):
        return _of_union([_skipper(branch, named) for branch in schema])
    if isinstance(schema, str):
        return named[schema] if schema in named else _skipper({"type": schema}, named)
    kind = schema["type"]
    if isinstance(kind, dict | list):
        return _skipper(kind, named)
    if kind in ("array", "map"):
        item = _skipper(schema["items" if kind == "array" else "values"], named)
        return _of_blocks(item if kind == "array" else _in_sequence([_bytes, item]))
    if kind in ("bytes", "string"):
        return _bytes
    if kind in ("int", "long"):
        return _after_number
    if kind not in ("enum", "fixed", "record"):
        return _of_size(_SIZES[kind])
    found = _of_named(kind, schema, named)
    named[schema["name"]] = found
    return found


def _of_named(kind: str, schema: Mapping[str, Any], named: dict[str, _Skip]) -> _Skip:
    if kind == "enum":
        return _after_number
    if kind == "fixed":
        return _of_size(schema["size"])
    return _in_sequence([_skipper(field["type"], named) for field in schema["fields"]])


def _number(value: bytes, place: int) -> tuple[int, int]:
    """Return a number, and the place after it. Raises ValueInvalid beyond 64 bits."""
    found = 0
    for position in range(_NUMBER_BYTES_MAX):
        byte = value[place + position]
        found |= (byte & 0x7F) << 7 * position
        if byte < 0x80 and found < 1 << 64:
            return (found >> 1) ^ -(found & 1), place + position + 1
    raise ValueInvalid(f"The number at byte {place} has more than 64 bits.")


def _after_number(value: bytes, place: int) -> int:
    return place + 1 if value[place] < 0x80 else _number(value, place)[1]


def _bytes(value: bytes, place: int) -> int:
    size, place = _number(value, place)
    return place + size


def _of_size(size: int) -> _Skip:
    return lambda value, place: place + size


def _in_sequence(parts: list[_Skip]) -> _Skip:
    def skip(value: bytes, place: int) -> int:
        for part in parts:
            place = part(value, place)
        return place

    return skip


def _of_union(branches: list[_Skip]) -> _Skip:
    def skip(value: bytes, place: int) -> int:
        branch, place = _number(value, place)
        return branches[branch](value, place)

    return skip


def _of_blocks(item: _Skip) -> _Skip:
    def skip(value: bytes, place: int) -> int:
        count, place = _number(value, place)
        while count:
            if abs(count) > len(value):  # fastavro takes the least number of 64 bits for an empty block
                raise ValueInvalid(f"The block before byte {place} has more items than the record has bytes.")
            if count < 0:
                _, place = _number(value, place)  # size of the block in bytes
            for _ in range(abs(count)):
                place = item(value, place)
            count, place = _number(value, place)
        return place

    return skip
