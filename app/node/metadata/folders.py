"""Folders of logs that are created and deleted at run time: which log of a name is kept here, and its
removal.

DATA/generations/NAME is one line: CRC32C in hexadecimal, a space, JSON. It is written before the first byte
of the log, and changed to `deleting` before the first byte is removed, so a crash at any moment leaves either
a complete log or one whose removal continues. A log of the configuration file has such a line only during the
removal of a copy from a node that no longer keeps it. A rebuild of the controllers protects the logs whose
creation is lost.
"""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from app.node.repair.marker import RepairMarker
from storage.errors import CorruptFile, DiskError
from storage.file_system import FileSystem, write_named_durably
from storage.format.checksum import crc32c
from storage.log.log_folder import MANIFEST_NAME
from storage.log.manifest import ManifestFile

logger = logging.getLogger(__name__)

FOLDER: Final = "generations"
_LATER: Final = 1 << 62  # added to the generation of a protected log: it is later than any that is created


class _FolderLine(msgspec.Struct, frozen=True):
    """keeps_receipts: the log continues at other nodes, and its loss receipts stay here."""

    generation: int
    deleting: bool = False
    keeps_receipts: bool = False


class LogFolders:
    """The folders of one node. Every method may block on the disk."""

    def __init__(self, files: FileSystem, data_folder: str) -> None:
        self._files = files
        self._data = data_folder
        self._folder = f"{data_folder}/{FOLDER}"
        self._unsynced: set[str] = set()  # logs whose line may be there and not durable

    def finish_removals(self) -> None:
        """Complete what a crash has interrupted. Call it before anything else."""
        self._files.make_folders(self._folder)
        self._files.sync_folder(self._folder)  # a line that is found counts from now on
        for name in self.kept():
            try:
                self.finish_removal(name)
            except CorruptFile as error:  # the other logs are opened; `prepare` decides about this one
                logger.error("log %s: its generation cannot be read: %s", name, error)

    def finish_removal(self, name: str) -> None:
        """Complete the interrupted removal of one copy, if there is one."""
        if (line := self._line(name)) is not None and line.deleting:
            self._remove(name, line)

    def kept_generation(self, name: str) -> int | None:
        """Return the generation of the copy that is kept; None if there is none, or its line is damaged."""
        try:
            line = self._line(name)
        except CorruptFile:
            return None
        return None if line is None else line.generation

    def kept(self) -> list[str]:
        """Return the names of the logs that have a line here."""
        return [name for name in self._files.list(self._folder) if not self._is_unfinished(name)]

    def _is_unfinished(self, name: str) -> bool:
        """Return whether a crash has left the file before it was complete. In folders of earlier versions its
        name may also be the name of a log."""
        if not name.endswith(".tmp") or name.startswith("."):
            return name.startswith(".")
        self._files.make_folders(f"{self._data}/logs")
        return name not in self._files.list(f"{self._data}/logs")

    def prepare(self, name: str, generation: int, log_id: int) -> None:
        """Prepare the folder for the log of that generation; an earlier log of the name is removed.

        Raises CorruptFile if the folder holds an unknown log.
        """
        if not self.make_way(name, generation, log_id):
            folder = f"{self._data}/logs/{name}"
            self._files.make_folders(folder)
            if holds_file(self._files, folder):
                raise CorruptFile(folder, "a log that is not of the controllers' metadata")
            self._write(name, _FolderLine(generation))

    def make_way(self, name: str, generation: int, log_id: int) -> bool:
        """Remove the copy of an earlier log of the name; return whether the log of that generation is kept
        here.

        Raises CorruptFile as `prepare`, and for the copy of a later log, which metadata do not know that were
        rebuilt from an older copy of themselves.
        """
        try:
            line = self._line(name)
        except CorruptFile:
            if self._log_id_in(name) != log_id:
                raise
            line = _FolderLine(generation)  # the manifest names this very log
            self._write(name, line)
        if line is not None and (line.deleting or line.generation < generation):
            self.remove(name)
            return False
        if name in self._unsynced:
            self._files.sync_folder(self._folder)
        if line is not None and line.generation > generation:
            reason = "a later log of this name, which the controllers do not know; move it away with"
            raise CorruptFile(f"{self._data}/logs/{name}", f"{reason} {self._folder}/{name}")
        return line is not None

    def protect(self, known: Mapping[str, int], end_index: int) -> list[str]:
        """Protect the logs whose creation is lost, and return their names: no new log of the name removes
        them.

        known: generations by name in the metadata, which are rebuilt and end at `end_index`.
        """
        self._files.make_folders(self._folder)
        protected = []
        for name in self.kept():
            with suppress(CorruptFile):  # `prepare` decides about it
                line = self._line(name)
                if line is None or line.deleting:
                    continue
                generation = line.generation % _LATER if line.generation >= 0 else line.generation
                is_lost = known.get(name) != generation and line.generation > end_index
                kept = _FolderLine(generation + _LATER if is_lost else generation)
                if kept != line:
                    self._write(name, kept)
                if is_lost:
                    protected.append(name)
        return protected

    def adopt(self, name: str, generation: int) -> None:
        """Record the generation of an open copy without a line, as those of earlier versions are."""
        if self._line(name) is None:
            self._write(name, _FolderLine(generation))

    def remove(self, name: str) -> None:
        """Remove the log: none of its files may be open."""
        line = self._line(name)
        if line is not None:
            line = _FolderLine(line.generation, deleting=True)
            self._write(name, line)
            self._remove(name, line)

    def drop(self, name: str, generation: int) -> None:
        """Remove the copy of a log that continues at other nodes, also one of the configuration file: none
        of its files may be open."""
        line = _FolderLine(generation, deleting=True, keeps_receipts=True)
        self._write(name, line)
        self._remove(name, line)

    def _remove(self, name: str, line: _FolderLine) -> None:
        for place in ("logs", "journal") if line.keeps_receipts else ("logs", "journal", "receipts"):
            self._remove_folder(f"{self._data}/{place}/{name}")
        RepairMarker(self._files, self._data, name).remove()
        self._files.remove(f"{self._folder}/{name}")
        self._files.sync_folder(self._folder)

    def _remove_folder(self, folder: str) -> None:
        """Remove all files durably, then the empty folder: a crash may leave that, and so does a file system
        that cannot remove it yet."""
        self._files.make_folders(folder)
        files = self._files.sizes(folder)
        for name in self._files.list(folder):
            if name in files:
                self._files.remove(f"{folder}/{name}")
            else:
                self._remove_folder(f"{folder}/{name}")
        self._files.sync_folder(folder)
        with suppress(DiskError):
            self._files.remove_folder(folder)

    def _write(self, name: str, line: _FolderLine) -> None:
        text = msgspec.json.encode(line)
        self._unsynced.add(name)
        write_named_durably(self._files, self._folder, name, b"%08x %s\n" % (crc32c(text), text))
        self._unsynced.discard(name)

    def _log_id_in(self, name: str) -> int | None:
        """Return the id of the log whose files are kept under that name, None if there is none. Raises
        CorruptFile."""
        manifest = ManifestFile(self._files, f"{self._data}/logs/{name}/{MANIFEST_NAME}").load()
        return None if manifest is None else manifest.log_id

    def _line(self, name: str) -> _FolderLine | None:
        path = f"{self._folder}/{name}"
        if not self._files.exists(path) or self._is_unfinished(name):
            return None
        checksum, _, text = self._files.read(path).strip().partition(b" ")
        if checksum != b"%08x" % crc32c(text):
            raise CorruptFile(path, "checksum")
        return msgspec.json.decode(text, type=_FolderLine)


def holds_file(files: FileSystem, folder: str) -> bool:
    """Return whether there is a file in the folder or below it: a removal leaves empty folders."""
    found = files.sizes(folder)
    folders = [name for name in files.list(folder) if name not in found]
    return bool(found) or any(holds_file(files, f"{folder}/{name}") for name in folders)
