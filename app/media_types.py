"""Media types of the REST contract (docs/api.md §2, §3, §4)."""

from typing import Final

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
NDJSON: Final = "application/x-ndjson"
OCTETS: Final = "application/octet-stream"
ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
ARROW_FILE: Final = "application/vnd.apache.arrow.file"
PARQUET: Final = "application/vnd.apache.parquet"
BATCHES: Final = "application/vnd.commitlog.batch"
EVENTS: Final = "text/event-stream"
