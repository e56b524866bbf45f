"""Typed tables that a user restores to an earlier version, or removes: each record is there once again."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from app.tables.catalog import LogTables
from app.tables.delta_log import DeltaLog
from app.tables.names import REFILL_PROPERTY
from spark_jobs.errors import RowsLost
from spark_jobs.materialize import typed
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.replay import DeadLetterReplay
from spark_jobs.materialize.typed import TypedTables
from spark_jobs.run import materialize
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.removals import TableReplaced
from spark_jobs.tables.restores import Restores
from spark_jobs.tables.table import identifier, read_table
from spark_jobs.typed.claimed_table import ClaimedTable
from spark_jobs.typed.indexed_rows import IndexedRows
from spark_jobs.typed.local_current import LocalCurrent
from tests.spark.conftest import endpoints
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.law import check_law, rows_of
from tests.spark.typed.test_typed import path_in, to_json
from tests.spark.user_restore import actions_of, restore

TYPED = ("records", "dead_letters", "current")
SCHEMA = "id INT NOT NULL, city STRING"


@pytest.fixture
def log() -> FakeLog:
    log = FakeLog()
    log.open_term(1, "n1")
    log.set_schema(SCHEMA, key_columns=["id"])
    return log


class Job:
    """The tables of one log. One driver, which `restart` replaces."""

    def __init__(
        self, spark: SparkSession, log: FakeLog, config: MaterializeConfig, patch: pytest.MonkeyPatch
    ) -> None:
        self.spark, self.log, self.config, self.patch = spark, log, config, patch
        self.folder = Path(config.tables) / "default"
        self.client = LogReads(config.endpoints, "default")
        self.restart()

    def restart(self) -> None:
        self.typed = TypedTables(self.spark, self.client, path_in(self.folder), follows=False)
        self.typed.open()

    def copy(self, name: str) -> "Job":
        """Return a new driver for a copy of the tables."""
        tables = Path(self.config.tables).with_name(name)
        shutil.copytree(self.config.tables, tables)
        return Job(self.spark, self.log, replace(self.config, tables=tables), self.patch)

    def append(self, number: int) -> None:
        """Append a record, a dead letter, a record and the tombstone of another key; write the tables."""
        self.log.append(to_json(id=number), to_json(id="x"), to_json(id=number + 1), key=b"%d" % number)
        self.log.append(None, key=b"%d" % (number - 10))
        self.write()

    def write(self) -> None:
        self.write_entries()
        self.typed.extend(self.log.next_index)

    def write_entries(self) -> None:
        with self.patch.context() as patched:
            patched.setattr(TypedTables, "extend", lambda *_: None)
            materialize(self.config, spark=no_spark())

    def reads_at_start(self) -> bool:
        """Return whether a start reads records that the tables hold, or changes a table."""
        names = sorted(path.name for path in self.folder.glob("*") if (path / "_delta_log").is_dir())
        before = [self.version(name) for name in names]
        self.restart()
        begins: list[int] = []
        pieces = IndexedRows.pieces

        def noted(rows: IndexedRows, first: int, *given: Any) -> Any:
            begins.append(first)
            return pieces(rows, first, *given)

        with self.patch.context() as patched:
            patched.setattr(IndexedRows, "pieces", noted)
            self.typed.extend(self.log.next_index)
        last = max(each["index"] for each in self.log.records if each["value"] is not None)
        return min(begins) < last - 1 or before != [self.version(name) for name in names]

    def table(self, name: str) -> DataFrame:
        return read_table(self.spark, str(self.folder / name))

    def change(self, statement: str, *names: str) -> None:
        for name in names:
            self.spark.sql(statement.format(identifier(str(self.folder / name)))).collect()

    def restore(self, version: int, *names: str) -> None:
        for name in names:
            restore(self.folder / name, version)

    def version(self, name: str) -> int:
        return DeltaLog(str(self.folder / name)).versions()[-1]

    def check(self) -> None:
        check_law(self.log, self.folder, ("id",))


@pytest.fixture
def job(
    spark: SparkSession,
    log: FakeLog,
    replicas: list[FakeReplica],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Job:
    config = MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path / "tables", available_now=True)
    return Job(spark, log, config, monkeypatch)


def restored_by(job: Job) -> list[dict[str, Any]]:
    """Return the actions of the RESTORE of `records`, without times and what Spark alone notes."""
    actions = actions_of(job.folder / "records", job.version("records"))
    for name in ("timestamp", "inCommitTimestamp", "operationMetrics", "engineInfo", "txnId"):
        actions[0]["commitInfo"].pop(name, None)
    for action in actions:
        action.get("remove", {}).pop("deletionTimestamp", None)
    return sorted(actions, key=json.dumps)


def nothing_due(job: Job) -> bool:
    return not any(Restores(job.spark, str(job.folder / name)).due() for name in TYPED)


def test_rows_that_a_restore_took_are_added_again(job: Job) -> None:
    job.append(0)
    job.append(10)  # its last record is a tombstone
    by_hand = job.copy("by hand")
    job.change("RESTORE TABLE {} TO VERSION AS OF 1", "records")
    by_hand.restore(1, "records")
    assert restored_by(job) == restored_by(by_hand)
    job.restore(1, "dead_letters", "current")
    assert len(list(rows_of(job.folder / "records"))) == 2
    job.append(20)
    job.check()
    assert nothing_due(job)


def test_columns_that_a_restore_took_are_added_again(job: Job) -> None:
    job.append(0)
    job.log.set_schema(f"{SCHEMA}, note STRING", key_columns=["id"])
    job.log.append(to_json(id=5, note="five"), key=b"5")
    job.append(10)
    job.restore(1, "records", "current")
    assert "note" not in job.table("records").columns
    restarted = job.copy("restarted")
    job.log.append(to_json(id=6, note="six"), key=b"6")
    job.append(20)
    restarted.write()
    for each in (job, restarted):
        each.check()
        assert nothing_due(each)
        for name in ("records", "current"):
            noted = sorted((row["id"], row["note"]) for row in rows_of(each.folder / name) if row["note"])
            assert noted == [(5, "five"), (6, "six")]


def test_a_restore_to_before_a_replay_leaves_each_letter_once(job: Job) -> None:
    job.append(0)
    job.log.set_schema("id STRING NOT NULL, city STRING", key_columns=["id"], compatibility="none")
    job.append(10)
    restored = ("records", "records_v2", "current_v2"), ("dead_letters",)
    before = {name: job.version(name) for names in restored for name in names}
    DeadLetterReplay(job.spark, job.client, path_in(job.folder)).run()
    job.append(20)
    assert len(list(rows_of(job.folder / "dead_letters"))) == 4
    for names in restored:
        copy = job.copy(names[0])
        for name in names:
            copy.restore(before[name], name)
        copy.append(30)
        copy.check()


def test_rows_that_cannot_be_made_again_are_an_error_with_a_remedy(job: Job) -> None:
    for number in (0, 10):
        job.append(number)
    job.restore(1, "records")
    kept = DeltaLog(str(job.folder / "records")).snapshot()
    assert kept is not None
    for path in (job.folder / "records").glob("*.parquet"):  # as VACUUM does
        if path.name not in kept.files:
            path.unlink()
    with pytest.raises(RowsLost, match=r"files of version 2 were removed.*delete the folder of the table"):
        job.append(20)
    shutil.rmtree(job.folder / "records")
    job.restart()
    job.append(30)
    job.check()


@pytest.mark.parametrize("name", TYPED)
def test_a_table_that_is_removed_is_not_begun_in_the_middle(job: Job, name: str) -> None:
    """The error starts the job again, which makes the whole table."""
    job.append(0)
    shutil.rmtree(job.folder / name)
    with pytest.raises(TableReplaced, match=f"{name} is not the table that this job has extended"):
        job.append(10)
    job.restart()
    job.append(20)
    job.check()


@pytest.mark.parametrize("name", ["dead_letters", "records"])
def test_a_removed_table_whose_refill_fails_is_refilled_at_the_next_start(job: Job, name: str) -> None:
    job.append(0)
    job.append(10)
    job.log.set_schema("id STRING NOT NULL, size INT NOT NULL", key_columns=["id"], compatibility="none")
    job.log.append(to_json(id="a", size=1), key=b"a")
    job.write()
    shutil.rmtree(job.folder / name)
    append, appends = ClaimedTable.append, []

    def fail_at_second(table: ClaimedTable, *given: Any) -> bool:
        if table.table.name == name:
            appends.append(given)
            if len(appends) == 2:
                raise OSError("no space left")
        return append(table, *given)

    with job.patch.context() as patched:
        patched.setattr(typed, "COMMIT_RECORDS", 3)
        patched.setattr(ClaimedTable, "append", fail_at_second)
        job.restart()
        with pytest.raises(OSError, match="no space left"):
            job.write()
    assert any(rows_of(job.folder / name))
    job.restart()
    job.append(20)
    job.log.append(to_json(id="b", size=1), key=b"b")
    job.write()
    job.check()
    assert not job.reads_at_start()


def test_no_start_reads_records_again_or_changes_properties_if_no_table_was_removed(job: Job) -> None:
    job.append(0)
    job.log.set_schema("id STRING NOT NULL", key_columns=["id"], compatibility="none")
    job.append(10)
    job.log.append(to_json(id="b"), key=b"b")
    job.write()
    for name in ("dead_letters", "records", "records_v2"):
        snapshot = DeltaLog(str(job.folder / name)).snapshot()
        assert snapshot is not None
        assert REFILL_PROPERTY not in snapshot.properties
    assert not job.reads_at_start()


@pytest.mark.parametrize("restored", ["records", "current"])
def test_letters_are_made_again_beside_a_restore(job: Job, restored: str) -> None:
    """As an error of the job advises, its user removes `dead_letters`, while a RESTORE is not repaired."""
    job.append(0)
    job.append(10)
    job.restore(1, restored)
    shutil.rmtree(job.folder / "dead_letters")
    job.restart()
    job.write()
    job.check()
    tables = LogTables(str(job.config.tables), "default")
    held = {name: table.held_index for name in TYPED if (table := tables.find(name))}
    assert held == dict.fromkeys(TYPED, job.log.next_index - 1)


def test_a_replay_does_not_bring_back_a_key_whose_newer_record_is_removed(job: Job) -> None:
    """The newer record has another record key, so the tombstone does not name the letter."""
    narrow = f"{SCHEMA}, size TINYINT"
    job.log.set_schema(narrow, key_columns=["id"])
    job.log.append(to_json(id=77, size=1_000), key=b"late")
    job.log.append(to_json(id=77), key=b"newer")
    job.log.append(None, key=b"newer")
    job.append(0)
    job.log.set_schema(narrow.replace("TINYINT", "INT"), key_columns=["id"])
    job.append(10)
    done = DeadLetterReplay(job.spark, job.client, path_in(job.folder)).run()
    assert (done.moved, done.left) == (1, 2)
    job.check()


def test_a_driver_that_ends_beside_a_replay_leaves_no_record_out(job: Job) -> None:
    """The replay puts the newest row of its key into `current`, which the driver has not brought so far."""
    job.log.append(to_json(id=1, city=2), key=b"1")
    job.write()
    job.log.set_schema("id INT NOT NULL, city INT", key_columns=["id"], compatibility="none")
    job.write()
    settle = DeadLetterReplay._settle

    def settle_late(*given: Any) -> None:
        job.log.append(to_json(id=7, city=7), key=b"7")
        job.log.append(to_json(id=1, city=3), key=b"1")
        with job.patch.context() as patched:
            patched.setattr(job.typed, "apply", lambda: None)  # the driver is killed before
            job.write()
        settle(*given)

    with job.patch.context() as patched:
        patched.setattr(DeadLetterReplay, "_settle", settle_late)
        assert DeadLetterReplay(job.spark, job.client, path_in(job.folder)).run().moved == 1
    job.restart()
    job.append(20)
    job.check()


def test_a_replay_ends_while_the_log_grows(job: Job) -> None:
    job.log.append(to_json(id=1, city=2), key=b"1")
    job.write()
    job.log.set_schema("id INT NOT NULL, city INT", key_columns=["id"], compatibility="none")
    apply, changes = LocalCurrent.apply, []

    def apply_meanwhile(*given: Any, **options: Any) -> None:
        changes.append(given)
        assert len(changes) < 3
        job.log.append(to_json(id=len(changes) + 1, city=1), key=b"2")
        job.write_entries()
        apply(*given, **options)

    job.write_entries()
    with job.patch.context() as patched:
        patched.setattr(LocalCurrent, "apply", apply_meanwhile)
        assert DeadLetterReplay(job.spark, job.client, path_in(job.folder)).run().moved == 1
    job.restart()
    job.write()
    job.check()


def test_a_table_that_is_removed_after_a_replay_leaves_each_letter_once(job: Job) -> None:
    job.append(0)
    job.log.append(to_json(id="y"), key=b"no later record has this key")
    job.log.set_schema("id STRING NOT NULL", key_columns=["id"], compatibility="none")
    job.write()
    DeadLetterReplay(job.spark, job.client, path_in(job.folder)).run()
    assert list(rows_of(job.folder / "dead_letters")) == []
    for name in ("records_v2", "dead_letters"):
        copy = job.copy(f"without {name}")
        shutil.rmtree(copy.folder / name)
        copy.restart()
        copy.append(10)
        copy.check()


def test_letters_that_the_user_removed_after_the_last_record_are_written_again(job: Job) -> None:
    """The table refuses their claim, since they were there once."""
    job.append(0)
    first = job.log.next_index
    job.log.append(to_json(id="x"), to_json(id="y"))
    job.write()
    job.change(f"DELETE FROM {{}} WHERE index >= {first}", "dead_letters")
    job.restart()
    job.write()
    job.check()


class SecondDriver:
    """Another driver of the same job, ahead of the first one by tombstones of the keys 1, 2, and so on."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tombstones = 0
        self.typed = TypedTables(job.spark, job.client, path_in(job.folder), follows=False)
        self.typed.open()

    def go_ahead(self) -> None:
        self.tombstones += 1
        self.job.log.append(None, key=b"%d" % self.tombstones)
        self.job.write_entries()
        self.typed.extend(self.job.log.next_index)


