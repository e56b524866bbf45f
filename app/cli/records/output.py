"""Formats of records that are read: text for people, JSON, NDJSON, CSV, Arrow and Parquet."""

import csv
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from app.cli.context import printable
from app.cli.times import format_time

if TYPE_CHECKING:
    import pyarrow as pa

RECORD_FORMATS = ("text", "json", "ndjson", "csv")
TABLE_FORMATS = ("arrow", "parquet")
BY_SUFFIX = {
    ".json": "json",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".csv": "csv",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".parquet": "parquet",
    ".txt": "text",
}
CSV_COLUMNS = (
    "index",
    "term",
    "offset",
    "timestamp",
    "type",
    "key",
    "key_base64",
    "value",
    "value_base64",
    "headers",
)
_CSV_END = "\r\n"  # quoted within a field, as readers require of both characters
Emit = Callable[[Mapping[str, Any]], None]


@contextmanager
def output_file(path: Path | None) -> Iterator[IO[bytes]]:
    """Standard output, or a file that appears under its name only when it is complete. A device or a pipe is
    written as it is, and a link stays."""
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists() and not path.is_file():  # by its own name: that of an open pipe leads nowhere
        with path.open("wb") as file:
            yield file
        return
    path = path.resolve()
    partial = path.with_name(f".{path.name}.partial")
    try:
        with _opened(partial, path) as file:
            yield file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _opened(partial: Path, path: Path) -> IO[bytes]:
    """Open the file. Raises OSError with the name that the user has given."""
    try:
        return partial.open("wb")
    except OSError as error:
        error.filename = str(path)
        raise


def emitter(form: str, file: IO[bytes]) -> Emit:
    """Return the function that writes one record in `text`, `ndjson` or `csv`."""
    if form == "csv":
        rows = io.StringIO()
        writer = csv.DictWriter(rows, CSV_COLUMNS, lineterminator=_CSV_END)

        def emit_row(row: Mapping[str, Any]) -> None:
            writer.writerow(row)
            file.write(rows.getvalue().removesuffix(_CSV_END).encode() + b"\n")
            rows.seek(0)
            rows.truncate()

        emit_row({name: name for name in CSV_COLUMNS})
        return lambda record: emit_row(csv_row(record))
    width = shutil.get_terminal_size().columns if os.isatty(_descriptor(file)) else None
    line_of = json_line if form == "ndjson" else lambda record: record_line(record, width)

    def emit_line(record: Mapping[str, Any]) -> None:
        file.write(f"{line_of(record)}\n".encode("utf-8", "surrogatepass"))

    return emit_line


def _descriptor(file: IO[bytes]) -> int:
    try:
        return file.fileno()
    except OSError:  # a buffer in memory
        return -1


def json_line(content: Any) -> str:
    """Return JSON in one line. A Decimal is a number of a record that a float cannot hold."""
    try:
        return json.dumps(content, ensure_ascii=False)
    except TypeError:
        exact = msgspec.json.Encoder(decimal_format="number").encode(content)
        return msgspec.json.format(exact, indent=0).decode()


def record_line(record: Mapping[str, Any], width: int | None = None) -> str:
    """Format one record as text: index, time, key, value and headers. width: cut after so many characters.

    Bytes that are not UTF-8 are shown as `base64:…`, a value that is null as `(tombstone)`. Line ends and
    control characters are escaped.
    """
    key, value = _content(record, "key"), _content(record, "value")
    shown = "(tombstone)" if value is None else value
    kind = "" if record["type"] == "data" else f" [{record['type']}]"
    headers = ""
    if record.get("headers"):
        pairs = ", ".join(f"{name}={_header(content)}" for name, content in record["headers"])
        headers = f"  {{{pairs}}}"
    when = format_time(record["timestamp"])
    line = f"{record['index']:>8}  {when}  {'-' if key is None else key}  {shown}{headers}"
    line = printable(line)
    if width is not None and len(line) + len(kind) > width:
        line = f"{line[: max(1, width - len(kind) - 1)]}…"
    return line + kind


def _header(content: Any) -> str:
    return f"base64:{content['base64']}" if isinstance(content, Mapping) else str(content)


def _content(record: Mapping[str, Any], name: str) -> str | None:
    if record.get(name) is not None:
        return str(record[name])
    if f"{name}_json" in record:
        return json_line(record[f"{name}_json"])
    if record.get(f"{name}_base64") is not None:
        return f"base64:{record[f'{name}_base64']}"
    return None


def csv_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a record: bytes that are not UTF-8 in the columns that end with _base64."""
    row = {name: record.get(name) for name in CSV_COLUMNS}
    if "value_json" in record:
        row["value"] = json_line(record["value_json"])
    row["timestamp"] = format_time(record["timestamp"])
    row["headers"] = json.dumps(record["headers"], ensure_ascii=False) if record.get("headers") else None
    return row


class TableOutput:
    """Arrow or Parquet file of records, written table by table."""

    def __init__(self, form: str, file: IO[bytes], stack: ExitStack) -> None:
        self._form, self._file, self._stack = form, file, stack
        self._writer: Any = None

    def write(self, table: "pa.Table") -> None:
        """Append the rows."""
        if self._writer is None:
            import pyarrow as pa

            if self._form == "parquet":
                from pyarrow import parquet

                self._writer = parquet.ParquetWriter(self._file, table.schema, compression="zstd")
            else:
                self._writer = pa.ipc.new_stream(self._file, table.schema)
            self._stack.enter_context(self._writer)
        self._writer.write_table(table)
