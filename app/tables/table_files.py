"""Data files of a table as its transaction log adds and removes them, by path or in the order of a column."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class DataFile:
    """One file of a table. rows: None without statistics. least, most: by column."""

    path: str
    size_bytes: int
    rows: int | None
    least: Mapping[str, Any]
    most: Mapping[str, Any]
    has_removed_rows: bool = False  # a deletion vector names them


class TableFiles:
    """All files by their path in the log, at one version after the other."""

    def __init__(self) -> None:
        self._by_path: dict[str, DataFile] = {}
        self._with_removed_rows = 0

    @property
    def has_removed_rows(self) -> bool:
        """Return whether a file has rows that a deletion vector removes."""
        return self._with_removed_rows > 0

    def by_path(self) -> dict[str, DataFile]:
        """Return a copy of this version."""
        return dict(self._by_path)

    def clear(self) -> None:
        self._by_path.clear()
        self._with_removed_rows = 0

    def add(self, path: str, file: DataFile) -> None:
        """Add a file, or give one of the table its new statistics."""
        self.remove(path)
        self._by_path[path] = file
        self._with_removed_rows += file.has_removed_rows

    def remove(self, path: str) -> DataFile | None:
        """Remove a file; return it, None for one that is not known."""
        removed = self._by_path.pop(path, None)
        if removed is not None:
            self._with_removed_rows -= removed.has_removed_rows
        return removed


class OrderedFiles(TableFiles):
    """Files in the order of the least value that each has in one column of integers.

    A search costs the same for any number of files, and so does a file that is added at the end. After any
    other change the next search sorts them all.
    """

    def __init__(self, column: str) -> None:
        super().__init__()
        self.column = column
        self._is_sorted = True
        self._files: list[DataFile] = []  # these three in one order, or sorted by the next search
        self._least: list[int] = []
        self._most_so_far: list[int] = []  # of the file and all before it
        self._unbounded = 0

    @property
    def has_unbounded(self) -> bool:
        """Return whether a file has no statistics of the column. It is in no result of a search."""
        return self._unbounded > 0

    def clear(self) -> None:
        super().clear()
        self._unbounded = 0
        self._is_sorted = False

    def add(self, path: str, file: DataFile) -> None:
        super().add(path, file)
        if not self._is_bounded(file):
            self._unbounded += 1
        elif self._is_sorted and (not self._least or file.least[self.column] >= self._least[-1]):
            self._append(file)
        else:
            self._is_sorted = False

    def remove(self, path: str) -> DataFile | None:
        removed = super().remove(path)
        if removed is not None and self._is_bounded(removed):
            self._is_sorted = False
        elif removed is not None:
            self._unbounded -= 1
        return removed

    def last(self) -> int | None:
        """Return the largest value of the column, None without files."""
        self._sort()
        return self._most_so_far[-1] if self._most_so_far else None

    def between(self, first: int, until: int) -> Sequence[DataFile]:
        """Return the files that may have values of [first, until), in order."""
        self._sort()
        begin, end = bisect_left(self._most_so_far, first), bisect_left(self._least, until)
        return [file for file in self._files[begin:end] if file.most[self.column] >= first]

    def _is_bounded(self, file: DataFile) -> bool:
        bounds = file.least.get(self.column), file.most.get(self.column)
        return all(isinstance(bound, int) for bound in bounds)

    def _append(self, file: DataFile) -> None:
        most = file.most[self.column]
        self._most_so_far.append(max(most, self._most_so_far[-1]) if self._files else most)
        self._least.append(file.least[self.column])
        self._files.append(file)

    def _sort(self) -> None:
        if self._is_sorted:
            return
        self._files, self._least, self._most_so_far = [], [], []
        bounded = filter(self._is_bounded, self._by_path.values())
        for file in sorted(bounded, key=lambda file: file.least[self.column]):
            self._append(file)
        self._is_sorted = True
