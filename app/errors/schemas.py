"""Refusals about the schema of a log: setting it, reading it, and appends that do not match it."""

from collections.abc import Sequence
from typing import Any

from app.errors.base import CommitlogError


class SchemaNotFound(CommitlogError):
    """The log has no schema, or none with this version. `GET /v1/logs/{log}/schemas` lists all versions."""

    code, title, http_status = "schema-not-found", "Schema not found", 404

    def __init__(self, log: str, version: int | None = None) -> None:
        what = "schema" if version is None else f"version {version} of its schema"
        super().__init__(f"log {log!r} has no {what}")


class SchemaChanged(CommitlogError):
    """The version of the log's schema differs from `If-Match`: another client has set a new one. Read the
    newest schema, and repeat the change with its ETag."""

    code, title, http_status = "schema-changed", "The schema has changed", 412

    def __init__(self, version: int | None) -> None:
        """version: the newest one, None while the log has no schema."""
        now = "the log has no schema" if version is None else f"the newest version is {version}"
        super().__init__(f"{now}, which differs from the version that the request requires")
        self.version = version

    def fields(self) -> dict[str, Any]:
        return {"version": self.version}


class SchemaIncompatible(CommitlogError):
    """Records that match the newest schema may not match the new one. `differences` lists each difference.

    With `compatibility: none` the schema is accepted: the typed tables continue in a new table.
    """

    code, title, http_status = "schema-incompatible", "The schema is not compatible with the newest one", 409

    def __init__(self, version: int, differences: Sequence[dict[str, str]]) -> None:
        """version: the newest one. differences: path, kind and detail of each."""
        first = "; ".join(f"{each['path'] or '/'}: {each['detail']}" for each in differences[:3])
        super().__init__(f"not compatible with version {version}: {first}")
        self.version = version
        self.differences = list(differences)

    def fields(self) -> dict[str, Any]:
        return {"version": self.version, "differences": self.differences}


class SchemaMismatch(CommitlogError):
    """A record of the append does not match the schema, and the schema has `on_invalid: reject`.

    `record` counts the records of the append from 0, `pointer` is the JSON pointer of the value in it.
    """

    code, title, http_status = "schema-mismatch", "A record does not match the schema", 422

    def __init__(self, version: int, record: int, pointer: str, reason: str) -> None:
        super().__init__(f"record {record}, {pointer or '/'}: {reason} (schema version {version})")
        self.version = version
        self.record = record
        self.pointer = pointer
        self.reason = reason

    def fields(self) -> dict[str, Any]:
        return {
            "version": self.version,
            "record": self.record,
            "pointer": self.pointer,
            "reason": self.reason,
        }
