"""Folder of a backup: a manifest, and Parquet files of records with their checksums.

FOLDER/manifest.json            what the folder holds, replaced as a whole after each file
FOLDER/records-INDEX.parquet    the records from INDEX on, with the columns of a read

A file that the manifest does not list is left from an interrupted backup and is written again.
"""

import fcntl
import hashlib
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import parquet

from app.cli.context import CommandFailed, ExitCode
from storage.errors import DiskError
from storage.files import OsFileSystem

BACKUP_FORMAT = 2  # 1 had no checksum of the manifest itself
_NO_SUM = "0" * 64
MANIFEST = "manifest.json"
_LOCK = ".lock"
_LENGTH = struct.Struct("<q")
_NULL = _LENGTH.pack(-1)


class BackupFile(msgspec.Struct, frozen=True):
    """One file. sha256: of the file; content: of keys, values, headers and timestamps, without indexes."""

    file: str
    first_index: int
    last_index: int
    records: int
    bytes: int
    sha256: str
    content: str


class BackupManifest(msgspec.Struct):
    """Content of the folder: the data records of `log` from begin_index up to next_index, exclusive.

    cursors: next index to read, by name, in indexes of the original log. schemas: versions of the schema,
    oldest first, as the API returns them; earlier versions of the program kept none. manifest_sha256: of this
    file with zeros in its place.
    """

    id: str
    cluster: str
    log: str
    settings: dict[str, Any]
    begin_index: int
    next_index: int
    created: str
    updated: str
    version: str
    cursors: dict[str, int] = {}
    parts: list[BackupFile] = []
    schemas: list[dict[str, Any]] = []
    format: int = BACKUP_FORMAT
    manifest_sha256: str = _NO_SUM

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(part.records for part in self.parts)


def load(folder: Path) -> BackupManifest | None:
    """Return the manifest, None for a folder without one. Raises CommandFailed when it cannot be read."""
    file = folder / MANIFEST
    try:
        content = file.read_bytes()
        manifest = msgspec.json.decode(content, type=BackupManifest)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CommandFailed(f"{file} is not the manifest of a backup: {error}") from error
    if not 1 <= manifest.format <= BACKUP_FORMAT:
        raise CommandFailed(
            f"{file} has the format {manifest.format}; this version reads 1 to {BACKUP_FORMAT}"
        )
    if manifest.format > 1:
        found = manifest.manifest_sha256
        whole = content.replace(found.encode(), _NO_SUM.encode())
        if hashlib.sha256(whole).hexdigest() != found:
            raise CommandFailed(f"{file} is damaged: it differs from its own checksum")
    return manifest


def save(folder: Path, manifest: BackupManifest) -> None:
    """Replace the manifest, durably."""
    manifest.format, manifest.manifest_sha256 = BACKUP_FORMAT, _NO_SUM
    content = msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"
    digest = hashlib.sha256(content).hexdigest()
    content = content.replace(_NO_SUM.encode(), digest.encode())
    partial = folder / f".{MANIFEST}.partial"
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / MANIFEST)
    _sync_folder(folder)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other backups from the folder, which is created for its user alone if it does not exist.

    The folder is durable then. Raises CommandFailed while another backup is in progress.
    """
    try:
        OsFileSystem().make_folders(str(folder.absolute()))
    except DiskError as error:
        raise CommandFailed(str(error)) from error
    with (folder / _LOCK).open("w", encoding="utf-8") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CommandFailed(f"another backup writes to {folder}") from None
        except OSError as error:
            raise CommandFailed(
                f"{folder} cannot be locked ({error}): use a folder on a local disk"
            ) from error
        yield


def write_part(folder: Path, table: pa.Table) -> BackupFile:
    """Write the records as the next file, durably. table: at least one record."""
    first, last = (table.column("index")[at].as_py() for at in (0, -1))
    path = folder / f"records-{first:020}.parquet"
    partial = path.with_suffix(".partial")
    parquet.write_table(table, partial, compression="zstd")
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.replace(path)
    _sync_folder(folder)
    size, digest = path.stat().st_size, sha256_of(path)
    return BackupFile(path.name, first, last, table.num_rows, size, digest, Content().add(table).hexdigest())


def read_part(folder: Path, part: BackupFile) -> pa.Table:
    """Return the records of a file. Raises CommandFailed when it differs from the manifest."""
    path = folder / part.file
    if Path(part.file).name != part.file:
        raise CommandFailed(f"the manifest names a file outside the folder: {part.file!r}")
    if not path.is_file():
        raise CommandFailed(f"{path} is missing; the backup is not complete", ExitCode.NOT_FOUND)
    if path.stat().st_size != part.bytes or sha256_of(path) != part.sha256:
        raise CommandFailed(f"{path} is damaged: it differs from the checksum in {MANIFEST}")
    table = parquet.read_table(path)
    if table.num_rows != part.records or Content().add(table).hexdigest() != part.content:
        raise CommandFailed(f"the records of {path} differ from the checksum in {MANIFEST}")
    return table


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class Content:
    """SHA-256 of records without what a log assigns: key, value, headers and timestamp, in order."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()

    def add(self, table: pa.Table) -> "Content":
        """Add the records of a table with the columns of a read."""
        micros = table.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
        rest = [table.column(name).to_pylist() for name in ("key", "value", "headers")]
        for time, key, value, headers in zip(micros.to_pylist(), *rest, strict=True):
            parts = [_LENGTH.pack(time), _sized(key), _sized(value), _LENGTH.pack(len(headers or ()))]
            for header in headers or ():
                parts += (_sized(header["name"].encode()), _sized(header["value"]))
            self._sum.update(b"".join(parts))
        return self

    def hexdigest(self) -> str:
        """Return the sum as text."""
        return self._sum.hexdigest()


def _sized(content: bytes | None) -> bytes:
    return _NULL if content is None else _LENGTH.pack(len(content)) + content


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
