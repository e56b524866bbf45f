"""Idempotency keys of a log: which append claimed each key, in about 80 bytes a key (docs/api.md §3).

PURE. A key is kept as a 128-bit hash. The hash picks one of PARTITIONS partitions. A partition holds its
claims in the order of the log: the newest claim of a key is the last match, expired claims are a prefix, and
uncommitted claims are a suffix. No operation takes time in proportion to all keys: expiry and snapshots work
partition by partition.
"""

import struct
from collections import Counter, deque
from hashlib import blake2b
from typing import Final, NamedTuple

from storage.file_system import Bytes

PARTITIONS: Final = 4096  # part of the snapshot format
HASH_BYTES: Final = 16
DIGEST_BYTES: Final = 16

# first_index(8) count(4) term(8) first_offset(8) size_bytes(4) timestamp_ms(8) digest(16), little-endian
_CLAIM = struct.Struct("<qIqqIq16s")
CLAIM_BYTES: Final = _CLAIM.size
_PLACE = struct.Struct("<qI")  # the front of a claim: the records that it covers
_COUNTS = struct.Struct("<HI")  # of a dumped partition: its number, and the number of claims that follow


class Claim(NamedTuple):
    """The position of one append, as its first answer reported it.

    digest: DIGEST_BYTES of the append's records and conditions; shorter ones are padded with zeros.
    """

    first_index: int
    last_index: int
    term: int
    first_offset: int
    next_offset: int
    timestamp_ms: int
    digest: bytes


def pack_claim(claim: Claim) -> bytes:
    """Return the CLAIM_BYTES that `unpack_claim` inverts."""
    first_index, last_index, term, first_offset, next_offset, timestamp_ms, digest = claim
    count, size_bytes = last_index - first_index + 1, next_offset - first_offset
    return _CLAIM.pack(first_index, count, term, first_offset, size_bytes, timestamp_ms, digest)


def unpack_claim(data: Bytes, position: int = 0) -> Claim:
    """Return the claim at byte `position` of `data`. Raises struct.error for too few bytes."""
    first_index, count, term, first_offset, size_bytes, timestamp_ms, digest = _CLAIM.unpack_from(
        data, position
    )
    return Claim(
        first_index,
        first_index + count - 1,
        term,
        first_offset,
        first_offset + size_bytes,
        timestamp_ms,
        digest,
    )


def key_hash(key: str) -> bytes:
    """Return the HASH_BYTES that represent an idempotency key."""
    return blake2b(key.encode(), digest_size=HASH_BYTES).digest()


