"""`commitlog events`: the journal of events that a node keeps of a log."""

import json
import os
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

import click

from app.cli.context import Target, complete_nodes, print_json, target_options, url_of_node
from app.cli.times import format_time
from app.client.client import FOLLOW_WAIT_MS
from app.log.events import KINDS

PAGE = 1_000


@click.command("events")
@click.option("--node", shell_complete=complete_nodes, help="Node whose journal is read. Default: any node.")
@click.option("--from-seq", type=click.IntRange(0), default=0, help="First sequence number.")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(sorted(KINDS)),
    metavar="KIND",
    help=f"Only events of this kind: {', '.join(sorted(KINDS))}. May be repeated.",
)
@click.option("--last", "-n", type=click.IntRange(1), help="Only the last N events that match.")
@click.option("--follow", "-f", is_flag=True, help="Follow the journal until Ctrl-C.")
@target_options
def events_command(
    target: Target, node: str | None, from_seq: int, kinds: tuple[str, ...], last: int | None, follow: bool
) -> None:
    """Show the events of a node's journal, oldest first. With --json: one event per line.

    \b
    Examples:
      commitlog events --node n2 --kind role --kind epoch
      commitlog events -f --json --log orders
    """
    try:
        with target.client() as client:
            # one node: sequence numbers are those of its journal
            url = url_of_node(client.cluster(), node or client.status()["node"])
            found: deque[Mapping[str, Any]] = deque(maxlen=last)
            while True:
                page = client.events(url, from_seq=from_seq, limit=PAGE)
                found.extend(event for event in page["events"] if not kinds or event["kind"] in kinds)
                from_seq = page["next_seq"]
                if last is None or not page["has_more"]:
                    _show_all(target, found)
                if not page["has_more"]:
                    break
            found = deque()  # without the limit of --last, which is for those that there were
            while follow:
                page = client.events(url, from_seq=from_seq, limit=PAGE, wait_ms=FOLLOW_WAIT_MS)
                found.extend(event for event in page["events"] if not kinds or event["kind"] in kinds)
                _show_all(target, found)
                from_seq = page["next_seq"]
    except KeyboardInterrupt:
        sys.exit(os.EX_OK)  # that is how following ends


def _show_all(target: Target, found: deque[Mapping[str, Any]]) -> None:
    while found:
        _show(target, found.popleft())


def _show(target: Target, event: Mapping[str, Any]) -> None:
    if target.as_json:
        print_json(event)
        return
    data = json.dumps(event["data"], ensure_ascii=False)
    when = format_time(event["timestamp"])
    click.echo(f"{event['seq']:>8}  {when}  {event['node']}  term {event['term']}  {event['kind']}  {data}")
