"""Dead letters that a replay moved to `records`: no later driver writes them again."""

import shutil
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from app.tables.delta_log import DeltaSnapshot
from app.tables.names import REFILL_PROPERTY
from spark_jobs.materialize.typed import TypedTables
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.local.commits import LocalTable, Rewrite
from spark_jobs.tables.snapshot import read_plain
from spark_jobs.tables.table import DEAD_LETTERS, RECORDS, Table
from spark_jobs.typed.claimed_table import ClaimedTable
from spark_jobs.typed.current import CurrentTable
from spark_jobs.typed.decoding import COLUMNS
from spark_jobs.typed.indexed_rows import IndexedRows
from spark_jobs.typed.restored import RestoredTables
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.test_typed_kills import fill_entries
from tests.spark.user_restore import restore

OLDER, NEWER = b'{"id":1}', b'{"id":"x"}'


@pytest.fixture
def begin() -> Sequence[bytes]:
    """The first records."""
    return [OLDER]


@pytest.fixture
def log(begin: Sequence[bytes]) -> FakeLog:
    """The schema breaks after them, at index 3. Index 4 is the last record that matches, the letters after it
    match the older version."""
    log = FakeLog()
    log.open_term(1, "n1")
    log.set_schema("id INT")
    log.append(*begin)
    log.set_schema("id STRING", compatibility="none")
    log.append(NEWER, OLDER, OLDER, b"no JSON", OLDER)
    return log


@pytest.fixture
def typed(log: FakeLog, replicas: list[FakeReplica], tmp_path: Path) -> TypedTables:
    fill_entries(log, tmp_path)
    client = LogReads([replica.url for replica in replicas], "default")
    return TypedTables(no_spark(), client, lambda table: str(tmp_path / table.name), follows=False)


def indexes(folder: Path, table: Table) -> list[int]:
    position = "index" if table == DEAD_LETTERS else "_index"
    rows = read_plain(str(folder / table.name), table.schema, [position])
    assert rows is not None
    return sorted(rows[position].to_pylist())


def move(typed: TypedTables, folder: Path, moved: Sequence[int]) -> None:
    """Move letters to the table of the first generation, as a replay with version 1 does."""
    assert typed.decoder is not None
    rows = typed.entries.pieces(min(moved), max(moved) + 1, COLUMNS)
    letters = pa.concat_tables(piece for _, piece in rows)
    letters = letters.filter(pc.is_in(letters["index"], pa.array(moved)))
    records = typed.decoder.layout[0].records()
    found = typed.decoder.decode(letters, 1).records[1]
    options = {"statistics": records.statistics, "application": "replay", "claim": moved[0], "note": {}}
    local = partial(LocalTable, request_checkpoint=lambda path: None, keeps_files=True)
    assert local(str(folder / records.name)).append(found, **options)
    held = IndexedRows(no_spark(), str(folder / DEAD_LETTERS.name), DEAD_LETTERS, "index")

    def left(snapshot: DeltaSnapshot) -> Rewrite:
        names = DEAD_LETTERS.schema.fieldNames()
        rows = pa.concat_tables(piece for _, piece in held.local_pieces(0, 100, names))
        rows = rows.filter(pc.invert(pc.is_in(rows["index"], pa.array(moved))))
        return Rewrite(list(snapshot.files), [rows], "Overwrite")

    letters_table = local(str(folder / DEAD_LETTERS.name))
    assert letters_table.rewrite(left, statistics=DEAD_LETTERS.statistics, claim=None, note={})


