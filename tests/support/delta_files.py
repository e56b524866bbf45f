"""Delta tables written commit by commit according to the protocol: for tests without Spark."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


class DeltaFiles:
    """A table in a folder. Every method writes one commit and returns its version."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "_delta_log"
        self.log.mkdir(parents=True)
        self.version = -1
        self.added: list[dict[str, Any]] = []
        self.removed: list[str] = []  # of the next checkpoint
        self.properties: dict[str, str] = {}

    def create(self, timestamp_ms: int = 0, **properties: str) -> int:
        self.properties = properties
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7}
        return self.commit(
            {"protocol": protocol}, {"metaData": {"configuration": properties}}, timestamp_ms=timestamp_ms
        )

    def bring(
        self, first_index: int, until_index: int, timestamp_ms: int = 0, last: int | None = None
    ) -> int:
        """Rows of [first_index, until_index). last: of the rows; those behind it are control records."""
        last = until_index - 1 if last is None else last
        stats = {
            "numRecords": last - first_index + 1,
            "minValues": {"index": first_index, "term": 1},
            "maxValues": {"index": last, "term": 1},
        }
        name = f"part-{self.version + 1}.parquet"
        self.added.append({"path": name, "size": 100, "stats": json.dumps(stats)})
        note = {"first_index": first_index, "until_index": until_index}
        return self.commit({"add": self.added[-1]}, timestamp_ms=timestamp_ms, note=note)

    def restore(self, to: int) -> int:
        """To the rows of an earlier version."""
        gone = [added for added in self.added if int(added["path"][len("part-") : -len(".parquet")]) > to]
        self.added = [added for added in self.added if added not in gone]
        return self.commit(*({"remove": {"path": file["path"]}} for file in gone), operation="RESTORE")

    def commit(
        self,
        *actions: dict[str, Any],
        timestamp_ms: int = 0,
        note: object = None,
        operation: str = "WRITE",
    ) -> int:
        self.version += 1
        info: dict[str, Any] = {"timestamp": timestamp_ms, "operation": operation}
        if note is not None:
            info["userMetadata"] = json.dumps(note)
        lines = [json.dumps(action) for action in ({"commitInfo": info}, *actions)]
        whole = self.folder / "commit.json"  # a reader finds a commit complete or not at all
        whole.write_text("\n".join(lines) + "\n")
        whole.rename(self.log / f"{self.version:020d}.json")
        return self.version

    def checkpoint(self) -> None:
        """Write a checkpoint of the newest version."""
        rows = [{"add": added} for added in self.added]
        rows += [{"remove": {"path": path}} for path in self.removed]
        rows += [{"metaData": {"configuration": list(self.properties.items())}}]
        kinds = pa.schema(
            [
                ("add", pa.struct([("path", pa.string()), ("size", pa.int64()), ("stats", pa.string())])),
                ("remove", pa.struct([("path", pa.string())])),
                ("metaData", pa.struct([("configuration", pa.map_(pa.string(), pa.string()))])),
            ]
        )
        pq.write_table(
            pa.Table.from_pylist(rows, kinds), self.log / f"{self.version:020d}.checkpoint.parquet"
        )
