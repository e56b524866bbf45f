"""`commitlog append`: records from arguments, a file, or standard input."""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from app.cli.context import (
    CommandFailed,
    ExitCode,
    Target,
    an_idempotency_key,
    counted,
    failure_of,
    person_watches,
    print_json,
    target_options,
)
from app.cli.times import Time

if TYPE_CHECKING:
    from app.client import Appended, ClientError, CommitlogClient
    from app.client.records import RecordLike

_RECORD = re.compile(r"/(\d+)\b")  # in an append, as a pointer begins
RECORDS_OF_APPEND = 500
FORMATS = ("lines", "ndjson", "csv", "arrow", "parquet", "raw")


@click.command("append")
@click.argument("values", nargs=-1)
@click.option("--key", "-k", help="Key of each record.")
@click.option(
    "--header",
    "-H",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    help="Header of each record. May be repeated.",
)
@click.option(
    "--timestamp",
    type=Time(),
    help="Time of each record: ISO 8601, ms since 1970 UTC, or an age (15m). Default: the leader's clock.",
)
@click.option(
    "--file",
    "-f",
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="Read records from this file; - is standard input.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    help="Format of the file. Default: by its name, else lines. raw: the whole file is one record.",
)
@click.option("--ndjson", is_flag=True, help="The same as --format ndjson.")
@click.option(
    "--key-column",
    metavar="NAME",
    help="Column of CSV, Arrow or Parquet that becomes the key. With ndjson: the lines are JSON objects of "
    "your own, and this field of each one is its key.",
)
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    help=f"Maximum number of records of the file in one atomic append. Default: {RECORDS_OF_APPEND}.",
)
@click.option("--skip", type=click.IntRange(0), default=0, help="Leave out the first N records of the file.")
@click.option(
    "--idempotency-key", callback=an_idempotency_key, help="A retry with the same key is not stored again."
)
@click.option(
    "--match-index",
    type=click.IntRange(0),
    help="Append only if the log has no data record at this index or after it.",
)
@click.option("--match-term", type=click.IntRange(0), help="Append only if this is the leader's term.")
@click.option("--fencing-token", help="Fencing token of the log.")
@click.option(
    "--acks",
    type=click.Choice(["leader", "quorum", "all"]),
    help="Replicas that must have the append. Default: quorum.",
)
@click.option(
    "--timeout-ms",
    type=click.IntRange(1, 60_000),
    default=5_000,
    show_default=True,
    help="Time limit of one attempt.",
)
@target_options
def append_command(
    target: Target,
    values: tuple[str, ...],
    key: str | None,
    headers: tuple[str, ...],
    timestamp: int | None,
    file: str | None,
    form: str | None,
    ndjson: bool,
    key_column: str | None,
    batch: int | None,
    skip: int,
    **conditions: Any,
) -> None:
    """Append VALUES as one atomic append, or the records of --file (default: standard input).

    lines: each line is a value. ndjson: each line is a record object of the API, or with --key-column a JSON
    object of your own, stored as it is. csv, arrow, parquet: with a column `value` the columns are those of a
    record (key, timestamp, headers, value_base64, …), as `commitlog read` writes them; without one, each row
    becomes a JSON object.

    Lines of a pipe are appended as they arrive.

    An append is retried, at the current leader, until it is answered or --give-up-s has passed. A retry is
    never stored twice.

    \b
    Examples:
      commitlog append hello world --key greeting -H source=me
      commitlog append --file orders.parquet --key-column order_id --log orders
      commitlog append --file orders.ndjson --key-column order_id --log orders
      kubectl logs -f shop | commitlog append --log shop
      commitlog append --file photo.jpg --format raw --key photo.jpg
    """
    from app.client import Record

    if values and (
        form is not None or ndjson or any(one is not None for one in (file, key_column, batch)) or skip
    ):
        raise click.UsageError(
            "VALUES and --file, --format, --ndjson, --key-column, --batch or --skip cannot be used together"
        )
    if values == ("-",):
        raise click.UsageError(
            "VALUES are the records themselves, and - is not read as standard input: leave it out, or use "
            "--file -. `echo - | commitlog append` appends a record with the value -"
        )
    pairs = [_header(header) for header in headers]
    if values:
        with target.client(writes=True) as client:
            records: list[RecordLike] = [Record(value, key, pairs, timestamp) for value in values]
            try:
                appended = client.append(records, **conditions)
            except KeyboardInterrupt:
                raise CommandFailed(f"interrupted; {_doubt()}", ExitCode.OUTCOME_UNKNOWN) from None
            _print_outcome(target, appended)
        return
    form = _format(form, file, ndjson=ndjson)
    has_fields = bool(key is not None or headers or timestamp is not None)
    _check_file_options(form, conditions, has_fields=has_fields, names_key=key_column is not None)
    with _opened(file) as (source, size), target.client(writes=True) as client:
        common = Record(None, key, pairs, timestamp)
        _append_all(
            target,
            client,
            _batches(source, form, key_column, batch or RECORDS_OF_APPEND, skip, common),
            size,
            skip,
            conditions,
        )


