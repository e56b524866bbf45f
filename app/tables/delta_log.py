"""Reader of a Delta table's transaction log, without Spark and Java.

TABLE/_delta_log/00000000000000000007.json          one commit: one action per line
TABLE/_delta_log/00000000000000000100.checkpoint.parquet  the actions that are valid after a commit

Source: the Delta transaction log protocol, sections Actions and Checkpoints; classic checkpoints, as this
project writes them (spark_jobs/tables/table.py). A table is a folder or a URL that pyarrow can open. Blocks
on I/O. `pyarrow.fs` is imported with the first table: it loads clients of object stores, 4 MiB.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

import pyarrow as pa

from app.tables.table_files import DataFile, TableFiles

if TYPE_CHECKING:
    from pyarrow import fs

LOG_FOLDER = "_delta_log"
CHECKPOINT = ".checkpoint.parquet"
CHECKPOINT_ACTIONS = ("metaData", "protocol", "txn")
_OF_FILES = (b'{"add"', b'{"remove"')
DELETION_VECTORS = "deletionVectors"  # a reader feature, as COLUMN_MAPPING is
COLUMN_MAPPING = "columnMapping"
MAPPING_PROPERTY = "delta.columnMapping.mode"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_ARROW_SCHEMES = {"s3a": "s3", "s3n": "s3"}
MAX_ATTEMPTS = 3  # a commit may be removed between the listing and the reading


class DeltaLogError(Exception):
    """A Delta log cannot be read; the message names the table and the reason."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the Delta log of {path}: {reason}")


@dataclass(frozen=True, slots=True)
class Commit:
    """Content of a commit. operation: as Delta names it, such as WRITE. note: the JSON object that its
    writer left, empty for none. added: its files. removes_rows: it removed files, and not only to arrange
    their rows in others."""

    version: int
    timestamp_ms: int
    operation: str
    note: Mapping[str, Any]
    added: tuple[DataFile, ...] = field(repr=False)
    removes_rows: bool = False

    def largest(self, column: str) -> list[Any]:
        """Return the largest value of a column in each added file with statistics."""
        return [file.most[column] for file in self.added if column in file.most]


@dataclass(frozen=True)
class DeltaSnapshot:
    """A table at one version.

    files: by path as the log has it; empty if the DeltaLog keeps none, or fills those of its caller.
    metadata: as the log has it. reader_features: beyond the plain format, without those that are known to be
    unused. writer_features: None for a protocol without a list of them. transactions: the newest version by
    application.
    """

    path: str
    version: int
    files: Mapping[str, DataFile] = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False)
    reader_features: tuple[str, ...] = ()
    writer_features: tuple[str, ...] | None = None
    transactions: Mapping[str, int] = field(default_factory=dict, repr=False)

    @property
    def properties(self) -> Mapping[str, str]:
        return self.metadata.get("configuration") or {}

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """Return their names."""
        return tuple(self.metadata.get("partitionColumns") or ())

    @property
    def schema(self) -> str:
        """Return the columns in Spark's JSON."""
        return str(self.metadata.get("schemaString") or "")

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files.values())

    @property
    def rows(self) -> int | None:
        """Number of rows, None if the statistics of a file are missing."""
        counts = [file.rows for file in self.files.values()]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


