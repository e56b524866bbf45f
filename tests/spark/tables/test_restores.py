"""RESTORE commits of a table, found in its log without Spark."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from spark_jobs.errors import RowsLost
from spark_jobs.tables.removals import TableReplaced
from spark_jobs.tables.restores import Restores
from spark_jobs.tables.table import DEAD_LETTERS, ENTRIES
from spark_jobs.typed.claimed_table import ClaimedTable
from spark_jobs.typed.current import CurrentTable
from spark_jobs.typed.decoding import TypedDecoder
from spark_jobs.typed.indexed_rows import IndexedRows
from spark_jobs.typed.restored import RestoredTables
from tests.spark.no_spark import no_spark
from tests.support.delta_files import DeltaFiles


def test_a_restore_behind_removed_commits_is_found(tmp_path: Path) -> None:
    """The driver was suspended until the commits after its last look were removed from the history."""
    files = DeltaFiles(tmp_path / "records")
    files.create()
    restores = Restores(no_spark(), str(files.folder))
    assert not restores.due()
    for first in (0, 10, 20):
        files.bring(first, first + 10)
    remove_history(files)
    assert not restores.due()
    assert files.restore(2) == 4
    assert restores.due() == [4]


def test_rows_that_a_removed_restore_took_are_reported(tmp_path: Path) -> None:
    """The driver was suspended until the RESTORE itself was removed from the history."""
    files = DeltaFiles(tmp_path / "dead_letters")
    files.create()
    files.bring(0, 10)
    files.bring(10, 20)
    letters = ClaimedTable(no_spark(), str(files.folder), DEAD_LETTERS, "index")
    letters.refresh()
    tables = restored_tables(letters)
    assert not tables.repair(decoder())
    files.restore(1)
    files.commit(operation="OPTIMIZE")
    remove_history(files)
    for _ in range(2):  # a driver that starts its job again in this process repeats it
        with pytest.raises(RowsLost, match="the rows from index 10 to 19"):
            tables.repair(decoder())


def test_a_table_that_is_removed_is_noticed_without_a_new_record(tmp_path: Path) -> None:
    """An idle job looks for RESTORE commits, and starts again with this error."""
    files = DeltaFiles(tmp_path / "records")
    files.create()
    files.bring(0, 10)
    restores = Restores(no_spark(), str(files.folder))
    assert not restores.due()
    shutil.rmtree(files.folder)
    with pytest.raises(TableReplaced, match="its folder was removed"):
        restores.due()


def test_removed_commits_that_took_no_row_are_no_error(tmp_path: Path) -> None:
    files = DeltaFiles(tmp_path / "dead_letters")
    files.create()
    files.bring(0, 10)
    letters = ClaimedTable(no_spark(), str(files.folder), DEAD_LETTERS, "index")
    letters.refresh()
    tables = restored_tables(letters)
    assert not tables.repair(decoder())
    files.bring(10, 20)
    files.commit(operation="OPTIMIZE")
    remove_history(files)
    assert not tables.repair(decoder())
    assert letters.last_index == 19


def test_current_is_made_again_behind_removed_commits(tmp_path: Path) -> None:
    """Its rows do not show which of them a RESTORE took."""
    letters, current = DeltaFiles(tmp_path / "dead_letters"), DeltaFiles(tmp_path / "current")
    for files in (letters, current):
        files.create()
        files.bring(0, 10)
    table = CurrentTable(no_spark(), str(current.folder), "", "")
    tables = restored_tables(ClaimedTable(no_spark(), str(letters.folder), DEAD_LETTERS, "index"), {1: table})
    assert not tables.repair(decoder())
    current.restore(0)
    current.commit(operation="OPTIMIZE")
    remove_history(current)
    assert tables.repair(decoder()) == {1}
    tables.finish()
    assert not tables.repair(decoder())


def restored_tables(
    letters: ClaimedTable, current: Mapping[int, CurrentTable] | None = None
) -> RestoredTables:
    entries = IndexedRows(no_spark(), "", ENTRIES, "index")
    return RestoredTables(no_spark(), entries, letters, {}, current or {}, 20, lambda: 20, lambda: None)


def decoder() -> TypedDecoder:
    return TypedDecoder([], [])


def remove_history(files: DeltaFiles) -> None:
    """Remove the commits before the newest one."""
    files.checkpoint()
    for version in range(files.version):
        (files.log / f"{version:020d}.json").unlink(missing_ok=True)
