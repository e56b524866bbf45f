"""Delta tables in a folder, read from their transaction logs: no Spark, no Java, at once."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

LOG_FOLDER = "_delta_log"
DEPTH = 2  # TABLES/LOG/TABLE


@dataclass(frozen=True)
class DeltaTable:
    """One table as its last version stands. rows: None when the files' statistics do not tell."""

    name: str
    path: Path
    version: int
    files: int
    size_bytes: int
    rows: int | None


def delta_tables(folder: Path) -> list[DeltaTable]:
    """The tables below `folder`, by name; a folder without any gives none."""
    found = sorted(
        path.parent for depth in range(1, DEPTH + 2) for path in folder.glob("*/" * (depth - 1) + LOG_FOLDER)
    )
    return [table for path in found if (table := read_table(path, str(path.relative_to(folder)))) is not None]


def read_table(path: Path, name: str) -> DeltaTable | None:
    """The table at `path`; None while its first version is not written."""
    files: dict[str, Mapping[str, Any]] = {}
    version = -1
    for version, action in _actions(path / LOG_FOLDER):  # noqa: B007 - the last one is wanted
        if (added := action.get("add")) is not None:
            files[added["path"]] = added
        elif (removed := action.get("remove")) is not None:
            files.pop(removed["path"], None)
    if version < 0:
        return None
    counts = [_rows(file) for file in files.values()]
    known = [count for count in counts if count is not None]
    return DeltaTable(
        name=name,
        path=path,
        version=version,
        files=len(files),
        size_bytes=sum(int(file["size"]) for file in files.values()),
        rows=sum(known) if len(known) == len(counts) else None,
    )


def _actions(log: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Every action since the last checkpoint, the checkpoint's first, each with its version."""
    version = -1
    checkpoints = sorted(log.glob("*.checkpoint.parquet"))
    if checkpoints:
        version = int(checkpoints[-1].name.split(".")[0])
        columns = [name for name in ("add", "remove") if name in pq.read_schema(checkpoints[-1]).names]
        for action in pq.read_table(checkpoints[-1], columns=columns).to_pylist():
            yield version, action
    for commit in sorted(log.glob("*.json")):
        if commit.stem.isdecimal() and int(commit.stem) > version:
            for line in commit.read_text().splitlines():
                yield int(commit.stem), json.loads(line)


def _rows(file: Mapping[str, Any]) -> int | None:
    statistics = file.get("stats")
    if not statistics:
        return None
    rows: int | None = json.loads(statistics).get("numRecords")
    deleted = (file.get("deletionVector") or {}).get("cardinality", 0)
    return None if rows is None else rows - int(deleted)