class _Partition:
    """Claims of one partition, oldest first: entry k is hashes[16 k:] and claims[56 k:]."""

    __slots__ = ("claims", "hashes")

    def __init__(self) -> None:
        self.hashes = bytearray()
        self.claims = bytearray()

    @property
    def count(self) -> int:
        return len(self.hashes) // HASH_BYTES

    def last_index(self, entry: int) -> int:
        first_index, count = _PLACE.unpack_from(self.claims, entry * CLAIM_BYTES)
        return int(first_index + count - 1)

    def count_to(self, index: int) -> int:
        """Return how many claims, from the front, end at or before `index`."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.last_index(middle) <= index:
                low = middle + 1
            else:
                high = middle
        return low


class KeyTable:
    """The claims of one log.

    Invariants: `add` is called in the order of the log; an uncommitted claim is never dropped by `drop_to`.
    """

    def __init__(self) -> None:
        self._partitions: list[_Partition | None] = [None] * PARTITIONS
        self._uncommitted: deque[tuple[int, int]] = (
            deque()
        )  # (last index of the batch, partition), in log order
        self._count = 0
        self._next_dropped = 0  # the partition that `drop_to` visits next

    def __len__(self) -> int:
        return self._count

    def add(self, hashed: bytes, claim: bytes, uncommitted_until: int | None) -> None:
        """Append the packed claim of a key.

        uncommitted_until: last index of its batch while that may still be truncated, None once committed.
        """
        number = (hashed[0] << 8 | hashed[1]) % PARTITIONS
        partition = self._partitions[number]
        if partition is None:
            partition = self._partitions[number] = _Partition()
        partition.hashes += hashed
        partition.claims += claim
        self._count += 1
        if uncommitted_until is not None:
            self._uncommitted.append((uncommitted_until, number))

    def find(self, key: str) -> Claim | None:
        """Return the newest claim of the key, committed or not; None when no append has claimed it."""
        hashed = key_hash(key)
        partition = self._partitions[(hashed[0] << 8 | hashed[1]) % PARTITIONS]
        if partition is None:
            return None
        position = partition.hashes.rfind(hashed)
        while position > 0 and position % HASH_BYTES:  # a match across two hashes is not a match
            position = partition.hashes.rfind(hashed, 0, position + HASH_BYTES - 1)
        if position < 0:
            return None
        return unpack_claim(partition.claims, position // HASH_BYTES * CLAIM_BYTES)

    def committed(self, index: int) -> None:
        """Record that no claim up to `index` is ever truncated."""
        while self._uncommitted and self._uncommitted[0][0] <= index:
            self._uncommitted.popleft()

    def truncate_after(self, index: int) -> None:
        """Remove the uncommitted claims of batches that end after `index`."""
        while self._uncommitted and self._uncommitted[-1][0] > index:
            _, number = self._uncommitted.pop()
            partition = self._existing(number)
            del partition.hashes[-HASH_BYTES:]
            del partition.claims[-CLAIM_BYTES:]
            self._count -= 1

    def drop_to(self, index: int, partitions: int) -> None:
        """Forget committed claims that end at or before `index`, in the next `partitions` partitions.

        PARTITIONS calls with one partition each visit every claim once.
        """
        for _ in range(partitions):
            number = self._next_dropped
            self._next_dropped = (number + 1) % PARTITIONS
            partition = self._partitions[number]
            if partition is None:
                continue
            expired = partition.count_to(index)
            if expired == partition.count:
                self._partitions[number] = None
            elif expired:
                del partition.hashes[: expired * HASH_BYTES]
                del partition.claims[: expired * CLAIM_BYTES]
            self._count -= expired

    def uncommitted(self) -> list[tuple[int, bytes, bytes]]:
        """Return the uncommitted claims in the order of the log: (last index of the batch, hash, claim)."""
        left = Counter(number for _, number in self._uncommitted)
        found = []
        for last_index, number in self._uncommitted:
            partition = self._existing(number)
            entry = partition.count - left[number]
            left[number] -= 1
            hashed, claim = _entry(partition, entry)
            found.append((last_index, hashed, claim))
        return found

    def numbers(self) -> list[int]:
        """Return the partitions that hold claims, in order."""
        return [number for number, partition in enumerate(self._partitions) if partition is not None]

    def dump(self, number: int, until_index: int) -> bytes:
        """Return the claims of a partition that end at or before `until_index`, for `load`; b"" for none."""
        partition = self._partitions[number]
        count = 0 if partition is None else partition.count_to(until_index)
        if partition is None or not count:
            return b""
        return b"".join(
            (
                _COUNTS.pack(number, count),
                memoryview(partition.hashes)[: count * HASH_BYTES],
                memoryview(partition.claims)[: count * CLAIM_BYTES],
            )
        )

    def load(self, dumped: Bytes) -> None:
        """Add a dumped partition of committed claims. Raises ValueError for anything else."""
        try:
            number, count = _COUNTS.unpack_from(dumped)
        except struct.error as error:
            raise ValueError("not a snapshot: a partition of keys is cut off") from error
        hashes_end = _COUNTS.size + count * HASH_BYTES
        if number >= PARTITIONS or self._partitions[number] is not None:
            raise ValueError("not a snapshot: a partition of keys is repeated or unknown")
        if len(dumped) != hashes_end + count * CLAIM_BYTES:
            raise ValueError("not a snapshot: a partition of keys has the wrong size")
        if count:
            partition = self._partitions[number] = _Partition()
            partition.hashes += dumped[_COUNTS.size : hashes_end]
            partition.claims += dumped[hashes_end:]
            self._count += count

    def _existing(self, number: int) -> _Partition:
        partition = self._partitions[number]
        if partition is None:
            raise ValueError(f"partition {number} has no uncommitted claims")
        return partition


def _entry(partition: _Partition, entry: int) -> tuple[bytes, bytes]:
    hashed = bytes(partition.hashes[entry * HASH_BYTES : (entry + 1) * HASH_BYTES])
    return hashed, bytes(partition.claims[entry * CLAIM_BYTES : (entry + 1) * CLAIM_BYTES])
