"""Assembly of a slave's batches from the pieces in frames (H-03). PURE."""

import struct
from typing import Final

from storage.errors import PartialBatch
from storage.format.batch import HEADER_SIZE_BYTES, Batch, decode_batch

_SIZE: Final = struct.Struct("<I")
_SIZE_AT: Final = 8  # storage/format/batch.py


class Assembler:
    """Holds at most one incomplete batch, and the content of the last frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = HEADER_SIZE_BYTES

    def clear(self) -> None:
        self._buffer = bytearray()
        self._needed = HEADER_SIZE_BYTES

    def feed(self, body: bytes) -> list[Batch]:
        """Return the batches that `body` completes, both checksums verified. Raises CorruptBatch."""
        buffer = self._buffer
        buffer += body
        batches: list[Batch] = []
        at = 0
        while len(buffer) - at >= self._needed:
            # A complete header is verified before its body has arrived, so that a wrong size cannot block the
            # slave.
            (size,) = _SIZE.unpack_from(buffer, at + _SIZE_AT)
            data = bytes(memoryview(buffer)[at : at + max(size, HEADER_SIZE_BYTES)])
            try:
                batch = decode_batch(data)
            except PartialBatch:
                self._needed = size
                break
            batches.append(batch)
            at += batch.size_bytes
            self._needed = HEADER_SIZE_BYTES
        del buffer[:at]
        return batches
