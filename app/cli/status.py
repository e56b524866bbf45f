"""`commitlog status`: status of a log at every node, once or repeatedly."""

import time
from collections.abc import Mapping
from typing import Any

import click
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from app.certificate_end import REPLACE, CertificateEnd
from app.cli.context import (
    CommandFailed,
    ExitCode,
    Target,
    print_json,
    print_table,
    printable,
    target_options,
)
from app.cli.times import format_time
from app.client import ClientError, CommitlogClient, Problem

WATCH_INTERVAL_S = 0.5
ROLE_STYLES = {
    "leader": "bold green",
    "master": "bold green",
    "candidate": "yellow",
    "removed": "dim",
    "down": "bold red",
}


@click.command("status")
@click.option("--watch", is_flag=True, help="Refresh twice a second until Ctrl-C.")
@target_options
def status_command(target: Target, watch: bool) -> None:
    """Show the role, term, indexes and followers of a log at each node.

    `state` and `lag` are reported by the leader. In APPEND, or TRANSFER in the other modes, the replica
    receives records; COMPARE, TRUNCATE and HANDSHAKE come first and find where its log agrees with the
    leader's.

    \b
    Examples:
      commitlog status
      commitlog status --watch --log orders
      commitlog status --json | jq '.nodes[].role'
    """
    with target.client() as client:
        if not watch:
            views = node_views(client)
            if target.as_json:
                print_json({"log": target.log, "nodes": views})
            else:
                print_table(status_table(target.log, views))
            if all(view["role"] == "down" for view in views):
                raise CommandFailed("no node answers", ExitCode.UNAVAILABLE)
            if not any(map(_is_status, views)):
                raise CommandFailed("no node has the log open", ExitCode.UNAVAILABLE)
            return
        try:
            _watch(target, client)
        except KeyboardInterrupt:
            return


def _watch(target: Target, client: CommitlogClient) -> None:
    if target.as_json:
        while True:
            print_json({"log": target.log, "nodes": node_views(client)})
            time.sleep(WATCH_INTERVAL_S)
    console = Console()
    if not console.is_terminal:  # `Live` would print only the last table into a pipe
        while True:
            console.print(status_table(target.log, node_views(client)))
            time.sleep(WATCH_INTERVAL_S)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(status_table(target.log, node_views(client)), refresh=True)
            time.sleep(WATCH_INTERVAL_S)


def node_views(client: CommitlogClient) -> list[dict[str, Any]]:
    """The status documents of all nodes that keep the log, in the cluster's order; of a silent node its id,
    url, role "down" and the reason.

    A node that refuses has the code of its problem as its role, such as "repairing".

    Raises ClientError when the log does not exist anywhere, or no endpoint answers.
    """
    nodes = client.cluster()["nodes"]
    views: list[dict[str, Any]] = []
    final: Problem | None = None
    for node in nodes:
        try:
            view = client.status(node["url"])
            if view["node"] == node["id"]:  # else it keeps no copy, and passed the question on
                views.append({"url": node["url"], **view})
        except Problem as error:
            final = final if error.retryable else error
            views.append({"node": node["id"], "url": node["url"], "role": error.code})
        except ClientError as error:
            silent = {"node": node["id"], "url": node["url"], "role": "down", "reason": str(error)}
            views.append(silent)
    if final is not None and not any(map(_is_status, views)):
        raise final
    return views


def _is_status(view: Mapping[str, Any]) -> bool:
    """Return False for a node that refused or did not answer."""
    return "peers" in view


def status_table(log: str, views: list[dict[str, Any]]) -> Table:
    """Return the status documents as a table; `state` and `lag` are those of the newest leader: a former one
    that is cut off may still report its own. Below it are the reasons of silent nodes, the contradictions
    of the nodes' configuration files, with keys such as `[controller] nodes`, which is no markup, a leader
    that is no row, and the certificates that end soon."""
    leading = [view for view in views if view["role"] in ("leader", "master")]
    newest = max(leading, key=lambda view: view.get("term", 0), default={})
    peers = {peer["id"]: peer for peer in newest.get("peers", ())}
    table = Table(title=f"log {log}", title_justify="left", box=SIMPLE_HEAD)
    notes = [*_silent(views), *_conflicts(views), *_unlisted_leaders(views), *_ending_certificates(views)]
    if notes:
        table.caption = Text("\n".join(map(printable, notes)), style="table.caption")
        table.caption_justify = "left"
    for name in ("node", "role"):
        table.add_column(name)
    for name in ("term", "begin", "committed", "end"):
        table.add_column(name, justify="right")
    table.add_column("state")
    table.add_column("lag", justify="right")
    for view in views:
        role = str(view["role"])
        if view in leading and view is not newest:
            role = f"former {role}"
        peer = peers.get(view["node"], {})
        since_ms = peer.get("unreachable_since_ms")
        table.add_row(
            view["node"],
            Text(role, style=ROLE_STYLES.get(role, "default")),
            *(_number(view.get(name)) for name in ("term", "begin_index", "committed_index", "end_index")),
            str(peer.get("state", "")) if since_ms is None else f"no answer since {format_time(since_ms)}",
            _lag(peer),
        )
    return table


def _silent(views: list[dict[str, Any]]) -> list[str]:
    return [f"{view['node']}: {view['reason']}" for view in views if "reason" in view]


def _conflicts(views: list[dict[str, Any]]) -> list[str]:
    return [f"{view['node']}: {text}" for view in views for text in view.get("conflicts", ())]


def _unlisted_leaders(views: list[dict[str, Any]]) -> list[str]:
    """Return a line for each leader that the nodes follow and the node that was asked does not list."""
    followed = {str(view.get("leader") or view.get("master") or view["node"]) for view in views}
    return [
        f"the leader {leader} is not in the list of nodes: add it to the file of the node that was asked"
        for leader in sorted(followed - {view["node"] for view in views})
    ]


def _ending_certificates(views: list[dict[str, Any]]) -> list[str]:
    now_ms = time.time_ns() // 1_000_000
    found = [
        (f"{view['node']}: {each['name']}", CertificateEnd(each["end_ms"], now_ms))
        for view in views
        for each in view.get("certificates", ())
    ]
    return [f"{name} {end}: {REPLACE}" for name, end in found if end.is_reported]


def _lag(peer: Mapping[str, Any]) -> str:
    """peer: as its leader reports it; empty when no leader answers, and for the leader itself."""
    if "unreachable_since_ms" in peer:
        return "unknown"
    lag_bytes = peer.get("lag_bytes")
    return "" if lag_bytes is None else f"{lag_bytes:,} B"


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"
