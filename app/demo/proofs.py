"""The claims of the demo, each checked against the result; a claim that does not hold makes the demo fail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.demo.node_logs import NodeLog

EPOCH_FIELDS = ("epoch", "term", "leader", "start_index", "start_offset", "end_index", "end_offset")


@dataclass(frozen=True)
class Sent:
    """Input of the demo: number of records, their content hash, and the last acknowledged index."""

    records: int
    content_hash: str
    last_index: int


@dataclass(frozen=True)
class Proof:
    """One claim, whether it holds, and the figures that decide it."""

    claim: str
    holds: bool
    figures: str


def prove_entries(sent: Sent, found: Mapping[str, Any]) -> list[Proof]:
    """Prove that the table `entries` holds each sent record exactly once, and nothing else."""
    rows, indexes, last = found["rows"], found["indexes"], found["last"]
    return [
        Proof("entries: as many rows as records sent", rows == sent.records, f"{rows:,} = {sent.records:,}"),
        Proof("entries: no index twice", indexes == rows, f"{indexes:,} distinct indexes = {rows:,} rows"),
        Proof(
            "entries: the last row is the last acknowledged one",
            last == sent.last_index,
            f"index {last} = {sent.last_index}",
        ),
        Proof(
            "entries: keys and values, in order, are the input's",
            found["content_hash"] == sent.content_hash,
            f"{found['content_hash'][:16]} = {sent.content_hash[:16]}",
        ),
    ]


def prove_typed(sent: Sent, found: Mapping[str, int]) -> Proof:
    """Prove that each sent record is a row of typed columns."""
    rows, letters = found["records"], found["dead_letters"]
    return Proof(
        "records: each record has a row of typed columns",
        rows == sent.records and letters == 0,
        f"{rows:,} = {sent.records:,}; {letters} dead letters",
    )


def prove_nodes(logs: Sequence[NodeLog], restarted: str) -> list[Proof]:
    """Prove that every node holds the same log, including the restarted one."""
    first = logs[0]
    hashes = ", ".join(f"{log.node} {log.records_hash[:8]}" for log in logs)
    files = ", ".join(f"{log.node} {log.epoch_file_hash[:8]}" for log in logs)
    return [
        Proof(
            f"nodes: {restarted}, killed and restarted, ends as the others",
            all(log.end_index == log.committed_index == first.end_index for log in logs),
            f"index {first.end_index:,} everywhere",
        ),
        Proof(
            "nodes: all hold the same records, byte for byte",
            all((log.records, log.records_hash) == (first.records, first.records_hash) for log in logs),
            hashes,
        ),
        Proof(
            "nodes: all have the same epoch file, byte for byte",
            all(log.epoch_file_hash == first.epoch_file_hash for log in logs),
            files,
        ),
    ]


def prove_epochs(
    found: Sequence[Mapping[str, Any]],
    files: Sequence[Mapping[str, Any]],
    served: Sequence[Mapping[str, Any]],
    nodes: Sequence[str],
) -> list[Proof]:
    """Prove that the epoch tables agree with the nodes, and that there was a fail-over.

    found: rows of `epochs`; files: rows of `epoch_files`; served: the epochs of the service.
    """
    truth = [_epoch(epoch) for epoch in served]
    by_node = {node: [_epoch(row) for row in files if row["node"] == node] for node in nodes}
    leaders = [str(epoch["leader"]) for epoch in served]
    return [
        Proof(
            "epochs: the table equals the reports of the nodes",
            [_epoch(row) for row in found] == truth,
            f"{len(found)} epochs, led by {', '.join(leaders)}",
        ),
        Proof(
            "epochs: epoch_files has every node's file",
            all(rows == truth for rows in by_node.values()),
            ", ".join(f"{node} {len(rows)} epochs" for node, rows in by_node.items()),
        ),
        Proof(
            "epochs: another leader took over in a later term",
            len(set(leaders)) > 1 and len(served) > 1,
            f"from {leaders[0]} in term {served[0]['term']} to {leaders[-1]} in term {served[-1]['term']}",
        ),
    ]


def prove_watermarks(
    found: Sequence[Mapping[str, Any]], served: Sequence[Mapping[str, Any]], nodes: Sequence[str]
) -> Proof:
    """Prove that the table `watermarks` has every node in every term. served: the epochs of the service."""
    rows = {(row["term"], row["peer"]) for row in found}
    terms = [epoch["term"] for epoch in served]
    return Proof(
        "watermarks: the table has every node in every term",
        rows >= {(term, node) for term in terms for node in nodes},
        f"terms {', '.join(map(str, terms))}: {len(rows)} of {len(terms) * len(nodes)}",
    )


def _epoch(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in EPOCH_FIELDS)
