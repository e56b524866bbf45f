"""The demo's tables for a person."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from app.demo.node_logs import NodeLog
from app.demo.proofs import Proof


def leaders_table(roles: Sequence[Mapping[str, Any]], epochs: Sequence[Mapping[str, Any]]) -> Table:
    """Return the leader of each term, from the epochs, and the time, from the journal of the node itself."""
    table = Table(
        title="the leader of each term (tables epochs and events)", title_justify="left", box=SIMPLE_HEAD
    )
    for name in ("term", "leader"):
        table.add_column(name)
    for name in ("from index", "to index"):
        table.add_column(name, justify="right")
    table.add_column("led from")
    for epoch in epochs:
        led_from = next(
            (
                role["timestamp"]
                for role in roles
                if (role["node"], role["term"]) == (epoch["leader"], epoch["term"])
                and '"leader"' in role["data"]
            ),
            epoch["started"],
        )
        end = "open" if epoch["end_index"] is None else f"{epoch['end_index']:,}"
        table.add_row(str(epoch["term"]), epoch["leader"], f"{epoch['start_index']:,}", end, _clock(led_from))
    return table


def watermarks_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return the last watermark of each peer in each term, from the table `watermarks`."""
    peers = sorted({row["peer"] for row in rows})
    table = Table(
        title="the last watermarks that the leaders recorded, at most twice a second (table watermarks)",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("term")
    table.add_column("leader")
    for peer in peers:
        table.add_column(peer, justify="right")
    table.add_column("committed", justify="right")
    for term in sorted({row["term"] for row in rows}):
        of_term = {row["peer"]: row for row in rows if row["term"] == term}
        marks = [f"{of_term[peer]['watermark']:,}" if peer in of_term else "" for peer in peers]
        committed = max(row["committed_index"] for row in of_term.values())
        table.add_row(str(term), next(iter(of_term.values()))["node"], *marks, f"{committed:,}")
    return table


def nodes_table(logs: Sequence[NodeLog], restarted: str) -> Table:
    """Return each node's copy of the log."""
    table = Table(
        title="the log of each node, with its control records", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("node")
    for name in ("end index", "records"):
        table.add_column(name, justify="right")
    for name in ("hash of the records", "hash of the epoch file"):
        table.add_column(name)
    for log in logs:
        name = f"{log.node} (was killed)" if log.node == restarted else log.node
        end, records = f"{log.end_index:,}", f"{log.records:,}"
        table.add_row(name, end, records, log.records_hash[:16], log.epoch_file_hash[:16])
    return table


def proofs_table(proofs: Sequence[Proof]) -> Table:
    """Return every claim with its figures."""
    table = Table(title="proofs", title_justify="left", box=SIMPLE_HEAD)
    for name in ("", "claim", "found = expected"):
        table.add_column(name, overflow="fold")
    for proof in proofs:
        mark = "[green]holds[/]" if proof.holds else "[bold red]FAILS[/]"
        table.add_row(mark, proof.claim, proof.figures)
    return table


def _clock(timestamp_ms: int) -> str:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%H:%M:%S.%f")[:-3] + " UTC"
