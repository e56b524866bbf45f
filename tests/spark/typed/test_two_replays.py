"""Two replays of dead letters at once: each letter moves once."""

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from app.tables.delta_log import LOG_FOLDER, DeltaLog
from app.tables.names import MOVED_PROPERTY
from app.tables.table_files import DataFile
from spark_jobs.materialize.replay import DeadLetterReplay
from spark_jobs.materialize.typed import TypedTables
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.local.commits import LocalTable
from spark_jobs.tables.local.data_files import write_file
from spark_jobs.tables.removals import TableReplaced
from spark_jobs.tables.snapshot import read_plain
from spark_jobs.tables.table import DEAD_LETTERS, ENTRIES, Table, TableClash
from spark_jobs.typed import current as current_module
from spark_jobs.typed import local_rows
from spark_jobs.typed.claimed_table import MERGE_ATTEMPTS, ClaimedTable
from spark_jobs.typed.current import CurrentTable
from spark_jobs.typed.decoding import COLUMNS
from tests.spark.materialize.opened_job import commit_of_user
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.law import check_law, rows_of
from tests.spark.typed.test_typed import to_json
from tests.spark.typed.test_typed_kills import fill_entries
from tests.spark.user_restore import restore


@pytest.fixture
def log(request: pytest.FixtureRequest) -> FakeLog:
    """Two letters, at 2 and 3, that the second and the third version read, each in a table of its own. With
    the parameter `older`, the second version does not read the first letter, which has the same key."""
    log = FakeLog()
    log.open_term(1, "n1")
    log.set_schema("id STRING NOT NULL")
    if getattr(request, "param", None) == "older":
        log.append(to_json(b=1), to_json(a=1, b=2), key=b"k")
        for column in "ab":
            log.set_schema(f"{column} INT NOT NULL", compatibility="none")
        return log
    log.append(to_json(id=1), to_json(id=2), to_json(id="x"), key=b"k")
    log.set_schema("id DOUBLE NOT NULL", compatibility="none")
    log.set_schema("id INT NOT NULL", compatibility="none")
    return log


