"""The folders of logs that come and go: which log of a name is kept here, and the end of one that is deleted.

DATA/generations/NAME is one line: CRC32C in hexadecimal, a space, JSON. It is written before the first byte
of the log, and it says `deleting` before the first byte goes: so a crash at any moment leaves either a log
that is wholly there, or one whose removal goes on. A log of the configuration file has such a line only while
the copy of a node that was taken out of it is removed.
"""

from typing import Final

import msgspec

from storage.errors import CorruptFile
from storage.file_system import FileSystem, write_durably
from storage.format.checksum import crc32c

FOLDER: Final = "generations"


class _Line(msgspec.Struct, frozen=True):
    """keeps_receipts: the log goes on at other nodes, and what it has lost here stays on record."""

    generation: int
    deleting: bool = False
    keeps_receipts: bool = False


class LogFolders:
    """Of one node. Every method may block on the disk."""

    def __init__(self, files: FileSystem, data_folder: str) -> None:
        self._files = files
        self._data = data_folder
        self._folder = f"{data_folder}/{FOLDER}"

    def finish_removals(self) -> None:
        """Go on with what a crash has interrupted. To be called before anything else."""
        self._files.make_folders(self._folder)
        for name in self._files.list(self._folder):
            if not name.endswith(".tmp"):
                self.finish_removal(name)

    def finish_removal(self, name: str) -> None:
        """Go on with the interrupted removal of one copy, if there is one."""
        if (line := self._line(name)) is not None and line.deleting:
            self._remove(name, line)

    def kept(self) -> dict[str, int]:
        """The logs that are kept here: name -> generation."""
        found = {}
        for name in self._files.list(self._folder):
            if not name.endswith(".tmp") and (line := self._line(name)) is not None:
                found[name] = line.generation
        return found

    def prepare(self, name: str, generation: int) -> None:
        """Make room for the log of that generation; an earlier one of the name goes.

        Raises CorruptFile when something is there that nobody knows.
        """
        line = self._line(name)
        if line is not None and (line.deleting or line.generation != generation):
            self.remove(name)
            line = None
        if line is None:
            folder = f"{self._data}/logs/{name}"
            self._files.make_folders(folder)
            if self._files.list(folder):
                raise CorruptFile(folder, "a log that is not of the controllers' metadata")
            self._write(name, _Line(generation))

    def adopt(self, name: str, generation: int) -> None:
        """Note the generation of a copy that is open and has no line: it joined by an earlier version."""
        if self._line(name) is None:
            self._write(name, _Line(generation))

    def remove(self, name: str) -> None:
        """Remove the log: nothing of it may be open."""
        line = self._line(name)
        if line is not None:
            line = _Line(line.generation, deleting=True)
            self._write(name, line)
            self._remove(name, line)

    def drop(self, name: str, generation: int) -> None:
        """Remove the copy of a log that goes on at other nodes, of the configuration file too: nothing of it
        may be open."""
        line = _Line(generation, deleting=True, keeps_receipts=True)
        self._write(name, line)
        self._remove(name, line)

    def _remove(self, name: str, line: _Line) -> None:
        for place in ("logs", "journal") if line.keeps_receipts else ("logs", "journal", "receipts"):
            self._empty(f"{self._data}/{place}/{name}")
        if self._files.exists(f"{self._data}/repairing/{name}"):
            self._files.remove(f"{self._data}/repairing/{name}")
        self._files.remove(f"{self._folder}/{name}")
        self._files.sync_folder(self._folder)

    def _empty(self, folder: str) -> None:
        self._files.make_folders(folder)
        files = self._files.sizes(folder)
        for name in self._files.list(folder):
            if name in files:
                self._files.remove(f"{folder}/{name}")
            else:
                self._empty(f"{folder}/{name}")
        self._files.sync_folder(folder)

    def _write(self, name: str, line: _Line) -> None:
        text = msgspec.json.encode(line)
        write_durably(self._files, f"{self._folder}/{name}", b"%08x %s\n" % (crc32c(text), text))

    def _line(self, name: str) -> _Line | None:
        path = f"{self._folder}/{name}"
        if not self._files.exists(path):
            return None
        checksum, _, text = self._files.read(path).strip().partition(b" ")
        if checksum != b"%08x" % crc32c(text):
            raise CorruptFile(path, "checksum")
        return msgspec.json.decode(text, type=_Line)
