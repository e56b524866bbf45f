"""Staging of a write before it appends: rows divided into appends, and the list of the valid files.

STAGING/PRODUCER.EPOCH/batch-N/NAME.arrow  Arrow IPC file; each record batch in it is one append
                      /batch-N.json        the list of batch N: made durable before its first append, never
                                           changed except for `done`: all of it is in the log
                      /identity            a name that the driver gives the folder: a task that does not find
                                           it would stage in a folder that the driver cannot see

The list is created by a hard link of a complete file, so there is one or none: if two drivers have staged
files, both append the files of the one list. The staging needs a file system with hard links.
"""

import errno
import json
import os
import shutil
import socket
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import WriterCommitMessage

from spark_jobs.errors import SinkError
from spark_jobs.tables.local.data_files import sync_to_disk
from storage.format.records import BODY_SCHEMA
from storage.units import MIB

CHUNK_BYTES = 8 * MIB  # of an append at most, if the service allows it
IDENTITY = "identity"


@dataclass(frozen=True)
class AppendSizeLimits:
    """Limits of the service: of one record and of one append, values, keys and headers together."""

    record_bytes: int
    chunk_bytes: int
    chunk_records: int


@dataclass(frozen=True)
class StagedFile(WriterCommitMessage):
    """Files staged by one task. path: within the staging folder of the producer."""

    path: str
    chunks: int
    rows: int


@dataclass(frozen=True)
class StagedList:
    """The appends of a batch, in this order.

    begin: the log's end when the list was created; none of its records is before that. query: whose batch it
    is. done: all of it is in the log.
    """

    files: tuple[StagedFile, ...]
    begin: int = 0
    query: str = ""
    done: bool = False

    @property
    def chunks(self) -> int:
        return sum(file.chunks for file in self.files)


