"""Rows that others take from the end of `entries`, or records from its log: an error, and never a gap."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from app.tables.delta_log import DeltaLog
from app.tables.names import BEGIN_PROPERTY
from spark_jobs.errors import LogClash, RecordsTrimmed
from spark_jobs.materialize.entries import EntriesJob
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables import table_writer
from spark_jobs.tables.claims import MAX_REFUSALS
from spark_jobs.tables.local.commits import LocalTable
from spark_jobs.tables.local.data_files import write_file
from spark_jobs.tables.removals import TableReplaced
from spark_jobs.tables.snapshot import EntriesSnapshot, read_plain, read_snapshot
from spark_jobs.tables.table import ENTRIES, TableClash
from spark_jobs.tables.table_writer import TableWriter
from tests.spark.conftest import endpoints
from tests.spark.materialize.opened_job import commit_of_user, newest_file, opened_job, remove_commits
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.source.looks import DATA


def job_with_two_commits(
    replicas: list[FakeReplica], folder: Path
) -> tuple[EntriesJob, Callable[[int, int], pa.Table]]:
    """As `opened_job`; the table has the records before 50."""
    job, rows = opened_job(replicas, folder)
    assert job.take(rows(0, 40), 0.0)
    assert job.take(rows(40, 50), 0.0)
    return job, rows


@pytest.mark.parametrize("operation", ["RESTORE", "DELETE", "CREATE OR REPLACE TABLE AS SELECT", "WRITE"])
def test_rows_that_were_taken_from_the_table_are_noticed_whatever_came_after(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path, operation: str
) -> None:
    """WRITE: the rows were overwritten."""
    job, rows = job_with_two_commits(replicas, tmp_path)
    commit_of_user(job, operation, {"remove": {"path": newest_file(job), "dataChange": True}})
    commit_of_user(job, "SET TBLPROPERTIES")
    with pytest.raises(TableClash, match="the records from index 40 on"):
        job.take(rows(50, 60), 0.0)


def test_no_dependent_repairs_its_tables_from_a_table_that_has_lost_rows_itself(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is idle, so no batch notices a RESTORE of `entries`. What a dependent repairs from the rows
    that are left it notes as repaired."""
    job, rows = job_with_two_commits(replicas, tmp_path)
    assert job.take(rows(50, log.next_index), 0.0)
    extended: list[int] = []
    dependent = SimpleNamespace(extend=lambda until, term: extended.append(until))
    monkeypatch.setattr(job, "dependents", (dependent,))
    assert not job.step()
    assert extended == [log.next_index]
    commit_of_user(job, "RESTORE", {"remove": {"path": newest_file(job), "dataChange": True}})
    with pytest.raises(TableClash, match=f"the records that end with index {log.next_index - 1}"):
        job.step()
    assert extended == [log.next_index]


def test_rows_that_were_taken_are_noticed_before_control_records_alone(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a batch appends nothing, so no claim is refused; but the dependents would repair."""
    job, rows = job_with_two_commits(replicas, tmp_path)
    assert job.take(rows(50, log.next_index), 0.0)
    extended: list[int] = []
    dependent = SimpleNamespace(extend=lambda until, term: extended.append(until))
    monkeypatch.setattr(job, "dependents", (dependent,))
    first = log.next_index
    log.open_term(log.term + 1, "n1")
    assert job.take(rows(first, first + 1), 0.0)
    assert extended == [first + 1]
    commit_of_user(job, "RESTORE", {"remove": {"path": newest_file(job), "dataChange": True}})
    log.open_term(log.term + 1, "n1")
    with pytest.raises(TableClash, match=f"the records that end with index {first - 1}"):
        job.take(rows(first + 1, first + 2), 0.0)
    assert extended == [first + 1]


def test_rows_that_are_taken_while_an_append_is_made_leave_no_gap(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, rows = job_with_two_commits(replicas, tmp_path)
    append, restored = LocalTable.append, []

    def beside_a_restore(table: LocalTable, added: pa.Table, **options: Any) -> bool:
        if not restored:
            taken = {"remove": {"path": newest_file(job), "dataChange": True}}
            restored.append(commit_of_user(job, "RESTORE", taken))
        return append(table, added, **options)

    monkeypatch.setattr(LocalTable, "append", beside_a_restore)
    with pytest.raises(TableClash, match="the records from index 40 on"):
        job.take(rows(50, 60), 0.0)
    assert DeltaLog(job.path).versions().stop == restored[0] + 1


def test_rows_that_are_taken_while_spark_appends_are_noticed(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table needs Spark, which appends after any commit of others."""
    job, rows = job_with_two_commits(replicas, tmp_path)
    features = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["checkConstraints"]}
    commit_of_user(job, "ADD CONSTRAINT", {"protocol": features})

    def append_by_spark(added: pa.Table, *_: Any, **options: Any) -> tuple[int, int]:
        commit_of_user(job, "RESTORE", {"remove": {"path": newest_file(job), "dataChange": True}})
        file = write_file(Path(job.path), added, ENTRIES.statistics)
        commit_of_user(job, "WRITE", file.action())
        return file.rows, file.most("index")

    def check_row(job: EntriesJob, index: int) -> None:
        assert index == 49
        raise TableClash(job.path, "what follows")

    monkeypatch.setattr(TableWriter, "_frame", lambda writer, added: added)
    monkeypatch.setattr(table_writer, "append_once", append_by_spark)
    monkeypatch.setattr(EntriesJob, "_check_row", check_row)
    with pytest.raises(TableClash, match="what follows"):
        job.take(rows(50, 60), 0.0)


