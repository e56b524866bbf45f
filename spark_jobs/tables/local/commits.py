"""Commits to Delta tables in a local folder by the driver itself: data files, and a file of JSON lines.

A commit of a few rows by Spark costs 0.3 s and more, and grows with the history of the table; here it costs
some milliseconds, and the same for any history. A job with many logs lives on that.

Both kinds of writers may work on one table. A commit is a hard link to the name of its version, as Spark's is
(session/LinkLogStore.java): of two writers one gets the version, and the other reads that commit.
The plain protocol of this project's tables alone is written. Whatever else a table requires of its writers
is left to Spark (NeedsSpark). Spark also writes the checkpoints, behind the commits (checkpoints.py).

Source: the Delta transaction log protocol, sections Actions, Transaction Identifiers, Clustered Table.
"""

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from app.tables.delta_log import LOG_FOLDER, DeltaLog, DeltaLogError, DeltaSnapshot
from app.tables.table_files import DataFile
from spark_jobs.errors import SourceError
from spark_jobs.tables.local.actions import (
    WRITER_FEATURES,
    claim_action,
    commit_info,
    creation,
    merge_info,
    metadata_action,
    remove_action,
    write_info,
)
from spark_jobs.tables.local.data_files import (
    DeltaAction,
    WrittenFile,
    compact_json,
    sync_to_disk,
    write_file,
)

HARMLESS_FEATURES = ("checkpointProtection",)  # left by DROP FEATURE: binds those that remove old commits
CHECKPOINT_INTERVAL = "delta.checkpointInterval"
INVARIANTS = "delta.invariants"
APPEND_ONLY = "delta.appendOnly"
DELTA = "delta."
REFUSALS = (  # of a link that was not made
    *(errno.EPERM, errno.EACCES, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV),
    *(errno.EMLINK, errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOENT),
)


class NeedsSpark(Exception):
    """Only Spark can make this commit; the message is the reason."""


class CommitUnknown(NeedsSpark):
    """The attempt to make this commit failed, and may have made it: Spark finds out. No file that it names
    may be removed."""


class FileMissing(SourceError):
    """A data file is not in the folder of its table, or not as long as it was written: it is not
    committed."""

    condition = "COMMITLOG_FILE_MISSING"

    def __init__(self, place: Path) -> None:
        super().__init__(
            f"{place} is not there as it was written, so it is not committed. VACUUM with a retention "
            "shorter than a batch removes such files; and the folder of the tables must be one that the "
            "driver and all executors share"
        )


@dataclass(frozen=True)
class Rewrite:
    """One change of a table. removed: files, by path as the log has them. added: rows of each new file.
    mode: as Delta names it."""

    removed: Sequence[str]
    added: Sequence[pa.Table]
    mode: str


