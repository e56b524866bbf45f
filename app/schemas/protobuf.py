"""Protobuf: a FileDescriptorSet and the name of a message to columns, and messages to rows."""

import base64
import binascii
import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from app.schemas.data_types import (
    DEPTH_MAX,
    DataType,
    DecimalType,
    Field,
    FieldCount,
    ListType,
    MapType,
    Primitive,
    Row,
    StructType,
    check_micros,
)
from app.schemas.errors import SchemaInvalid, SchemaLibraryMissing, ValueInvalid
from app.schemas.json_text import shown
from app.schemas.schema import LogSchema

Get = Callable[[Any], Any]
"""Function from a message, or a value of a field, to a value for Arrow."""
PRIMITIVES: Final = {
    "double": "double",
    "float": "float",
    "int32": "int",
    "sint32": "int",
    "sfixed32": "int",
    "uint32": "bigint",
    "fixed32": "bigint",
    "int64": "bigint",
    "sint64": "bigint",
    "sfixed64": "bigint",
    "uint64": "decimal(20,0)",
    "fixed64": "decimal(20,0)",
    "bool": "boolean",
    "string": "string",
    "bytes": "binary",
    "enum": "string",
}
"""Types of Protobuf without parts, and the columns that they become."""
TIMESTAMP: Final = "google.protobuf.Timestamp"
WRAPPERS: Final = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
"""Messages that are a nullable column of the type of their only field."""
_WELL_KNOWN: Final = ("any", "duration", "empty", "field_mask", "struct", "timestamp", "wrappers")
_TYPE_NUMBERS: Final = {
    1: "double", 2: "float", 3: "int64", 4: "uint64", 5: "int32", 6: "fixed64", 7: "fixed32", 8: "bool",
    9: "string", 12: "bytes", 13: "uint32", 14: "enum", 15: "sfixed32", 16: "sfixed64", 17: "sint32",
    18: "sint64",
}  # fmt: skip
_NOT_UTF8: Final = "The text is not valid UTF-8."
_UINT64: Final = ("uint64", "fixed64")
_ENCODINGS: Final = {
    "varint": ("uint32", "uint64", "bool", "enum"),
    "signed varint": ("int32", "int64"),
    "zigzag varint": ("sint32", "sint64"),
    "4 bytes": ("float", "fixed32"),
    "signed 4 bytes": ("sfixed32",),
    "8 bytes": ("double", "fixed64"),
    "signed 8 bytes": ("sfixed64",),
    "length and bytes": ("string", "bytes"),
}
_ENCODING_OF: Final = {name: encoding for encoding, names in _ENCODINGS.items() for name in names}


def struct_of_protobuf(definition: str, message: str | None) -> StructType:
    """Return the columns of a message. Raises SchemaInvalid, SchemaLibraryMissing.

    definition: base64 of a FileDescriptorSet, as `protoc --descriptor_set_out --include_imports` writes it.
    """
    return _Message(_descriptor(definition, message), (), "", FieldCount()).kind


class ProtobufReader:
    """Reads records with one schema of the format protobuf. Thread-safe."""

    def __init__(self, schema: LogSchema) -> None:
        from google.protobuf import message, message_factory

        descriptor = _descriptor(schema.definition, schema.message)
        self._class = message_factory.GetMessageClass(descriptor)
        self._message = _Message(descriptor, (), "", FieldCount())
        self._error = message.DecodeError

    def row(self, value: bytes) -> tuple[Row, str | None]:
        """Return the row of a record, and its unknown fields by number as JSON. Raises ValueInvalid."""
        record = self._class()
        try:
            _methods(record).ParseFromString(value)
        except self._error as error:
            raise ValueInvalid(f"The record is not a valid message: {shown(str(error))}.") from None
        try:
            row = tuple(self._message.values(record))
            unknown = self._message.unknown(record)
        except UnicodeDecodeError:  # a key of a map; only proto3 checks texts when it parses
            raise ValueInvalid(_NOT_UTF8) from None
        return row, json.dumps(unknown, separators=(",", ":")) if unknown else None


