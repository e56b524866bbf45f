"""Columns of a schema, whatever its format, and the checks that all formats share."""

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from app.schemas.avro import struct_of_avro
from app.schemas.data_types import (
    RESERVED_NAMES,
    DataType,
    DecimalType,
    ListType,
    MapType,
    Primitive,
    StructType,
    check_columns,
    check_new_names,
    ddl_of,
)
from app.schemas.ddl import struct_of_ddl
from app.schemas.errors import SchemaInvalid
from app.schemas.json_schema import check_patterns, count_rules, read_json_schema
from app.schemas.protobuf import struct_of_protobuf
from app.schemas.schema import FORMATS, Column, LogSchema

if TYPE_CHECKING:
    import pyarrow as pa

CLUSTER_COLUMNS_MAX: Final = 4
"""Columns of `cluster_by`: the limit of Delta."""
_NOT_CLUSTERED: Final = ("boolean", "binary")
_NOT_KEYS: Final = ("float", "double")


def columns_of(schema: LogSchema) -> tuple[Column, ...]:
    """Return the columns of a schema in the order of its definition.

    Columns of `key_columns` are never null. Raises SchemaInvalid (an unsupported keyword by name, an unknown
    key column, names that differ only in case, ...), SchemaLibraryMissing.
    """
    return tuple(
        Column(field.name, ddl_of(field.type), field.is_optional, field.comment)
        for field in struct_of(schema).fields
    )


@lru_cache(maxsize=32)
def struct_of(schema: LogSchema) -> StructType:
    """Return the fields of a schema. Raises SchemaInvalid, SchemaLibraryMissing."""
    columns = _struct_of_definition(schema)
    check_columns(columns)
    _check_keys(schema, columns)
    _check_clustering(schema, columns)
    keys = set(schema.key_columns)
    fields = (
        replace(field, nullable=False, required=True) if field.name in keys else field
        for field in columns.fields
    )
    return replace(columns, fields=tuple(fields))


def _struct_of_definition(schema: LogSchema) -> StructType:
    if schema.format == "protobuf":
        return struct_of_protobuf(schema.definition, schema.message)
    if schema.message is not None:
        raise SchemaInvalid("/message", "`message` belongs to the format protobuf.")
    if schema.format == "avro":
        return struct_of_avro(schema.definition)
    if schema.format == "json":
        if is_json_schema(schema.definition):
            return read_json_schema(schema.definition)[0]
        columns = struct_of_ddl(schema.definition)
        _check_map_keys(columns, "")
        return columns
    raise SchemaInvalid("/format", f"`format` must be one of {', '.join(FORMATS)}, got `{schema.format}`.")


def is_json_schema(definition: str) -> bool:
    """Return true for the text of a JSON document, false for DDL."""
    return definition.lstrip()[:1] in ("{", "[")


def document_of(schema: LogSchema) -> dict[str, Any] | None:
    """Return the document of a JSON Schema whose records need the validator, else None."""
    if schema.format != "json" or not is_json_schema(schema.definition):
        return None
    document = read_json_schema(schema.definition)[1]
    return document if count_rules(document) else None


def check_new(schema: LogSchema) -> None:
    """Check that a valid schema is within the limits for a new one. Raises SchemaInvalid."""
    check_new_names(struct_of(schema))
    document = document_of(schema)
    if document is not None:
        check_patterns(document)


def _check_map_keys(kind: DataType, pointer: str) -> None:
    """Names of a JSON object are strings, so a map has no other keys."""
    match kind:
        case StructType(fields):
            for field in fields:
                _check_map_keys(field.type, f"{pointer}/{field.name}")
        case ListType(element):
            _check_map_keys(element, f"{pointer}/element")
        case MapType(key, value):
            if key != Primitive("string"):
                raise SchemaInvalid(pointer, f"A map in JSON has string keys, got {ddl_of(key)}.")
            _check_map_keys(value, f"{pointer}/value")


def _check_keys(schema: LogSchema, columns: StructType) -> None:
    types = {field.name: field.type for field in columns.fields}
    for at, name in enumerate(schema.key_columns):
        pointer = f"/key_columns/{at}"
        if name not in types:
            raise SchemaInvalid(pointer, f"`{name}` is not a column of the schema.")
        if schema.key_columns.index(name) != at:
            raise SchemaInvalid(pointer, f"`{name}` occurs twice.")
        kind = types[name]
        if not isinstance(kind, Primitive | DecimalType) or ddl_of(kind) in _NOT_KEYS:
            raise SchemaInvalid(pointer, f"`{name}` is {ddl_of(kind)}; a key is a simple type, and exact.")


def _check_clustering(schema: LogSchema, columns: StructType) -> None:
    types = {field.name: ddl_of(field.type) for field in columns.fields}
    types |= dict.fromkeys(RESERVED_NAMES - {"_rescued"}, "bigint")
    if len(schema.cluster_by) > CLUSTER_COLUMNS_MAX:
        raise SchemaInvalid(
            "/cluster_by", f"At most {CLUSTER_COLUMNS_MAX} columns, got {len(schema.cluster_by)}."
        )
    for at, name in enumerate(schema.cluster_by):
        pointer = f"/cluster_by/{at}"
        if name not in types:
            raise SchemaInvalid(pointer, f"`{name}` is not a column of the schema.")
        if schema.cluster_by.index(name) != at:
            raise SchemaInvalid(pointer, f"`{name}` occurs twice.")
        if "<" in types[name] or types[name] in _NOT_CLUSTERED:
            raise SchemaInvalid(
                pointer, f"`{name}` is {types[name]}; Delta clusters by simple, ordered types."
            )


_ARROW_NAMES: Final = {
    "boolean": "bool_",
    "tinyint": "int8",
    "smallint": "int16",
    "int": "int32",
    "bigint": "int64",
    "float": "float32",
    "double": "float64",
    "string": "string",
    "binary": "binary",
    "date": "date32",
}


def arrow_schema_of(schema: LogSchema) -> "pa.Schema":
    """Return the columns as an Arrow schema: timestamps in microseconds, `timestamp` in UTC.

    Nested fields are nullable. Raises as `columns_of`.
    """
    import pyarrow as pa

    return pa.schema(
        [
            pa.field(field.name, arrow_type_of(field.type), field.is_optional)
            for field in struct_of(schema).fields
        ]
    )


def arrow_type_of(kind: DataType) -> "pa.DataType":
    """Return a type as that of Arrow."""
    import pyarrow as pa

    match kind:
        case Primitive("timestamp"):
            return pa.timestamp("us", "UTC")
        case Primitive("timestamp_ntz"):
            return pa.timestamp("us")
        case Primitive(name):
            return getattr(pa, _ARROW_NAMES[name])()
        case DecimalType(precision, scale):
            return pa.decimal128(precision, scale)
        case ListType(element):
            return pa.list_(pa.field("element", arrow_type_of(element)))
        case MapType(key, value):
            return pa.map_(arrow_type_of(key), arrow_type_of(value))
        case StructType(fields):
            return pa.struct([pa.field(field.name, arrow_type_of(field.type)) for field in fields])
