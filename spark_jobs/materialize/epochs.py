"""The tables `epochs` and `epoch_files`: beginning and end of each term, as committed and as in each node's
file.

Both are small and change rarely. The service returns the nodes' epoch files. A file may contain an epoch that
is not committed yet; `epochs` omits it.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_jobs.errors import SourceError, Unreachable
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables import schemas
from spark_jobs.tables.claims import MAX_REFUSALS
from spark_jobs.tables.removals import Removals, TableReplaced
from spark_jobs.tables.table import EPOCH_FILES, EPOCHS, Table, TableClash, collect_table
from spark_jobs.tables.table_writer import TableWriter

APPLICATION = "commitlog-epochs"
EpochRow = Mapping[str, Any]
NAMES = ("epoch", "term", "leader", "start_index", "start_offset", "end_index", "end_offset")


class EpochClash(SourceError):
    """Two nodes hold different committed epochs of one number: the logs are not one log (R-06), or one of the
    nodes has not removed yet what an unclean election took from its copy."""

    condition = "COMMITLOG_EPOCH_CLASH"
    is_final = True


class EpochsJob:
    """Maintains one log's `epochs` and `epoch_files` from the nodes' files.

    Writes only what has changed since it began.
    """

    def __init__(self, spark: SparkSession, client: LogReads, epochs_path: str, files_path: str) -> None:
        self.spark = spark
        self.client = client
        self.epochs_path = epochs_path
        self.files_path = files_path
        self._epochs = TableWriter(spark, epochs_path, EPOCHS, is_small=True)
        self._files = TableWriter(spark, files_path, EPOCH_FILES, is_small=True)
        self.committed: list[EpochRow] = []
        self.files: dict[str, list[EpochRow]] = {}
        self._removals = Removals(spark, epochs_path)
        self._file_removals = Removals(spark, files_path)
        self._is_open = False

    def open(self) -> None:
        """Create the tables if needed, and read their content."""
        self._removals.start()
        self._file_removals.start()
        is_new = self._epochs.create()
        self.committed = [] if is_new else [_epoch(row) for row in self._held(self.epochs_path, EPOCHS)]
        self.files = {} if self._files.create() else self._held_files()
        self._is_open = True

    def refresh(self) -> bool:
        """Read the files of every node, and write the changes. A node that does not answer keeps its rows;
        one that has left the cluster loses them. The first call opens the job.

        Return whether all nodes answered, and know the last epoch of their files to be committed. Raises
        TableClash if rows were removed from `epochs`; those of `epoch_files` are written again.
        """
        try:
            self._check_removals()
        except TableReplaced:
            self._is_open = False
        if not self._is_open:
            self.open()
        files: dict[str, list[EpochRow]] = {}
        committed: list[list[EpochRow]] = []
        nodes = self.client.nodes()
        gone = self.files.keys() - {node.id for node in nodes}
        for node in nodes:
            try:
                committed_index = self.client.committed_index(
                    node
                )  # read before the file: what it covers is final
                file: list[EpochRow] = list(self.client.epochs(node))
            except Unreachable:
                continue
            files[node.id] = file
            committed.append(committed_epochs(file, committed_index))
        self._publish(agree(self.client.log, committed))
        lengths = {len(file) for file in files.values()} | {len(epochs) for epochs in committed}
        changed = {node_id: file for node_id, file in files.items() if file != self.files.get(node_id)}
        if changed or gone:
            try:
                self._replace_files({**changed, **dict.fromkeys(gone, ())})
            except _RowsReplaced:
                self.files = self._held_files()
                return self.refresh()
            self.files |= changed
            for node_id in gone:
                del self.files[node_id]
        return len(files) == len(nodes) and len(lengths) <= 1

    def _check_removals(self) -> None:
        """Read the tables again after commits that may have removed rows, as each own one does. Raises
        TableClash, TableReplaced."""
        if not self._is_open:
            return
        if self._removals.found():
            held = [_epoch(row) for row in self._held(self.epochs_path, EPOCHS)]
            if missing := changes_of(self.committed, held):
                raise TableClash(self.epochs_path, f"the epochs {', '.join(map(str, missing))}")
            self.committed = held
        if self._file_removals.found():
            self.files = self._held_files()

    def _held(self, path: str, table: Table) -> list[dict[str, Any]]:
        """Return the rows of a table, by epoch."""
        rows = collect_table(self.spark, path, table, table.schema.names)
        return list(rows.sort_by("epoch").to_pylist())

    def _held_files(self) -> dict[str, list[EpochRow]]:
        """Return the files of the table, by node."""
        return files_of(self._held(self.files_path, EPOCH_FILES))

    def _publish(self, agreed: Sequence[EpochRow]) -> None:
        """Write the changes to `epochs`. Raises TableClash if it refuses without another writer."""
        refusals = 0
        while changed := changes_of(agreed, self.committed):
            known = {epoch["epoch"]: epoch for epoch in self.committed}
            claim = knowledge(self.committed)
            all_of_them = [(known | changed)[number] for number in sorted(known | changed)]
            rows = [_row(self.client.log, epoch) for epoch in all_of_them]
            if self._epochs.replace(
                _table(EPOCHS, rows),
                application=APPLICATION,
                claim=claim,
                position="epoch",
                note={"epochs": list(changed)},
            ):
                self.committed = all_of_them
                return
            self.committed = [_epoch(row) for row in self._held(self.epochs_path, EPOCHS)]
            refusals = refusals + 1 if knowledge(self.committed) == claim else 0
            if refusals == MAX_REFUSALS:
                raise TableClash(self.epochs_path, "the epochs of the nodes")

    def _replace_files(self, files: Mapping[str, Sequence[EpochRow]]) -> None:
        """Replace the rows of these nodes; other drivers may write those of other nodes meanwhile.

        Raises _RowsReplaced if one has replaced rows of these nodes: its files may be newer.
        """
        rows = [
            {**_row(self.client.log, epoch), "node": node} for node, file in files.items() for epoch in file
        ]

        def rows_of() -> pa.Table:
            held = self._held(self.files_path, EPOCH_FILES)
            present = files_of(held)
            if any(present.get(node, []) != self.files.get(node, []) for node in files):
                raise _RowsReplaced
            return _table(EPOCH_FILES, [*(row for row in held if row["node"] not in files), *rows])

        self._files.update(rows_of, "epoch")


class _RowsReplaced(Exception):
    """Rows of `epoch_files` are not those that this driver has read or written last."""


def files_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[EpochRow]]:
    """Return the epoch files by node. rows: of `epoch_files`, by epoch."""
    files: dict[str, list[EpochRow]] = {}
    for row in rows:
        files.setdefault(row["node"], []).append(_epoch(row))
    return files


def _table(table: Table, rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schemas.arrow_schema(table.schema))


def committed_epochs(file: Sequence[EpochRow], committed_index: int) -> list[EpochRow]:
    """Return the epochs whose first record is committed; an epoch ends only with a committed one.

    committed_index: of the same node before its file was read, since an uncommitted epoch may be truncated.
    """
    begun = [epoch for epoch in file if epoch["start_index"] <= committed_index]
    ended: list[EpochRow] = [
        {**epoch, "end_index": following["start_index"] - 1, "end_offset": following["start_offset"]}
        for epoch, following in pairwise(begun)
    ]
    return ended + [{**epoch, "end_index": None, "end_offset": None} for epoch in begun[-1:]]


def changes_of(reported: Sequence[EpochRow], known: Sequence[EpochRow]) -> dict[int, EpochRow]:
    """Return, by number, the epochs that are new and those that have ended since. An epoch that the nodes
    have trimmed is not a change, and neither is one that has not ended at a node that lags."""
    before = {epoch["epoch"]: epoch for epoch in known}
    return {
        epoch["epoch"]: epoch
        for epoch in reported
        if epoch["epoch"] not in before
        or (before[epoch["epoch"]]["end_index"] is None and epoch["end_index"] is not None)
    }


def knowledge(known: Sequence[EpochRow]) -> int:
    """Return the number of begins and ends of epochs: the claim of a write, since each write adds some."""
    return sum(1 if epoch["end_index"] is None else 2 for epoch in known)


def agree(log: str, files: Sequence[Sequence[EpochRow]]) -> list[EpochRow]:
    """Return the committed epochs that the nodes know together: the longest list, of which every other one
    is a part, preceded by what others have not trimmed. Raises EpochClash when one is not a part."""
    longest = max(files, key=lambda file: file[-1]["epoch"] if file else -1, default=[])
    known = {epoch["epoch"]: epoch for epoch in longest}
    for file in files:
        for epoch in file:
            other = known.get(epoch["epoch"])
            if other is None and epoch["epoch"] < longest[0]["epoch"]:
                if epoch["end_index"] is not None:  # else the node is behind, and what follows it is trimmed
                    known[epoch["epoch"]] = epoch
                continue
            if other is None or other["start_index"] != epoch["start_index"]:
                raise EpochClash(
                    f"log {log!r}: two nodes disagree on committed epoch {epoch['epoch']}: {dict(epoch)} and "
                    f"{other and dict(other)}. Their logs differ below the committed index: stop and "
                    "compare them"
                )
    return [known[number] for number in sorted(known)]


def _row(log: str, epoch: EpochRow) -> dict[str, Any]:
    started = datetime.fromtimestamp(epoch["started_ms"] / 1_000, UTC)
    return {"log": log, **{name: epoch[name] for name in NAMES}, "started": started}


def _epoch(row: Mapping[str, Any]) -> EpochRow:
    """Return a table's row from the service's answer."""
    started_ms = round(row["started"].timestamp() * 1_000)
    return {**{name: row[name] for name in NAMES}, "started_ms": started_ms}
