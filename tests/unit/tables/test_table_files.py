"""Data files of a table in the order of a column: the same files as a search through all of them finds."""

import random
from pathlib import Path

import pytest

from app.tables.delta_log import DeltaLog
from app.tables.table_files import DataFile, OrderedFiles
from tests.support.delta_files import DeltaFiles


def of(least: int, most: int, *, has_removed_rows: bool = False) -> DataFile:
    return DataFile(f"{least}-{most}", 1, 1, {"index": least}, {"index": most}, has_removed_rows)


@pytest.mark.parametrize("seed", range(20))
def test_a_search_finds_what_a_search_through_all_files_finds(seed: int) -> None:
    choose = random.Random(seed)
    files, all_files = OrderedFiles("index"), dict[str, DataFile]()
    end = 0
    for step in range(200):
        kind = choose.random()
        if kind < 0.7:  # as a job appends
            added = of(end, end + choose.randrange(10))
            end = added.most["index"] + 1
        elif kind < 0.9:  # as a user or OPTIMIZE adds
            start = choose.randrange(end + 1)
            added = of(start, start + choose.randrange(100), has_removed_rows=choose.random() < 0.2)
        else:
            for path in choose.sample(sorted(all_files), min(len(all_files), 3)):
                files.remove(path)
                del all_files[path]
            continue
        path = choose.choice(sorted(all_files)) if all_files and kind > 0.85 else f"part-{step}"
        files.add(path, added)
        all_files[path] = added
        first = choose.randrange(end + 20)
        until = first + choose.randrange(30)
        due = [
            each for each in all_files.values() if each.most["index"] >= first and each.least["index"] < until
        ]
        found = files.between(first, until)
        assert sorted(map(id, found)) == sorted(map(id, due))
        assert [each.least["index"] for each in found] == sorted(each.least["index"] for each in due)
        assert files.last() == max(each.most["index"] for each in all_files.values())
        assert files.has_removed_rows == any(each.has_removed_rows for each in all_files.values())
    files.clear()
    assert (files.last(), files.between(0, end), files.has_removed_rows) == (None, [], False)


class Counted(OrderedFiles):
    """Files that count how many times one was put in its place."""

    placed = 0

    def _append(self, file: DataFile) -> None:
        self.placed += 1
        super()._append(file)


def test_a_file_at_the_end_leaves_the_others_where_they_are() -> None:
    files = Counted("index")
    for number in range(1_000):
        files.add(f"part-{number}", of(number, number))
        assert len(files.between(number - 1, number + 1)) == min(2, number + 1)
    assert files.placed == 1_000
    files.remove("part-0")
    assert files.between(0, 2) == [of(1, 1)]
    assert files.placed == 1_999


def test_files_without_bounds_are_counted_until_they_are_removed() -> None:
    files = OrderedFiles("index")
    files.add("one", of(0, 9))
    files.add("two", DataFile("two", 1, None, {}, {}))
    assert files.has_unbounded
    assert files.between(0, 100) == [of(0, 9)]
    files.add("two", of(10, 19))
    assert not files.has_unbounded
    assert files.between(0, 100) == [of(0, 9), of(10, 19)]


@pytest.mark.parametrize("bound", [None, "7"])
def test_a_bound_that_is_no_number_is_none(bound: object) -> None:
    """Another program may write such a file: Spark reads the table."""
    files = OrderedFiles("index")
    files.add("one", of(0, 9))
    for number, (least, most) in enumerate([(bound, 7), (7, bound), (bound, bound)]):
        files.add(f"other-{number}", DataFile("", 1, 1, {"index": least}, {"index": most}))
    assert files.has_unbounded
    assert (files.between(0, 100), files.last()) == ([of(0, 9)], 9)


def test_a_log_fills_them_from_its_checkpoint_and_commits(tmp_path: Path) -> None:
    table = DeltaFiles(tmp_path / "entries")
    table.create()
    for start in range(0, 50, 10):
        table.bring(start, start + 10)
    table.checkpoint()
    table.bring(50, 60)
    files = OrderedFiles("index")
    log = DeltaLog(str(table.folder), files=files)
    snapshot = log.snapshot()
    assert snapshot is not None
    assert (snapshot.version, snapshot.files) == (6, {})
    assert [file.least["index"] for file in files.between(25, 55)] == [20, 30, 40, 50]
    table.bring(60, 70)
    table.commit({"remove": {"path": "part-2.parquet"}})
    log.snapshot()
    assert [file.least["index"] for file in files.between(0, 100)] == [0, 20, 30, 40, 50, 60]
    assert files.last() == 69
