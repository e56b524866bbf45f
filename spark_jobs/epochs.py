"""The tables `epochs` and `epoch_files`: where each term begins and ends, agreed on and node by node.

Both are small and change seldom. They come from the nodes' epoch files, which the service answers for; a
file may hold an epoch that is not committed yet, and `epochs` leaves it out.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from pyspark.sql import SparkSession

from spark_jobs.client import LogClient
from spark_jobs.errors import SourceError, Unreachable
from spark_jobs.tables import EPOCH_FILES, EPOCHS, Table, collect_table, create_table, identifier

Epoch = Mapping[str, Any]
NAMES = ("epoch", "term", "leader", "start_index", "start_offset", "end_index", "end_offset")


class EpochClash(SourceError):
    """Two nodes hold different committed epochs of one number: the logs are not one log (R-06)."""


class EpochsJob:
    """Keeps one log's `epochs` and `epoch_files` as the nodes tell.

    Writes only what has changed since it began.
    """

    def __init__(self, spark: SparkSession, client: LogClient, epochs_path: str, files_path: str) -> None:
        self.spark = spark
        self.client = client
        self.epochs_path = epochs_path
        self.files_path = files_path
        self.committed: list[Epoch] = []
        self.files: dict[str, list[Epoch]] = {}

    def open(self) -> None:
        """Create the tables if need be, and see what they hold."""
        if not create_table(self.spark, self.epochs_path, EPOCHS):
            self.committed = [_epoch(row) for row in self._held(self.epochs_path, EPOCHS)]
        if not create_table(self.spark, self.files_path, EPOCH_FILES):
            for row in self._held(self.files_path, EPOCH_FILES):
                self.files.setdefault(row["node"], []).append(_epoch(row))

    def refresh(self) -> None:
        """Ask every node, and write what is new. A node that does not answer keeps the rows that it has, one
        that has left the cluster loses them."""
        files: dict[str, list[Epoch]] = {}
        committed: list[list[Epoch]] = []
        nodes = self.client.nodes()
        gone = self.files.keys() - {node.id for node in nodes}
        for node in nodes:
            try:
                committed_index = self.client.committed_index(
                    node
                )  # before the file: what it covers is final
                file: list[Epoch] = list(self.client.epochs(node))
            except Unreachable:
                continue
            files[node.id] = file
            committed.append(committed_epochs(file, committed_index))
        agreed = agree(self.client.log, committed)
        known = {epoch["epoch"]: epoch for epoch in self.committed}
        news = [epoch for epoch in agreed if is_news(epoch, known.get(epoch["epoch"]))]
        if news:
            self._merge(news)
            known |= {epoch["epoch"]: epoch for epoch in news}
            self.committed = [known[number] for number in sorted(known)]
        changed = {node_id: file for node_id, file in files.items() if file != self.files.get(node_id)}
        if changed or gone:
            self._replace_files({**changed, **dict.fromkeys(gone, ())})
            self.files |= changed
            for node_id in gone:
                del self.files[node_id]

    def _held(self, path: str, table: Table) -> list[dict[str, Any]]:
        """The rows of a table, by epoch."""
        rows = collect_table(self.spark, path, table, table.schema.names)
        return list(rows.sort_by("epoch").to_pylist())

    def _merge(self, epochs: Sequence[Epoch]) -> None:
        rows = [_row(self.client.log, epoch) for epoch in epochs]
        self.spark.sql(
            f"MERGE INTO {identifier(self.epochs_path)} AS known USING {{told}} AS told "
            "ON known.epoch = told.epoch "
            "WHEN MATCHED AND known.end_index IS NULL AND told.end_index IS NOT NULL THEN UPDATE SET * "
            "WHEN NOT MATCHED THEN INSERT *",
            told=self.spark.createDataFrame(rows, EPOCHS.schema),
        )

    def _replace_files(self, files: Mapping[str, Sequence[Epoch]]) -> None:
        rows = [
            {**_row(self.client.log, epoch), "node": node} for node, file in files.items() for epoch in file
        ]
        nodes = ", ".join(f"'{node}'" for node in files)
        writer = self.spark.createDataFrame(rows, EPOCH_FILES.schema).write.format("delta").mode("overwrite")
        writer.option("replaceWhere", f"node IN ({nodes})").save(self.files_path)


def committed_epochs(file: Sequence[Epoch], committed_index: int) -> list[Epoch]:
    """The epochs whose first record is committed, each ended only by one that is committed too.

    committed_index: what the same node knew before its file was read, since an uncommitted epoch may yet go.
    """
    begun = [epoch for epoch in file if epoch["start_index"] <= committed_index]
    ended: list[Epoch] = [
        {**epoch, "end_index": following["start_index"] - 1, "end_offset": following["start_offset"]}
        for epoch, following in pairwise(begun)
    ]
    return ended + [{**epoch, "end_index": None, "end_offset": None} for epoch in begun[-1:]]


def is_news(told: Epoch, known: Epoch | None) -> bool:
    """Whether an epoch is new, or has ended since. One that the nodes have trimmed stays as it was known."""
    return known is None or (known["end_index"] is None and told["end_index"] is not None)


def agree(log: str, files: Sequence[Sequence[Epoch]]) -> list[Epoch]:
    """The committed epochs that the nodes know between them: the list that goes farthest, of which every
    other is a part, and before it what others have not trimmed. Raises EpochClash when one is no part."""
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


def _row(log: str, epoch: Epoch) -> dict[str, Any]:
    started = datetime.fromtimestamp(epoch["started_ms"] / 1_000, UTC)
    return {"log": log, **{name: epoch[name] for name in NAMES}, "started": started}


def _epoch(row: Mapping[str, Any]) -> Epoch:
    """A table's row as the service tells it."""
    started_ms = round(row["started"].timestamp() * 1_000)
    return {**{name: row[name] for name in NAMES}, "started_ms": started_ms}
