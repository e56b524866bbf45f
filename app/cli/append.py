"""`commitlog append`: records from arguments, a file, or standard input."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, TextIO

import click

from app.cli.context import CommandFailed, ExitCode, Target, person_watches, print_json, target_options
from app.client import Appended, CommitlogClient, Record, in_batches
from app.client.records import BATCH_RECORDS, RecordLike


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
@click.option("--timestamp", type=int, help="Timestamp, ms since 1970 UTC. Default: the leader's clock.")
@click.option("--file", "-f", type=click.File("r"), help="Read records from this file; - is standard input.")
@click.option("--ndjson", is_flag=True, help="Each line is a record object of the API, not a value.")
@click.option(
    "--batch",
    type=click.IntRange(1, 10_000),
    default=BATCH_RECORDS,
    show_default=True,
    help="Number of lines of the file in one atomic append.",
)
@click.option("--idempotency-key", help="A retry with the same key is not stored again.")
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
@click.option("--timeout-ms", type=click.IntRange(1, 60_000), default=5_000, show_default=True)
@target_options
def append_command(
    target: Target,
    values: tuple[str, ...],
    key: str | None,
    headers: tuple[str, ...],
    timestamp: int | None,
    file: TextIO | None,
    ndjson: bool,
    batch: int,
    **conditions: Any,
) -> None:
    """Append VALUES as one atomic append, or the lines of --file (default: standard input).

    An append is retried, at the current leader, until it is answered or --give-up-s has passed. A retry is
    never stored twice.
    """
    if values and file is not None:
        raise click.UsageError("VALUES and --file cannot be used together")
    with target.client(writes=True) as client:
        if values:
            pairs = [_header(header) for header in headers]
            records: list[RecordLike] = [Record(value, key, pairs, timestamp) for value in values]
            _tell(target, client.append(records, **conditions))
            return
        if conditions["idempotency_key"] or conditions["match_index"] is not None:
            raise click.UsageError(
                "--idempotency-key and --match-index require VALUES; the lines of a file are several appends"
            )
        lines = file if file is not None else sys.stdin
        if ndjson:
            if key or headers or timestamp is not None:
                raise click.UsageError(
                    "--key, --header and --timestamp cannot be used with --ndjson; set them in each record"
                )
            batches: Iterator[list[RecordLike]] = _object_batches(lines, batch)
        else:
            pairs = [_header(header) for header in headers]
            values_of_lines = (Record(line.rstrip("\n"), key, pairs, timestamp) for line in lines)
            batches = (list(part) for part in in_batches(values_of_lines, batch))
        _append_all(target, client, batches, conditions)


def _append_all(
    target: Target, client: CommitlogClient, batches: Iterator[list[RecordLike]], conditions: dict[str, Any]
) -> None:
    """Send one append after the other; show the progress on a terminal, and print a summary."""
    first: Appended | None = None
    count = 0
    with ExitStack() as stack:
        advance = _progress(stack) if person_watches() else None
        for batch in batches:
            appended = client.append(batch, **conditions)
            first = first or appended
            count += appended.count
            if target.as_json:
                print_json(appended.document)
            if advance is not None:
                advance(appended.count)
    if first is None:
        raise CommandFailed("the input is empty; at least one record is required", ExitCode.USAGE)
    if not target.as_json:
        words = f"{count:,} records from index {first.first_index:,} to {appended.last_index:,}"
        click.echo(f"appended {words}, term {appended.term}")


def _progress(stack: ExitStack) -> Any:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn())
    progress = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = progress.add_task("append", total=None)
    return lambda count: progress.advance(task, count)


def _tell(target: Target, appended: Appended) -> None:
    if target.as_json:
        print_json(appended.document)
        return
    span = (
        str(appended.first_index) if appended.count == 1 else f"{appended.first_index}-{appended.last_index}"
    )
    replayed = ", already stored under this key" if appended.replayed else ""
    click.echo(f"index {span}, term {appended.term}, leader {appended.leader}{replayed}")


def _object_batches(lines: TextIO, size: int) -> Iterator[list[RecordLike]]:
    batch: list[RecordLike] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError as error:
            raise CommandFailed(f"line {number} is not JSON: {error}", ExitCode.USAGE) from error
        if not isinstance(record, dict):
            raise CommandFailed(f"line {number} is not a JSON object; a record is required", ExitCode.USAGE)
        batch.append(record)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise click.BadParameter(f"NAME=VALUE is required, got {text!r}", param_hint="--header")
    return name, value
