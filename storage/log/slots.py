"""A small value stored twice in one file, so that no single torn write or damaged sector loses it.

Slot k is at byte k * 4096, little-endian:

    magic 4s | version u16 | zero u16 | sequence u64 | size u32 | payload | CRC32C u32 of all before it

`save` writes and syncs both slots, one after the other: a crash tears at most one, and once `save` has
returned both hold the value. So the newest valid slot is right, whichever one is damaged. The file is created
as a whole (temporary file, sync, rename): a file without a valid slot is damaged, never new. A later version
keeps this frame, with another number: an intact slot with it is refused (NewerFormat), never replaced.
"""

import struct
from contextlib import closing
from typing import Final

from storage.errors import CorruptFile, NewerFormat
from storage.file_system import Bytes, FileSystem, write_durably
from storage.format.checksum import crc32c

SLOT_SIZE_BYTES: Final = 4096
PAYLOAD_MAX_BYTES: Final = 2048
_VERSION = 1
_READS = 3  # reads of a file that may be written meanwhile
_HEAD = struct.Struct("<4sHHQI")
_CRC = struct.Struct("<I")


def encode_slot(magic: bytes, sequence: int, payload: bytes) -> bytes:
    """Return the bytes of one slot, padded with zeros to SLOT_SIZE_BYTES."""
    if len(payload) > PAYLOAD_MAX_BYTES:
        raise ValueError(f"a slot holds at most {PAYLOAD_MAX_BYTES} bytes")
    body = _HEAD.pack(magic, _VERSION, 0, sequence, len(payload)) + payload
    return (body + _CRC.pack(crc32c(body))).ljust(SLOT_SIZE_BYTES, b"\0")


def decode_slot(magic: bytes, data: Bytes) -> tuple[int, bytes] | None:
    """Return (sequence, payload), None for anything but a complete, valid slot of this version."""
    if _is_newer(magic, data):
        return None
    return _intact(magic, data)


def _is_newer(magic: bytes, data: Bytes) -> bool:
    """Return whether this is an intact slot of another version."""
    return _intact(magic, data) is not None and _HEAD.unpack_from(data)[1:3] != (_VERSION, 0)


def _intact(magic: bytes, data: Bytes) -> tuple[int, bytes] | None:
    """Return (sequence, payload) of a slot of any version; None if it is not complete and valid."""
    if len(data) < _HEAD.size + _CRC.size:
        return None
    found, _, _, sequence, size = _HEAD.unpack_from(data)
    end = _HEAD.size + size
    if found != magic:
        return None
    if size > PAYLOAD_MAX_BYTES or end + _CRC.size > len(data):
        return None
    if _CRC.unpack_from(data, end)[0] != crc32c(bytes(data[:end])):
        return None
    return sequence, bytes(data[_HEAD.size : end])


def _decode_both(path: str, magic: bytes, data: Bytes) -> list[tuple[int, bytes] | None]:
    """Return both slots of a file, as decode_slot does. Raises NewerFormat."""
    slots = [data[at : at + SLOT_SIZE_BYTES] for at in (0, SLOT_SIZE_BYTES)]
    if any(_is_newer(magic, slot) for slot in slots):
        raise NewerFormat(path, f"its format is not {_VERSION}")
    return [decode_slot(magic, slot) for slot in slots]


def heal_slots(files: FileSystem, path: str, magic: bytes) -> None:
    """Rewrite a damaged or old slot from the other one. Raises CorruptFile if both are damaged, NewerFormat,
    DiskError.

    May run while the file's owner saves: the owner has written, or will write, the same value to the other
    slot, and the newest valid slot counts.
    """
    for _ in range(_READS):
        data = memoryview(files.read(path))
        first, second = _decode_both(path, magic, data)
        if first == second is not None:
            return  # and a difference in the first read was a write in progress
    newest = max((slot for slot in (first, second) if slot is not None), default=None)
    if newest is None:
        raise CorruptFile(path, "neither of its two slots is valid")
    with closing(files.open(path)) as file:
        file.pwrite(encode_slot(magic, *newest), 0 if newest == second else SLOT_SIZE_BYTES)
        file.sync()


class SlotFile:
    """One value in two slots. Not shared between threads."""

    def __init__(self, files: FileSystem, path: str, magic: bytes) -> None:
        self._files = files
        self.path = path
        self._magic = magic
        self._sequence = 0

    def load(self) -> bytes | None:
        """Return the newest value, durable by now; None if none was ever saved. Raises CorruptFile,
        NewerFormat."""
        if not self._files.exists(self.path):
            return None
        data = memoryview(self._files.read(self.path))
        found = _decode_both(self.path, self._magic, data)
        sequences = [-1 if slot is None else slot[0] for slot in found]
        newest = found[0] if sequences[0] >= sequences[1] else found[1]
        if newest is None:
            raise CorruptFile(self.path, "neither of its two slots is valid")
        order = (1, 0) if sequences[0] > sequences[1] else (0, 1)
        self._sequence, payload = newest
        # A killed process may leave its write in the page cache only: make it durable before it is used.
        self._write(encode_slot(self._magic, self._sequence, payload), order)
        self._files.sync_folder(self.path.rpartition("/")[0])
        return payload

    def save(self, payload: bytes) -> None:
        """Make `payload` the value; durable on return. Call `load` once before."""
        sequence = self._sequence + 1
        slot = encode_slot(self._magic, sequence, payload)
        if self._sequence == 0:
            write_durably(self._files, self.path, slot + slot)
        else:
            self._write(slot, (0, 1))
        self._sequence = sequence

    def _write(self, slot: bytes, order: tuple[int, int]) -> None:
        """Write both slots, each durable before the other; order: never the only valid one first."""
        with closing(self._files.open(self.path)) as file:
            for k in order:
                file.pwrite(slot, k * SLOT_SIZE_BYTES)
                file.sync()