class DeltaLog:
    """The log of one table, replayed once and then commit by commit. Not safe for use by two threads."""

    def __init__(self, path: str, *, keeps_files: bool = True, files: TableFiles | None = None) -> None:
        """keeps_files: False: a snapshot has no files, and costs the same for any number of them. files: of
        the caller, filled with those of the newest version; then a snapshot has no copy of them."""
        self.path = path.rstrip("/")
        self._keeps_files = keeps_files
        self._files = TableFiles() if files is None else files
        self._copies_files = files is None
        self._file_system, root = file_system_of(self.path)
        self._folder = f"{root.rstrip('/')}/{LOG_FOLDER}"
        self._stamp: tuple[Any, ...] | None = None  # of the newest commit's file: identifies the table
        self._forget()

    def _forget(self) -> None:
        self._version = -1
        self._files.clear()
        self._metadata: Mapping[str, Any] = {}
        self._features: tuple[str, ...] = ()
        self._writer_features: tuple[str, ...] | None = None
        self._transactions: dict[str, int] = {}
        self._snapshot: DeltaSnapshot | None = None

    def snapshot(self) -> DeltaSnapshot | None:
        """Return the newest version; None while there is none. Raises DeltaLogError."""
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                if self._stamp is None or self._stamp != self._stamp_of(self._version):
                    self._forget()
                    self._replay()
                else:
                    self._follow()
                break
            except FileNotFoundError as error:
                self._stamp = None
                if attempt == MAX_ATTEMPTS:
                    raise DeltaLogError(self.path, f"commits are missing ({error})") from error
            except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
                self._stamp = None
                raise DeltaLogError(self.path, f"{type(error).__name__}: {error}") from error
        if self._version < 0:
            return None
        if self._snapshot is None or self._snapshot.version != self._version:
            self._snapshot = DeltaSnapshot(
                self.path,
                self._version,
                self._files.by_path() if self._copies_files else {},
                self._metadata,
                self._used_features(),
                self._writer_features,
                dict(self._transactions),
            )
        return self._snapshot

    def commit(self, version: int) -> Commit | None:
        """Return a commit by its version; None if it does not exist or was removed. Raises DeltaLogError."""
        try:
            actions = self._read_commit(version)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise DeltaLogError(self.path, f"commit {version}: {error}") from error
        return _commit_of(self.path, version, actions)

    def versions(self) -> range:
        """Return the versions that can still be read: history is removed from its beginning."""
        names = self._listed()
        commits = {_number(name) for name in names if _is_commit(name)}  # a week may have 600 000
        whole = [_number(name) for name in names if _is_checkpoint(name)]
        first = min((start for start in [0, *whole] if start in commits), default=0)
        return range(first, max(commits) + 1) if commits else range(0)

    def first_left(self, version: int) -> int:
        """Return this version, or the first one after it that was not removed from the history. An earlier
        version, if the table does not have the one before this: it was removed and made again."""
        if self._stamp_of(version - 1) is not None:
            return version
        known = self.versions()
        return known.start if known.stop < version else max(version, known.start)

    # --- replay

    def _replay(self) -> None:
        """Read everything since the last checkpoint, the checkpoint first."""
        names = self._listed()
        checkpoints = sorted(name for name in names if name.endswith(CHECKPOINT))
        if checkpoints:
            import pyarrow.parquet as pq

            with self._file_system.open_input_file(f"{self._folder}/{checkpoints[-1]}") as file:
                # not what was removed: that is for VACUUM
                wanted = (*CHECKPOINT_ACTIONS, *(("add",) if self._keeps_files else ()))
                parquet = pq.ParquetFile(file)
                known = [name for name in wanted if name in parquet.schema_arrow.names]
                actions = parquet.read(columns=known)
                for name in known:
                    for action in actions[name].drop_null().to_pylist():
                        self._apply({name: action})
            self._version = _number(checkpoints[-1])
        for name in sorted(names):
            version = _number(name) if _is_commit(name) else -1
            if version > self._version:
                if version != self._version + 1:
                    raise FileNotFoundError(f"{name} is there, the commit before it is not")
                self._take(version)
        self._stamp = self._stamp_of(self._version)

    def _follow(self) -> None:
        """Read the commits since the last call."""
        while (stamp := self._stamp_of(self._version + 1)) is not None:
            self._take(self._version + 1)
            self._stamp = stamp

    def _take(self, version: int) -> None:
        self._apply_all(self._read_commit(version, files=self._keeps_files))
        self._version = version

    def _apply_all(self, actions: list[Mapping[str, Any]]) -> None:
        """Apply actions, those that add files last: a commit that only deletes rows of a file removes it and
        adds it again with a deletion vector, in any order."""
        for action in sorted(actions, key=lambda action: action.get("add") is not None):
            self._apply(action)

    def _apply(self, action: Mapping[str, Any]) -> None:
        if (transaction := action.get("txn")) is not None:
            self._transactions[transaction["appId"]] = int(transaction["version"])
        if (added := action.get("add")) is not None:
            self._files.add(added["path"], _data_file(self.path, added))
        if (removed := action.get("remove")) is not None:
            self._files.remove(removed["path"])
        if (metadata := action.get("metaData")) is not None:
            self._metadata = _with_maps(metadata)
        if (protocol := action.get("protocol")) is not None:
            plain = int(protocol["minReaderVersion"]) == 1
            self._features = () if plain else tuple(protocol.get("readerFeatures") or (COLUMN_MAPPING,))
            listed = protocol.get("writerFeatures")
            self._writer_features = None if listed is None else tuple(listed)

    def _used_features(self) -> tuple[str, ...]:
        unused = set()
        if self._keeps_files and not self._files.has_removed_rows:
            unused.add(DELETION_VECTORS)
        if (self._metadata.get("configuration") or {}).get(MAPPING_PROPERTY, "none") == "none":
            unused.add(COLUMN_MAPPING)
        return tuple(name for name in self._features if name not in unused)

    # --- files

    def _listed(self) -> list[str]:
        return [info.base_name for info in _entries(self._file_system, self._folder)]

    def _name(self, version: int) -> str:
        return f"{self._folder}/{version:020d}.json"

    def _stamp_of(self, version: int) -> tuple[Any, ...] | None:
        info = self._file_system.get_file_info(self._name(version))
        return (info.size, info.mtime_ns) if info.is_file else None

    def _read_commit(self, version: int, *, files: bool = True) -> list[Mapping[str, Any]]:
        """Return the actions of a commit. files: False: without those of data files."""
        with self._file_system.open_input_file(self._name(version)) as file:
            lines = file.read().splitlines()
        return [json.loads(line) for line in lines if files or not line.startswith(_OF_FILES)]


