"""Manifest of a log's folder: the beginning of the log, its durable point, and a truncation in progress.

Payload of the slots (storage/log/slots.py), magic `CLMF`, little-endian:
    log_id u64 | base_index i64 | base_offset i64 | durable_index i64 | durable_offset i64 | intent u8
    truncate_offset i64 | an epoch file (storage/format/epoch_file.py) of the one epoch `Manifest.epoch`;
    without one base_term i64, unless it is 0
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from storage.errors import NewerFormat
from storage.file_system import FileSystem
from storage.format.epoch_file import Epoch, decode_epochs, encode_epochs
from storage.log.slots import SlotFile

MAGIC: Final = b"CLMF"
_PAYLOAD = struct.Struct("<QqqqqBq")
_TERM = struct.Struct("<q")


class Intent(IntEnum):
    """A change that was begun and must be completed before the log is used."""

    NONE = 0
    TRUNCATE = 1  # nothing at or after truncate_offset may remain
    RESET = 2  # no segment may remain


@dataclass(frozen=True, slots=True)
class Manifest:
    """base: of the first batch held, or of the next one when the log is empty.

    durable_index, durable_offset: last index and exclusive end of a synced prefix: damage in it is
    corruption, and recovery scans only what is after it. Never before the base. epoch: the epoch of the base,
    if it began before the base; after a trim the log no longer contains its start. base_term: of the batch
    at the base, which a crash may take; that of `epoch` if there is one, 0 if unknown.
    """

    log_id: int
    base_index: int = 0
    base_offset: int = 0
    durable_index: int = -1
    durable_offset: int = 0
    intent: Intent = Intent.NONE
    truncate_offset: int = 0
    epoch: Epoch | None = None
    base_term: int = 0


class ManifestFile:
    """The manifest on disk; `save` is durable on return."""

    def __init__(self, files: FileSystem, path: str) -> None:
        self._slots = SlotFile(files, path, MAGIC)
        self.path = path

    def load(self) -> Manifest | None:
        """Return the manifest, None when there is none. Raises CorruptFile, NewerFormat."""
        payload = self._slots.load()
        if payload is None:
            return None
        try:
            return _decode(payload)
        except ValueError as error:
            raise NewerFormat(self.path, str(error)) from error

    def save(self, manifest: Manifest) -> None:
        self._slots.save(_encode(manifest))


def _encode(manifest: Manifest) -> bytes:
    fixed = _PAYLOAD.pack(
        manifest.log_id,
        manifest.base_index,
        manifest.base_offset,
        manifest.durable_index,
        manifest.durable_offset,
        manifest.intent,
        manifest.truncate_offset,
    )
    if manifest.epoch is not None:
        return fixed + encode_epochs((manifest.epoch,))
    return fixed + _TERM.pack(manifest.base_term) if manifest.base_term else fixed


def _decode(payload: bytes) -> Manifest:
    """Invert _encode. Raises ValueError."""
    if len(payload) < _PAYLOAD.size:
        raise ValueError("wrong size")
    log_id, base_index, base_offset, durable_index, durable_offset, intent, truncate_offset = (
        _PAYLOAD.unpack_from(payload)
    )
    epoch, base_term = _decode_base(payload[_PAYLOAD.size :])
    if intent not in tuple(Intent):
        raise ValueError("unknown intent")
    return Manifest(
        log_id,
        base_index,
        base_offset,
        durable_index,
        durable_offset,
        Intent(intent),
        truncate_offset,
        epoch,
        base_term,
    )


def _decode_base(rest: bytes) -> tuple[Epoch | None, int]:
    """Return the epoch and the term of the base. Raises ValueError."""
    if not rest:
        return None, 0
    if len(rest) == _TERM.size:
        return None, _TERM.unpack(rest)[0]
    (epoch,) = decode_epochs(rest)
    return epoch, epoch.term
