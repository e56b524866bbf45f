"""How far `entries` goes, and which versions belong to a point of the log."""

import shutil
from pathlib import Path

import pytest

from app.tables.catalog import LogTables
from app.tables.delta_log import Commit, DeltaLog, DeltaLogError
from tests.support.delta_files import DeltaFiles


@pytest.fixture
def entries(tmp_path: Path) -> DeltaFiles:
    """Indexes 1 to 29 in three commits; 0, 10 and 30 to 31 are control records. Compacted in between."""
    table = DeltaFiles(tmp_path / "default" / "entries")
    table.create(timestamp_ms=100)
    table.bring(1, 11, timestamp_ms=200, last=9)
    table.bring(11, 20, timestamp_ms=300)
    table.commit(timestamp_ms=350)  # a compaction: brings nothing
    table.bring(20, 32, timestamp_ms=400, last=29)
    return table


@pytest.fixture
def tables(tmp_path: Path, entries: DeltaFiles) -> LogTables:
    return LogTables(str(tmp_path), "default")


def test_a_commit_records_the_end_of_the_log_in_the_table(tables: LogTables, entries: DeltaFiles) -> None:
    state = tables.find("entries")
    assert state is not None
    assert (state.version, state.held_index, state.path) == (4, 31, str(entries.folder))
    entries.commit()
    state = tables.find("entries")
    assert state is not None
    assert (state.version, state.held_index) == (5, 31)
    assert tables.find("none") is None
    assert tables.find("../default/entries") is None


def test_the_names_in_a_catalog_are_those_that_the_job_recorded(
    tables: LogTables, entries: DeltaFiles, tmp_path: Path
) -> None:
    DeltaFiles(tmp_path / "default" / "events").commit()
    assert [state.catalog_name for state in tables.all()] == [None, None]
    names = tmp_path / "default" / "_catalog_names.json"
    names.write_text('{"entries": "cat.stream.default_entries"}')
    assert [state.catalog_name for state in tables.all()] == ["cat.stream.default_entries", None]
    state = tables.find("entries")
    assert state is not None
    assert state.catalog_name == "cat.stream.default_entries"
    for text in ("[", "[]"):
        names.write_text(text)
        with pytest.raises(DeltaLogError, match=r"_catalog_names\.json cannot be read"):
            tables.all()


@pytest.mark.parametrize(
    ("index", "version", "exact"),
    [(0, 1, False), (5, 1, False), (9, 1, True), (10, 1, True), (19, 2, True), (20, 4, False), (31, 4, True)],
)
def test_a_point_has_the_first_version_that_holds_it(
    tables: LogTables, index: int, version: int, exact: bool
) -> None:
    cut = tables.cut(index, held_index=31)
    assert cut is not None
    assert (cut.versions, cut.exact) == ({"entries": version}, exact)


def test_the_rows_of_a_table_that_was_restored_show_its_end(tables: LogTables, entries: DeltaFiles) -> None:
    entries.restore(to=2)
    state = tables.find("entries")
    assert state is not None
    assert (state.version, state.held_index) == (5, 19)
    assert tables.cut(25, held_index=19) is None


@pytest.mark.parametrize(
    ("taken", "held_index"),
    [([4], 19), ([1], 31), ([1, 2, 4], -1)],
)
@pytest.mark.parametrize("operation", ["DELETE", "WRITE", "CREATE OR REPLACE TABLE"])
def test_the_rows_of_a_table_that_rows_were_taken_from_show_its_end(
    tables: LogTables, entries: DeltaFiles, taken: list[int], held_index: int, operation: str
) -> None:
    """If the last row is still there, so are the control records that follow it."""
    entries.commit(*({"remove": {"path": f"part-{each}.parquet"}} for each in taken), operation=operation)
    for _ in range(2):
        state = tables.find("entries")
        assert state is not None
        assert (state.version, state.held_index) == (entries.version, held_index)
        entries.commit()


