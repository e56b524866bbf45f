"""Copies of a log at each node: end, hash of all records, and epoch file byte by byte."""

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from app.client import CommitlogClient
from app.local.cluster import LocalNode
from storage.units import MIB

PAGE_RECORDS = 100_000
PAGE_BYTES = 32 * MIB
EPOCH_FILE = "logs/{log}/epochs"
POLL_S = 0.1
INTEGER_COLUMNS = ("index", "term", "offset", "timestamp")
BYTES_COLUMNS = ("key", "value", "type")


class NodesDiffer(Exception):
    """The nodes did not reach the same end in time."""


@dataclass(frozen=True)
class NodeLog:
    """One node's copy. end_index is inclusive; records counts control records too."""

    node: str
    role: str
    end_index: int
    committed_index: int
    records: int
    records_hash: str
    epoch_file_hash: str


def wait_for_same_end(client: CommitlogClient, nodes: Sequence[LocalNode], timeout_s: float) -> None:
    """Wait until all nodes have committed up to one end. Raises NodesDiffer, and ClientError for a silent
    node."""
    deadline = time.monotonic() + timeout_s
    while True:
        views = [client.status(node.url) for node in nodes]
        ends = {index for view in views for index in (view["end_index"], view["committed_index"])}
        if len(ends) == 1:
            return
        if time.monotonic() > deadline:
            positions = ", ".join(f"{view['node']} ends at {view['end_index']}" for view in views)
            raise NodesDiffer(f"after {timeout_s:.0f} s the nodes are not at the same end: {positions}")
        time.sleep(POLL_S)


def count_events(client: CommitlogClient, nodes: Sequence[LocalNode]) -> int:
    """Return the number of events in the journals of all nodes. Raises ClientError for a silent node."""
    total = 0
    for node in nodes:
        page = client.events(node.url)
        while page["has_more"]:
            page = client.events(node.url, from_seq=page["next_seq"])
        total += page["next_seq"]
    return total


def read_node_log(client: CommitlogClient, node: LocalNode) -> NodeLog:
    """Read a node's whole log from that node alone, control records included."""
    status = client.status(node.url)
    digest = ColumnsHash()
    next_index, has_more = 0, True
    while has_more:
        page, next_index, has_more = client.read_arrow(
            next_index,
            endpoint=node.url,
            consistency="committed",
            include="control",
            limit=PAGE_RECORDS,
            max_bytes=PAGE_BYTES,
        )
        digest.add(page)
    epoch_file = node.data / EPOCH_FILE.format(log=client.log)
    return NodeLog(
        node=node.id,
        role=str(status["role"]),
        end_index=int(status["end_index"]),
        committed_index=int(status["committed_index"]),
        records=digest.count,
        records_hash=digest.hex,
        epoch_file_hash=hashlib.blake2b(epoch_file.read_bytes(), digest_size=16).hexdigest(),
    )


class ColumnsHash:
    """A hash of every column of records that arrive in pages, independent of the page boundaries.

    Each column has its own hash: of the numbers, or of the lengths and the contents separately, so that no
    two different columns give the same bytes.
    """

    def __init__(self) -> None:
        self.count = 0
        parts = [f"{name} lengths" for name in BYTES_COLUMNS]
        names = (*INTEGER_COLUMNS, *BYTES_COLUMNS, *parts, "headers")
        self._hashes = {name: hashlib.blake2b(digest_size=16) for name in names}

    def add(self, page: pa.Table) -> None:
        """Add the next records."""
        self.count += page.num_rows
        for name in INTEGER_COLUMNS:
            numbers = page[name].cast(pa.int64()).to_numpy()
            self._hashes[name].update(numbers.astype("<i8").tobytes())
        for name in BYTES_COLUMNS:
            cells = page[name].cast(pa.large_binary())
            lengths = pc.fill_null(pc.binary_length(cells), -1).to_numpy()
            self._hashes[f"{name} lengths"].update(lengths.astype("<i8").tobytes())
            for chunk in pc.fill_null(cells, b"").chunks:
                _, offsets, contents = chunk.buffers()
                ends = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
                if contents is not None and len(chunk) > 0:
                    self._hashes[name].update(memoryview(contents)[ends[0] : ends[-1]])
        headers = page["headers"]
        if headers.null_count == len(headers):
            self._hashes["headers"].update(b"None;" * len(headers))
        else:
            self._hashes["headers"].update("".join(f"{cell!r};" for cell in headers.to_pylist()).encode())

    @property
    def hex(self) -> str:
        whole = hashlib.blake2b(digest_size=16)
        for column in self._hashes.values():
            whole.update(column.digest())
        return whole.hexdigest()
