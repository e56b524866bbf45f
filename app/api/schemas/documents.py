"""Documents of schemas: what a client sends to set one, and what it gets (docs/api.md §5)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec

from app.api.http.json_decoding import Name
from app.errors import InvalidRequest
from app.log.control_records import SchemaRecord
from app.log.schemas import SchemaVersion, as_log_schema
from app.schemas import Column, SchemaInvalid, SchemaLibraryMissing, check_new, columns_of
from storage.units import NO_INDEX

_COLUMNS_MAX: Final = 1_000  # in key_columns and in cluster_by
_OWN_POINTERS: Final = ("/format", "/message", "/key_columns", "/cluster_by")  # others: in the definition
_KEPT: Final = 1_000  # versions whose columns are remembered

ColumnNames = Annotated[tuple[Name, ...], msgspec.Meta(max_length=_COLUMNS_MAX)]


class SchemaIn(msgspec.Struct, forbid_unknown_fields=True):
    """definition: JSON Schema or Avro schema as an object or as text; Spark DDL; a Protobuf descriptor set in
    base64 with `message`."""

    format: Literal["json", "avro", "protobuf"]
    definition: msgspec.Raw
    message: Name | None = None
    key_columns: ColumnNames = ()
    compatibility: Literal["backward", "none"] = "backward"
    on_invalid: Literal["dead_letter", "reject"] = "dead_letter"
    cluster_by: ColumnNames = ()

    def record(self) -> SchemaRecord:
        """Return it as a control record without a version. Raises InvalidRequest."""
        return SchemaRecord(
            version=0,
            format=self.format,
            definition=_text_of(self.definition),
            message=self.message,
            key_columns=self.key_columns,
            compatibility=self.compatibility,
            on_invalid=self.on_invalid,
            cluster_by=self.cluster_by,
        )


def _text_of(definition: msgspec.Raw) -> str:
    raw = bytes(definition)
    if raw[:1] == b'"':
        return msgspec.json.decode(raw, type=str)
    if raw[:1] in (b"{", b"["):
        return raw.decode()
    detail = f"must be an object, an array or a string, got {raw[:40].decode(errors='replace')}"
    raise InvalidRequest(("/definition", detail))


def check_valid(record: SchemaRecord) -> None:
    """Raise InvalidRequest for a definition that cannot be mapped to columns, or takes too much to check."""
    try:
        _columns(record)
        check_new(as_log_schema(SchemaVersion(NO_INDEX, record)))
    except SchemaInvalid as error:
        of_request = error.pointer.startswith(_OWN_POINTERS)
        pointer = error.pointer if of_request else f"/definition{error.pointer}"
        raise InvalidRequest((pointer, error.reason)) from error
    except SchemaLibraryMissing as error:
        raise InvalidRequest(("/format", str(error))) from error


@lru_cache(maxsize=_KEPT)
def _columns(record: SchemaRecord) -> tuple[Column, ...]:
    """Return the columns of a schema without a version. Raises SchemaInvalid."""
    return columns_of(as_log_schema(SchemaVersion(NO_INDEX, record)))


def document_of(version: SchemaVersion) -> dict[str, Any]:
    """Return the document of one version."""
    return {
        "version": version.version,
        "index": version.index,
        **{name: getattr(version.record, name) for name in SchemaIn.__struct_fields__},
        "columns": [
            {
                "name": column.name,
                "type": column.type,
                "nullable": column.nullable,
                "comment": column.comment,
            }
            for column in _columns(msgspec.structs.replace(version.record, version=0))
        ],
    }


def documents_of(versions: Sequence[SchemaVersion]) -> list[dict[str, Any]]:
    """Return the documents of versions. The columns of a new version take time: about 1 ms for 10 KiB."""
    return [document_of(version) for version in versions]


SCHEMA_EXAMPLE: Final = {
    "version": 1,
    "index": 45,
    "format": "json",
    "definition": '{"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}',
    "message": None,
    "key_columns": ["id"],
    "compatibility": "backward",
    "on_invalid": "dead_letter",
    "cluster_by": [],
    "columns": [{"name": "id", "type": "bigint", "nullable": False, "comment": ""}],
}