class _Message:
    """Columns of one message type, and how its values are read."""

    def __init__(self, descriptor: Any, parents: tuple[str, ...], pointer: str, count: FieldCount) -> None:
        name = descriptor.full_name
        self._count = count
        if name in parents:
            raise SchemaInvalid(pointer, f"{name} contains itself; recursive messages have no columns.")
        if len(parents) > DEPTH_MAX:
            raise SchemaInvalid(pointer, f"The schema has more than {DEPTH_MAX} levels.")
        if not descriptor.fields:
            raise SchemaInvalid(pointer, f"The message {name} has no fields, so it is not a column.")
        self._nested: list[tuple[str, bool, _Message | _Whole]] = []  # name, is repeated, type
        self._maps: list[tuple[str, _Message | _Whole]] = []
        self._parts: list[tuple[str, bool, Get | None]] = []  # name, has presence, function
        self._required = {field.name for field in descriptor.fields if _is_required(field)}
        fields = []
        for field in descriptor.fields:
            count.add()
            kind, get = self._field(field, (*parents, name), f"{pointer}/{field.name}")
            has_presence = field.has_presence and not _is_repeated(field)
            self._parts.append((field.name, has_presence, get))
            is_required = field.name in self._required
            fields.append(
                Field(
                    field.name,
                    kind,
                    not is_required,
                    is_required,
                    number=field.number,
                    encoding=_encoding_of(field),
                    oneof=field.containing_oneof.name if field.containing_oneof is not None else "",
                    symbols=_symbols_of(field),
                )
            )
        self.kind = StructType(tuple(fields))

    def values(self, record: Any) -> list[Any]:
        """Return the values of a message in the order of its fields. Raises ValueInvalid."""
        values: list[Any] = []
        has_field = _methods(record).HasField
        for name, has_presence, get in self._parts:
            if has_presence and not has_field(name):
                if name in self._required:
                    raise ValueInvalid(f"The field {shown(name)} is required.")
                values.append(None)
                continue
            value = getattr(record, name)
            if get is not None:
                try:
                    value = get(value)
                except ValueInvalid as error:
                    error.path.insert(0, name)
                    raise
            values.append(value)
        return values

    def unknown(self, record: Any) -> dict[str, Any]:
        """Return the fields that the descriptor lacks, by number; those of nested messages by name."""
        found = _unknown_fields(record)
        has_field = _methods(record).HasField
        for name, is_repeated, message in self._nested:
            if is_repeated:
                inner = {str(at): message.unknown(item) for at, item in enumerate(getattr(record, name))}
                inner = {at: item for at, item in inner.items() if item}
            else:
                inner = message.unknown(getattr(record, name)) if has_field(name) else {}
            if inner:
                found[name] = inner
        for name, message in self._maps:
            entries = {str(key): message.unknown(item) for key, item in getattr(record, name).items()}
            entries = {key: item for key, item in entries.items() if item}
            if entries:
                found[name] = entries
        return found

    def _field(self, field: Any, parents: tuple[str, ...], pointer: str) -> tuple[DataType, Get | None]:
        message = field.message_type
        if message is not None and message.GetOptions().map_entry:
            key, value = message.fields_by_name["key"], message.fields_by_name["value"]
            key_kind, of_key = self._single(key, parents, f"{pointer}/key", "")
            value_kind, of_value = self._single(value, parents, f"{pointer}/value", field.name, "map")
            return MapType(key_kind, value_kind), _entries(of_key, of_value)
        if _is_repeated(field):
            kind, get = self._single(field, parents, f"{pointer}/element", field.name, "list")
            return ListType(kind), list if get is None else _each(get)
        return self._single(field, parents, pointer, field.name)

    def _single(
        self, field: Any, parents: tuple[str, ...], pointer: str, name: str, place: str = ""
    ) -> tuple[DataType, Get | None]:
        """Return type and function of one value of a field. name, place: where nested messages are."""
        if field.message_type is not None:
            full_name = field.message_type.full_name
            if full_name == TIMESTAMP:
                self._place(name, place, _Whole())
                return Primitive("timestamp"), _micros
            if full_name in WRAPPERS:
                self._place(name, place, _Whole())
                kind, get = self._single(field.message_type.fields[0], parents, pointer, "")
                return kind, (lambda value: value.value) if get is None else (lambda value: get(value.value))
            nested = _Message(field.message_type, parents, pointer, self._count)
            self._place(name, place, nested)
            return nested.kind, nested.as_dict
        kind_name = _TYPE_NUMBERS[field.type]
        if kind_name == "enum":
            names = dict(_symbols_of(field))
            return Primitive("string"), lambda number: names.get(number) or str(number)
        if kind_name in _UINT64:
            return DecimalType(20, 0), None
        if kind_name == "string":
            return Primitive("string"), _text
        return Primitive(PRIMITIVES[kind_name]), None

    def _place(self, name: str, place: str, message: "_Message | _Whole") -> None:
        """Remember where messages are that may have unknown fields."""
        if place == "map":
            self._maps.append((name, message))
        else:
            self._nested.append((name, place == "list", message))

    def as_dict(self, record: Any) -> dict[str, Any]:
        """Return the values of a nested message by name. Raises ValueInvalid."""
        names = (part[0] for part in self._parts)
        return dict(zip(names, self.values(record), strict=True))