class LocalTable:
    """One table in a local folder. One call at a time.

    request_checkpoint: called with the path after a commit whose version is to have a checkpoint; returns at
    once. keeps_files: needed for `replace`, `rewrite` and `merge`; costs memory by the number of files.
    """

    def __init__(
        self, path: str, request_checkpoint: Callable[[str], None], *, keeps_files: bool = False
    ) -> None:
        self.path = Path(path)
        self._request_checkpoint = request_checkpoint
        self._log = DeltaLog(path, keeps_files=keeps_files)
        self._known_schema = ""  # without rules
        self._fitting: tuple[str, pa.Schema] | None = None  # columns of the table, and of files that fit them

    def create(
        self,
        schema: StructType,
        *,
        cluster_by: Sequence[str],
        comments: Mapping[str, str],
        properties: Mapping[str, str],
    ) -> bool:
        """Create the table unless it exists; return whether it was created now. Raises NeedsSpark."""
        if self._log.versions():
            return False
        if self.path.is_dir() and any(entry.name != LOG_FOLDER for entry in self.path.iterdir()):
            raise NeedsSpark(f"{self.path} holds files of no Delta table")
        actions = creation(schema, cluster_by=cluster_by, comments=comments, properties=properties)
        log = self.path / LOG_FOLDER
        new = [folder for folder in (log, *log.parents) if not folder.is_dir()]
        try:
            log.mkdir(parents=True, exist_ok=True)
            sync_to_disk(*(folder.parent for folder in new))
        except OSError as error:
            raise NeedsSpark(f"{self.path}: {error}") from error
        return self._commit(0, actions)

    def append(
        self,
        rows: pa.Table,
        *,
        statistics: Sequence[str],
        application: str,
        claim: int,
        note: Mapping[str, Any],
        is_next: Callable[[], bool] | None = None,
    ) -> bool:
        """Append rows unless the table has this claim of the application, or a higher one; return whether it
        did.

        is_next: returns whether the rows still follow those of the table's newest version, else the append is
        refused too; called before each attempt to commit, which fails if there is a newer version. Raises
        NeedsSpark, DeltaLogError.
        """

        def write() -> list[WrittenFile]:
            return [write_file(self.path, rows, statistics)]

        added = self.append_files(write, application=application, claim=claim, note=note, is_next=is_next)
        return added is not None

    def append_files(
        self,
        write: Callable[[], Sequence[WrittenFile]],
        *,
        application: str,
        claim: int,
        note: Mapping[str, Any],
        is_next: Callable[[], bool] | None = None,
    ) -> Sequence[WrittenFile] | None:
        """As `append`, of files that `write` makes in the folder of the table: called once, and not for a
        claim that the table has already. Return the files, None if they were refused. Raises FileMissing."""

        def due(snapshot: DeltaSnapshot, files: list[WrittenFile]) -> list[DeltaAction] | None:
            is_claimed = snapshot.transactions.get(application, -1) >= claim
            if is_claimed or (is_next is not None and not is_next()):
                return None
            if not files:
                files += write()
            info = write_info(snapshot, files, note, "Append")
            return [info, claim_action(application, claim), *(file.action() for file in files)]

        return self._change(due)

    def claim(self, application: str, claim: int) -> bool:
        """Make a commit with this claim alone, unless the table has it, or a higher one; return whether it
        did. Raises NeedsSpark, DeltaLogError."""
        return self.append_files(lambda: (), application=application, claim=claim, note={}) is not None

    def replace(
        self,
        rows_of: Callable[[], pa.Table],
        *,
        statistics: Sequence[str],
        claim: tuple[str, int] | None,
        note: Mapping[str, Any],
    ) -> bool:
        """Replace all rows of a small table, unless it has this claim of an application, or a higher one;
        return whether it did. rows_of: returns the rows, called again when another writer was first. Raises
        NeedsSpark, DeltaLogError."""

        def change(snapshot: DeltaSnapshot) -> Rewrite:
            return Rewrite(list(snapshot.files), [rows_of()], "Overwrite")

        return self.rewrite(change, statistics=statistics, claim=claim, note=note)

    def rewrite(
        self,
        change: Callable[[DeltaSnapshot], "Rewrite"],
        *,
        statistics: Sequence[str],
        claim: tuple[str, int] | None,
        note: Mapping[str, Any],
    ) -> bool:
        """Replace files of a table, unless it has this claim of an application, or a higher one; return
        whether it did. change: called with the newest version, and again when another writer was first; if it
        returns the same object then, the files that were written for it are used. Raises NeedsSpark,
        DeltaLogError, FileMissing."""
        rewrite: Rewrite | None = None

        def due(snapshot: DeltaSnapshot, added: list[WrittenFile]) -> list[DeltaAction] | None:
            nonlocal rewrite
            if snapshot.properties.get(APPEND_ONLY, "false") == "true":
                raise NeedsSpark(f"{self.path} takes appends alone")
            if claim is not None and snapshot.transactions.get(claim[0], -1) >= claim[1]:
                return None
            before, rewrite = rewrite, change(snapshot)
            if not rewrite.removed and not rewrite.added and claim is None:
                return None  # else the claim alone is due: no row that others add later was considered
            if rewrite is not before:
                self._remove(added)
                added.clear()
                for rows in rewrite.added:
                    added.append(write_file(self.path, rows, statistics))
            return [
                write_info(snapshot, added, note, rewrite.mode, is_blind=False),
                *(file.action() for file in added),
                *(remove_action(path, snapshot.files[path].size_bytes) for path in rewrite.removed),
                *([] if claim is None else [claim_action(*claim)]),
            ]

        return self._change(due) is not None

    def merge(self, files: Mapping[str, DataFile], write: Callable[[], WrittenFile]) -> bool:
        """Replace files, by path as the log has them, by one that `write` makes of their rows; return whether
        it did: not if the table no longer has each of them. Raises NeedsSpark, DeltaLogError, FileMissing.
        """

        def due(snapshot: DeltaSnapshot, added: list[WrittenFile]) -> list[DeltaAction] | None:
            if any(snapshot.files.get(path) != file for path, file in files.items()):
                return None
            if not added:
                added.append(write())
            removed = (remove_action(path, file.size_bytes, is_gone=False) for path, file in files.items())
            info = merge_info(snapshot, files.values(), added[0])
            return [info, added[0].action(is_new=False), *removed]

        return self._change(due) is not None

    def set_properties(self, changed: Mapping[str, str]) -> None:
        """Set properties without a meaning for Delta. Raises NeedsSpark, DeltaLogError."""
        if any(name.lower().startswith(DELTA) for name in changed):
            raise NeedsSpark(
                f"{self.path}: only Spark knows what these properties change: {', '.join(changed)}"
            )

        def due(snapshot: DeltaSnapshot, _: list[WrittenFile]) -> list[DeltaAction] | None:
            if changed.items() <= snapshot.properties.items():
                return None
            noted = {"properties": compact_json(dict(changed))}
            info = commit_info(snapshot, "SET TBLPROPERTIES", noted, is_blind=True)
            return [info, metadata_action(snapshot, configuration={**snapshot.properties, **changed})]

        self._change(due)

    def add_columns(self, columns: Sequence[StructField]) -> None:
        """Add columns after those that are there, unless one of these has such a name, in small letters or
        capitals. columns: of types that need no feature of Delta. Raises NeedsSpark, DeltaLogError."""

        def due(snapshot: DeltaSnapshot, _: list[WrittenFile]) -> list[DeltaAction] | None:
            schema = json.loads(snapshot.schema)
            known = {each["name"].lower() for each in schema["fields"]}
            if not known.isdisjoint(each.name.lower() for each in columns):
                return None
            added = [each.jsonValue() for each in columns]
            noted = {"columns": compact_json([{"column": each} for each in added])}
            changed = {**schema, "fields": [*schema["fields"], *added]}
            info = commit_info(snapshot, "ADD COLUMNS", noted, is_blind=True)
            return [info, metadata_action(snapshot, schemaString=compact_json(changed))]

        self._change(due)

    def _change(
        self, due: Callable[[DeltaSnapshot, list[WrittenFile]], Sequence[DeltaAction] | None]
    ) -> Sequence[WrittenFile] | None:
        """Commit the actions that are due after the newest version. Return the files that they add; None if
        nothing is due.

        due: called with the newest version and the files that it has written, and again when another writer
        was first. It writes files, and adds them to the list. They are removed unless they are committed or
        may be. Raises NeedsSpark, DeltaLogError, FileMissing.
        """
        files: list[WrittenFile] = []
        try:
            while True:
                snapshot = self.snapshot()
                actions = due(snapshot, files)
                if actions is None:
                    self._remove(files)
                    return None
                self._check(files)
                self._check_columns(snapshot, files)
                if self._extend(snapshot, actions):
                    return files
        except CommitUnknown:
            raise
        except (NeedsSpark, DeltaLogError, SourceError, OSError):
            self._remove(files)
            raise

    def _check(self, files: Sequence[WrittenFile]) -> None:
        """Raise FileMissing unless all files are there as they were written."""
        for file in files:
            place = self.path / file.name
            if not place.is_file() or place.stat().st_size != file.size_bytes:
                raise FileMissing(place)

    def _check_columns(self, snapshot: DeltaSnapshot, files: Sequence[WrittenFile]) -> None:
        """Raise NeedsSpark unless the table has all columns of the files, with their types: a user may have
        replaced it, and readers would refuse such a file, or not see its values."""
        for file in files:
            if (found := (snapshot.schema, file.schema)) != self._fitting:
                columns = StructType.fromJson(json.loads(snapshot.schema)).fields
                known = [each for each in columns if each.name in file.schema.names]
                held = to_arrow_schema(StructType(known), timezone="UTC")
                for each in file.schema:
                    if each.name not in held.names or held.field(each.name).type != each.type:
                        raise NeedsSpark(f"{self.path} has no column {each.name} of the type {each.type}")
                self._fitting = found

    def _remove(self, files: Sequence[WrittenFile]) -> None:
        """Remove files that no commit names."""
        for file in files:
            (self.path / file.name).unlink(missing_ok=True)

    def snapshot(self) -> DeltaSnapshot:
        """Return the newest version, if it is one that this module can extend. Raises NeedsSpark,
        DeltaLogError."""
        snapshot = self._log.snapshot()
        if snapshot is None:
            raise NeedsSpark(f"{self.path} is not a Delta table")
        unknown = sorted({*(snapshot.writer_features or ())}.difference(WRITER_FEATURES, HARMLESS_FEATURES))
        if snapshot.writer_features is None or snapshot.reader_features or unknown:
            raise NeedsSpark(
                f"{self.path} requires of its writers: {', '.join(unknown) or 'an old protocol'}"
            )
        if snapshot.partition_columns:
            raise NeedsSpark(f"{self.path} is partitioned")
        if snapshot.schema != self._known_schema:
            if has_rules(json.loads(snapshot.schema)):
                raise NeedsSpark(f"{self.path} has rules for its columns, such as NOT NULL")
            self._known_schema = snapshot.schema
        return snapshot

    def _extend(self, snapshot: DeltaSnapshot, actions: Sequence[DeltaAction]) -> bool:
        """Make the commit after a version; return False if another one was first. Raises NeedsSpark."""
        version = snapshot.version + 1
        if not self._commit(version, actions):
            return False
        interval = snapshot.properties.get(CHECKPOINT_INTERVAL, "10")
        if interval.isdecimal() and version % max(1, int(interval)) == 0:
            self._request_checkpoint(str(self.path))
        return True

    def _commit(self, version: int, actions: Sequence[DeltaAction]) -> bool:
        """Give a commit its version; return False if another one has it. Raises NeedsSpark without hard
        links, CommitUnknown."""
        folder = self.path / LOG_FOLDER
        name = folder / f"{version:020d}.json"
        temporary = folder / f".{name.name}.{uuid.uuid4()}.tmp"
        try:
            with temporary.open("w", encoding="utf-8") as file:
                file.writelines(f"{compact_json(action)}\n" for action in actions)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, name)
            except OSError as error:
                if error.errno in REFUSALS:
                    raise
                # a network file system may have made the link and lost the answer
                if _is_linked(temporary, name):
                    return True
                if isinstance(error, FileExistsError):
                    return False
                raise CommitUnknown(f"{name}: {error}") from error
            with contextlib.suppress(OSError):  # the commit is made
                sync_to_disk(folder)
            return True
        except OSError as error:
            raise NeedsSpark(f"{name}: {error}") from error
        finally:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def has_rules(schema: Any) -> bool:
    """Return whether a schema, in Spark's JSON, or a part of it has a column that refuses values."""
    if isinstance(schema, list):
        return any(map(has_rules, schema))
    if not isinstance(schema, dict):
        return False
    is_strict = schema.get("nullable") is False or INVARIANTS in schema.get("metadata", {})
    return is_strict or any(map(has_rules, schema.values()))


def _is_linked(file: Path, name: Path) -> bool:
    """Return whether a file has this name too. Raises CommitUnknown."""
    try:
        return file.stat().st_nlink > 1 or file.samefile(name)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise CommitUnknown(f"{name}: {error}") from error
