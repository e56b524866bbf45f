"""The batch: unit of storage, replication and reading; the same bytes on every replica, on disk and wire.

Little-endian; every batch is a multiple of 8 bytes:

      0  magic             4s   CLB1
      4  format            u16  1
      6  flags             u16  bit 0: control
      8  size              u32  of the whole batch, header included
     12  appends_size      u32  of the appends section, without its padding
     16  log_id            u64  log_id_of(cluster, log): a batch of another log cannot pass
     24  base_index        i64  index of the first record
     32  count             u32  records, at least 1
     36  body_crc          u32  CRC32C of the body, computed by the node that encoded it
     40  term              i64
     48  timestamp_ms      i64  the leader's clock when it stamped the batch
     56  max_timestamp_us  i64  largest record timestamp, for the time index
     64  offset            i64  byte position of the batch in its log
     72  chain             8s   blake2b-8 of the previous batch's chain (zeros before the first), bytes 0..72
                                and the appends section
     80  reserved          44s  zeros
    124  header_crc        u32  CRC32C of bytes 0..124 and of the appends section
    128  appends section, padded with zeros to 8: what the leader knows of single appends (AppendMark)
         body: one Arrow IPC record-batch message (storage/format/records.py)

The body's checksum is inside the header's and in the chain, so two equal headers mean two equal batches.
"""

import hashlib
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from storage.errors import CorruptBatch, NewerBatch, PartialBatch
from storage.file_system import Bytes
from storage.format.checksum import crc32c, extend_crc32c
from storage.units import MIB

HEADER_SIZE_BYTES: Final = 128
BATCH_MAX_BYTES: Final = 64 * MIB  # beyond any request; a larger size in a header is damage
FIRST_CHAIN: Final = bytes(8)
MAGIC: Final = b"CLB1"
FORMAT: Final = 1
FLAG_CONTROL: Final = 1

_FIELDS = struct.Struct("<4sHHIIQqIIqqqq")  # bytes 0..72
_HEADER = struct.Struct("<4sHHIIQqIIqqqq8s44sI")
_TAIL = struct.Struct("<8s44s")
_CRC = struct.Struct("<I")
_RESERVED = bytes(44)
_CHECKED = 124


def stored_size(data: Bytes) -> int:
    """Return the size in bytes that the header in `data` declares, not verified; data: a whole header."""
    return int(_FIELDS.unpack_from(data)[3])


class BatchHeader(NamedTuple):
    """The fields of the header, in its order; units as in the table above."""

    magic: bytes
    format: int
    flags: int
    size: int
    appends_size: int
    log_id: int
    base_index: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not used
    body_crc: int
    term: int
    timestamp_ms: int
    max_timestamp_us: int
    offset: int
    chain: bytes
    reserved: bytes
    header_crc: int


class AppendMark(msgspec.Struct, frozen=True, array_like=True):
    """One client append within a batch that has an idempotency key or a producer (docs/api.md §3).

    ordinal: position of its first record in the batch, from 0. digest: 16 bytes of records and conditions.
    """

    ordinal: int
    count: int
    idempotency_key: str | None = None
    producer_id: str | None = None
    producer_epoch: int = 0
    producer_sequence: int = 0
    allow_gap: bool = False
    digest: bytes = b""


class EncodedBody(NamedTuple):
    """An encoded body. max_timestamp_us: of the records that have a timestamp, None if none has."""

    data: Bytes
    count: int  # type: ignore[assignment]  # hides tuple.count
    crc: int
    max_timestamp_us: int | None
    all_timestamped: bool


class Batch:
    """A valid batch and its bytes; immutable. Two batches are equal if their headers are.

    Its positions and its term are copied from the header, because each step of an append reads some of them.
    """

    __slots__ = (
        "base_index",
        "data",
        "header",
        "last_index",
        "next_index",
        "next_offset",
        "offset",
        "size_bytes",
        "term",
    )

    def __init__(self, header: BatchHeader, data: bytes | memoryview) -> None:
        self.header = header
        self.data = data  # the whole stored batch, header included
        self.term = header.term
        self.base_index = header.base_index
        self.next_index = header.base_index + header.count
        self.last_index = self.next_index - 1
        self.offset = header.offset
        self.size_bytes = header.size
        self.next_offset = header.offset + header.size

    @property
    def count(self) -> int:
        return self.header.count

    @property
    def timestamp_ms(self) -> int:
        return self.header.timestamp_ms

    @property
    def is_control(self) -> bool:
        return self.header.flags & FLAG_CONTROL != 0

    @property
    def body(self) -> memoryview:
        """The Arrow message, without copying it."""
        return memoryview(self.data)[HEADER_SIZE_BYTES + _padded(self.header.appends_size) :]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Batch) and self.header == other.header

    def __hash__(self) -> int:
        return self.header.header_crc

    def __repr__(self) -> str:
        kind = "control" if self.is_control else "data"
        return f"Batch({self.base_index}..{self.last_index} term={self.term} offset={self.offset} {kind})"


def log_id_of(cluster_id: str, name: str) -> int:
    """Return the id of a log, 0 to 2**64 - 1: the same on every node of the cluster."""
    return int.from_bytes(hashlib.blake2b(f"{cluster_id}/{name}".encode()).digest()[:8], "little")


def _padded(size: int) -> int:
    return (size + 7) & ~7