class _Whole:
    """A message that is one value of a column."""

    def unknown(self, record: Any) -> dict[str, Any]:
        """As `_Message.unknown`."""
        return _unknown_fields(record)


def _methods(record: Any) -> Any:
    """Return the methods of a message, also where a field has the name of one.

    Protobuf without its C part has them in the class itself, before the fields.
    """
    kind = type(record)
    return record if "HasField" in kind.__dict__ else super(kind, record)


def _unknown_fields(record: Any) -> dict[str, Any]:
    from google.protobuf import unknown_fields

    found: dict[str, Any] = {}
    for field in unknown_fields.UnknownFieldSet(record):
        _add(found, str(field.field_number), _unknown_value(field))
    return found


def _each(get: Get) -> Get:
    def converted(items: Any) -> Any:
        values = []
        for position, item in enumerate(items):
            try:
                values.append(get(item))
            except ValueInvalid as error:
                error.path.insert(0, position)
                raise
        return values

    return converted


def _entries(of_key: Get | None, of_value: Get | None) -> Get:
    def converted(members: Any) -> Any:
        entries = []
        keys = members if of_key is None else map(of_key, members)
        for key in sorted(keys):  # the order in a message is arbitrary; rows are the same on every machine
            try:
                value = members[key] if of_value is None else of_value(members[key])
            except ValueInvalid as error:
                error.path.insert(0, str(key))
                raise
            entries.append((key, value))
        return entries

    return converted


def _text(value: Any) -> Any:
    """Return a text, which the parser hands over as bytes if it is not UTF-8 in proto2."""
    if type(value) is not str:
        raise ValueInvalid(_NOT_UTF8)
    return value


