"""Files of records to append: lines, NDJSON, CSV, Arrow and Parquet, and one file as one record."""

import base64
import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import IO, Any

import msgspec

from app.cli.context import CommandFailed, ExitCode
from app.cli.records.source import RECORD_BYTES, Source, check_size
from app.cli.times import parse_time
from app.client.records import EXACT_NUMBERS, Record, RecordLike

BY_SUFFIX = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".csv": "csv",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".parquet": "parquet",
}
_MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow"}
_VALUES = ("value", "value_base64", "value_json")
_PLACES = {"index", "term", "offset", "type", "log"}  # of a record that was read: the new log assigns its own
_COLUMNS = {*_VALUES, "key", "key_base64", "timestamp", "headers", *_PLACES}
_ROWS = 5_000


class _ValueJson(msgspec.Struct):
    value_json: msgspec.Raw


_VALUE_JSON = msgspec.json.Decoder(_ValueJson)
Found = Iterator[tuple[RecordLike, int]]  # with the bytes of the file that are read so far


def records_of(source: Source, form: str, key_column: str | None) -> Found:
    """Yield the records of an input. Raises CommandFailed for content that is not of this format."""
    readers: dict[str, Callable[[], Found]] = {
        "lines": lambda: _lines(source),
        "ndjson": lambda: _ndjson(source) if key_column is None else _own_objects(source, key_column),
        "csv": lambda: _csv(source.file, key_column),
        "arrow": lambda: _tables(source.file, "arrow", key_column),
        "parquet": lambda: _tables(source.file, "parquet", key_column),
        "raw": lambda: iter([(Record(content := source.whole()), len(content))]),
    }
    return readers[form]()


def invalid(text: str) -> CommandFailed:
    """Return the failure for content of a file: usage, exit code 2."""
    return CommandFailed(text, ExitCode.USAGE)


def _lines(source: Source) -> Found:
    read = 0
    for number, line in enumerate(source, start=1):
        if number == 1:
            for magic, form in _MAGIC.items():
                if line.startswith(magic):
                    raise invalid(f"the input is a {form} file, not lines of text: set --format {form}")
        read += len(line) + 1
        yield Record(line.removesuffix(b"\r")), read


def _ndjson(source: Source) -> Found:
    for number, line, record, read in _json_lines(source):
        if record.keys().isdisjoint(_VALUES):
            raise invalid(
                f"line {number} is not a record object: it has none of {', '.join(_VALUES)}. To append JSON "
                "objects of your own, set --key-column to the field that is the key, or --format lines"
            )
        if "value_json" in record:
            try:
                record["value_json"] = _VALUE_JSON.decode(line).value_json  # its numbers as they are written
            except msgspec.DecodeError as error:
                raise invalid(f"line {number} is not JSON: {error}") from error
        yield {name: content for name, content in record.items() if name not in _PLACES}, read


def _own_objects(source: Source, key_column: str) -> Found:
    """Yield a record for each line: the JSON object as it is written, its field `key_column` as the key."""
    for number, line, row, read in _json_lines(source):
        if key_column not in row:
            raise invalid(f"line {number} has no field {key_column!r}; fields: {', '.join(row)[:200]}")
        yield Record(line.strip(), _content(row[key_column])), read