@pytest.mark.parametrize("moved", [[5, 6, 8], [5, 6], [6, 8], [8]])
@pytest.mark.parametrize("state", ["restarted", "lagging", "without dead_letters"])
def test_no_driver_writes_moved_letters_again(
    log: FakeLog,
    replicas: list[FakeReplica],
    typed: TypedTables,
    tmp_path: Path,
    moved: list[int],
    state: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changed: list[Mapping[str, str]] = []  # properties
    monkeypatch.setattr(ClaimedTable, "set_properties", lambda table, properties: changed.append(properties))
    rebuilt: list[CurrentTable] = []  # by Spark
    monkeypatch.setattr(CurrentTable, "rebuild", lambda table, *_: rebuilt.append(table))
    client = LogReads([replica.url for replica in replicas], "default")
    other = TypedTables(no_spark(), client, lambda table: str(tmp_path / table.name), follows=False)
    if state == "lagging":
        other.extend(5)
    typed.extend(log.next_index)
    move(typed, tmp_path, moved)
    if state == "without dead_letters":
        shutil.rmtree(tmp_path / DEAD_LETTERS.name)
    for until in (7, log.next_index):
        other.extend(until)
    assert typed.decoder is not None
    older, newer = (indexes(tmp_path, each.records()) for each in typed.decoder.layout)
    letters = [5, 6, 7, 8]
    assert (older, newer) == ([2, *moved], [4])
    assert indexes(tmp_path, DEAD_LETTERS) == [index for index in letters if index not in moved]
    assert changed == ([{REFILL_PROPERTY: "false"}] if state == "without dead_letters" else [])
    # the replay may have been killed before it changed `current`
    assert rebuilt == ([*other.current.values()] if state == "without dead_letters" else [])


def test_current_is_rebuilt_after_a_kill_once_dead_letters_is_made_again(
    log: FakeLog, typed: TypedTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A killed replay has added letters to `records` alone, and only the removed table had them."""
    rebuilt: list[CurrentTable] = []

    def rebuild(table: CurrentTable, *_: int) -> None:
        rebuilt.append(table)
        if len(rebuilt) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(CurrentTable, "rebuild", rebuild)
    typed.extend(log.next_index)
    shutil.rmtree(tmp_path / DEAD_LETTERS.name)
    typed.open()
    with pytest.raises(KeyboardInterrupt):
        typed.extend(log.next_index)
    for _ in range(2):
        typed.open()
        typed.extend(log.next_index)
        assert len(rebuilt[1:]) == len(typed.current)


@pytest.mark.parametrize("begin", [[NEWER, OLDER]], ids=[""])
@pytest.mark.parametrize("lost", ["restored", "removed", "restored, both at once"])
def test_a_letter_that_was_moved_to_a_later_group_is_in_a_table_whatever_the_user_takes(
    log: FakeLog, typed: TypedTables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """RESTORE of `dead_letters` takes the note that the group has letters older than itself."""
    letter, later = 2, 2  # its index, and the version that reads it
    monkeypatch.setattr(CurrentTable, "rebuild", lambda *_: None)
    monkeypatch.setattr(RestoredTables, "_add_letters", lambda *_: None)  # RESTORE took none that is due
    typed.extend(log.next_index)
    assert typed.decoder is not None
    group = typed.decoder.layout[-1]
    newer = indexes(tmp_path, group.records())
    [(_, rows)] = typed.entries.pieces(letter, letter + 1, COLUMNS)
    typed.note_moved(group, later, letter)
    typed.records[later].insert_missing(typed.decoder.decode(rows, later).records[later])
    typed.dead_letters.remove([letter])
    if lost == "removed":
        shutil.rmtree(tmp_path / DEAD_LETTERS.name)
    else:
        restore(tmp_path / DEAD_LETTERS.name, 0)
    if lost != "restored, both at once":
        typed.open()
        typed.extend(log.next_index)
        assert indexes(tmp_path, group.records()) == [letter, *newer]
        assert letter not in indexes(tmp_path, DEAD_LETTERS)
    shutil.rmtree(tmp_path / group.records().name)
    typed.open()
    typed.extend(log.next_index)
    assert indexes(tmp_path, group.records()) == newer
    assert letter in indexes(tmp_path, DEAD_LETTERS)


def test_a_refill_that_is_complete_leaves_the_note_of_another_driver(tmp_path: Path) -> None:
    """Which may be killed before it has changed `current`."""
    own, other, later = (
        ClaimedTable(no_spark(), str(tmp_path / "records"), RECORDS, "_index") for _ in "123"
    )
    assert own.open("default", "id", is_removed=True)
    other.refill()
    own.refilled()
    assert later.open("default", "id")
    later.refilled()
    assert not own.open("default", "id")