def _check_file_options(
    form: str, conditions: Mapping[str, Any], *, has_fields: bool, names_key: bool
) -> None:
    """Raise UsageError for options that the records of a file cannot have, or not in its format."""
    if conditions["idempotency_key"] or conditions["match_index"] is not None:
        raise click.UsageError(
            "--idempotency-key and --match-index require VALUES, because the records of a file are several "
            "appends; docs/client.md, A file, exactly once, shows a loader that may be killed and repeated"
        )
    if has_fields and form not in ("lines", "raw"):
        raise click.UsageError(
            f"--key, --header and --timestamp cannot be used with {form}; set them in each record"
        )
    if names_key and form not in ("ndjson", "csv", "arrow", "parquet"):
        raise click.UsageError(
            f"--key-column cannot be used with {form}; it names a column, or with --ndjson a field"
        )


@contextmanager
def _opened(file: str | None) -> Iterator[tuple[IO[bytes], int | None]]:
    """Open the input; yield it with its size in bytes, None for standard input."""
    if file is None or file == "-":
        if sys.stdin.isatty():
            click.echo("reading records from the terminal, one a line; Ctrl-D ends the input", err=True)
        yield sys.stdin.buffer, None
        return
    with Path(file).open("rb") as source:
        yield source, Path(file).stat().st_size


def _format(form: str | None, file: str | None, *, ndjson: bool) -> str:
    from app.cli.records.files import BY_SUFFIX

    if ndjson:
        if form not in (None, "ndjson"):
            raise click.UsageError(f"--ndjson and --format {form} cannot be used together")
        return "ndjson"
    return form or BY_SUFFIX.get(Path(file or "-").suffix.lower(), "lines")


def _batches(
    file: IO[bytes], form: str, key_column: str | None, size: int, skip: int, common: Any
) -> Iterator[tuple[list["RecordLike"], int]]:
    """Yield the records of each append, and the bytes of the file read so far.

    Lines that have arrived from a pipe do not wait for the next ones. common: what --key, --header and
    --timestamp give to every record of lines.
    """
    from dataclasses import replace

    from app.cli.records.files import records_of
    from app.cli.records.source import Source
    from app.client.records import BATCH_BYTES, Record

    batch: list[RecordLike] = []
    size_bytes = read = 0
    source = Source(file)
    for number, (record, position) in enumerate(records_of(source, form, key_column)):
        if number < skip:
            continue
        if form in ("lines", "raw") and isinstance(record, Record):
            record = replace(common, value=record.value)
        weight = record.size_bytes if isinstance(record, Record) else position - read
        if batch and (len(batch) >= size or size_bytes + weight > BATCH_BYTES):
            yield batch, read
            batch, size_bytes = [], 0
        batch.append(record)
        size_bytes, read = size_bytes + weight, position
        if form in ("lines", "ndjson") and source.is_dry(has_blank_lines=form == "lines"):
            yield batch, read
            batch, size_bytes = [], 0
    if batch:
        yield batch, read