def _micros(value: Any) -> int:
    if not 0 <= value.nanos < 1_000_000_000:
        raise ValueInvalid(f"A time has 0 to 999999999 nanoseconds, got {value.nanos}.")
    return check_micros(value.seconds * 1_000_000 + value.nanos // 1_000)


def _unknown_value(field: Any) -> Any:
    """Return an unknown field for JSON: numbers as on the wire, bytes as base64, groups by number."""
    if isinstance(field.data, int):
        return field.data
    if isinstance(field.data, bytes):
        return base64.b64encode(field.data).decode()
    members: dict[str, Any] = {}
    for inner in field.data:
        _add(members, str(inner.field_number), _unknown_value(inner))
    return members


def _add(members: dict[str, Any], name: str, value: Any) -> None:
    """Add a field that may be repeated: more than one value of a number are a list."""
    if name not in members:
        members[name] = value
    elif isinstance(members[name], list):
        members[name].append(value)
    else:
        members[name] = [members[name], value]


def _encoding_of(field: Any) -> str:
    """Return how the values of a field are on the wire. Whether repeated ones are packed makes no
    difference."""
    message = field.message_type
    if message is None:
        return _ENCODING_OF[_TYPE_NUMBERS[field.type]]
    if message.GetOptions().map_entry:
        return " to ".join(_encoding_of(message.fields_by_name[name]) for name in ("key", "value"))
    if field.type == field.TYPE_GROUP:
        return "group"
    wraps = message.full_name in WRAPPERS
    return f"message of {_encoding_of(message.fields[0])}" if wraps else _ENCODING_OF["bytes"]


def _symbols_of(field: Any) -> tuple[tuple[int, str], ...]:
    """Return number and name of the values of an enum, of aliases the first name. Of a map: of its values."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _symbols_of(field.message_type.fields_by_name["value"])
    if field.enum_type is None:
        return ()
    names = {value.number: value.name for value in reversed(field.enum_type.values)}
    return tuple(sorted(names.items()))


def _is_repeated(field: Any) -> bool:
    repeated = getattr(field, "is_repeated", None)  # protobuf 6.31; `label` is deprecated from there on
    return bool(field.label == field.LABEL_REPEATED if repeated is None else repeated)


def _is_required(field: Any) -> bool:
    required = getattr(field, "is_required", None)
    return bool(field.label == field.LABEL_REQUIRED if required is None else required)


@lru_cache(maxsize=32)
def _descriptor(definition: str, message: str | None) -> Any:
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool
        from google.protobuf.message import DecodeError
    except ImportError:
        raise SchemaLibraryMissing("protobuf", "protobuf") from None
    if not message:
        raise SchemaInvalid("/message", "The format protobuf needs `message`: the full name of a type.")
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(base64.b64decode(definition, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        raise SchemaInvalid("", "The definition must be base64 of a FileDescriptorSet.") from None
    pool = descriptor_pool.DescriptorPool()
    given = {file.name: file for file in files.file}
    added: set[str] = set()

    def add(name: str, parents: tuple[str, ...]) -> None:
        if name in added:
            return
        if name in parents:
            raise SchemaInvalid("", f"{name} imports itself.")
        file = given.get(name) or _well_known(name)
        if file is None:
            raise SchemaInvalid("", f"The set lacks {name}; `protoc --include_imports` adds it.")
        for imported in file.dependency:
            add(imported, (*parents, name))
        added.add(name)
        _remove_extensions(file)
        pool.AddSerializedFile(file.SerializeToString())

    try:
        for name in given:
            add(name, ())
        return pool.FindMessageTypeByName(message)
    except KeyError:
        raise SchemaInvalid("/message", f"The set has no message `{message}`.") from None
    except TypeError as error:
        raise SchemaInvalid("", f"Not valid as FileDescriptorSet: {shown(str(error))}.") from None


def _remove_extensions(declared: Any) -> None:
    """Remove the extensions that a file or a message declares. They have no columns: they are unknown
    fields, which are rescued."""
    del declared.extension[:]
    nested = declared.nested_type if hasattr(declared, "nested_type") else declared.message_type
    for message in nested:
        _remove_extensions(message)


def _well_known(name: str) -> Any:
    """Return the descriptor of a file that comes with Protobuf, None for another one."""
    from importlib import import_module

    from google.protobuf import descriptor_pb2

    short = name.removeprefix("google/protobuf/").removesuffix(".proto")
    if short not in _WELL_KNOWN or name != f"google/protobuf/{short}.proto":
        return None
    module = import_module(f"google.protobuf.{short}_pb2")
    return descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