class Staging:
    """The folder of one producer in one epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def identify(self) -> str:
        """Return the name of the folder, assigned now if it has none."""
        path = self.folder / IDENTITY
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{IDENTITY}.{uuid.uuid4()}")
        temporary.write_text(str(uuid.uuid4()), "utf-8")
        try:
            _link(temporary, path)
        except FileExistsError:
            pass  # by the first driver
        finally:
            temporary.unlink()
        return path.read_text("utf-8")

    def check(self, identity: str) -> None:
        """Raise SinkError unless this is the driver's folder, as this task sees it."""
        try:
            found = (self.folder / IDENTITY).read_text("utf-8")
        except OSError as error:
            found = str(error)
        if found != identity:
            raise SinkError(
                f"{self.folder} on {socket.gethostname()} is not the driver's ({found}): stagingLocation "
                "must be a folder that the driver and all executors share"
            )

    def stage(self, batch_id: int, batches: Iterable[pa.RecordBatch], limits: AppendSizeLimits) -> StagedFile:
        """Write a task's rows, divided into appends; durable on return. Raises SinkError, OSError."""
        name = f"batch-{batch_id}/{uuid.uuid4()}.arrow"
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        chunks = rows = 0
        try:
            with path.open("xb") as file:
                with pa.ipc.new_file(file, BODY_SCHEMA) as writer:
                    for chunk in split(batches, limits):
                        writer.write_batch(chunk)
                        chunks += 1
                        rows += chunk.num_rows
                file.flush()
                os.fsync(file.fileno())
            sync_to_disk(path.parent)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return StagedFile(name, chunks, rows)

    def chunks(self, staged: StagedList) -> Iterator[pa.RecordBatch]:
        """Yield the appends of a list, in order. Raises SinkError when a staged file is missing."""
        for file in staged.files:
            try:
                with pa.OSFile(str(self.folder / file.path)) as source:
                    reader = pa.ipc.open_file(source)
                    if reader.num_record_batches != file.chunks:
                        raise SinkError(f"{self.folder / file.path} differs from the file that was staged")
                    for number in range(file.chunks):
                        yield reader.get_batch(number)
            except (OSError, pa.ArrowException) as error:
                raise SinkError(
                    f"the driver cannot read what a task staged ({error}): stagingLocation must be a folder "
                    "that the driver and all executors share"
                ) from error

    def find(self, batch_id: int) -> StagedList | None:
        """Return the list of a batch, None if there is none. Raises SinkError."""
        path = self.list_path(batch_id)
        try:
            staged = json.loads(path.read_text("utf-8"))
            files = tuple(StagedFile(**file) for file in staged["files"])
            return StagedList(files, int(staged["begin"]), str(staged["query"]), bool(staged["done"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise SinkError(f"{path} is not a list of staged files ({error})") from error

    def publish(self, batch_id: int, staged: StagedList) -> tuple[StagedList, bool]:
        """Make a batch's list durable, unless it has one: return the valid one, and whether it is this
        one."""
        path = self.list_path(batch_id)
        temporary = self._write(path, staged)
        try:
            _link(temporary, path)
        except FileExistsError:
            found = self.find(batch_id)
            if found is None:
                raise SinkError(
                    f"{path} was removed while it was read: two queries may share it. Give each query "
                    "its own stagingLocation"
                ) from None
            return found, False
        finally:
            temporary.unlink()
        sync_to_disk(self.folder)
        return staged, True

    def finish(self, batch_id: int, staged: StagedList) -> None:
        """Record that a batch is in the log, then remove its files, and the lists before the one before
        it."""
        path = self.list_path(batch_id)
        self._write(path, replace(staged, done=True)).replace(path)
        sync_to_disk(self.folder)
        for file in staged.files:
            (self.folder / file.path).unlink(missing_ok=True)
        for old in self.folder.glob("batch-*.json"):
            if int(old.stem.removeprefix("batch-")) < batch_id - 1:
                old.unlink(missing_ok=True)

    def discard(self, batch_id: int) -> None:
        """Remove everything that was staged for a batch that is in the log."""
        shutil.rmtree(self.folder / f"batch-{batch_id}", ignore_errors=True)

    def discard_until(self, batch_id: int) -> None:
        """The same for it and all before it: a paused driver does not know later ones."""
        for folder in self.folder.glob("batch-*/"):
            number = int(folder.name.removeprefix("batch-"))
            if number <= batch_id:
                self.discard(number)

    def remove_all(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def remove(self, files: Iterable[StagedFile]) -> None:
        for file in files:
            (self.folder / file.path).unlink(missing_ok=True)

    def list_path(self, batch_id: int) -> Path:
        return self.folder / f"batch-{batch_id}.json"

    def _write(self, path: Path, staged: StagedList) -> Path:
        """Write a list under a temporary name, durable except for that name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4()}")
        with temporary.open("x", encoding="utf-8") as file:
            json.dump(asdict(staged), file)
            file.flush()
            os.fsync(file.fileno())
        return temporary


def split(batches: Iterable[pa.RecordBatch], limits: AppendSizeLimits) -> Iterator[pa.RecordBatch]:
    """Yield the same rows in BODY_SCHEMA, in pieces of at most the size of an append. Raises SinkError."""
    pending: list[pa.RecordBatch] = []
    size = count = 0
    for batch in batches:
        rows = body_rows(batch)
        sizes = record_sizes(rows)
        if rows.num_rows and int(sizes.max()) > limits.record_bytes:
            raise SinkError(
                f"a record may have at most {limits.record_bytes} bytes, got a row of {sizes.max()}"
            )
        start = 0
        while start < rows.num_rows:
            ends = sizes[start:].cumsum() + size
            room = limits.chunk_records - count
            fit = min(int(np.searchsorted(ends, limits.chunk_bytes, "right")), room)
            if fit:
                pending.append(rows.slice(start, fit))
                size, count = int(ends[fit - 1]), count + fit
                start += fit
            if start < rows.num_rows:
                yield _joined(pending)
                pending, size, count = [], 0, 0
    if pending:
        yield _joined(pending)


def _link(file: Path, name: Path) -> None:
    """Give a complete file its name. Raises FileExistsError if another file has it, SinkError without hard
    links, OSError."""
    try:
        os.link(file, name)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        raise SinkError(
            f"{name.parent} is on a file system without hard links ({error.strerror}): set stagingLocation "
            "to a folder on another one"
        ) from error


def _joined(pending: list[pa.RecordBatch]) -> pa.RecordBatch:
    return pa.Table.from_batches(pending, BODY_SCHEMA).combine_chunks().to_batches()[0]


def body_rows(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return Spark's columns as those of records; a missing one is null. Raises SinkError for a header's
    nulls."""
    columns = []
    for field in BODY_SCHEMA:
        place = batch.schema.get_field_index(field.name)
        column = batch.column(place) if place >= 0 else pa.nulls(batch.num_rows, field.type)
        columns.append(column.cast(field.type))
    headers = columns[BODY_SCHEMA.get_field_index("headers")].flatten()
    if headers.null_count or headers.field("name").null_count or headers.field("value").null_count:
        raise SinkError("column `headers`: a header without name or value")
    return pa.RecordBatch.from_arrays(columns, schema=BODY_SCHEMA)


def record_sizes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the bytes of each record as the service counts them: value, key and headers."""
    sizes = _lengths(rows.column("value")) + _lengths(rows.column("key"))
    headers = rows.column("headers")
    if headers.null_count < len(headers):
        pairs = headers.flatten()
        lengths = _lengths(pairs.field("name")) + _lengths(pairs.field("value"))
        np.add.at(sizes, pc.list_parent_indices(headers).to_numpy(), lengths)
    return sizes


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    lengths = pc.fill_null(pc.binary_length(column), 0)
    return np.array(lengths.to_numpy(zero_copy_only=False), np.int64)
