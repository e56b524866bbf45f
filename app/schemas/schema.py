"""One version of a log's schema, and its columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

FORMATS: Final = ("json", "avro", "protobuf")
VERSION_HEADER: Final = b"schema-version"
AVRO_PREFIX_BYTES: Final = 5
"""A zero byte and the version in 4 bytes, big-endian: the prefix of registries."""
SCHEMA_VERSIONS_MAX: Final = 1_000  # of one log


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a typed table. type: Spark DDL, e.g. `struct<a:int>`."""

    name: str
    type: str
    nullable: bool
    comment: str = ""


@dataclass(frozen=True, slots=True)
class LogSchema:
    """One version of a schema, as the control record at `index` holds it.

    definition: a JSON Schema or a Spark DDL string (json), an Avro schema in JSON (avro), base64 of a
    FileDescriptorSet (protobuf; `message` names the type). key_columns identify a row of `current`.
    """

    version: int
    index: int
    format: str
    definition: str
    message: str | None = None
    key_columns: tuple[str, ...] = ()
    compatibility: str = "backward"
    on_invalid: str = "dead_letter"
    cluster_by: tuple[str, ...] = ()


def version_of(headers: Mapping[bytes, bytes] | None, value: bytes | None, format: str) -> int | None:
    """Return the version that a record names: by the header `schema-version`, else by Avro's prefix.

    None for a record that names none. A header that is not a number of at most 9 digits gives -1, which no
    schema has. Bytes that begin as a prefix count as one only for a version up to SCHEMA_VERSIONS_MAX.
    """
    named = headers.get(VERSION_HEADER) if headers else None
    if named is not None:
        return int(named) if named.isdigit() and len(named) <= 9 else -1
    if format == "avro" and value is not None:
        return prefix_version(value)
    return None


def prefix_version(value: bytes) -> int | None:
    """Return the version in the 5-byte prefix of an Avro value, None without a prefix."""
    if len(value) < AVRO_PREFIX_BYTES or value[0] != 0:
        return None
    version = int.from_bytes(value[1:AVRO_PREFIX_BYTES], "big")
    return version if 1 <= version <= SCHEMA_VERSIONS_MAX else None
