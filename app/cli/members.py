"""`commitlog members` and `commitlog leader`: who is in the cluster, and who leads a log."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from app.cli.context import Target, print_json, target_options
from app.client.errors import Problem
from app.client.operations import Operations

_RETRY_S = 0.5


@click.group("members", invoke_without_command=True)
@target_options
@click.pass_context
def members_command(ctx: click.Context, target: Target) -> None:
    """List (the default), add, promote and remove nodes."""
    if ctx.invoked_subcommand is None:
        _list(target)


@members_command.command("list")
@target_options
def list_members(target: Target) -> None:
    """List the nodes: voters and learners."""
    _list(target)


def _list(target: Target) -> None:
    with target.client() as client:
        _show(target, Operations(client).members())


@members_command.command("add")
@click.argument("node_id")
@click.option("--url", required=True, help="Base URL of its REST, for example http://127.0.0.1:8104.")
@click.option("--peer-address", required=True, help="host:port for the other nodes.")
@target_options
def add_member(target: Target, node_id: str, url: str, peer_address: str) -> None:
    """Let a running node join as a learner: it gets the logs and counts for nothing yet."""
    with target.client(writes=True) as client:
        _show(target, Operations(client).add_member(node_id, url, peer_address))


@members_command.command("promote")
@click.argument("node_id")
@click.option("--wait-s", type=click.FloatRange(0), default=0.0, help="Wait so long for it to catch up.")
@target_options
def promote_member(target: Target, node_id: str, wait_s: float) -> None:
    """Make a learner a voter, once it has caught up."""
    give_up_at = time.monotonic() + wait_s
    with target.client(writes=True) as client:
        while True:
            try:
                members = Operations(client).promote_member(node_id)
                break
            except Problem as problem:
                lagging = problem.code in ("not-caught-up", "change-in-progress")
                if not lagging or time.monotonic() >= give_up_at:
                    raise
            time.sleep(_RETRY_S)
        _show(target, members)


@members_command.command("remove")
@click.argument("node_id")
@target_options
def remove_member(target: Target, node_id: str) -> None:
    """Let a node leave; a leader hands over first."""
    with target.client(writes=True) as client:
        _show(target, Operations(client).remove_member(node_id))


@click.group("leader")
def leader_command() -> None:
    """Move the lead of a log."""


@leader_command.command("transfer")
@click.option("--to", help="The voter that is to lead. Default: the most up to date one.")
@target_options
def transfer_leader(target: Target, to: str | None) -> None:
    """Hand over the lead: appends wait for a moment, none is lost."""
    with target.client(writes=True) as client:
        done = Operations(client).transfer_leader(to)
    if target.as_json:
        print_json(done)
    else:
        click.echo(f"{done['leader']} leads {done['log']} in term {done['term']}")


def _show(target: Target, members: Sequence[Mapping[str, Any]]) -> None:
    if target.as_json:
        print_json({"members": list(members)})
        return
    table = Table("node", "votes", "alive", "version", "url", "peers at", box=SIMPLE_HEAD)
    for member in members:
        table.add_row(
            member["id"],
            "yes" if member["voter"] else "no",
            "yes" if member["alive"] else "no",
            member["version"] or "",
            member["url"],
            member["peer_address"],
        )
    Console().print(table)
