"""One version of the table `entries`, read from its Delta log without Spark: which files, which indexes.

A reader in one of Spark's Python workers has no session to ask. The table is ours (tables.py), so the plain
format is all that is understood: a table that asks more of its readers is refused by name.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from spark_jobs.errors import TableUnreadable

LOG_FOLDER = "_delta_log"
MAX_LOOKS = 3  # a commit may be cleaned up between the listing and the reading
CHECKPOINT_ACTIONS = ("add", "remove", "metaData", "protocol")
ROWS_AT_ONCE = 8_192


@dataclass(frozen=True)
class TableFile:
    """One data file. Indexes and terms inclusive, of its rows."""

    path: str
    rows: int
    first_index: int
    last_index: int
    first_term: int
    last_term: int


@dataclass(frozen=True)
class Snapshot:
    """The table at one version. files: in the order of their first indexes."""

    path: str
    version: int
    files: tuple[TableFile, ...]
    properties: Mapping[str, str] = field(repr=False)

    @property
    def next_index(self) -> int:
        """One past the last row's index, 0 for none: every committed data record before it is a row."""
        return max((file.last_index + 1 for file in self.files), default=0)

    @property
    def last_term(self) -> int:
        """Of the last row, since terms only rise; 0 for none."""
        return max((file.last_term for file in self.files), default=0)


def read_snapshot(path: str) -> Snapshot:
    """The newest version of the table at a path or URL. Raises TableUnreadable."""
    for look in range(1, MAX_LOOKS + 1):
        try:
            files, root = file_system_of(path)
            return _Replay(path, root).run(files)
        except FileNotFoundError as error:
            if look == MAX_LOOKS:
                raise TableUnreadable(path, f"no Delta table is there ({error})") from error
        except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
            raise TableUnreadable(path, f"{type(error).__name__}: {error}") from error
    raise AssertionError("the last look returns or raises")


def file_system_of(path: str) -> tuple[fs.FileSystem, str]:
    """Where a path or URL leads, and what it is called there."""
    if "://" in path:
        files, name = fs.FileSystem.from_uri(path)
        return files, str(name)
    return fs.LocalFileSystem(), path.removeprefix("file:")


def read_rows(file: TableFile, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """All rows of a data file. Raises TableUnreadable when they are not as many as the table says."""
    files, name = file_system_of(file.path)
    count = 0
    with pq.ParquetFile(files.open_input_file(name), coerce_int96_timestamp_unit="us") as parquet:
        for rows in parquet.iter_batches(ROWS_AT_ONCE, columns=columns):
            count += rows.num_rows
            yield rows
    if count != file.rows:
        raise TableUnreadable(file.path, f"holds {count} rows, its table says {file.rows}")


class _Replay:
    """The actions of a Delta log, one after the other, up to what holds in the end."""

    def __init__(self, path: str, root: str) -> None:
        self._path = path.rstrip("/")
        self._root = root.rstrip("/")
        self._added: dict[str, Mapping[str, Any]] = {}
        self._properties: dict[str, str] = {}

    def run(self, files: fs.FileSystem) -> Snapshot:
        version = -1
        for version, action in self._actions(files):  # noqa: B007 - the last one is wanted
            self._apply(action)
        if version < 0:
            raise FileNotFoundError(f"{self._root}/{LOG_FOLDER}")
        found = sorted((self._file(added) for added in self._added.values()), key=lambda f: f.first_index)
        return Snapshot(self._path, version, tuple(found), self._properties)

    def _actions(self, files: fs.FileSystem) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Every action since the last checkpoint, the checkpoint's first, each with its version."""
        listed = files.get_file_info(fs.FileSelector(f"{self._root}/{LOG_FOLDER}"))
        names = {info.base_name: info.path for info in listed}
        version = -1
        checkpoints = sorted(name for name in names if name.endswith(".checkpoint.parquet"))
        if checkpoints:
            version = int(checkpoints[-1].split(".")[0])
            with files.open_input_file(names[checkpoints[-1]]) as file:
                table = pq.read_table(file)
            known = [name for name in CHECKPOINT_ACTIONS if name in table.column_names]
            for action in table.select(known).to_pylist():
                yield version, action
        for name in sorted(names):
            number, _, kind = name.partition(".")
            if kind != "json" or not number.isdecimal() or int(number) <= version:
                continue
            if int(number) != version + 1:
                raise FileNotFoundError(f"{names[name]} is there, the commit before it is not")
            version = int(number)
            with files.open_input_file(names[name]) as file:
                lines = file.read().splitlines()
            for line in lines:
                yield version, json.loads(line)

    def _apply(self, action: Mapping[str, Any]) -> None:
        if (added := action.get("add")) is not None:
            self._added[added["path"]] = added
        if (removed := action.get("remove")) is not None:
            self._added.pop(removed["path"], None)
        if (metadata := action.get("metaData")) is not None:
            self._properties = dict(metadata.get("configuration") or {})
        if (protocol := action.get("protocol")) is not None and int(protocol["minReaderVersion"]) > 1:
            wanted = ", ".join(protocol.get("readerFeatures") or ["columnMapping"])
            raise TableUnreadable(self._path, f"asks of its readers what only Spark can: {wanted}")

    def _file(self, added: Mapping[str, Any]) -> TableFile:
        if not added.get("stats"):
            raise TableUnreadable(self._path, f"{added['path']} has no statistics")
        told = json.loads(added["stats"])
        least, most = told["minValues"], told["maxValues"]
        name = unquote(added["path"])
        where = name if name.startswith("/") or "://" in name else f"{self._path}/{name}"
        return TableFile(
            where, told["numRecords"], least["index"], most["index"], least["term"], most["term"]
        )
