"""A tail that never became durable, torn or flipped at any place: what recovery makes of it.

`python -m tests.chaos.storage --family torn` may run it in full: `torn_everywhere` and `flips_everywhere`
with stride 1 are every byte of a 64 KiB tail, four ways, and every bit of the last 4 KiB.
"""

from random import Random
from typing import Final

from storage.format.batch import Batch
from storage.log.commitlog import CommitlogConfig
from tests.support.memory_files import MemoryFiles
from tests.unit.storage.support import (
    DURABLE_LOAD_OPERATIONS,
    FOLDER,
    content,
    grow,
    next_batch,
    open_log,
    open_term,
    snapshot,
)

KIB: Final = 1024
BEHIND: Final = ("nothing", "zeros", "noise", "old bytes")
CONFIG: Final = CommitlogConfig(segment_max_bytes=1 << 20, mark_interval_bytes=1 << 20)
SEGMENT: Final = f"{FOLDER}/{0:020d}.log"


class TornTail:
    """A log of one segment: `durable` batches, and behind the durable point the `tail`."""

    def __init__(self, tail_bytes: int, seed: int = 11) -> None:
        self._chance = Random(seed)
        files = MemoryFiles()
        log = open_log(files, CONFIG)
        self.durable = [open_term(log, 1), *grow(log, 2, self._chance)]
        log.close()
        self._start = snapshot(files)
        log = open_log(files, CONFIG)
        self.begin = log.end_offset
        self.tail: list[Batch] = []
        while log.end_offset - self.begin < tail_bytes:
            values = [self._chance.randbytes(self._chance.randrange(600)) for _ in range(3)]
            self.tail.append(next_batch(log, values[: self._chance.randint(1, 3)]))
            log.append(self.tail[-1:])
        self.data = files.read(SEGMENT)

    def check_torn(self, size: int, behind: str) -> None:
        """Only `size` bytes of the segment reached the disk; `behind` is the content after them."""
        lost = len(self.data) - size
        fill = {
            "nothing": b"",
            "zeros": bytes(lost),
            "noise": self._chance.randbytes(lost),
            "old bytes": self.data[size - self.begin : size - self.begin + lost],
        }[behind]
        same = size
        while same < len(self.data) and fill[same - size : same - size + 1] == self.data[same : same + 1]:
            same += 1
        self._check(self.data[:size] + fill, same)

    def check_flip(self, bit: int) -> None:
        """One bit of the segment, counted from its first, is not what was written."""
        damaged = bytearray(self.data)
        damaged[bit // 8] ^= 1 << bit % 8
        self._check(bytes(damaged), bit // 8)

    def _check(self, data: bytes, intact: int) -> None:
        """The batches within the first `intact` bytes are there, no more; a second start changes nothing."""
        files = MemoryFiles(Random(intact))
        for name, whole in self._start.items():
            file = files.open(f"{FOLDER}/{name}", create=True)
            file.pwrite(data if f"{FOLDER}/{name}" == SEGMENT else whole, 0)
            file.sync()
        files.sync_folder(FOLDER)
        expected = self.durable + [batch for batch in self.tail if batch.next_offset <= intact]
        assert content(open_log(files, CONFIG)) == expected
        before, operations = snapshot(files), files.operations
        open_log(files, CONFIG)
        assert (snapshot(files), files.operations) == (before, operations + DURABLE_LOAD_OPERATIONS)
        files.crash()
        assert content(open_log(files, CONFIG)) == expected


def torn_everywhere(behind: str, first: int = 0, stride: int = 1, tail_bytes: int = 64 * KIB) -> int:
    """Tear the tail at one byte in `stride`, from the `first` one on; return at how many."""
    torn = TornTail(tail_bytes)
    places = range(torn.begin + first, len(torn.data) + 1, stride)
    for size in places:
        torn.check_torn(size, behind)
    return len(places)


def flips_everywhere(first: int = 0, stride: int = 1, last_bytes: int = 4 * KIB) -> int:
    """Flip one bit in `stride` of the last bytes; return how many."""
    torn = TornTail(2 * last_bytes)
    bits = range((len(torn.data) - last_bytes) * 8 + first, len(torn.data) * 8, stride)
    for bit in bits:
        torn.check_flip(bit)
    return len(bits)
