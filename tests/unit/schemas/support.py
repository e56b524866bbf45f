"""Schemas for tests, and what a decoder makes of single records."""

import json
from typing import Any

import pyarrow as pa

from app.schemas import LogSchema, RecordDecoder


def schema_of(definition: str | dict[str, Any], **settings: Any) -> LogSchema:
    """Return version 1 with a definition in JSON Schema (a document or its text) or DDL."""
    text = definition if isinstance(definition, str) else json.dumps(definition)
    return LogSchema(**{"version": 1, "index": 0, "format": "json", "definition": text, **settings})


def decoder_of(definition: str | dict[str, Any], **settings: Any) -> RecordDecoder:
    return RecordDecoder({1: schema_of(definition, **settings)}, 1)


def rows_of(decoder: RecordDecoder, *values: bytes | None) -> list[dict[str, Any]]:
    """Return the rows of records that must all match."""
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert decoded.errors == []
    rows: list[dict[str, Any]] = decoded.rows.to_pylist()
    return rows
