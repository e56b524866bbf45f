"""`commitlog members`, `leader` and `controller`: manage nodes, leadership and the controllers."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table

from app.cli.context import (
    Target,
    cluster_options,
    complete_nodes,
    json_option,
    print_json,
    print_table,
    target_options,
)
from app.client.errors import Problem
from app.client.operations import Operations
from app.durations import Seconds

_RETRY_S = 0.5
_one_log = click.option("--of", metavar="LOG", help="Only of this log. Default: every Raft log.")
_force = click.option(
    "--force",
    is_flag=True,
    help="Controller mode: at once, also a live node or the last copy in sync. What only it holds is lost.",
)


@click.group("members", invoke_without_command=True)
@cluster_options
@click.pass_context
def members_command(ctx: click.Context, target: Target) -> None:
    """List (the default), add, promote, demote, remove and clean nodes.

    \b
    Examples:
      commitlog members
      commitlog members add n4 --url http://127.0.0.1:8104 --peer-address 127.0.0.1:9104
      commitlog members promote n4 --wait-s 60
    """
    if ctx.invoked_subcommand is None:
        _list(target)


@members_command.command("list")
@cluster_options
def list_members(target: Target) -> None:
    """List the nodes of the cluster.

    Neither learners nor removed nodes vote. A removed node is in the list while a configuration file names
    it.

    \b
    Examples:
      commitlog members list --json
    """
    _list(target)


def _list(target: Target) -> None:
    with target.client() as client:
        _show(target, Operations(client).members())


@members_command.command("add")
@click.argument("node_id", shell_complete=complete_nodes)
@click.option("--url", required=True, help="Base URL of the node, for example http://127.0.0.1:8104.")
@click.option("--peer-address", required=True, help="host:port at which the other nodes reach it.")
@_one_log
@cluster_options
def add_member(target: Target, node_id: str, url: str, peer_address: str, of: str | None) -> None:
    """Add a running node as a learner of the logs.

    A learner receives the logs and does not vote.

    \b
    Examples:
      commitlog members add n4 --url http://127.0.0.1:8104 --peer-address 127.0.0.1:9104
    """
    with target.client(writes=True) as client:
        _show(target, Operations(client).add_member(node_id, url, peer_address, of=of), of)


@members_command.command("promote")
@click.argument("node_id", shell_complete=complete_nodes)
@click.option("--wait-s", type=Seconds(), default=0.0, help="Time to wait for it to catch up, seconds.")
@_one_log
@cluster_options
def promote_member(target: Target, node_id: str, wait_s: float, of: str | None) -> None:
    """Promote a learner that has caught up to voter.

    \b
    Examples:
      commitlog members promote n4 --wait-s 60
    """
    give_up_at = time.monotonic() + wait_s
    with target.client(writes=True) as client:
        while True:
            try:
                members = Operations(client).promote_member(node_id, of=of)
                break
            except Problem as problem:
                lagging = problem.code in ("not-caught-up", "change-in-progress")
                if not lagging or time.monotonic() >= give_up_at:
                    raise
            time.sleep(_RETRY_S)
        _show(target, members, of)


@members_command.command("demote")
@click.argument("node_id", shell_complete=complete_nodes)
@click.option("--of", metavar="LOG", required=True, help="Log in controller mode.")
@cluster_options
def demote_member(target: Target, node_id: str, of: str) -> None:
    """Make a replica of a log in controller mode a learner.

    \b
    Examples:
      commitlog members demote n3 --of payments
    """
    with target.client(writes=True) as client:
        _show(target, Operations(client).demote_member(node_id, of=of), of)


@members_command.command("remove")
@click.argument("node_id", shell_complete=complete_nodes)
@_one_log
@_force
@cluster_options
def remove_member(target: Target, node_id: str, of: str | None, force: bool) -> None:
    """Remove a node. A leader transfers its leadership first.

    \b
    Examples:
      commitlog members remove n3
    """
    with target.client(writes=True) as client:
        members = Operations(client).remove_member(node_id, of=of, force=force)
        _show(target, members, of)
        if of is None and any(member["id"] == node_id and member["voter"] for member in members):
            _explain_vote(node_id, client.logs())


def _explain_vote(node_id: str, logs: Sequence[Mapping[str, Any]]) -> None:
    """Notify the user why a node that was removed still votes (docs/operations.md, section 6)."""
    kept = [log for log in logs if log["replication"] != "raft" and node_id in log["replicas"]]
    if not kept:
        return
    classic = [log["name"] for log in kept if log["replication"] == "classic"]
    fixed = (
        f" The replicas of a log in classic mode are fixed ({', '.join(classic)}): to end the vote alone, "
        f"use `commitlog members remove {node_id} --of __controller`."
    )
    click.echo(
        f"{node_id} still votes for the controllers: it keeps logs in controller or classic mode, "
        f"{', '.join(log['name'] for log in kept)}. Move or delete them (`commitlog logs change LOG "
        f"--replicas …`), then remove {node_id} again.{fixed if classic else ''}",
        err=True,
    )


@members_command.command("clean")
@click.argument("node_id", shell_complete=complete_nodes)
@click.option("--of", metavar="LOG", help="Only of this log. Default: every log in controller mode.")
@_force
@cluster_options
def clean_member(target: Target, node_id: str, of: str | None, force: bool) -> None:
    """Remove a lost node's metadata from logs in controller mode.

    \b
    Examples:
      commitlog members clean n3
    """
    with target.client(writes=True) as client:
        done = Operations(client).clean_member(node_id, of=of, force=force)
    if target.as_json:
        print_json(done)
    else:
        click.echo(f"{done['node']} keeps no replica of {', '.join(done['logs'])} any more")


@click.group("leader")
@json_option
def leader_command(as_json: bool) -> None:
    """Transfer the leadership of a log.

    \b
    Examples:
      commitlog leader transfer --to n2 --log orders
    """


@leader_command.command("transfer")
@click.option(
    "--to",
    shell_complete=complete_nodes,
    help="Voter, or member of the SyncStateSet. Default: the most up-to-date.",
)
@target_options
def transfer_leader(target: Target, to: str | None) -> None:
    """Transfer the leadership. Appends wait during the election; none is lost.

    \b
    Examples:
      commitlog leader transfer
      commitlog leader transfer --to n2 --log orders
    """
    with target.client(writes=True) as client:
        done = Operations(client).transfer_leader(to)
    if target.as_json:
        print_json(done)
    else:
        click.echo(f"{done['leader']} is the leader of {done['log']} in term {done['term']}")


@click.group("controller", invoke_without_command=True)
@cluster_options
@click.pass_context
def controller_command(ctx: click.Context, target: Target) -> None:
    """Show the active controller and the settings of the controllers (the default), or change them.

    \b
    Examples:
      commitlog controller
      commitlog controller set broker_timeout_ms=5000
    """
    if ctx.invoked_subcommand is None:
        with target.client() as client:
            _show_controller(target, Operations(client).controller_settings())


@controller_command.command("set")
@click.argument("settings", nargs=-1, required=True, metavar="NAME=VALUE...")
@cluster_options
def change_settings(target: Target, settings: Sequence[str]) -> None:
    """Change settings at run time. VALUE is a number, true, false, or null for the configuration file's.

    \b
    Examples:
      commitlog controller set broker_timeout_ms=5000
      commitlog controller set broker_timeout_ms=null
    """
    changes = {}
    for each in settings:
        name, _, text = each.partition("=")
        try:
            changes[name] = json.loads(text)
        except ValueError:
            raise click.BadParameter(f"must be NAME=VALUE such as lease_ms=2000, got {each!r}") from None
    with target.client(writes=True) as client:
        _show_controller(target, Operations(client).change_controller_settings(changes))


def _show_controller(target: Target, found: Mapping[str, Any]) -> None:
    if target.as_json:
        print_json(found)
        return
    click.echo(f"{found['active'] or 'no node'} is the active controller in term {found['term']}")
    table = Table("setting", "value", "changed at run time", box=SIMPLE_HEAD)
    for name, value in found["settings"].items():
        table.add_row(name, json.dumps(value), "yes" if name in found["changed"] else "")
    print_table(table)


def _show(target: Target, members: Sequence[Mapping[str, Any]], of: str | None = None) -> None:
    """Print the nodes, after a change of one log with their roles in it."""
    if target.as_json:
        print_json({"members": list(members)})
        return
    table = Table("node", "votes", "alive", "version", "url", "peer address", box=SIMPLE_HEAD)
    has_roles = of is not None and any("role" in member for member in members)
    if has_roles:
        table.add_column(f"role in {of}")
    for member in members:
        table.add_row(
            member["id"],
            "yes" if member["voter"] else "no",
            "yes" if member["alive"] else "no",
            member["version"] or "",
            member["url"],
            member["peer_address"],
            *([member["role"] or "none"] if has_roles else ()),
        )
    print_table(table)