def _json_lines(source: Source) -> Iterator[tuple[int, bytes, dict[str, Any], int]]:
    """Yield number, text and object of each line, and the bytes read so far. Raises CommandFailed."""
    read = 0
    for number, line in enumerate(source, start=1):
        read += len(line) + 1
        if not line.strip():
            continue
        try:
            record = json.loads(line.rstrip(), parse_constant=_refuse_constant, **EXACT_NUMBERS)
        except json.JSONDecodeError as error:
            raise invalid(f"line {number} is not JSON: {error.msg} at column {error.colno}") from error
        except ValueError as error:
            raise invalid(f"line {number} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise invalid(f"line {number} is not a JSON object; a record is required")
        yield number, line, record, read


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON; use null or text")


def _csv(file: IO[bytes], key_column: str | None) -> Found:
    text = io.TextIOWrapper(file, encoding="utf-8-sig", newline="")
    read = 0

    def counted() -> Iterator[str]:
        nonlocal read
        for number, line in enumerate(iter(partial(text.readline, RECORD_BYTES + 1), ""), start=1):
            read += len(line)  # about: characters
            check_size(len(line), f"line {number}", "set --format for a file that is not CSV")
            yield line

    csv.field_size_limit(1 << 30)
    rows = csv.reader(counted(), strict=True)
    whole = 0  # lines of the rows so far
    try:
        names = next(rows, [])
        row_of, whole = _row_reader(names, key_column), rows.line_num
        for fields in rows:
            whole = rows.line_num
            if not fields:
                if len(names) == 1:
                    raise invalid(f'line {whole} is blank; an empty value is written as ""')
                continue
            if len(fields) != len(names):
                raise invalid(f"line {whole} does not have {len(names)} columns, as line 1 has")
            row: dict[str, str | None] = dict(zip(names, fields, strict=True))
            if not row.keys().isdisjoint(_VALUES):  # CSV has no null: an empty value is the empty text
                row = {name: None if text == "" and name != "value" else text for name, text in row.items()}
            try:
                yield row_of(row), read
            except ValueError as error:
                raise invalid(f"line {whole}: {error}") from error
    except UnicodeDecodeError as error:
        raise invalid(f"the input is not CSV in UTF-8: {error}") from error
    except csv.Error as error:
        raise invalid(f"line {whole + 1} is not CSV: {error}") from error
    finally:
        text.detach()


def _tables(file: IO[bytes], form: str, key_column: str | None) -> Found:
    import pyarrow as pa

    source = file if file.seekable() else io.BytesIO(file.read())
    size = source.seek(0, io.SEEK_END)
    source.seek(0)
    done = 0
    try:
        names, batches, rows = _parquet(source) if form == "parquet" else _arrow(source)
        row_of = _row_reader(names, key_column)
        for batch in batches:
            for row in batch.to_pylist():
                done += 1
                yield row_of(row), size * done // rows if rows else source.tell()
    except (pa.ArrowException, OSError, ValueError) as error:
        raise invalid(f"the input is not a readable {form} file: {error}") from error


def _parquet(source: IO[bytes]) -> tuple[list[str], Iterator[Any], int]:
    """Return columns, batches and the number of rows."""
    from pyarrow import parquet

    found = parquet.ParquetFile(source)
    return found.schema_arrow.names, found.iter_batches(batch_size=_ROWS), found.metadata.num_rows


def _arrow(source: IO[bytes]) -> tuple[list[str], Iterator[Any], int]:
    """Return columns and batches of an Arrow stream, or of an Arrow file (Feather); 0 rows: not known."""
    import pyarrow as pa

    is_file = source.read(len(b"ARROW1")) == b"ARROW1"
    source.seek(0)
    if is_file:
        found = pa.ipc.open_file(source)
        return found.schema.names, (found.get_batch(n) for n in range(found.num_record_batches)), 0
    stream = pa.ipc.open_stream(source)
    return stream.schema.names, _stream_batches(stream, source), 0


def _stream_batches(stream: Any, source: IO[bytes]) -> Iterator[Any]:
    """Yield the batches of an Arrow stream. Raises CommandFailed when bytes follow its end."""
    yield from stream
    end = source.tell()
    if end < (size := source.seek(0, io.SEEK_END)):
        raise invalid(f"the Arrow stream ends at byte {end} of {size}; append each stream by its own command")


def _row_reader(names: Any, key_column: str | None) -> Callable[[Mapping[str, Any]], RecordLike]:
    """Return how a row becomes a record: columns of a record, or any columns as one JSON object.

    Raises CommandFailed when the columns are neither.
    """
    given = set(names)
    if not given:
        raise invalid("the input has no columns; the first line of CSV names them")
    if repeated := sorted(name for name in given if list(names).count(name) > 1):
        raise invalid(f"the column {repeated[0]!r} occurs twice")
    if key_column is not None and key_column not in given:
        raise invalid(f"the column {key_column!r} does not exist; columns: {', '.join(names)}")
    if given.isdisjoint(_VALUES):
        return lambda row: _as_object(row, key_column)
    if unknown := sorted(given - _COLUMNS - {key_column}):
        raise invalid(
            f"a file with a column `value` may have the columns {', '.join(sorted(_COLUMNS))}; "
            f"got also {', '.join(unknown)}"
        )
    return lambda row: _as_record(row, key_column)


def _as_object(row: Mapping[str, Any], key_column: str | None) -> Record:
    try:
        value = _json(dict(row))
    except ValueError as error:
        found = ", ".join(f"{name} = {content}" for name, content in row.items())
        raise ValueError(f"a row has a number that JSON does not have ({found[:200]}); use null") from error
    return Record(value, None if key_column is None else _content(row[key_column]))


def _json(content: Any) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"), default=_plain, allow_nan=False)


def _plain(content: Any) -> Any:
    """Return what JSON has for a value of Arrow: base64 for bytes, ISO 8601 for times."""
    if isinstance(content, bytes):
        try:
            return content.decode()
        except UnicodeDecodeError:
            return base64.b64encode(content).decode("ascii")
    return content.isoformat() if hasattr(content, "isoformat") else str(content)


def _as_record(row: Mapping[str, Any], key_column: str | None) -> RecordLike:
    """Return the record of a row with the columns of a record. Raises ValueError."""
    value = _either(row, "value")
    if row.get("value_json") is not None:
        if value:
            raise ValueError("a row may have one of value, value_json and value_base64")
        value = _compact(row["value_json"])
    key = _content(row[key_column]) if key_column is not None else _either(row, "key")
    return Record(value, key, _headers(row.get("headers")), _timestamp(row.get("timestamp")))


def _compact(text: str) -> str:
    """Return JSON text without spaces, its numbers as they are. Raises ValueError."""
    try:
        return msgspec.json.format(text, indent=-1)
    except msgspec.DecodeError as error:
        raise ValueError(f"value_json is not JSON: {error}") from error


def _either(row: Mapping[str, Any], name: str) -> str | bytes | None:
    """Return the content of one of two columns. An empty text beside bytes is what CSV has for null."""
    content = _content(row.get(name))
    if (encoded := row.get(f"{name}_base64")) is None:
        return content
    if content:
        raise ValueError(f"a row may have one of {name} and {name}_base64")
    return base64.b64decode(encoded, validate=True)


def _content(content: Any) -> str | bytes | None:
    """Return a value or a key: lists and structs as JSON, numbers and times as text."""
    if isinstance(content, list | dict):
        return _json(content)
    return content if isinstance(content, str | bytes | None) else str(content)


def _timestamp(content: Any) -> int | None:
    if content is None or isinstance(content, int):
        return content
    if isinstance(content, float):
        raise ValueError(f"a timestamp is a time or whole milliseconds, got {content}")
    return parse_time(content if isinstance(content, str) else content.isoformat())


def _headers(content: Any) -> list[tuple[str, str | bytes]]:
    """Return headers from JSON text ([[name, value], …]) or Arrow structs and pairs. Raises ValueError."""
    pairs = json.loads(content) if isinstance(content, str) else content
    if not isinstance(pairs, list | None):
        raise ValueError(f"headers must be a list of pairs [name, value], got {pairs!r:.200}")
    return [_header(pair) for pair in pairs or ()]


def _header(pair: Any) -> tuple[str, str | bytes]:
    match pair:
        case [str(name), {"base64": str(encoded), **rest}] if not rest:
            return name, base64.b64decode(encoded, validate=True)
        case [str(name), str() | bytes() as value]:
            return name, value
        case {"name": str(name), "value": str() | bytes() as value, **rest} if not rest:
            return name, value
    raise ValueError(f"a header must be a pair [name, value], got {pair!r:.200}")
