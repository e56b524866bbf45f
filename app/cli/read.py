"""`commitlog read` and `commitlog tail`: records as lines, or as JSON."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import click

from app.cli.context import Target, print_json, target_options

MAX_LINE_CHARACTERS = 160


def _common_filters(command: Any) -> Any:
    for option in (
        click.option("--key", "-k", help="Only records with this key."),
        click.option("--include-control", is_flag=True, help="Include control records."),
        click.option("--encoding", type=click.Choice(["auto", "text", "json", "base64"])),
        click.option(
            "--consistency",
            type=click.Choice(["linearizable", "committed", "local"]),
            help="Consistency of the read. Default: linearizable.",
        ),
    ):
        command = option(command)
    return command


@click.command("read")
@click.option("--from-index", type=click.IntRange(0))
@click.option("--from", "from_", type=click.Choice(["earliest", "latest"]))
@click.option("--from-timestamp", type=int, help="First timestamp, ms since 1970 UTC.")
@click.option("--last", "-n", type=click.IntRange(1), help="Only the last N records.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=1_000, show_default=True)
@click.option("--until-index", type=click.IntRange(0), help="End index, exclusive.")
@click.option("--until-timestamp", type=int, help="End timestamp, exclusive, ms since 1970 UTC.")
@click.option("--term", type=click.IntRange(0), help="Only records of this term.")
@click.option(
    "--wait-ms",
    type=click.IntRange(0, 60_000),
    default=0,
    help="Time to wait for records at the end of the log.",
)
@_common_filters
@target_options
def read_command(
    target: Target, from_: str | None, include_control: bool, wait_ms: int, **query: Any
) -> None:
    """Read one page of records. With --json: the API's response, one document."""
    starts = [name for name in ("from_index", "from_timestamp", "last") if query[name] is not None]
    if len(starts) + (from_ is not None) > 1:
        raise click.UsageError("--from-index, --from, --from-timestamp and --last cannot be used together")
    with target.client() as client:
        query |= {"from": from_, "include": "control" if include_control else None}
        page = client.read(wait_ms=wait_ms, **query)
    if target.as_json:
        print_json(page.document)
        return
    for record in page.records:
        click.echo(record_line(record))
    if page.has_more:
        click.echo(f"more from index {page.next_index}: --from-index {page.next_index}", err=True)


@click.command("tail")
@click.option("--follow", "-f", is_flag=True, help="Follow the log until Ctrl-C.")
@click.option(
    "--last",
    "-n",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Start with the last N records.",
)
@click.option("--from-index", type=click.IntRange(0), help="Start at this index; overrides --last.")
@_common_filters
@target_options
def tail_command(
    target: Target, follow: bool, last: int, from_index: int | None, include_control: bool, **query: Any
) -> None:
    """Show the last records; with -f also new ones, across fail-overs. With --json: one record per line."""
    tell = print_json if target.as_json else lambda record: click.echo(record_line(record))
    filters = {**query, "include": "control" if include_control else None}
    with target.client() as client:
        if from_index is not None:
            start: dict[str, Any] = {"from_index": from_index}
        elif last > 0:
            start = {"last": last}
        else:
            start = {"from_index": client.tail()["committed_index"] + 1}
        page = client.read(**start, **filters)
        for record in page.records:
            tell(record)
        while page.has_more:
            page = client.read(from_index=page.next_index, **filters)
            for record in page.records:
                tell(record)
        if not follow:
            return
        try:
            for record in client.follow(page.next_index, **filters):
                tell(record)
        except KeyboardInterrupt:
            return


def record_line(record: Mapping[str, Any]) -> str:
    """Format one record as text: index, time, key and value, shortened if long."""
    when = datetime.fromtimestamp(record["timestamp"] / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    key = _content(record, "key")
    value = _content(record, "value")
    kind = "" if record["type"] == "data" else f" [{record['type']}]"
    shown = "(tombstone)" if value is None else value
    line = f"{record['index']:>8}  {when}  {'-' if key is None else key}  {shown}".replace("\n", "\\n")
    cut = f"{line[: MAX_LINE_CHARACTERS - 1]}…" if len(line) > MAX_LINE_CHARACTERS else line
    return cut + kind


def _content(record: Mapping[str, Any], name: str) -> str | None:
    for field in (name, f"{name}_json", f"{name}_base64"):
        if record.get(field) is not None:
            content = record[field]
            return content if isinstance(content, str) else str(content)
    return None
