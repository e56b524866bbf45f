"""`commitlog read` and `commitlog tail`: records as text, JSON, NDJSON, CSV, Arrow or Parquet."""

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import click

from app.cli.context import Target, counted, target_options
from app.cli.records.output import (
    BY_SUFFIX,
    RECORD_FORMATS,
    TABLE_FORMATS,
    TableOutput,
    emitter,
    json_line,
    output_file,
)
from app.cli.records.pages import STARTS, end_of, last_matching, pages, tables
from app.cli.times import Time

if TYPE_CHECKING:
    import pyarrow as pa

    from app.client import CommitlogClient, Page

ONE_PAGE = 1_000
NARROWING = ("key", "term", "include", "until_index", "until_timestamp")  # what --last counts, or before what


def _common_filters(command: Any) -> Any:
    for option in (
        click.option("--key", "-k", help="Only records with this key."),
        click.option("--include-control", is_flag=True, help="Include control records."),
        click.option(
            "--encoding",
            type=click.Choice(["auto", "text", "json", "base64"]),
            help="Form of keys, values and header values in JSON. Default: auto.",
        ),
        click.option(
            "--consistency",
            type=click.Choice(["linearizable", "committed", "local"]),
            help="Consistency of the read. Default: linearizable.",
        ),
    ):
        command = option(command)
    return command


@click.command("read")
@click.option("--from-index", type=click.IntRange(0), help="First index.")
@click.option(
    "--from",
    "from_",
    type=click.Choice(["earliest", "latest"]),
    help="Start at the beginning or at the end of the log.",
)
@click.option(
    "--from-timestamp", "--since", type=Time(), help="First time: ISO 8601, milliseconds or an age (2h)."
)
@click.option("--cursor", help="Start at this cursor.")
@click.option("--last", "-n", type=click.IntRange(1), help="Only the last N records that match.")
@click.option("--limit", type=click.IntRange(1), help=f"Maximum number of records. Default: {ONE_PAGE:,}.")
@click.option("--all", "everything", is_flag=True, help="No maximum: to the end that the log has now.")
@click.option("--until-index", type=click.IntRange(0), help="End index, exclusive.")
@click.option("--until-timestamp", "--until", type=Time(), help="End time, exclusive.")
@click.option("--term", type=click.IntRange(0), help="Only records of this term.")
@click.option(
    "--wait-ms",
    type=click.IntRange(0, 60_000),
    default=0,
    help="Time to wait for records at the end of the log.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice([*RECORD_FORMATS, *TABLE_FORMATS]),
    help="Format of the output. Default: by the name of --output, else text.",
)
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, allow_dash=True, path_type=Path),
    help="File to write; it appears when it is complete. - is standard output.",
)
@_common_filters
@target_options
def read_command(
    target: Target,
    from_: str | None,
    include_control: bool,
    limit: int | None,
    everything: bool,
    form: str | None,
    output: Path | None,
    **query: Any,
) -> None:
    """Read records. With --json and no --all: the response of the API, one document.

    Text is for people: line ends are escaped, and a terminal shows one line for each record. Use another
    format for programs. `arrow` is an Arrow IPC stream.

    Times are ISO 8601 (UTC unless they have a zone), milliseconds since 1970 UTC, or ages such as 15m.

    \b
    Examples:
      commitlog read --since 15m --key k1
      commitlog read --last 5 --format ndjson | jq .value
      commitlog read --all -o orders.parquet --log orders
      commitlog read --since 2026-01-31T08:00+01:00 --until 2026-01-31T09:00+01:00 --format csv
    """
    starts = [name for name in STARTS if query.get(name) is not None]
    if len(starts) + (from_ is not None) > 1:
        raise click.UsageError(
            "--from-index, --from, --from-timestamp, --cursor and --last cannot be used together"
        )
    if everything and limit is not None:
        raise click.UsageError("--all and --limit cannot be used together")
    output = None if output == Path("-") else output
    form = _format(target, form, output)
    if form in TABLE_FORMATS and query["encoding"] is not None:
        raise click.UsageError(f"--encoding cannot be used with {form}, whose values are bytes")
    query |= {"from": from_, "include": "control" if include_control else None}
    most = None if everything else (limit or ONE_PAGE)
    is_page = not (everything or limit or any(query[name] is not None for name in ("key", "term", "last")))
    with target.client() as client:
        if query["last"] is not None:
            most = query["last"] if limit is None else min(limit, query["last"])
            if query["last"] > ONE_PAGE or any(query[name] is not None for name in NARROWING):
                query["from_index"] = last_matching(client, query.pop("last"), **query)
        with output_file(output) as file:
            if form in TABLE_FORMATS:
                written = _write_tables(form, tables(client, most, **query), file)
            else:
                found = pages(client, most, **query)
                found = islice(found, 1) if is_page else found  # one page, as the API limits it
                written = _write(form, found, file, whole=everything)
    if output is not None and not target.as_json:
        click.echo(f"{output}: {counted(written.records)}", err=True)
    if written.has_more and form != "json" and not everything:
        click.echo(
            f"more from index {written.next_index}: --from-index {written.next_index}, or --all", err=True
        )