def test_a_rebuild_beside_a_driver_that_is_ahead_brings_no_removed_key_back(job: Job) -> None:
    """It is further ahead at each merge of the rebuild, which has read the rows before."""
    for number in range(1, 4):
        job.log.append(to_json(id=number), key=b"%d" % number)
    job.write()
    [late] = job.typed.current.values()
    job.restore(0, "current")
    second, merge = SecondDriver(job), late._merge

    def merge_late(*given: Any, **options: Any) -> None:
        second.go_ahead()
        assert second.tombstones < 3  # it ends while the other driver continues
        merge(*given, **options)

    with job.patch.context() as patched:
        patched.setattr(late, "_merge", merge_late)
        late.rebuild(late.next_index, late.next_index, [job.typed.dead_letters])
    left = range(second.tombstones + 1, 4)
    assert sorted(row["id"] for row in rows_of(job.folder / "current")) == list(left)
    job.check()


def test_a_repair_does_not_skip_what_another_driver_has_not_applied(job: Job) -> None:
    """The repair of one group finds its records further than its driver has written them, and that of
    another group was not applied."""
    job.append(0)
    job.log.set_schema("id STRING NOT NULL", compatibility="none")
    job.log.append(to_json(id="a"), key=b"a")
    job.log.set_schema("id STRING NOT NULL, size INT NOT NULL", compatibility="none")
    job.log.append(to_json(id="b", size=1), key=b"b")
    job.write()
    killed = SecondDriver(job).typed
    job.log.append(to_json(id="z"), key=b"z", headers=(("schema-version", b"2"),))
    job.log.append(to_json(id="y", size=2), key=b"y")
    job.write_entries()
    with job.patch.context() as patched:
        patched.setattr(killed, "apply", lambda: None)
        killed.extend(job.log.next_index)
    job.restore(1, "records_v3")
    job.typed.extend(job.log.next_index)
    job.log.append(to_json(id="without a key", size=3))
    job.write()
    assert {row["id"] for row in rows_of(job.folder / "current_v2")} == {"a", "z"}
    assert {row["id"] for row in rows_of(job.folder / "current_v3")} == {"b", "y"}