def is_url(text: str) -> bool:
    """Return whether it names a file system, as in `s3://bucket/tables` or `dbfs:/tables`."""
    return _SCHEME.match(text) is not None


def file_system_of(path: str) -> "tuple[fs.FileSystem, str]":
    """Return the file system of a path or URL, and the path there: that which Spark reads, for which `%` is a
    character like others. Raises DeltaLogError for a URL that pyarrow cannot open."""
    from pyarrow import fs

    if path.startswith("file://"):
        return fs.LocalFileSystem(), f"/{path.removeprefix('file://').partition('/')[2]}"
    if path.startswith("file:/") or not is_url(path):
        return fs.LocalFileSystem(), path.removeprefix("file:")
    try:
        files, name = fs.FileSystem.from_uri(arrow_url(path))
    except (OSError, ValueError) as error:  # ArrowInvalid is a ValueError
        raise DeltaLogError(path, f"{type(error).__name__}: {error}") from error
    return files, str(name)


def arrow_url(url: str) -> str:
    """Return a URL of Spark as one of Arrow, which decodes the path."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url  # as `dbfs:/tables`, which Arrow does not know
    host, _, path = rest.partition("/")
    return f"{_ARROW_SCHEMES.get(scheme, scheme)}://{host}/{quote(path)}"


def _entries(files: "fs.FileSystem", folder: str) -> "list[fs.FileInfo]":
    """Return the entries of a folder; none if it does not exist."""
    from pyarrow import fs

    found: list[fs.FileInfo] = files.get_file_info(fs.FileSelector(folder, allow_not_found=True))
    return found


def _is_folder(info: "fs.FileInfo") -> bool:
    return bool(info.type.name == "Directory")


def folders(root: str) -> list[str]:
    """Return the names of the folders directly below a folder or URL, in order; none if it does not exist."""
    files, name = file_system_of(root)
    return sorted(info.base_name for info in _entries(files, name) if _is_folder(info))


def table_folders(root: str) -> Iterator[str]:
    """Return the names of the tables directly below a folder or URL, in order."""
    files, name = file_system_of(root)
    for folder in folders(root):
        inner = files.get_file_info(f"{name.rstrip('/')}/{folder}/{LOG_FOLDER}")
        if _is_folder(inner):
            yield folder


def _number(name: str) -> int:
    """Return the version in the name of a file of the log."""
    return int(name.partition(".")[0])


def _is_commit(name: str) -> bool:
    number, _, kind = name.partition(".")
    return kind == "json" and number.isdecimal()


def _is_checkpoint(name: str) -> bool:
    """Return whether it is a checkpoint or a part of one, also in a format that only Spark reads."""
    number, _, kind = name.partition(".")
    return kind.startswith("checkpoint.") and number.isdecimal()


def _data_file(table: str, added: Mapping[str, Any]) -> DataFile:
    stats = json.loads(added["stats"]) if added.get("stats") else {}
    rows, removed = stats.get("numRecords"), added.get("deletionVector")
    if rows is not None and removed:
        rows -= int(removed.get("cardinality", 0))
    name = unquote(added["path"])
    where = name if name.startswith("/") or is_url(name) else f"{table}/{name}"
    least, most = stats.get("minValues") or {}, stats.get("maxValues") or {}
    return DataFile(where, int(added["size"]), rows, least, most, bool(removed))


def _with_maps(metadata: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return metadata with dictionaries: Arrow, which reads checkpoints, has lists of pairs."""
    known = {**metadata, "configuration": dict(metadata.get("configuration") or {})}
    if (form := metadata.get("format")) is not None:
        known["format"] = {**form, "options": dict(form.get("options") or {})}
    return known


def _commit_of(table: str, version: int, actions: list[Mapping[str, Any]]) -> Commit:
    infos = (action["commitInfo"] for action in actions if "commitInfo" in action)
    info: Mapping[str, Any] = next(infos, {})
    try:
        note = json.loads(info.get("userMetadata") or "{}")
    except ValueError:
        note = {}
    return Commit(
        version,
        int(info.get("inCommitTimestamp") or info.get("timestamp") or 0),
        str(info.get("operation") or ""),
        note if isinstance(note, dict) else {},
        tuple(_data_file(table, action["add"]) for action in actions if "add" in action),
        any(action["remove"].get("dataChange", True) for action in actions if "remove" in action),
    )