def stamp(
    body: EncodedBody,
    *,
    log_id: int,
    base_index: int,
    term: int,
    timestamp_ms: int,
    offset: int,
    previous_chain: bytes,
    control: bool = False,
    marks: Sequence[AppendMark] = (),
) -> Batch:
    """Prepend the leader's header to an encoded body: the batch as every replica stores it.

    offset, previous_chain: the log's end_offset and last_chain. Raises ValueError if it would be too large.
    """
    appends = msgspec.msgpack.encode(marks) if marks else b""
    appends_size = len(appends)
    appends += bytes(-appends_size & 7)
    size = HEADER_SIZE_BYTES + len(appends) + len(body.data)
    if size > BATCH_MAX_BYTES:
        raise ValueError(f"a batch has at most {BATCH_MAX_BYTES} bytes, not {size}")
    latest_us = timestamp_ms * 1000
    if body.max_timestamp_us is not None and (body.all_timestamped or body.max_timestamp_us > latest_us):
        latest_us = body.max_timestamp_us
    flags = FLAG_CONTROL if control else 0
    fields = (
        MAGIC, FORMAT, flags, size, appends_size, log_id, base_index, body.count, body.crc, term,
        timestamp_ms, latest_us, offset,
    )  # fmt: skip
    packed = _FIELDS.pack(*fields)
    chain = next_chain(previous_chain, packed, appends)
    checked = packed + _TAIL.pack(chain, _RESERVED)
    header_crc = crc32c(checked + appends)
    data = b"".join((checked, _CRC.pack(header_crc), appends, body.data))
    return Batch(BatchHeader(*fields, chain, _RESERVED, header_crc), data)


def next_chain(previous_chain: bytes, header: Bytes, appends: Bytes) -> bytes:
    """Return the 8 bytes that identify this batch and all before it. header: at least its bytes 0..72."""
    digest = hashlib.blake2b(previous_chain, digest_size=8)
    digest.update(header[:72])
    digest.update(appends)
    return digest.digest()


def follows_chain(batch: Batch, previous_chain: bytes) -> bool:
    """Return whether the batch was stamped directly after the batch whose chain is given."""
    data = memoryview(batch.data)
    end = HEADER_SIZE_BYTES + _padded(batch.header.appends_size)
    return next_chain(previous_chain, data, data[HEADER_SIZE_BYTES:end]) == batch.header.chain


def decode_batch(data: Bytes, *, log_id: int | None = None) -> Batch:
    """Return the first batch in `data`, a view of it, both checksums verified; its body is not parsed.

    log_id: the log that the batch must belong to, None: any. Raises PartialBatch when the bytes end too
    early, NewerBatch for a batch of a later version, CorruptBatch for every other error.
    """
    view = memoryview(data)
    header = decode_header(view, log_id=log_id)
    if header.size > len(view):
        raise PartialBatch("shorter than the size in its header")
    if crc32c(view[HEADER_SIZE_BYTES + _padded(header.appends_size) : header.size]) != header.body_crc:
        raise CorruptBatch("checksum of the body")
    return Batch(header, view[: header.size])


def decode_header(view: memoryview, *, log_id: int | None = None) -> BatchHeader:
    """Return the header of the first batch in `view`, verified with the appends section, which must be
    present.

    Raises as decode_batch does.
    """
    if len(view) < HEADER_SIZE_BYTES:
        raise PartialBatch("shorter than a header")
    header = BatchHeader._make(_HEADER.unpack_from(view))
    if header.magic != MAGIC:
        raise CorruptBatch("no batch begins here")
    size = header.size
    body_start = HEADER_SIZE_BYTES + _padded(header.appends_size)
    if size > BATCH_MAX_BYTES or size < body_start or size & 7:
        raise CorruptBatch("impossible size")
    if body_start > len(view):
        raise PartialBatch("shorter than the size in its header")
    _check_header(header, view, body_start)
    if log_id is not None and header.log_id != log_id:
        raise CorruptBatch("a batch of another log")
    return header


def _check_header(header: BatchHeader, view: memoryview, body_start: int) -> None:
    crc = crc32c(bytes(view[:_CHECKED]))
    if body_start > HEADER_SIZE_BYTES:
        crc = extend_crc32c(crc, bytes(view[HEADER_SIZE_BYTES:body_start]))
    if crc != header.header_crc:
        raise CorruptBatch("checksum of the header")
    # Later formats keep the place of magic, format, sizes, log id, offset and checksum.
    if header.format != FORMAT:
        raise NewerBatch(f"unknown format {header.format}", (header.log_id, header.offset))
    # A valid checksum over impossible fields is a bug of the writer, or malicious.
    if header.count < 1 or header.base_index < 0 or header.term < 0 or header.offset < 0:
        raise CorruptBatch("fields out of range")
    if header.flags & ~FLAG_CONTROL or header.reserved != _RESERVED:
        raise NewerBatch("unknown flags", (header.log_id, header.offset))


_MARKS = msgspec.msgpack.Decoder(tuple[AppendMark, ...])


def marks_of(batch: Batch) -> tuple[AppendMark, ...]:
    """Return the marks of the appends in the batch, in its order. Raises CorruptBatch."""
    size = batch.header.appends_size
    if size == 0:
        return ()
    try:
        return _MARKS.decode(memoryview(batch.data)[HEADER_SIZE_BYTES : HEADER_SIZE_BYTES + size])
    except msgspec.DecodeError as error:  # ValidationError is a ValueError too
        raise CorruptBatch(f"append marks: {error}") from error