class _Written(NamedTuple):
    """Records that were written; where the next ones begin, if there are more."""

    records: int
    next_index: int
    has_more: bool


def _format(target: Target, form: str | None, output: Path | None) -> str:
    """Return the format. Raises UsageError for formats that exclude each other or do not fit a terminal."""
    if target.as_json:
        if form not in (None, "json"):
            raise click.UsageError(f"--json and --format {form} cannot be used together")
        if output is not None and form is None and BY_SUFFIX.get(output.suffix.lower(), "json") != "json":
            raise click.UsageError(f"--json and --output {output} cannot be used together")
        return "json"
    form = form or (BY_SUFFIX.get(output.suffix.lower(), "text") if output is not None else "text")
    if form in TABLE_FORMATS and output is None and sys.stdout.isatty():
        raise click.UsageError(f"--format {form} is binary: set --output, or redirect the output")
    return form


def _write_tables(form: str, found: "Iterable[tuple[pa.Table, int, bool]]", file: IO[bytes]) -> _Written:
    written = _Written(0, 0, False)
    with ExitStack() as stack:
        writer = TableOutput(form, file, stack)
        for table, next_index, has_more in found:
            writer.write(table)
            written = _Written(written.records + table.num_rows, next_index, has_more)
    return written


def _write(form: str, found: Iterable["Page"], file: IO[bytes], *, whole: bool) -> _Written:
    """Write the records of all pages."""
    page: Page | None = None
    count = 0
    if form != "json":
        emit = emitter(form, file)
        for page in found:
            count += len(page.records)
            for record in page.records:
                emit(record)
    elif whole:  # page after page: the document may be larger than the memory
        separator = b'{"records": ['
        for page in found:
            count += len(page.records)
            for record in page.records:
                file.write(separator + json_line(record).encode())
                separator = b", "
        assert page is not None
        rest = {name: value for name, value in page.document.items() if name != "records"}
        opening = separator if separator != b", " else b""
        file.write(opening + b"], " + json_line(rest).encode()[1:] + b"\n")
    else:
        records: list[Any] = []
        for page in found:
            records += page.records
        assert page is not None
        count = len(records)
        file.write(json_line({**page.document, "records": records}).encode() + b"\n")
    assert page is not None
    return _Written(count, page.next_index, page.has_more)


@click.command("tail")
@click.option("--follow", "-f", is_flag=True, help="Follow the log until Ctrl-C.")
@click.option(
    "--last",
    "-n",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Start with the last N records that match.",
)
@click.option("--from-index", type=click.IntRange(0), help="Start at this index; overrides --last.")
@_common_filters
@target_options
def tail_command(
    target: Target, follow: bool, last: int, from_index: int | None, include_control: bool, **query: Any
) -> None:
    """Show the last records; with -f also new ones, across fail-overs. With --json: one record per line.

    \b
    Examples:
      commitlog tail -f
      commitlog tail -f -n 0 --key k1 --json | jq .value
    """
    file = sys.stdout.buffer
    emit = emitter("ndjson" if target.as_json else "text", file)
    filters = {**query, "include": "control" if include_control else None}
    try:
        with target.client() as client:
            start = _start_of_tail(client, last, from_index, filters)
            page = None
            for page in pages(client, None, **start, **filters):
                _emit_all(page.records, emit, file)
            assert page is not None
            if follow:
                for record in client.follow(page.next_index, log_id=page.log_id, **filters):
                    _emit_all([record], emit, file)
    except KeyboardInterrupt:
        sys.exit(os.EX_OK)  # that is how a tail ends


def _start_of_tail(
    client: "CommitlogClient", last: int, from_index: int | None, filters: dict[str, Any]
) -> dict[str, Any]:
    if from_index is not None:
        return {"from_index": from_index}
    if last == 0:
        consistency = filters["consistency"]
        return {"from_index": end_of(client.tail(consistency=consistency or "linearizable"), consistency)}
    if filters["key"] is None:
        return {"last": last}
    return {"from_index": last_matching(client, last, **filters)}


def _emit_all(records: Iterable[Any], emit: Callable[[Any], None], file: IO[bytes]) -> None:
    for record in records:
        emit(record)
    file.flush()
