"""Scanner of consecutive batches in a segment's file, which can skip damage to the next valid batch."""

from typing import Final

from storage.errors import CorruptBatch, DiskError, DiskRefused, NewerBatch, NewerFormat, PartialBatch
from storage.file_system import File
from storage.format.batch import MAGIC, Batch, decode_batch
from storage.units import MIB

BLOCK_BYTES: Final = 4 * MIB
_ALIGNMENT: Final = 8
_UNREADABLE_BYTES: Final = 4096  # bytes lost together where the disk cannot read


class Scan:
    """Reads from log offset `offset` on, in blocks, without a mapping; an unreadable block is lost alone."""

    def __init__(
        self, path: str, file: File, base_offset: int, log_id: int, offset: int, *, patient: bool = False
    ) -> None:
        """path: of the file, for errors. base_offset: log offset of the file's first byte. patient:
        unreadable bytes count as zeros."""
        self._path = path
        self._file = file
        self._base_offset = base_offset
        self._log_id = log_id
        self._patient = patient
        self._end_offset = base_offset + file.size()
        self._block = memoryview(b"")
        self._block_offset = offset
        self.offset = offset
        self.stopped_by = ""

    @property
    def exhausted(self) -> bool:
        """True if every byte of the file was read as a batch."""
        return self.offset == self._end_offset

    def next_batch(self) -> Batch | None:
        """Return the batch at `offset` and advance, None if there is no valid one: see `stopped_by`.

        Raises NewerFormat for a batch of this log and place that a later version wrote, DiskError.
        """
        if self.exhausted:
            self.stopped_by = "the segment ends here"
            return None
        while True:
            block = self._block[self.offset - self._block_offset :]
            try:
                batch = decode_batch(block, log_id=self._log_id)
            except CorruptBatch as error:
                if isinstance(error, PartialBatch) and len(block) < self._end_offset - self.offset:
                    self._read(self.offset, max(BLOCK_BYTES, 2 * len(block)))
                    continue
                if isinstance(error, NewerBatch) and error.place == (self._log_id, self.offset):
                    raise NewerFormat(self._path, f"log offset {self.offset}: {error.reason}") from error
                self.stopped_by = error.reason
                return None
            if batch.offset != self.offset:
                self.stopped_by = "a batch of another place"
                return None
            self.offset = batch.next_offset
            return batch

    def skip(self) -> bool:
        """Advance to the next place after `offset` where a batch may begin; False: there is none."""
        at = self.offset + _ALIGNMENT
        while at < self._end_offset:
            if not self._block_offset <= at < self._block_offset + len(self._block):
                self._read(at, BLOCK_BYTES)
            found = bytes(self._block[at - self._block_offset :]).find(MAGIC)
            if found >= 0 and (at + found) % _ALIGNMENT == 0:
                self.offset = at + found
                return True
            end = self._block_offset + len(self._block)
            at = end if found < 0 else at + found // _ALIGNMENT * _ALIGNMENT + _ALIGNMENT
        self.offset = self._end_offset
        return False

    def _read(self, offset: int, size: int) -> None:
        try:
            block = self._file.read(offset - self._base_offset, size)
        except DiskError as error:
            if not self._patient or isinstance(error, DiskRefused):
                raise
            block = self._read_what_can_be_read(offset - self._base_offset, size)
        self._block = memoryview(block)
        self._block_offset = offset

    def _read_what_can_be_read(self, position: int, size: int) -> bytes:
        end = min(position + size, self._end_offset - self._base_offset)
        parts = []
        for at in range(position, end, _UNREADABLE_BYTES):
            size = min(_UNREADABLE_BYTES, end - at)
            try:
                parts.append(self._file.read(at, size))
            except DiskRefused:
                raise
            except DiskError:
                parts.append(bytes(size))
        return b"".join(parts)
