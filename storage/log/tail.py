"""Cache of the newest batches of a log: followers and readers at the tail need no disk."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from storage.format.batch import Batch


class BatchTail:
    """Consecutive batches up to the log's end; at most about twice `limit_bytes` of them."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._batches: list[Batch] = []
        self._bases: list[int] = []
        self._size_bytes = 0

    def append(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            self._batches.append(batch)
            self._bases.append(batch.base_index)
            self._size_bytes += batch.size_bytes
        if self._size_bytes > 2 * self._limit_bytes:
            self._shrink()

    def _shrink(self) -> None:
        """Drop the older half, so that each batch is moved about once."""
        keep = len(self._batches)
        size = 0
        while keep > 0 and size + self._batches[keep - 1].size_bytes <= self._limit_bytes:
            keep -= 1
            size += self._batches[keep].size_bytes
        self._drop(0, keep)

    def drop_from(self, index: int) -> None:
        """Forget the batches whose base index is at or after `index`."""
        self._drop(bisect_left(self._bases, index), len(self._bases))

    def drop_before(self, index: int) -> None:
        """Forget the batches whose base index is before `index`."""
        self._drop(0, bisect_left(self._bases, index))

    def _drop(self, first: int, end: int) -> None:
        self._size_bytes -= sum(batch.size_bytes for batch in self._batches[first:end])
        del self._batches[first:end], self._bases[first:end]

    def reaches(self, index: int) -> bool:
        """Return whether an index of the log, at most its end, is in the cache."""
        return bool(self._bases) and self._bases[0] <= index

    def batch_at(self, index: int) -> Batch:
        """Return the batch that holds an index in the cache."""
        return self._batches[bisect_right(self._bases, index) - 1]

    def read(self, from_index: int, max_bytes: int, until_index: int | None) -> list[Batch]:
        """Return batches as Commitlog.read_batches does, from an index in the cache."""
        first = bisect_right(self._bases, from_index) - 1
        end = len(self._batches)
        if until_index is not None:
            end = max(first + 1, bisect_right(self._bases, until_index))
        size = self._batches[first].size_bytes
        for position in range(first + 1, end):
            size += self._batches[position].size_bytes
            if size > max_bytes:
                return self._batches[first:position]
        return self._batches[first:end]
