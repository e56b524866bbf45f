"""`commitlog logs`, `elect` and `trim`: manage logs, elect their masters, remove their oldest records."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.table import Table

from app.cli.context import (
    Target,
    a_log_name,
    cluster_options,
    complete_logs,
    print_json,
    print_table,
    printable,
    target_options,
)
from app.client import CommitlogClient
from app.client.errors import Problem
from app.client.operations import Operations
from app.durations import Seconds
from app.tables.names import FAILED

_RETRY_S = 0.5
NO_BOUND = "none"


def _priorities(_ctx: click.Context, _option: click.Parameter, given: Sequence[str]) -> dict[str, int]:
    """NODE=NUMBER for each node."""
    found = {}
    for each in given:
        node, _, number = each.partition("=")
        if not node or not number.isdecimal():
            raise click.BadParameter(f"must be NODE=NUMBER such as n1=10, got {each!r}")
        if node in found:
            raise click.BadParameter(f"{node} is named twice")
        found[node] = int(number)
    return found


def _bound(_ctx: click.Context, option: click.Parameter, given: str | None) -> int | str | None:
    """Return a positive number, NO_BOUND for `none`, None when it is not given."""
    if given is None or given == NO_BOUND:
        return given
    if not given.isdecimal() or int(given) == 0:
        raise click.BadParameter(f"must be a positive number or {NO_BOUND}, got {given!r}", param=option)
    return int(given)


@click.group("logs", invoke_without_command=True)
@cluster_options
@click.pass_context
def logs_command(ctx: click.Context, target: Target) -> None:
    """List (the default), show, create, change and delete logs.

    \b
    Examples:
      commitlog logs create orders --replicas 3 --retention-ms 604800000
      commitlog logs change orders --retention-bytes 1073741824 --retention-ms none
      commitlog logs show orders --json
    """
    if ctx.invoked_subcommand is None:
        _list(target)


@logs_command.command("list")
@cluster_options
def list_logs(target: Target) -> None:
    """List the logs of the cluster.

    \b
    Examples:
      commitlog logs list --json | jq '.logs[].name'
    """
    _list(target)


@logs_command.command("create")
@click.argument("name", callback=a_log_name)
@click.option(
    "--replication",
    type=click.Choice(["raft", "controller", "classic"]),
    default="raft",
    show_default=True,
    help="`raft`; `controller`: masters elected by the controllers; `classic`: a fixed master.",
)
@click.option("--replicas", help="Number of replicas (3), or their nodes (n1,n2). Default: all nodes.")
@click.option(
    "--durability",
    type=click.Choice(["fsync", "replicated"]),
    default="fsync",
    show_default=True,
    help="`fsync`: acknowledged records are on disk; `replicated`: in the memory of the replicas.",
)
@click.option("--retention-ms", type=click.IntRange(1), help="Remove records older than this, in ms.")
@click.option(
    "--retention-bytes", type=click.IntRange(1), help="Remove the oldest records beyond this size, in bytes."
)
@click.option(
    "--min-in-sync-replicas",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Replicas that must be in sync, or appends are refused.",
)
@click.option(
    "--in-sync-replicas",
    type=click.IntRange(2),
    help="Members of the SyncStateSet that must hold a record before it is acknowledged. Default: all.",
)
@click.option("--learner", "learners", multiple=True, help="Replica that does not vote. May be repeated.")
@click.option("--preferred", help="Preferred leader (Raft) or master (controller mode).")
@click.option(
    "--priority",
    "priorities",
    multiple=True,
    callback=_priorities,
    help="NODE=NUMBER: rank in an election between equal copies, the lower number wins. May be repeated.",
)
@click.option(
    "--unclean", is_flag=True, help="If no in-sync replica is alive, elect another; records may be lost."
)
@cluster_options
def create_log(
    target: Target,
    name: str,
    replicas: str | None,
    retention_ms: int | None,
    retention_bytes: int | None,
    learners: tuple[str, ...],
    **settings: Any,
) -> None:
    """Create a log. If the log exists with the same settings, nothing changes.

    \b
    Examples:
      commitlog logs create orders --replicas 3 --retention-ms 604800000
      commitlog logs create payments --replication controller --min-in-sync-replicas 2
    """
    asked: dict[str, Any] = {"name": name, "learners": learners, **settings}
    if replicas is not None:
        asked["replicas"] = _replicas(replicas)
    if retention_ms is not None or retention_bytes is not None:
        asked["retention"] = {"ms": retention_ms, "bytes": retention_bytes}
    with target.client(writes=True) as client:
        log = Operations(client).create_log(asked)
    replicas_text = ", ".join(log.get("replicas") or ()) or "the configured nodes"
    _show(target, log, f"log {name} is in place: {log.get('replication', 'raft')}, on {replicas_text}")


@logs_command.command("show")
@click.argument("name", shell_complete=complete_logs, callback=a_log_name)
@cluster_options
def show_log(target: Target, name: str) -> None:
    """Show the settings of a log.

    \b
    Examples:
      commitlog logs show orders --json
    """
    with target.client() as client:
        log = Operations(client).log(name)
    if target.as_json:
        print_json(log)
        return
    width = max(map(len, log))
    for key, value in log.items():
        shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        click.echo(f"{key:<{width}}  {shown}")


@logs_command.command("change")
@click.argument("name", shell_complete=complete_logs, callback=a_log_name)
@click.option("--retention-ms", metavar="MS", callback=_bound, help="Age limit of records, ms; `none`: none.")
@click.option("--retention-bytes", metavar="BYTES", callback=_bound, help="Size limit; `none`: none.")
@click.option(
    "--durability",
    type=click.Choice(["fsync", "replicated"]),
    help="`fsync`: acknowledged records are on disk; `replicated`: in the memory of the replicas.",
)
@click.option(
    "--min-in-sync-replicas",
    type=click.IntRange(1),
    help="Replicas that must be in sync, or appends are refused.",
)
@click.option(
    "--in-sync-replicas",
    type=click.IntRange(0),
    help="Members of the SyncStateSet that must hold an acknowledged record, at least 2; 0 for all of them.",
)
@click.option("--preferred", help='Preferred leader (Raft) or master (controller mode); "" for none.')
@click.option(
    "--priority",
    "priorities",
    multiple=True,
    callback=_priorities,
    help="NODE=NUMBER: rank in an election between equal copies. All of them; others are removed.",
)
@click.option("--unclean/--no-unclean", default=None, help="Allow unclean elections.")
@click.option("--replicas", help="Nodes that keep the log (n1,n2,n4), or their number.")
@click.option("--learners", help='Those of them that are learners (n4); "" for none.')
@click.option(
    "--force",
    is_flag=True,
    default=None,
    help="Controller mode: replicas that are taken out leave at once. What only they hold is lost.",
)
@click.option(
    "--wait-s",
    type=Seconds(),
    default=0.0,
    help="Time to wait until the change of replicas is complete, seconds.",
)
@cluster_options
def change_log(target: Target, name: str, wait_s: float, **settings: Any) -> None:
    """Change settings of a log. Settings that are not named stay as they are.

    The first limit of its own replaces both limits that the nodes have for logs without their own.

    \b
    Examples:
      commitlog logs change orders --retention-bytes 1073741824 --retention-ms none
    """
    changes = {key: value for key, value in settings.items() if value not in (None, {})}
    if "replicas" in changes:
        changes["replicas"] = _replicas(changes["replicas"])
    if "learners" in changes:
        changes["learners"] = [node for node in changes["learners"].split(",") if node]
    if changes.get("in_sync_replicas") == 0:
        changes["in_sync_replicas"] = None
    if changes.get("preferred") == "":
        changes["preferred"] = None
    if not changes:
        raise click.UsageError("name at least one setting to change")
    give_up_at = time.monotonic() + wait_s
    with target.client(writes=True) as client:
        _take_retention(client, name, changes)
        log = _changed(Operations(client), name, changes, give_up_at)
        while log.get("leaving") and time.monotonic() < give_up_at:
            time.sleep(_RETRY_S)
            log = next(each for each in client.logs() if each["name"] == name)
    leaving = ", ".join(log.get("leaving") or ())
    staying = f"; replicas until the others are in sync: {leaving}" if leaving else ""
    _show(target, log, f"log {name} is changed{staying}")


def _take_retention(client: CommitlogClient, name: str, changes: dict[str, Any]) -> None:
    """Replace the two options by the field `retention`, which holds both: the other limit stays."""
    given = {unit: changes.pop(f"retention_{unit}", None) for unit in ("ms", "bytes")}
    if given == {"ms": None, "bytes": None}:
        return
    now = Operations(client).log(name).get("retention") or {}
    changes["retention"] = {
        unit: now.get(unit) if limit is None else None if limit == NO_BOUND else limit
        for unit, limit in given.items()
    }


def _changed(
    operations: Operations, name: str, changes: Mapping[str, Any], give_up_at: float
) -> dict[str, Any]:
    """The log after the change. In Raft mode the members change step by step: the call is repeated."""
    while True:
        try:
            return operations.change_log(name, changes)
        except Problem as problem:
            under_way = problem.code in ("not-caught-up", "change-in-progress")
            if not under_way or time.monotonic() >= give_up_at:
                raise
        time.sleep(_RETRY_S)


def _replicas(text: str) -> int | list[str]:
    return int(text) if text.isdecimal() else text.split(",")


@logs_command.command("delete")
@click.argument("name", shell_complete=complete_logs, callback=a_log_name)
@cluster_options
def delete_log(target: Target, name: str) -> None:
    """Delete a log: its nodes remove their replicas.

    \b
    Examples:
      commitlog logs delete orders
    """
    with target.client(writes=True) as client:
        log = Operations(client).delete_log(name)
    _show(target, log, f"log {name} is being deleted")


@click.command("elect")
@click.option("--candidate", help="Node to elect. Default: any; a live master stays.")
@click.option(
    "--unclean",
    is_flag=True,
    help="Allow a replica that is not in sync; records that only other replicas hold are lost.",
)
@target_options
def elect_command(target: Target, candidate: str | None, unclean: bool) -> None:
    """Elect the master of a log in controller mode.

    \b
    Examples:
      commitlog elect --log payments
      commitlog elect --log payments --candidate n2
    """
    with target.client(writes=True) as client:
        election = Operations(client).elect(candidate, unclean=unclean)
    _show(target, election, f"{election['master']} is master in epoch {election['epoch']}")


def _show(target: Target, document: Mapping[str, Any], sentence: str) -> None:
    if target.as_json:
        print_json(document)
    else:
        click.echo(sentence)


def _list(target: Target) -> None:
    with target.client() as client:
        logs = client.logs()
    if target.as_json:
        print_json({"logs": logs})
        return
    table = Table("log", "replication", "durability", "replicas", box=SIMPLE_HEAD)
    have_masters = any(log.get("master") for log in logs)  # a Raft log has a leader: `commitlog status`
    if have_masters:
        table.add_column("master")
        table.add_column("in sync")
    if any_failed := any(log.get("tables_job") == FAILED for log in logs):
        table.add_column("Spark job")
    for log in logs:
        replicas = ", ".join(map(str, log.get("replicas", [])))
        in_sync = ", ".join(map(str, log.get("sync_state_set") or []))
        cells = [log["name"], log.get("replication"), log.get("durability"), replicas]
        cells += [log.get("master") or "", in_sync] if have_masters else []
        table.add_row(*cells, *([printable(log.get("tables_job") or "")] if any_failed else ()))
    print_table(table)


@click.command("trim")
@click.argument("until_index", type=click.IntRange(0))
@click.option("--force", is_flag=True, help="Trim even if a fencing cursor is before UNTIL_INDEX.")
@target_options
def trim_command(target: Target, until_index: int, force: bool) -> None:
    """Remove the records below UNTIL_INDEX at every replica. The batch that contains it is kept.

    \b
    Examples:
      commitlog trim 100000 --log orders
    """
    with target.client(writes=True) as client:
        result = Operations(client).trim(until_index, force=force)
    if target.as_json:
        print_json(result)
    else:
        begin = result["begin_index"]
        reason = "" if begin == until_index else "; only whole batches of committed records are removed"
        if begin > until_index:
            reason = "; it began there before"
        click.echo(f"log {target.log} begins at index {begin:,}{reason}")