def test_the_events_of_a_table_that_rows_were_taken_from_cover_nothing_known(
    tables: LogTables, tmp_path: Path
) -> None:
    events = DeltaFiles(tmp_path / "default" / "events")
    events.commit({"add": {"path": "a", "size": 1}}, note={"covered_index": 31})
    compacted = {"remove": {"path": "a", "dataChange": False}}, {"add": {"path": "b", "size": 1}}
    events.commit(*compacted, operation="OPTIMIZE")
    state = tables.find("events")
    assert state is not None
    assert state.held_index == 31
    events.commit({"remove": {"path": "b", "dataChange": True}}, operation="DELETE")
    state = tables.find("events")
    assert state is not None
    assert state.held_index is None


def test_the_end_of_typed_tables_costs_the_new_commits_alone(
    tables: LogTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most commits of `dead_letters` record no end."""
    letters = DeltaFiles(tmp_path / "default" / "dead_letters")
    letters.create()
    letters.bring(0, 10)
    for _ in range(50):
        letters.commit({"add": {"path": "a", "size": 1}})
    assert held(tables, "dead_letters") == 9
    read: list[int] = []
    commit = DeltaLog.commit

    def counted(log: DeltaLog, version: int) -> Commit | None:
        read.append(version)
        return commit(log, version)

    monkeypatch.setattr(DeltaLog, "commit", counted)
    letters.commit({"add": {"path": "b", "size": 1}})
    assert held(tables, "dead_letters") == 9
    assert min(read) == letters.version - 1
    letters.bring(10, 20)
    letters.commit({"add": {"path": "c", "size": 1}})
    assert held(tables, "dead_letters") == 19
    assert min(read) == letters.version - 3
    letters.restore(1)
    assert held(tables, "dead_letters") == -1
    shutil.rmtree(letters.folder)
    again = DeltaFiles(letters.folder)
    again.create()
    for _ in range(60):
        again.commit({"add": {"path": "a", "size": 1}})
    assert held(tables, "dead_letters") == -1
    again.bring(0, 5)
    assert held(tables, "dead_letters") == 4


def held(tables: LogTables, name: str) -> int | None:
    state = tables.find(name)
    assert state is not None
    return state.held_index


def test_control_records_behind_the_table_need_no_version(tables: LogTables) -> None:
    cut = tables.cut(35, held_index=36)
    assert cut is not None
    assert (cut.versions, cut.exact) == ({"entries": 4}, True)
    assert tables.cut(37, held_index=36) is None


def test_other_tables_are_as_they_were_before_entries_continued(tables: LogTables, tmp_path: Path) -> None:
    events = DeltaFiles(tmp_path / "default" / "events")
    for timestamp_ms in (150, 250, 300, 390, 500):
        events.commit(timestamp_ms=timestamp_ms)
    DeltaFiles(tmp_path / "default" / "epochs").commit(timestamp_ms=350)
    reported = {index: tables.cut(index, held_index=31) for index in (9, 19, 29)}
    assert [cut and cut.versions for cut in reported.values()] == [
        {"entries": 1, "events": 1},
        {"entries": 2, "epochs": 0, "events": 3},
        {"entries": 4, "epochs": 0, "events": 4},
    ]
    assert [state.name for state in tables.all()] == ["entries", "epochs", "events"]


def test_history_that_was_cleaned_up_leaves_the_oldest_version(
    tables: LogTables, entries: DeltaFiles
) -> None:
    entries.checkpoint()
    for version in range(4):
        (entries.log / f"{version:020d}.json").unlink()
    cut = tables.cut(5, held_index=31)
    assert cut is not None
    assert (cut.versions, cut.exact) == ({"entries": 4}, False)


def test_a_log_without_tables_has_no_cut(tmp_path: Path) -> None:
    assert LogTables(str(tmp_path), "none").cut(0, held_index=0) is None
    assert LogTables(str(tmp_path), "none").all() == []
