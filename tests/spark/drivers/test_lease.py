"""The cursor `__entries`: where it stands, and who holds it."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from app.client import CommitlogClient
from app.tables.names import CURSOR
from spark_jobs.errors import LogClash, RequestRefused, Unreachable
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.lease import LeasedEntries, LeaseLost, MaterializerLease
from spark_jobs.materialize.query import LogRows
from spark_jobs.materialize.supervisor import MaterializeFailed
from spark_jobs.run import materialize
from spark_jobs.tables.removals import TableReplaced
from tests.spark.conftest import endpoints
from tests.spark.materialize.opened_job import opened_job
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.source.looks import DATA, await_true
from tests.spark.typed.law import rows_of


def lease(replicas: list[FakeReplica]) -> MaterializerLease:
    return MaterializerLease(CommitlogClient([replica.url for replica in replicas], give_up_s=0.5))


def where(log: FakeLog) -> tuple[int, bool]:
    return log.cursors[CURSOR]["index"], log.cursors[CURSOR]["fence"]


def test_the_job_that_came_last_has_the_cursor(replicas: list[FakeReplica], log: FakeLog) -> None:
    first, second = lease(replicas), lease(replicas)
    first.take(0)
    first.move(40)
    assert where(log) == (40, True)
    second.take(30)
    with pytest.raises(LeaseLost, match="it is at index 30, moved by materializer "):
        first.move(60)
    second.move(70)
    assert where(log) == (70, True)
    del log.cursors[CURSOR]
    with pytest.raises(LeaseLost, match="it was deleted"):
        second.move(80)


def test_a_move_of_another_job_to_the_same_index_is_no_move_of_this_one(
    replicas: list[FakeReplica], log: FakeLog
) -> None:
    """A job is paused in a move, and the next one takes the cursor at the end of the table."""
    paused, second = lease(replicas), lease(replicas)
    paused.take(0)
    second.take(40)
    with pytest.raises(LeaseLost, match="it is at index 40"):
        paused.move(40)
    second.move(50)
    assert where(log) == (50, True)


def test_a_move_whose_answer_was_lost_is_known_again(replicas: list[FakeReplica], log: FakeLog) -> None:
    held = lease(replicas)
    held.take(0)
    log.cursors[CURSOR] |= {"index": 40, "version": '"7"'}  # the service did it, and its answer was lost
    held.move(40)
    held.move(50)
    assert where(log) == (50, True)


def test_a_move_that_was_made_after_all_is_known_later(replicas: list[FakeReplica], log: FakeLog) -> None:
    held = lease(replicas)
    held.take(0)
    for replica in replicas:
        replica.refuse_moves = True
    with pytest.raises(Unreachable):
        held.move(40)
    log.cursors[CURSOR] |= {"index": 40, "version": '"7"'}  # the leader had it, and found its quorum again
    for replica in replicas:
        replica.refuse_moves = False
    held.move(60)
    held.move(70)
    assert where(log) == (70, True)
    log.cursors[CURSOR] |= {"index": 40, "version": '"20"', "holder": "another"}
    with pytest.raises(LeaseLost, match="it is at index 40"):
        held.move(80)


def test_a_cursor_without_its_fence_is_lost(replicas: list[FakeReplica], log: FakeLog) -> None:
    """Another program has moved it, and retention does not wait for the table any more."""
    held = lease(replicas)
    held.take(0)
    log.cursors[CURSOR] = {"name": CURSOR, "index": 40, "fence": False, "version": '"7"'}
    with pytest.raises(LeaseLost, match="it is at index 40"):
        held.move(40)


def test_a_cursor_that_cannot_be_moved_is_reported(replicas: list[FakeReplica]) -> None:
    held = lease(replicas)
    held.take(0)
    for replica in replicas:
        replica.refuse_moves = True
    with pytest.raises(Unreachable, match="no-leader"):
        held.move(10)
    for replica in replicas:
        replica.is_deleted = True
    with pytest.raises(RequestRefused, match="404"):
        held.move(20)


class Table:
    """Represents the job that fills `entries`."""

    def __init__(self) -> None:
        self.next_index = 0
        self.more = 10  # rows of the next step
        self.opened = 0

    def open(self) -> None:
        self.opened += 1

    def step(self) -> bool:
        self.next_index += self.more
        return self.more > 0


def leased(replicas: list[FakeReplica], each_s: float) -> LeasedEntries:
    job = LeasedEntries(cast(Any, Table()), lease(replicas), each_s)
    job.open()
    return job


def step(job: LeasedEntries, times: int = 1, more: int = 10) -> None:
    cast(Any, job.entries).more = more
    for _ in range(times):
        job.step()


def test_a_steady_stream_moves_the_cursor_seldom(replicas: list[FakeReplica], log: FakeLog) -> None:
    """The first commit moves it at once, the next ones together when their time comes."""
    job = leased(replicas, each_s=0.5)
    assert not job.move_is_due
    step(job)
    assert where(log) == (10, True)
    version = log.cursors[CURSOR]["version"]
    step(job, 20)
    moved = int(log.cursors[CURSOR]["version"].strip('"'))
    await_true(lambda: job.move_is_due or where(log) == (210, True))
    step(job, more=0)
    assert where(log) == (210, True)
    assert moved <= int(version.strip('"')) + 1
    step(job)
    job.finish()
    assert where(log) == (220, True)


def test_a_job_that_lost_the_cursor_learns_it_without_another_commit(
    replicas: list[FakeReplica], log: FakeLog
) -> None:
    job = leased(replicas, each_s=0.3)
    step(job)
    lease(replicas).take(30)
    cast(Any, job.entries).next_index = 20
    await_true(lambda: job.move_is_due)
    with pytest.raises(LeaseLost, match="index 30"):
        step(job, more=0)
    assert cast(Any, job.entries).opened == 2  # it looks whether the log is still the table's
    assert where(log) == (30, True)


def test_a_move_that_the_log_cannot_take_is_made_later(replicas: list[FakeReplica], log: FakeLog) -> None:
    job = leased(replicas, each_s=0.0)
    for replica in replicas:
        replica.refuse_moves = True
    step(job)
    assert where(log) == (0, True)
    for replica in replicas:
        replica.refuse_moves = False
    await_true(lambda: job.move_is_due)
    step(job, more=0)
    assert where(log) == (10, True)


@pytest.mark.parametrize("new_records", [0, 1])
def test_a_table_that_is_made_again_has_the_cursor_at_its_begin(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path, new_records: int
) -> None:
    """Retention must not remove what the new table lacks."""
    job = LeasedEntries(opened_job(replicas, tmp_path)[0], lease(replicas), 0.0)
    job.open()
    assert job.step()
    assert where(log) == (102, True)
    (tmp_path / "entries").rename(tmp_path / "away")
    log.append_many(new_records)
    with pytest.raises(TableReplaced):
        job.step()
    job.open()
    assert where(log) == (0, True)
    assert job.step()
    assert where(log) == (102 + new_records, True)


@pytest.mark.parametrize("delivered", [False, True])
def test_a_clash_about_control_records_after_the_last_row_stops_no_job(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path, delivered: bool
) -> None:
    """An unclean election has lost the last move of the cursor, and no record of the table."""
    entries, rows = opened_job(replicas, tmp_path)
    job = LeasedEntries(entries, lease(replicas), 0.0)
    job.open()
    assert job.step()
    log.append(b"{}", type="control")
    assert job.step()
    del log.records[-1]
    log.open_term(3, "n1")
    log.append_many(3)
    if delivered:
        assert not job.take(LogRows("default", log.id, 103, 106, rows(103, 106), None, 0.0))
    else:
        assert not job.step()
    assert job.step()
    assert [row["index"] for row in rows_of(tmp_path / "entries")] == [*DATA, 103, 104, 105]
    del log.records[-1:]
    log.open_term(4, "n1")
    log.append_many(1)
    with pytest.raises(LogClash, match="index 105 is of term 4, it was of 3"):
        job.step()


@pytest.mark.parametrize("earlier", [False, True])
@pytest.mark.parametrize("reopened", [False, True])
def test_a_cursor_whose_moves_an_unclean_election_has_lost_is_taken_again(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path, earlier: bool, reopened: bool
) -> None:
    """Records of the table are not lost. earlier: another job had the cursor before. reopened: the job has
    failed meanwhile, since no node answered."""
    if earlier:
        lease(replicas).take(30)
    before = dict(log.cursors)
    entries, _ = opened_job(replicas, tmp_path)
    assert entries.step()
    job = LeasedEntries(entries, lease(replicas), 0.0)
    job.open()
    log.append(b"{}", type="control")
    assert job.step()
    assert where(log) == (102, True)
    log.cursors = before
    del log.records[-1]
    log.open_term(3, "n1")
    log.append_many(3)
    if reopened:
        job.open()
    while not job.step():
        continue
    assert where(log) == (106, True)
    assert [row["index"] for row in rows_of(tmp_path / "entries")] == [*DATA, 103, 104, 105]
    lease(replicas).take(50)
    for act in (job.open, job._move):
        with pytest.raises(LeaseLost, match="it is at index 50"):
            act()


def test_the_cursor_follows_the_table(replicas: list[FakeReplica], log: FakeLog, tmp_path: Path) -> None:
    """And it stays when the job is gone, or the log could be trimmed meanwhile."""
    tables = tmp_path / "tables"
    config = MaterializeConfig(endpoint=endpoints(replicas), tables=tables, available_now=True)
    materialize(config, spark=no_spark())
    assert where(log) == (102, True)
    log.open_term(3, "n1")  # a control record adds nothing to the table
    reported = materialize(config, spark=no_spark()).logs["default"]
    assert where(log)[1]
    assert reported.lag_records == 0
    log.append_many(5)
    stop = threading.Event()
    following = replace(config, available_now=False, trigger="200 milliseconds", cursor_each_s=0.0)
    failures: list[Exception] = []

    def follow() -> None:
        try:
            materialize(following, spark=no_spark(), stop=stop)
        except MaterializeFailed as error:
            failures.append(error)

    job = threading.Thread(target=follow)
    job.start()
    try:
        await_true(lambda: where(log) == (108, True))
        other = lease(replicas)
        other.take(108)
        log.append_many(5)
        await_true(lambda: bool(failures))
    finally:
        stop.set()
        job.join()
    assert "another job has taken over its table" in str(failures[0])
    assert where(log) == (108, True)
    assert len(list(rows_of(tables / "default" / "entries"))) in (105, 110)


def test_a_cursor_lost_with_the_logs_end_does_not_mean_another_job(
    replicas: list[FakeReplica],
    log: FakeLog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unclean election between a commit of the table and the move of the cursor takes both."""
    whole = MaterializerLease.move

    def move(held: MaterializerLease, index: int) -> None:
        log.cursors.clear()
        del log.records[60:]
        whole(held, index)

    monkeypatch.setattr(MaterializerLease, "move", move)
    config = MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path, available_now=True)
    with pytest.raises(MaterializeFailed, match="it ends before index 60, and was read up to 101"):
        materialize(config, spark=no_spark())
    assert len(list(rows_of(tmp_path / "default" / "entries"))) == 100
