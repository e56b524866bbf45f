"""`epoch_files` beside another driver: files that were read before a pause replace no newer ones."""

from collections.abc import Sequence
from pathlib import Path

from spark_jobs.materialize.epochs import EpochRow, EpochsJob
from spark_jobs.source.log_reads import LogReads
from tests.spark.no_spark import no_spark
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.law import rows_of


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