def test_each_letter_moves_once(
    spark: SparkSession,
    log: FakeLog,
    replicas: list[FakeReplica],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both replays have found the letters before one of them notes or adds anything."""
    client = LogReads([replica.url for replica in replicas], "default")
    written_tables(log, replicas, tmp_path)

    def path_of(table: Table) -> str:
        return str(tmp_path / table.name)

    both = threading.Barrier(2, timeout=60)
    for owner, name in ((TypedTables, "note_moved"), (ClaimedTable, "insert_missing")):
        monkeypatch.setattr(owner, name, after(both, getattr(owner, name)))

    def replay(version: int) -> None:
        DeadLetterReplay(spark, client, path_of).run(version)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(replay, (2, 3)))

    def rows(name: str, column: str = "_index") -> list[int]:
        return sorted(row[column] for row in rows_of(tmp_path / name))

    assert [rows(name) for name in ("records", "records_v2", "records_v3")] == [[4], [2, 3], []]
    assert rows("dead_letters", "index") == []
    notes = ClaimedTable(spark, path_of(DEAD_LETTERS), DEAD_LETTERS, "index").properties()
    assert all(notes[f"{MOVED_PROPERTY}.{version}"] == "2" for version in (2, 3))
    check_law(log, tmp_path)


@pytest.mark.parametrize("log", ["older"], indirect=True)
def test_two_replays_leave_each_letter_once_if_the_slower_one_is_killed(
    spark: SparkSession,
    log: FakeLog,
    replicas: list[FakeReplica],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is killed once it has added the letters, once it has taken them out of the other table, and of its
    `current`. Then an older letter of that key is the newest record there. A copy of the tables has what each
    kill leaves."""
    client = LogReads([replica.url for replica in replicas], "default")
    tables = tmp_path / "tables"
    written_tables(log, replicas, tables)
    insert_missing, remove = ClaimedTable.insert_missing, ClaimedTable.remove
    killed: list[str] = []

    def replay(version: int, folder: Path = tables) -> None:
        DeadLetterReplay(spark, client, lambda table: str(folder / table.name)).run(version)

    def kill(step: str) -> None:
        killed.append(step)
        shutil.copytree(tables, tmp_path / step)

    def insert_late(*given: Any) -> None:
        patched.setattr(ClaimedTable, "insert_missing", insert_missing)
        replay(3)
        insert_missing(*given)
        patched.setattr(ClaimedTable, "remove", remove_late)
        kill("added")

    def remove_late(table: ClaimedTable, indexes: list[int]) -> None:
        remove(table, indexes)
        kill(f"removed from {Path(table.path).name}")

    with monkeypatch.context() as patched:
        patched.setattr(ClaimedTable, "insert_missing", insert_late)
        replay(2)
    check_law(log, tables)
    assert killed[:3] == ["added", "removed from records_v3", "removed from current_v3"]
    for step in killed[:3]:
        replay(2, tmp_path / step)
        check_law(log, tmp_path / step)


def test_a_letter_stays_if_the_table_that_it_was_moved_to_is_removed_and_made_again(
    spark: SparkSession,
    log: FakeLog,
    replicas: list[FakeReplica],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A job makes it again while the letters are in `dead_letters`: the replay leaves them there."""
    client = LogReads([replica.url for replica in replicas], "default")
    written_tables(log, replicas, tmp_path)
    apply_again = CurrentTable.apply_again

    def path_of(table: Table) -> str:
        return str(tmp_path / table.name)

    def apply_late(*given: Any, **options: Any) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(CurrentTable, "apply_again", apply_again)
            shutil.rmtree(tmp_path / "records_v3")
            TypedTables(spark, client, path_of, follows=False).extend(log.next_index)
        apply_again(*given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(CurrentTable, "apply_again", apply_late)
        with pytest.raises(TableReplaced):
            DeadLetterReplay(spark, client, path_of).run(3)
    check_law(log, tmp_path)


def test_a_restored_current_has_only_the_rows_that_a_replay_left_in_records(
    spark: SparkSession, log: FakeLog, replicas: list[FakeReplica], tmp_path: Path
) -> None:
    client = LogReads([replica.url for replica in replicas], "default")
    written = written_tables(log, replicas, tmp_path)

    def path_of(table: Table) -> str:
        return str(tmp_path / table.name)

    DeadLetterReplay(spark, client, path_of).run(3)
    written.records[2].insert_missing(letters_of(written, 2))  # by a replay that was killed
    both = DeltaLog(str(tmp_path / "current_v3")).versions()[-1]
    DeadLetterReplay(spark, client, path_of).run(3)
    restore(tmp_path / "current_v3", both)
    TypedTables(spark, client, path_of, follows=False).extend(log.next_index)
    check_law(log, tmp_path)


def test_a_job_that_has_read_letters_before_they_are_taken_out_has_none_of_them_after_its_next_start(
    spark: SparkSession,
    log: FakeLog,
    replicas: list[FakeReplica],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It applies them to `current` once the replay has ended."""
    client = LogReads([replica.url for replica in replicas], "default")
    written = written_tables(log, replicas, tmp_path)
    for version in (2, 3):
        written.records[version].insert_missing(letters_of(written, version))
    shutil.rmtree(tmp_path / "current_v3")
    rewrite = LocalTable.rewrite

    def path_of(table: Table) -> str:
        return str(tmp_path / table.name)

    replay = DeadLetterReplay(spark, client, path_of)
    replay.tables._read_schemas(log.next_index)

    def rewrite_late(table: LocalTable, *given: Any, **options: Any) -> bool:
        if table.path.name == "current_v3":
            with monkeypatch.context() as patched:
                patched.setattr(LocalTable, "rewrite", rewrite)
                assert replay.tables.decoder is not None
                replay._separate(replay.tables.decoder.layout)
        return rewrite(table, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(LocalTable, "rewrite", rewrite_late)
        patched.setattr(current_module, "ONE_AT_A_TIME", nullcontext())  # as in two processes
        TypedTables(spark, client, path_of, follows=False).extend(log.next_index)
    assert [row["_index"] for row in rows_of(tmp_path / "current_v3")] == [3]
    DeadLetterReplay(spark, client, path_of).run(3)
    check_law(log, tmp_path)


def test_no_letter_moves_while_entries_lacks_the_tombstone_of_its_key(
    spark: SparkSession, log: FakeLog, replicas: list[FakeReplica], tmp_path: Path
) -> None:
    """RESTORE took it, and `current` has applied it."""
    log.append(*[b"no JSON"] * 7, key=b"other")
    log.append(None, key=b"k")
    client, entries = LogReads([replica.url for replica in replicas], "default"), tmp_path / ENTRIES.name
    written_tables(log, replicas, tmp_path)
    replay = DeadLetterReplay(spark, client, lambda table: str(tmp_path / table.name))
    whole = DeltaLog(str(entries)).versions()[-1]
    restore(entries, whole - 1)
    with pytest.raises(TableClash, match=r"entries refuses the records from index 14 on"):
        replay.run(3)
    restore(entries, whole)
    assert replay.run(3).moved == 2
    check_law(log, tmp_path)


def test_a_replay_reads_with_a_version_that_a_replica_does_not_know_yet(
    spark: SparkSession, log: FakeLog, replicas: list[FakeReplica], tmp_path: Path
) -> None:
    """It was set after the last record, a moment ago: no follower knows yet that it is committed."""
    written_tables(log, replicas, tmp_path)
    replicas[0].committed_index = log.next_index - 1
    log.set_schema("text STRING")
    client = LogReads([replica.url for replica in replicas], "default")
    replayed = DeadLetterReplay(spark, client, lambda table: str(tmp_path / table.name)).run()
    assert replayed.version == len(log.schemas)


def written_tables(log: FakeLog, replicas: list[FakeReplica], folder: Path) -> TypedTables:
    client = LogReads([replica.url for replica in replicas], "default")
    fill_entries(log, folder)
    typed = TypedTables(no_spark(), client, lambda table: str(folder / table.name), follows=False)
    typed.extend(log.next_index)
    return typed


def test_letters_are_added_once_beside_a_job_that_appends_all_the_time(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's MERGE fails after some conflicts with appends. Another replay adds one of the letters."""
    typed = written_tables(log, replicas, tmp_path)
    table, letters = typed.records[3], letters_of(typed)
    by_other = write_file(Path(table.path), letters.slice(0, 1), table.table.statistics).action()
    commit, others = LocalTable._commit, []

    def commit_after_another(*given: Any) -> bool:
        if len(others) < 2 * MERGE_ATTEMPTS:
            others.append(commit_of_user(table, "WRITE", *([] if others else [by_other])))
        return commit(*given)

    monkeypatch.setattr(LocalTable, "_commit", commit_after_another)
    table.insert_missing(letters)
    assert len(others) == 2 * MERGE_ATTEMPTS
    assert sorted(row["_index"] for row in rows_of(Path(table.path))) == [2, 3]
    versions = DeltaLog(table.path).versions()
    newest = Path(table.path) / LOG_FOLDER / f"{versions[-1]:020d}.json"
    info = json.loads(newest.read_text().splitlines()[0])["commitInfo"]
    assert info["isBlindAppend"] is False  # so a MERGE of Spark that begins before it finds a conflict


def test_letters_leave_their_table_beside_a_job_that_appends_all_the_time(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's MERGE conflicts with each append. The rows that stay are written once."""
    typed = written_tables(log, replicas, tmp_path)
    table, commit, others = typed.dead_letters, LocalTable._commit, []
    held = read_plain(table.path, DEAD_LETTERS.schema, DEAD_LETTERS.schema.names)
    assert held is not None
    last = held.slice(0, 1).set_column(0, held.schema.field(0), pa.array([99]))
    by_job = write_file(Path(table.path), last, DEAD_LETTERS.statistics).action()
    files = len(list(Path(table.path).glob("*.parquet")))

    def commit_after_another(*given: Any) -> bool:
        if len(others) < 2 * MERGE_ATTEMPTS:
            others.append(commit_of_user(table, "WRITE", *([] if others else [by_job])))
        return commit(*given)

    monkeypatch.setattr(LocalTable, "_commit", commit_after_another)
    table.remove([2, 7])
    assert len(others) == 2 * MERGE_ATTEMPTS
    assert sorted(row["index"] for row in rows_of(Path(table.path))) == [3, 99]
    assert len(list(Path(table.path).glob("*.parquet"))) == files + 1


def test_letters_in_a_table_with_a_column_of_another_program_leave_it_by_spark(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver would lose the values of that column."""
    table = written_tables(log, replicas, tmp_path).dead_letters
    removed: list[object] = []
    monkeypatch.setattr(ClaimedTable, "remove_all", lambda table, indexes: removed.append(indexes))
    monkeypatch.setattr(table.spark, "createDataFrame", lambda rows: rows, raising=False)
    fields = [*DEAD_LETTERS.schema.jsonValue()["fields"]]
    fields.append({"name": "mine", "type": "string", "nullable": True, "metadata": {}})
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata = {"id": "1", "schemaString": schema, "partitionColumns": [], "configuration": {}}
    commit_of_user(table, "ADD COLUMNS", {"metaData": metadata})
    table.remove([2])
    assert removed == [pa.table({"index": [2]})]


def test_letters_in_large_files_leave_them_by_spark_before_all_of_these_are_in_memory(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = written_tables(log, replicas, tmp_path).dead_letters
    held = read_plain(table.path, DEAD_LETTERS.schema, DEAD_LETTERS.schema.names)
    assert held is not None
    last = held.slice(0, 1).set_column(0, held.schema.field(0), pa.array([99]))
    commit_of_user(table, "WRITE", write_file(Path(table.path), last, DEAD_LETTERS.statistics).action())
    whole: list[str] = []
    rows_of_file = local_rows.rows_of_file

    def noted(file: DataFile, wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
        whole.extend([file.path] if len(wanted) > 1 else [])
        return rows_of_file(file, wanted)

    removed: list[object] = []
    monkeypatch.setattr(local_rows, "rows_of_file", noted)
    monkeypatch.setattr(local_rows, "CHANGED_BYTES_MAX", 1)
    monkeypatch.setattr(ClaimedTable, "remove_all", lambda table, indexes: removed.append(indexes))
    monkeypatch.setattr(table.spark, "createDataFrame", lambda rows: rows, raising=False)
    table.remove([2, 99])
    assert removed == [pa.table({"index": [2, 99]})]
    assert len(whole) == 1


def test_letters_are_added_though_the_table_with_them_is_removed_and_made_again_meanwhile(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replay takes from `dead_letters` what it has found in `records`."""
    typed = written_tables(log, replicas, tmp_path)
    table, letters = typed.records[3], letters_of(typed)
    commit_of_user(table, "WRITE", write_file(Path(table.path), letters.slice(0, 1), ()).action())
    commit, others = LocalTable._commit, []

    def commit_in_another_table(*given: Any) -> bool:
        if not others:
            others.append(Path(table.path).rename(tmp_path / "removed"))
            ClaimedTable(no_spark(), table.path, table.table, "_index").open("default", log.id)
            return False
        return commit(*given)

    monkeypatch.setattr(LocalTable, "_commit", commit_in_another_table)
    table.insert_missing(letters)
    assert sorted(row["_index"] for row in rows_of(Path(table.path))) == [2, 3]


def test_a_file_that_only_spark_can_check_is_left_to_spark(
    log: FakeLog, replicas: list[FakeReplica], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one without statistics, or one that was rewritten and removed meanwhile."""
    typed = written_tables(log, replicas, tmp_path)
    table, letters = typed.records[3], letters_of(typed)
    merges: list[str] = []
    monkeypatch.setattr(ClaimedTable, "_merge", lambda table, source, clauses: merges.append(clauses))
    monkeypatch.setattr(typed.spark, "createDataFrame", lambda rows, schema: rows, raising=False)
    file = {"path": "part-0.parquet", "partitionValues": {}, "size": 1, "modificationTime": 1}
    commit_of_user(table, "WRITE", {"add": {**file, "dataChange": True}})
    table.insert_missing(letters)
    written = write_file(Path(table.path), letters.slice(0, 1), ())
    (Path(table.path) / written.name).rename(Path(table.path) / file["path"])
    table.insert_missing(letters)
    assert len(merges) == 2


def letters_of(typed: TypedTables, version: int = 3) -> pa.Table:
    """Return the two letters as this version reads them."""
    assert typed.decoder is not None
    held = typed.entries.pieces(2, 4, COLUMNS)
    return typed.decoder.decode(next(held)[1], version).records[version]


def after(barrier: threading.Barrier, change: Callable[..., None]) -> Callable[..., None]:
    def changed(*given: Any) -> None:
        barrier.wait()
        change(*given)

    return changed
