"""Term and vote, which must be durable before an answer that depends on them is sent (R-01).

Payload of the slots (storage/log/slots.py), magic `CLHS`, little-endian: term i64 | length u16 | voted_for
UTF-8; length 0: no vote in this term.
"""

import struct
from dataclasses import dataclass
from typing import Final

from storage.errors import NewerFormat
from storage.file_system import FileSystem
from storage.log.slots import SlotFile

MAGIC: Final = b"CLHS"
VOTED_FOR_MAX_BYTES: Final = 255
_FIXED = struct.Struct("<qH")


@dataclass(frozen=True, slots=True)
class HardState:
    """The promise of a node. `term` never falls; `voted_for` is a node id, None: no vote in this term."""

    term: int = 0
    voted_for: str | None = None


def encode_hard_state(state: HardState) -> bytes:
    """Return the payload. Raises ValueError for a node id that is empty or too long."""
    name = b"" if state.voted_for is None else state.voted_for.encode()
    if state.voted_for is not None and not 0 < len(name) <= VOTED_FOR_MAX_BYTES:
        raise ValueError(f"a node id has 1 to {VOTED_FOR_MAX_BYTES} bytes")
    return _FIXED.pack(state.term, len(name)) + name


def decode_hard_state(payload: bytes) -> HardState:
    """Invert encode_hard_state. Raises ValueError."""
    if len(payload) < _FIXED.size:
        raise ValueError("too short")
    term, length = _FIXED.unpack_from(payload)
    if term < 0 or len(payload) != _FIXED.size + length:
        raise ValueError("fields out of range")
    return HardState(term, payload[_FIXED.size :].decode() if length else None)


class HardStateFile:
    """The hard state on disk. `save` returns when it is durable: call it in the disk thread."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._slots = SlotFile(files, path, MAGIC)

    def load(self) -> HardState:
        """Return the saved value; the initial state if there is none. Raises CorruptFile, NewerFormat: do not
        vote."""
        payload = self._slots.load()
        if payload is None:
            return HardState()
        try:
            return decode_hard_state(payload)
        except ValueError as error:
            raise NewerFormat(self._slots.path, str(error)) from error

    def save(self, state: HardState) -> None:
        self._slots.save(encode_hard_state(state))
