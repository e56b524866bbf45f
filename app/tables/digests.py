"""Comparison of log and table: a digest of each data record, summed by blocks of indexes. PURE.

The service computes it from the log, Spark from the table `entries`. Sums do not depend on any order and can
be added, so both sides work in pieces. A record that is missing, duplicated or different makes the sum of its
block differ.
"""

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:  # the client has the sums without Arrow
    import pyarrow as pa

BLOCK: Final = 10_000  # indexes
COLUMNS: Final = ("index", "term", "offset", "timestamp", "key", "value", "headers")
_DIGEST_BYTES: Final = 8
_MODULUS: Final = 1 << 64
_NUMBERS: Final = struct.Struct("<qqqq")
_LENGTH: Final = struct.Struct("<q")
_NULL: Final = _LENGTH.pack(-1)


@dataclass(frozen=True, slots=True)
class BlockSum:
    """Sums of the records of one block: their number, and their digests modulo 2^64."""

    count: int = 0
    digest: int = 0

    def __add__(self, other: "BlockSum") -> "BlockSum":
        return BlockSum(self.count + other.count, (self.digest + other.digest) % _MODULUS)


def block_sums(records: "pa.RecordBatch | pa.Table", block: int = BLOCK) -> dict[int, BlockSum]:
    """Return the sums by the first index of each block that has a record. records: data records, with at
    least COLUMNS."""
    import pyarrow as pa

    sums: dict[int, BlockSum] = {}
    micros = records.column("timestamp").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    numbers = [records.column(name).to_pylist() for name in ("index", "term", "offset")]
    rest = [records.column(name).to_pylist() for name in ("key", "value", "headers")]
    for index, term, offset, time, key, value, headers in zip(
        *numbers, micros.to_pylist(), *rest, strict=True
    ):
        first = index - index % block
        digest = digest_of(index, term, offset, time, key, value, headers)
        sums[first] = sums.get(first, BlockSum()) + BlockSum(1, digest)
    return sums


def digest_of(
    index: int,
    term: int,
    offset: int,
    timestamp_us: int,
    key: bytes | None,
    value: bytes | None,
    headers: Iterable[Mapping[str, Any]] | None,
) -> int:
    """Return the digest of one record: numbers in 8 bytes, little-endian; bytes after their length, -1 for
    null; headers after their number, each as name and value."""
    content = blake2b(_NUMBERS.pack(index, term, offset, timestamp_us), digest_size=_DIGEST_BYTES)
    for part in (key, value):
        content.update(_NULL if part is None else _LENGTH.pack(len(part)) + part)
    if headers is None:
        content.update(_NULL)
    else:
        pairs = [(header["name"].encode(), header["value"]) for header in headers]
        content.update(_LENGTH.pack(len(pairs)))
        for pair in pairs:
            for part in pair:
                content.update(_NULL if part is None else _LENGTH.pack(len(part)) + part)
    return int.from_bytes(content.digest(), "little")


def first_unequal(log: Mapping[int, BlockSum], table: Mapping[int, BlockSum]) -> int | None:
    """Return the first index of the first block in which the two differ; None if there is none."""
    for first in sorted(log.keys() | table.keys()):
        if log.get(first, BlockSum()) != table.get(first, BlockSum()):
            return first
    return None
