"""A node's files on a disk that can fail: errors, no room, pages lost in silence, rotten bits."""

from random import Random
from typing import NamedTuple

from storage.errors import DiskError
from storage.file_system import FileSystem
from storage.format.segment_format import segment_name, segment_offset
from storage.log.log_folder import segment_offsets
from storage.log.manifest import Intent, ManifestFile
from tests.support.memory_files import MemoryFiles

FREE_BYTES = 4_096  # what a disk that runs full has left at most


class Flip(NamedTuple):
    """A bit that has rotted on the disk. rotten: its byte since then."""

    path: str
    offset: int
    mask: int
    rotten: int


class SickFiles(MemoryFiles):
    """The disk of one node. After a sync that failed, its pages pass for clean and are lost all the same."""

    def __init__(self, random: Random) -> None:
        super().__init__(random)
        self.flips: list[Flip] = []

    @property
    def is_ill(self) -> bool:
        """Return True if an error of this disk is expected now."""
        return self.refuse is not None or self.syncs_fail or self.space_bytes is not None

    def sicken(self, kind: str, dice: int) -> None:
        """From now on every read, write or sync fails, or there is room for a few more writes at most."""
        if kind == "full_disk":
            self.space_bytes = sum(len(each.now) for each in self._names.values()) + dice % FREE_BYTES
        elif kind == "sync_error":
            self.syncs_fail = True
        else:
            self.refuse = _refuse_reads if kind == "read_error" else _refuse_writes

    def recover(self) -> None:
        """The disk works again, and has room. What has rotted stays so."""
        self.syncs_fail = False
        self.refuse = self.space_bytes = self.power_cut_at = None

    # --- bits that rot at rest

    def flip(self, folder: str, dice: int) -> Flip | None:
        """Flip a bit of what is durable in a log's folder; None when there is nothing."""
        sizes = {path: size for path in self._files_of(folder) if (size := self._durable_bytes(folder, path))}
        if not sizes:
            return None
        random = Random(dice)
        path = random.choices(list(sizes), weights=[size + 200 for size in sizes.values()])[0]
        offset, mask = random.randrange(sizes[path]), 1 << random.randrange(8)
        flip = Flip(path, offset, mask, self._names[path].durable[offset] ^ mask)
        self._turn(flip)
        self.flips.append(flip)
        return flip

    def forget_repaired(self) -> None:
        """Forget the bits that a repair has put right. A segment's may be left: the repair found that an
        unreadable file can be read again."""
        self.flips[:] = [flip for flip in self.flips if self._is_left(flip)]

    def _is_left(self, flip: Flip) -> bool:
        if segment_offset(flip.path.rpartition("/")[2]) is None or flip.path not in self._names:
            return False
        durable = self._names[flip.path].durable
        return flip.offset < len(durable) and durable[flip.offset] == flip.rotten

    def _files_of(self, folder: str) -> list[str]:
        return [path for path in sorted(self._names) if path.rpartition("/")[0] == folder]

    def _durable_bytes(self, folder: str, path: str) -> int:
        """How much of a file is surely durable: of a segment what lies before the log's durable point."""
        size = len(self._names[path].durable)
        base_offset = segment_offset(path.rpartition("/")[2])
        if base_offset is None:
            return size
        manifest = ManifestFile(self, f"{folder}/manifest").load()
        return 0 if manifest is None else max(0, min(size, manifest.durable_offset - base_offset))

    def _turn(self, flip: Flip) -> None:
        content = self._names[flip.path]
        for data in (content.now, content.durable):
            if flip.offset < len(data):
                data[flip.offset] ^= flip.mask


def _refuse_reads(operation: str, path: str) -> None:
    if operation == "read":
        raise DiskError(path, operation, "input/output error")


def _refuse_writes(operation: str, path: str) -> None:
    if operation not in ("read", "open", "list"):
        raise DiskError(path, operation, "input/output error")


def tail_bytes(files: FileSystem, folder: str) -> int:
    """Bytes of all segments."""
    offsets = segment_offsets(files, folder)
    return sum(files.open(f"{folder}/{segment_name(each)}").size() for each in offsets)


def has_intent(files: FileSystem, folder: str) -> bool:
    """Return whether a crash has interrupted a truncation or a reset."""
    manifest = ManifestFile(files, f"{folder}/manifest").load()
    return manifest is not None and manifest.intent is not Intent.NONE
