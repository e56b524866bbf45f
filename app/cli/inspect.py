"""`commitlog epochs`, `watermarks` and `ha-status`: replication state of a log."""

from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table

from app.cli.context import Target, complete_nodes, print_json, print_table, target_options, url_of_node
from app.cli.times import format_time


@click.command("epochs")
@click.option(
    "--node",
    shell_complete=complete_nodes,
    help="Node whose epoch file is read, for example n2. Default: any node.",
)
@target_options
def epochs_command(target: Target, node: str | None) -> None:
    """Show the epochs of a log: the leader and the first index of each.

    \b
    Examples:
      commitlog epochs --log orders
      commitlog epochs --node n2 --json
    """
    with target.client() as client:
        endpoint = None if node is None else url_of_node(client.cluster(), node)
        epochs = client.epochs(endpoint)
    if target.as_json:
        print_json({"epochs": epochs})
        return
    print_table(epochs_table(epochs))


@click.command("watermarks")
@click.option(
    "--term", type=click.IntRange(0), help="Only this term. Default: every term whose watermarks are kept."
)
@target_options
def watermarks_command(target: Target, term: int | None) -> None:
    """Show the last index that each peer has acknowledged, by term.

    \b
    Examples:
      commitlog watermarks --term 3
    """
    with target.client() as client:
        watermarks = client.watermarks(term)
    if target.as_json:
        print_json(watermarks)
        return
    if not any(watermarks.values()):
        which = "term" if term is None else f"term {term}"
        click.echo(
            f"the leader of {target.log} keeps no watermarks of {which}; `commitlog epochs` lists the terms"
        )
        return
    print_table(watermarks_table(watermarks))


@click.command("ha-status")
@click.option(
    "--node",
    shell_complete=complete_nodes,
    help="Node that reports the status, for example n2. Default: the log's master.",
)
@target_options
def ha_status_command(target: Target, node: str | None) -> None:
    """Show the gap and the transfer rate of each slave.

    \b
    Examples:
      commitlog ha-status --log payments
    """
    with target.client() as client:
        node = node or client.ha_status()["master"]
        status = client.ha_status(None if node is None else url_of_node(client.cluster(), node))
    if target.as_json:
        print_json(status)
        return
    if status.get("replication") == "raft":
        click.echo(f"log {status['log']} has no slaves in Raft mode: `commitlog status` shows its followers")
        return
    print_table(ha_status_table(status))
    if status["waits_for"] is not None:
        click.echo(f"{status['node']} takes no appends: {status['waits_for']}")
    if (link := status["link"]) is not None:
        click.echo(f"connection to the master {status['master']}: {link['state']}" + _because(link["reason"]))


def ha_status_table(status: Mapping[str, Any]) -> Table:
    """Return a table with one row for each slave."""
    title = f"{status['node']}: {status['role']} of {status['log']}, {status['end_offset']:,} bytes"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for name in ("slave", "state", "in sync"):
        table.add_column(name)
    for name in ("acked byte", "gap (bytes)", "bytes/s"):
        table.add_column(name, justify="right")
    for slave in status["slaves"]:
        numbers = [slave[name] for name in ("acked_offset", "gap_bytes", "transfer_bytes_per_s")]
        in_sync = {True: "yes", False: "no", None: ""}[slave["in_sync"]]
        shown = ["" if number is None else f"{number:,}" for number in numbers]
        table.add_row(slave["id"], slave["state"] + _because(slave["reason"]), in_sync, *shown)
    return table


def _because(reason: str | None) -> str:
    return "" if reason is None else f" ({reason})"


def epochs_table(epochs: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table of the epochs, oldest first; the last one is open."""
    table = Table(title="epochs: leaders and their first indexes", title_justify="left", box=SIMPLE_HEAD)
    for name in ("epoch", "leader"):
        table.add_column(name)
    for name in ("from index", "to index", "from byte", "to byte"):
        table.add_column(name, justify="right")
    table.add_column("started")
    for epoch in epochs:
        places = [epoch[name] for name in ("start_index", "end_index", "start_offset", "end_offset")]
        numbers = ["open" if place is None else f"{place:,}" for place in places]
        table.add_row(str(epoch["epoch"]), str(epoch["leader"]), *numbers, format_time(epoch["started_ms"]))
    return table


def watermarks_table(watermarks: Mapping[str, Mapping[str, int]]) -> Table:
    """Return a table with one row for each term, and one column for each peer."""
    peers = sorted({peer for marks in watermarks.values() for peer in marks})
    table = Table(title="watermarks: last acknowledged index", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("term")
    for peer in peers:
        table.add_column(peer, justify="right")
    for term in sorted(watermarks, key=int):
        marks = watermarks[term]
        table.add_row(term, *(f"{marks[peer]:,}" if peer in marks else "" for peer in peers))
    return table