def test_an_append_is_made_beside_commits_that_take_no_rows(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, rows = opened_job(replicas, tmp_path)
    assert job.take(rows(0, 40), 0.0)
    commit, others = LocalTable._commit, []

    def commit_after_others(*given: Any) -> bool:
        if len(others) < 2 * MAX_REFUSALS:
            others.append(commit_of_user(job, "SET TBLPROPERTIES"))
        return commit(*given)

    monkeypatch.setattr(LocalTable, "_commit", commit_after_others)
    assert job.take(rows(40, 60), 0.0)
    assert len(others) == 2 * MAX_REFUSALS
    assert (job.next_index, job.rows) == (60, 58)


def test_rows_that_were_taken_behind_removed_commits_are_noticed(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    """The driver was suspended until the commits after its last one were removed from the history."""
    job, rows = opened_job(replicas, tmp_path)
    assert job.take(rows(0, 40), 0.0)
    other, _ = opened_job(replicas, tmp_path)
    assert other.take(rows(40, 50), 0.0)
    commit_of_user(job, "SET TBLPROPERTIES")
    remove_commits(job)
    assert job.take(rows(40, 52), 0.0)
    assert (job.next_index, job.rows) == (51, 50)
    commit_of_user(job, "RESTORE", {"remove": {"path": newest_file(job), "dataChange": True}})
    with pytest.raises(TableClash):
        job.take(rows(52, 60), 0.0)


def test_a_table_that_another_driver_has_made_again_gets_no_gap(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    """Its folder was removed, and the other driver has not reached the end of the old one."""
    job, rows = job_with_two_commits(replicas, tmp_path)
    (tmp_path / "entries").rename(tmp_path / "away")
    other, _ = opened_job(replicas, tmp_path)
    assert other.take(rows(0, 20), 0.0)
    with pytest.raises(TableReplaced, match="its folder was removed"):
        job.take(rows(50, 60), 0.0)
    job.open()
    assert not job.take(rows(50, 60), 0.0)
    assert job.take(rows(20, 60), 0.0)
    held = read_plain(job.path, ENTRIES.schema, ["index"])
    assert held is not None
    assert sorted(held["index"].to_pylist()) == [index for index in DATA if index < 60]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_delete_of_some_rows_of_the_last_commit_stops_no_job(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path, restarted: bool
) -> None:
    """A job that starts begins after the last row: it writes the deleted ones again."""
    job, rows = job_with_two_commits(replicas, tmp_path)
    kept = read_plain(job.path, ENTRIES.schema, ENTRIES.schema.names, pc.field("index") < 45)
    assert kept is not None
    added = write_file(Path(job.path), kept, ENTRIES.statistics).action()
    snapshot = DeltaLog(job.path).snapshot()
    assert snapshot is not None
    removed = [{"remove": {"path": path, "dataChange": True}} for path in snapshot.files]
    commit_of_user(job, "DELETE", *removed, added)
    if restarted:
        job.open()
        assert job.take(rows(45, 60), 0.0)
    else:
        assert job.take(rows(50, 60), 0.0)
    held = read_plain(job.path, ENTRIES.schema, ["index"])
    assert held is not None
    assert sorted(held["index"].to_pylist()) == [
        index for index in DATA if index < 60 and (restarted or not 45 <= index < 50)
    ]


def test_a_last_row_without_its_time_stops_no_job(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    """After an UPDATE by a user."""
    job, rows = job_with_two_commits(replicas, tmp_path)
    held = read_plain(job.path, ENTRIES.schema, ENTRIES.schema.names, pc.field("index") >= 40)
    assert held is not None
    at = held.schema.get_field_index("timestamp")
    changed = held.set_column(at, held.schema.field(at), pa.nulls(held.num_rows, held.schema.field(at).type))
    removed = {"remove": {"path": newest_file(job), "dataChange": True}}
    commit_of_user(
        job, "UPDATE", removed, write_file(Path(job.path), changed, ("index", "term", "offset")).action()
    )
    job.open()
    assert job.take(rows(50, 60), 0.0)
    assert (job.next_index, job.rows) == (60, 58)


def test_a_job_that_does_not_follow_ends_with_a_log_that_an_unclean_election_has_shortened(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    """It has lost records that the table does not have yet."""
    options = {"endpoint": endpoints(replicas), "maxRecordsPerTrigger": "60"}
    client = LogReads([replica.url for replica in replicas], "default", give_up_s=2)
    job = EntriesJob(no_spark(), client, str(tmp_path / "entries"), options, follows=False)
    job.open()
    assert job.step()
    assert (job.read_until, job.target) == (60, 102)
    del log.records[90:]
    log.open_term(3, "n1")
    assert job.step()
    assert not job.step()
    assert (job.read_until, job.next_index) == (91, 90)
    assert job.done


def test_records_that_were_trimmed_before_the_table_has_them_are_named_with_a_remedy_that_works(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    job, rows = opened_job(replicas, tmp_path / "default")
    assert job.take(rows(0, 40), 0.0)
    log.begin_index = 60
    for act in (job.step, job.open):
        with pytest.raises(
            RecordsTrimmed, match=r"from 40 to 59 were trimmed.*move the folder .*/default to"
        ):
            act()
    assert (job.next_index, job.rows) == (40, 39)
    (tmp_path / "default").rename(tmp_path / "aside")
    job, _ = opened_job(replicas, tmp_path / "default")
    assert job.step()
    held = read_plain(job.path, ENTRIES.schema, ["index"])
    assert held is not None
    assert held["index"].to_pylist() == [index for index in DATA if index >= 60]


@pytest.mark.parametrize("held", [0, 40])
def test_records_that_another_job_took_before_they_were_trimmed_are_not_missed(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path, held: int
) -> None:
    """A job is slow to begin, and its typed tables may take minutes. The job before it works until then, and
    retention removes what the table has."""
    other, rows = opened_job(replicas, tmp_path)
    assert held == 0 or other.take(rows(0, held), 0.0)
    job, _ = opened_job(replicas, tmp_path)
    assert other.take(rows(held, 60), 0.0)
    log.begin_index = 60
    assert job.step()
    assert (job.read_until, job.rows) == (60, 58)
    assert job.step()
    assert (job.next_index, job.rows) == (102, len(DATA))


@pytest.mark.parametrize("held", [0, 40])
def test_a_job_opens_beside_another_one_whose_records_are_trimmed(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    job, rows = opened_job(replicas, tmp_path)
    other, _ = opened_job(replicas, tmp_path)
    assert held == 0 or other.take(rows(0, held), 0.0)
    adopt = EntriesJob._adopt

    def adopt_and_trim(opened: EntriesJob, snapshot: EntriesSnapshot | None) -> None:
        adopt(opened, snapshot)
        if opened is job and log.begin_index == 0:
            assert other.take(rows(held, 60), 0.0)
            log.begin_index = 60

    monkeypatch.setattr(EntriesJob, "_adopt", adopt_and_trim)
    job.open()
    assert (job.read_until, job.rows) == (60, 58)
    assert read_snapshot(job.path).properties[BEGIN_PROPERTY] == "0"


def test_a_cluster_that_was_wiped_is_not_the_one_of_the_table_though_its_records_are_as_long(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    """Its ids are the same, and its terms begin at 1 again."""
    job, _ = opened_job(replicas, tmp_path)
    assert job.step()
    for record in log.records:
        record["timestamp"] += 1_000_000
    log.append_many(5)
    with pytest.raises(
        LogClash, match=r"index 101 has the time 1700000001101000 us, it had 1700000000101000"
    ):
        job.open()


def test_the_progress_of_a_table_that_is_made_again_is_that_of_the_new_one(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    job, rows = opened_job(replicas, tmp_path)
    assert job.take(rows(0, 60), 0.0)
    assert job.covered_index == 59
    (tmp_path / "entries").rename(tmp_path / "away")
    job.open()
    assert job.covered_index == -1
    assert job.take(rows(0, 20), 0.0)
    assert job.covered_index == 19
