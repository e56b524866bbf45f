"""Free memory that the host of a virtual machine must still supply.

A virtual machine may return its free memory to its host. The first write to such a page then waits for the
host: a write of 100 KiB to a file takes ten times as long. On a machine that has run for a while, the page
cache has filled the memory, and new pages of files come from it.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

KEPT_FREE_MIB: Final = 512  # for the processes; the kernel takes pages of the cache beyond it
_MIB: Final = 1 << 20


def free_mib() -> int:
    """Return the memory that nothing uses, the page cache included in what is used."""
    fields = Path("/proc/meminfo").read_text().split()
    return int(fields[fields.index("MemFree:") + 1]) // 1024


class PageCache:
    """A file without contents: it takes no space on the disk, and reading it fills free memory."""

    def __init__(self, file: int) -> None:
        self._file = file
        self.size_mib = 0

    def fill(self) -> None:
        """Fill the memory that is free now, such as that of a cluster which has ended."""
        begin = self.size_mib
        self.size_mib += max(0, free_mib() - KEPT_FREE_MIB)
        os.ftruncate(self._file, self.size_mib * _MIB)
        for at_mib in range(begin, self.size_mib):
            os.pread(self._file, _MIB, at_mib * _MIB)


@contextmanager
def filled_page_cache() -> Iterator[PageCache]:
    with tempfile.TemporaryFile() as file:
        cache = PageCache(file.fileno())
        cache.fill()
        yield cache
