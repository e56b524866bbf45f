"""Tables of events and epoch files: SyncStateSets, records that an unclean election removed, epochs."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from app.tables.delta_log import LOG_FOLDER, DeltaLog, DeltaSnapshot
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.epochs import EpochRow, EpochsJob
from spark_jobs.run import materialize
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables import schemas, transforms
from spark_jobs.tables.table import SYNC_STATE_SETS, TableClash, table_path
from tests.spark.conftest import endpoints
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FIRST_TIMESTAMP_MS, FakeLog, FakeReplica
from tests.spark.tables.test_transforms import AT
from tests.spark.typed.law import rows_of


def tell_set(replica: FakeReplica, epoch: int, set_epoch: int, *members: str) -> None:
    data = {"epoch": epoch, "set_epoch": set_epoch, "master": "n1", "members": list(members)}
    replica.event("sync_state_set", {**data, "confirm_offset": 100 * set_epoch})


@pytest.mark.rule("C-04", "A-04")
def test_sets_and_lost_records_come_from_the_journals_once(
    replicas: list[FakeReplica],
    log: FakeLog,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = MaterializeConfig(endpoint=endpoints(replicas), tables=tmp_path, available_now=True)

    def table(name: str) -> list[dict[str, Any]]:
        return list(rows_of(tmp_path / "default" / name))

    first, second = replicas
    tell_set(first, 1, 1, "n1")
    tell_set(first, 1, 2, "n1", "n2")
    tell_set(first, 1, 2, "n1", "n2")  # it started again
    tell_set(first, 2, 3, "n1")
    lost = [record for record in log.records[48:54] if record["type"] == "data"]
    second.receipts["2-48-53.arrow"] = lost
    reported = {"after_index": 47, "epoch": 2, "reason": "unclean-election"}
    second.event("truncate", {**reported, "receipt": "receipts/default/2-48-53.arrow"})
    second.event("truncate", {"from_index": 60, "to_index": 61, "reset": False})
    second.event("truncate", {**reported, "receipt": "receipts/default/gone.arrow"})
    materialize(config, spark=no_spark())
    assert sorted((row["epoch"], row["set_epoch"], row["members"]) for row in table("sync_state_sets")) == [
        (1, 1, ["n1"]),
        (1, 2, ["n1", "n2"]),
        (2, 3, ["n1"]),
    ]
    kept = sorted(table("quarantine_truncated"), key=lambda row: row["index"])
    assert [(row["index"], row["value"]) for row in kept] == [
        (record["index"], record["value"]) for record in lost
    ]
    assert {(row["node"], row["seq"], row["epoch"]) for row in kept} == {("n2", 0, 2)}
    assert round(kept[0]["truncated"].timestamp() * 1_000) == FIRST_TIMESTAMP_MS
    assert "n2 no longer has the receipt receipts/default/gone.arrow" in capsys.readouterr().err

    # a table that is new beside an old `events` begins with what that holds
    path = Path(table_path(tmp_path, "default", SYNC_STATE_SETS))
    path.rename(tmp_path / "away")
    tell_set(first, 2, 3, "n1")
    tell_set(first, 2, 4, "n1", "n2")
    materialize(config, spark=no_spark())
    assert sorted(row["set_epoch"] for row in table("sync_state_sets")) == [1, 2, 3, 4]
    assert len(table("quarantine_truncated")) == len(lost)


def test_epoch_files_that_contradict_the_epochs_are_reported(spark: SparkSession) -> None:
    def epoch(number: int, start: int, end: int | None, leader: str = "n1") -> tuple[object, ...]:
        return ("default", number, number, leader, start, start * 100, end, None, AT)

    def held(node: str, *epochs: tuple[object, ...]) -> list[tuple[object, ...]]:
        return [(epoch[0], node, *epoch[1:]) for epoch in epochs]

    known = [epoch(1, 0, 9), epoch(2, 10, 19), epoch(4, 20, None)]
    files = [
        *held("behind", epoch(1, 0, 9), epoch(2, 10, None)),
        *held("trimmed", epoch(2, 10, 19), epoch(4, 20, 29), epoch(5, 30, None)),
        *held("lacks", epoch(1, 0, 9), epoch(4, 20, None)),
        *held("moved", epoch(1, 0, 11), epoch(2, 12, 19), epoch(4, 20, None, "n9")),
        *held("more", epoch(1, 0, 9), epoch(2, 10, 14), epoch(3, 15, 19), epoch(4, 20, None)),
        *held("stopped", epoch(1, 0, 9), epoch(2, 10, 14), epoch(3, 15, None)),  # 3 was never committed
        *held("cut off", epoch(1, 0, 11), epoch(5, 12, None)),
    ]
    reported = transforms.epoch_differences(
        spark.createDataFrame(known, schemas.EPOCHS), spark.createDataFrame(files, schemas.EPOCH_FILES)
    )
    assert {tuple(row) for row in reported.collect()} == {
        ("lacks", 2, "the file lacks it"),
        ("moved", 1, "it ends elsewhere"),
        ("moved", 2, "it starts elsewhere"),
        ("moved", 4, "another leader opened it"),
        ("more", 2, "it ends elsewhere"),
        ("more", 3, "`epochs` has no such epoch"),
    }


def test_a_driver_that_paused_before_it_wrote_leaves_the_newer_files_of_another_one(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    class Paused(EpochsJob):
        """Another driver is ahead by a term when this one has read the files."""

        def _publish(self, agreed: Sequence[EpochRow]) -> None:
            if log.term == 3:
                log.open_term(4, "n1")
                other.refresh()
            super()._publish(agreed)

    client = LogReads([replica.url for replica in replicas], "default")
    paths = str(tmp_path / "epochs"), str(tmp_path / "epoch_files")
    paused, other = Paused(no_spark(), client, *paths), EpochsJob(no_spark(), client, *paths)
    for job in (paused, other):
        job.refresh()
    log.open_term(3, "n2")
    assert paused.refresh()
    known = {(row["node"], row["epoch"]) for row in rows_of(tmp_path / "epoch_files")}
    assert known == {(replica.node, epoch) for replica in replicas for epoch in (1, 2, 3, 4)}
    log.open_term(5, "n1")
    assert paused.refresh()
    assert len(list(rows_of(tmp_path / "epoch_files"))) == 5 * len(replicas)


def test_epochs_that_are_taken_from_a_followed_table_are_reported_and_files_written_again(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    """In a log whose epochs do not change."""
    client = LogReads([replica.url for replica in replicas], "default")
    paths = [str(tmp_path / name) for name in ("epochs", "epoch_files")]
    job = EpochsJob(no_spark(), client, *paths)
    assert job.refresh()
    before = [DeltaLog(path).snapshot() for path in paths]
    log.open_term(3, "n2")
    assert job.refresh()
    assert job.refresh()
    restore(paths[1], before[1])
    assert {row["epoch"] for row in rows_of(tmp_path / "epoch_files")} == {1, 2}
    assert job.refresh()
    found = {(row["node"], row["epoch"]) for row in rows_of(tmp_path / "epoch_files")}
    assert found == {(replica.node, epoch) for replica in replicas for epoch in (1, 2, 3)}
    restore(paths[0], before[0])
    with pytest.raises(TableClash, match="epochs refuses the epochs 2, 3, which it does not hold"):
        job.refresh()


def test_an_epoch_that_an_unclean_election_removed_is_gone_once_its_table_is_removed(
    replicas: list[FakeReplica], log: FakeLog, tmp_path: Path
) -> None:
    """As the README describes it. The job runs meanwhile."""
    client = LogReads([replica.url for replica in replicas], "default")
    paths = [str(tmp_path / name) for name in ("epochs", "epoch_files")]
    job = EpochsJob(no_spark(), client, *paths)
    assert job.refresh()
    del log.records[51:], log.epochs[1:]
    log.open_term(3, "n1")
    assert job.refresh()
    assert {row["epoch"] for row in rows_of(tmp_path / "epochs")} == {1, 2, 3}
    (tmp_path / "epochs").rename(tmp_path / "away")
    assert job.refresh()
    assert {row["epoch"]: row["end_index"] for row in rows_of(tmp_path / "epochs")} == {1: 50, 3: None}


class Returning(FakeReplica):
    """A node that takes a while to remove what an unclean election took from its copy."""

    before: Sequence[dict[str, Any]] = ()
    until_s = 0.0  # monotonic

    def visible_epochs(self) -> list[dict[str, Any]]:
        is_late = time.monotonic() >= self.until_s
        return super().visible_epochs() if is_late else [dict(epoch) for epoch in self.before]


def test_a_node_that_returns_after_an_unclean_election_stops_no_job(log: FakeLog, tmp_path: Path) -> None:
    with FakeReplica(log, "n1") as first, Returning(log, "n2") as second:
        first.peers = second.peers = [first, second]
        log.open_term(3, "n2")
        second.before = [dict(epoch) for epoch in log.epochs]
        del log.records[102:], log.epochs[2:]
        log.open_term(4, "n1")
        config = MaterializeConfig(endpoint=first.url, tables=tmp_path, available_now=True)
        second.until_s = time.monotonic() + 3.0
        materialize(config, spark=no_spark())
    assert {row["epoch"] for row in rows_of(tmp_path / "default" / "epochs")} == {1, 2, 4}


def restore(path: str, old: DeltaSnapshot | None) -> None:
    """Restore a table to a version, whose files are still there."""
    new = DeltaLog(path).snapshot()
    assert old is not None
    assert new is not None
    taken = ({"remove": {"path": name, "dataChange": True}} for name in new.files)
    added = (file for version in range(old.version + 1) for file in lines(path, version, "add"))
    kept = (file for file in added if file["add"]["path"] in old.files)
    actions = [{"commitInfo": {"operation": "RESTORE"}}, *taken, *kept]
    name = Path(path) / LOG_FOLDER / f"{new.version + 1:020d}.json"
    name.write_text("".join(f"{json.dumps(action)}\n" for action in actions))


def lines(path: str, version: int, kind: str) -> list[dict[str, Any]]:
    """Return the actions of one kind in a commit."""
    text = (Path(path) / LOG_FOLDER / f"{version:020d}.json").read_text()
    return [action for action in map(json.loads, text.splitlines()) if kind in action]