def _append_all(
    target: Target,
    client: "CommitlogClient",
    batches: Iterator[tuple[list["RecordLike"], int]],
    size: int | None,
    skipped: int,
    conditions: dict[str, Any],
) -> None:
    """Send one append after the other; show the progress on a terminal, and print a summary."""
    from app.client import ClientError

    first: Appended | None = None
    count, is_open = 0, False
    with ExitStack() as stack:
        advance = _progress(stack, size) if person_watches() else None
        try:
            for batch, position in batches:
                is_open = True
                appended = _append(client, batch, conditions)
                first = first or appended
                count, is_open = count + appended.count, False
                if target.as_json:
                    print_json(appended.document)
                if advance is not None:
                    advance(position)
        except ClientError as error:
            doubt = "" if error.outcome == "not_applied" else _doubt(len(batch))
            notes = (_place(error, skipped + count), _rest(count, skipped), doubt)
            note = "; ".join(filter(None, notes))
            raise failure_of(error, target.endpoints, writes=True, note=note) from error
        except KeyboardInterrupt:
            rest = _rest(count, skipped) or "no append has been answered yet"
            if not is_open:
                raise CommandFailed(f"interrupted; {rest}", ExitCode.INTERRUPTED) from None
            raise CommandFailed(
                f"interrupted; {rest}; {_doubt(len(batch))}", ExitCode.OUTCOME_UNKNOWN
            ) from None
        except CommandFailed as error:
            raise CommandFailed(
                f"{error.message}{_rest(count, skipped, '; ')}", ExitCode(error.exit_code)
            ) from error
    if first is None:
        raise CommandFailed("the input is empty; at least one record is required", ExitCode.USAGE)
    if not target.as_json:
        span = f"from index {first.first_index:,} to {appended.last_index:,}"
        click.echo(f"appended {counted(count)} {span} of log {target.log}, term {appended.term}")


def _append(client: "CommitlogClient", batch: list["RecordLike"], conditions: dict[str, Any]) -> "Appended":
    """Append a batch. Raises ClientError, and CommandFailed for a record that cannot be encoded."""
    try:
        return client.append(batch, **conditions)
    except (TypeError, ValueError) as error:
        of_these = "the record" if len(batch) == 1 else f"one of {len(batch):,} records"
        raise CommandFailed(f"{of_these} cannot be sent: {error}", ExitCode.USAGE) from error


def _place(error: "ClientError", before: int) -> str:
    """Return which record of the input was refused: the service counts those of one append. before: the
    records of the input before that append."""
    document = getattr(error, "document", {})
    pointers = [str(each["pointer"]) for each in document.get("errors", ())]
    found = _RECORD.match(pointers[0] if pointers else str(document.get("detail", "")))
    number = document.get("record", found and int(found[1]))
    return "" if number is None else f"it is record {before + number + 1:,} of the input"


def _rest(count: int, skipped: int, separator: str = "") -> str:
    """Return what is stored of a file whose append has failed in the middle."""
    if count == 0:
        return ""
    stored = f"{counted(count)} of earlier appends {'is' if count == 1 else 'are'} stored"
    return f"{separator}{stored}; continue with --skip {skipped + count}"


def _doubt(following: int = 0) -> str:
    """Return what the user has to check before the command is repeated. following: records of a file."""
    stored = f"the next {following:,} too" if following else "its records"
    return f"the append in progress may have stored {stored}"


def _progress(stack: ExitStack, size: int | None) -> Any:
    """Return the function that moves a bar: bytes, rate, and with a known size the time left."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    known = [BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeRemainingColumn()]
    unknown = [DownloadColumn(binary_units=True), TransferSpeedColumn(), TimeElapsedColumn()]
    columns = (TextColumn("append"), *(unknown if size is None else known))
    progress = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = progress.add_task("append", total=size)
    return lambda position: progress.update(task, completed=position)


def _print_outcome(target: Target, appended: "Appended") -> None:
    if target.as_json:
        print_json(appended.document)
        return
    span = f"{appended.first_index:,}"
    if appended.count > 1:
        span += f" to {appended.last_index:,}"
    replayed = ", already stored under this key" if appended.replayed else ""
    click.echo(f"log {target.log}, index {span}, term {appended.term}, leader {appended.leader}{replayed}")


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"NAME=VALUE is required, got {text!r}", param_hint="--header")
    return name, value
