"""A table with the rows of the nodes' journals, keyed by (node, seq): each event's rows once."""

from collections.abc import Mapping
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from app.tables.catalog import RESTORE
from app.tables.delta_log import DeltaLog, DeltaLogError
from app.tables.names import application_of
from spark_jobs.session.locations import is_url
from spark_jobs.session.spark_session import is_remote
from spark_jobs.tables.claims import MAX_REFUSALS
from spark_jobs.tables.removals import Removals
from spark_jobs.tables.restores import HISTORY
from spark_jobs.tables.snapshot import UNPLAIN, columns_of, plain_batches
from spark_jobs.tables.table import Table, TableClash, read_table
from spark_jobs.tables.table_writer import TableWriter


class JournalTable:
    """positions: the next seq by node, as in the rows of the table: an append claims their sum."""

    def __init__(self, spark: SparkSession, path: str, table: Table) -> None:
        self.spark = spark
        self.path = path
        self.table = table
        self.positions: dict[str, int] = {}
        self.rows = 0
        self._writer = TableWriter(spark, path, table)
        self._removals = Removals(spark, path)

    def open(self) -> None:
        """Create the table if needed, and read its progress."""
        self._removals.start()
        if self._writer.create():
            self.positions, self.rows = {}, 0
        else:
            self.refresh()

    def append(self, rows: pa.Table, note: Mapping[str, int] | None = None) -> None:
        """Add those of `rows` that are after the table's positions; whole events, in the order of each
        journal. note: kept in the commit, beside the positions.

        Raises TableClash if the last rows of a journal were removed, or the table refuses a claim without
        another writer.
        """
        self._check_removals()
        refusals = 0
        while (rows := after(rows, self.positions)).num_rows > 0:
            claim = sum(self.positions.values())
            written = self._writer.append(
                rows,
                application=application_of(self.table.name),
                claim=claim,
                position="seq",
                note={"positions": self.positions | ends(rows), **(note or {})},
                is_next=partial(self._is_at, claim),
            )
            if written is not None:
                self.rows += rows.num_rows
                self.positions |= ends(rows)
                break
            self.refresh()
            refusals = refusals + 1 if sum(self.positions.values()) == claim else 0
            if refusals == MAX_REFUSALS:
                raise TableClash(self.path, f"the events after {self.positions}")

    def _is_at(self, claim: int) -> bool:
        """Return whether the table still gives this claim."""
        self._check_removals()
        return sum(self.positions.values()) == claim

    def _check_removals(self) -> None:
        """Raise TableClash if a commit since the last call has removed the last rows of a node: the next
        append would leave a gap. After another commit than RESTORE a node may have no rows: they stay
        deleted."""
        operations = self._removals.found()
        if not operations:
            return
        known, rows = self.positions, self.rows
        self.refresh()
        held, self.positions = self.positions, {**known, **self.positions}
        for node, seq in sorted(known.items()):
            begin = held.get(node, 0 if RESTORE in operations else seq)
            if begin < seq:
                self.positions, self.rows = known, rows
                raise TableClash(self.path, f"the events of {node} from seq {begin} on")

    def refresh(self) -> None:
        """Read the progress from the table."""
        held = self._counted()
        if held is not None:
            positions, self.rows = held
        else:
            rows = read_table(self.spark, self.path).groupBy("node").agg(F.max("seq"), F.count("*")).collect()
            positions = {node: int(last) + 1 for node, last, _ in sorted(rows)}
            self.rows = sum(int(count) for _, _, count in rows)
        self.positions = {**self._noted(), **positions}

    def _counted(self) -> tuple[dict[str, int], int] | None:
        """Return the ends of the rows and their number; None where only Spark can read them. The rows of
        years do not fit into memory at once."""
        wanted = columns_of(self.table.schema, ["node", "seq"])
        positions: dict[str, int] = {}
        count = 0
        try:
            for rows in plain_batches(self.path, wanted):
                for node, end in ends(pa.Table.from_batches([rows])).items():
                    positions[node] = max(end, positions.get(node, 0))
                count += rows.num_rows
        except UNPLAIN:
            return None
        return positions, count

    def _noted(self) -> Mapping[str, int]:
        """Return the positions in the note of the last append: a node of which all rows were deleted keeps
        its own, or the sum would fall below that of earlier claims. Empty after a RESTORE, and where only
        Spark can read the note."""
        if is_url(self.path) or is_remote(self.spark):
            return {}
        log = DeltaLog(self.path, keeps_files=False)
        try:
            for version in reversed(log.versions()[-HISTORY:]):
                commit = log.commit(version)
                if commit is None or commit.operation == RESTORE:
                    break
                if isinstance(noted := commit.note.get("positions"), dict):
                    return noted
        except DeltaLogError:
            pass
        return {}


def after(rows: pa.Table, positions: Mapping[str, int]) -> pa.Table:
    """Return the rows whose seq is not below their node's position; a node without one has 0."""
    nodes, seqs = rows["node"].to_pylist(), rows["seq"].to_pylist()
    new = [seq >= positions.get(node, 0) for node, seq in zip(nodes, seqs, strict=True)]
    return rows.filter(pa.array(new, pa.bool_()))


def ends(rows: pa.Table) -> dict[str, int]:
    """Return one more than the largest seq of each node."""
    largest = rows.group_by("node").aggregate([("seq", "max")])
    return dict(zip(largest["node"].to_pylist(), pc.add(largest["seq_max"], 1).to_pylist(), strict=True))
