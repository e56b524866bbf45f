"""The table `entries` against the log, without Spark: the Delta log names its files, pyarrow reads them.

Each committed data record is in the table once, in place, with the same values, up to where the table
ends. Every column of every row is compared.
"""

from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from app.tables.delta_log import DeltaLog
from storage.format.records import READ_SCHEMA

ROW = pa.schema([field for field in READ_SCHEMA if field.name != "type"])
ARROW = "application/vnd.apache.arrow.stream"
PAGE_BYTES = 16 * 1024 * 1024
PAGE_RECORDS = 100_000
SHOWN = 5


class TableFiles:
    """A table `entries` in a folder. Files never change, so each is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[str, pa.Table] = {}

    def rows(self) -> pa.Table:
        """All rows of the newest version, in the order of their indexes; none while there is no table."""
        snapshot = DeltaLog(str(self.folder)).snapshot()  # from its beginning: nothing known is trusted
        named = {} if snapshot is None else snapshot.files
        for gone in self._known.keys() - named.keys():
            del self._known[gone]
        for name in named.keys() - self._known.keys():
            self._known[name] = _read(named[name].path)
        return pa.concat_tables([ROW.empty_table(), *self._known.values()]).sort_by("index")

    def unnamed(self) -> list[Path]:
        """Files with rows that no commit names: of writes that were cut off, or that go on."""
        snapshot = DeltaLog(str(self.folder)).snapshot()
        named = {Path(file.path).name for file in snapshot.files.values()} if snapshot is not None else set()
        return [path for path in self.folder.glob("*.parquet") if path.name not in named]


class LogCopy:
    """The committed data records of a log, as one node showed them; a later look asks for the rest alone."""

    def __init__(self, url: str, log: str) -> None:
        self.url = url
        self.log = log
        self.next_index = 0
        self._pages = [ROW.empty_table()]

    def until(self, end_index: int) -> pa.Table:
        """All data records up to `end_index`, which the node must hold. Raises AssertionError."""
        with httpx.Client(timeout=60.0) as client:
            while self.next_index <= end_index:
                self._read_page(client, end_index)
        records = pa.concat_tables(self._pages)
        return records.filter(pc.less_equal(records["index"], end_index))

    def _read_page(self, client: httpx.Client, end_index: int) -> None:
        query: dict[str, str | int] = {
            "from_index": self.next_index,
            "until_index": end_index + 1,
            "limit": PAGE_RECORDS,
            "max_bytes": PAGE_BYTES,
            "consistency": "linearizable",
        }
        answer = client.get(f"{self.url}/v1/logs/{self.log}/records", params=query, headers={"Accept": ARROW})
        assert answer.status_code == 200, answer.text
        page = pa.ipc.open_stream(answer.content).read_all()
        self._pages.append(page.select(ROW.names).cast(ROW))
        following = int(answer.headers["Commitlog-Next-Index"])
        assert following > self.next_index, f"{self.url} shows nothing from index {self.next_index} on"
        self.next_index = following


def differences(log: pa.Table, table: pa.Table) -> list[str]:
    """Return the errors in the rows of `entries`; both by ascending index, over the same range of the log."""
    due, found = log["index"].to_numpy(), table["index"].to_numpy()
    wrong = []
    for what, indexes in (
        ("is in the table more than once", found[1:][np.diff(found) == 0]),
        ("is missing in the table", np.setdiff1d(due, found)),
        ("is in the table and not in the log", np.setdiff1d(found, due)),
    ):
        if len(indexes):
            wrong.append(f"{len(indexes)} indexes, first {indexes[:SHOWN].tolist()}: {what}")
    if not wrong and not table.equals(log):
        for name in ROW.names:
            rows = zip(due, log[name].to_pylist(), table[name].to_pylist(), strict=True)
            unequal = [int(index) for index, logged, held in rows if logged != held]
            if unequal:
                wrong.append(f"{len(unequal)} values of `{name}` differ, first at {unequal[:SHOWN]}")
    return wrong


def records_of(table: pa.Table) -> list[tuple[int, str]]:
    """(index, value) of each row, as the judge of the clients' history wants them."""
    values = (value.decode() for value in table["value"].to_pylist())
    return list(zip(table["index"].to_pylist(), values, strict=True))


def _read(path: str) -> pa.Table:
    """Spark writes timestamps without their time zone, which is UTC."""
    table = pq.read_table(path, columns=ROW.names, partitioning=None)
    return pa.table([table[field.name].cast(field.type) for field in ROW], schema=ROW)
