"""A stream into a log that kills the process that commits, or its whole driver, at a point.

The file `die-at` in the query's checkpoint names the point: `staged` (files, no list), `listed` (a list,
nothing appended), `appended-1`, `appended-2` (so many appends answered in this incarnation), `stored-1` (one
of them new in the log), `committed` (all of it, and Spark does not know), and the process group that dies
too, 0 for none.

`python -m tests.spark.sink.sink_to_kill ENDPOINT FOLDER [POINT ROWS LOG]` is a driver of its own.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from app.client import Appended, CommitlogClient
from spark_jobs.sink.options import parse_sink_options
from spark_jobs.sink.writer import CommitlogStreamWriter
from spark_jobs.source import CommitlogDataSource
from tests.spark.fast import fast_session

POINTS = ("staged", "committed")  # where a commit dies alone
LOG = "killed"
ROWS = 20  # at first, in two tasks: one append each


def die_at(checkpoint: Path, point: str, group: int = 0) -> None:
    checkpoint.mkdir(exist_ok=True)
    (checkpoint / "die-at").write_text(f"{point} {group}")


class Fate:
    """When the query of a checkpoint is to die."""

    def __init__(self, checkpoint: Path) -> None:
        self.point, group = (checkpoint / "die-at").read_text().split()
        self.group = int(group)

    def reach(self, point: str) -> None:
        if point == self.point:
            if self.group:
                os.killpg(self.group, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


class MortalClient(CommitlogClient):
    """May die before its first append, and after each."""

    fate: Fate
    appends = 0
    stored = 0  # of those, how many the log did not have from an earlier incarnation

    def append_arrow(self, *arguments: Any, **options: Any) -> Appended:
        self.fate.reach("listed")
        answer = super().append_arrow(*arguments, **options)
        self.appends += 1
        self.fate.reach(f"appended-{self.appends}")
        if not answer.replayed:
            self.stored += 1
            self.fate.reach(f"stored-{self.stored}")
        return answer


class MortalWriter(CommitlogStreamWriter):
    @property
    def fate(self) -> Fate:
        return Fate(self.options.staging.parent.parent)

    def open_client(self) -> CommitlogClient:
        client = MortalClient(self.options.endpoints, log=self.options.log)
        client.fate = self.fate
        return client

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.fate.reach("staged")
        super().commit(messages, batchId)
        self.fate.reach("committed")


class MortalSource(CommitlogDataSource):
    @classmethod
    def name(cls) -> str:
        return "mortal-commitlog"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return MortalWriter(parse_sink_options(self.options, streaming=True))


def numbers(spark: SparkSession, folder: Path, count: int, endpoint: str, log: str = LOG) -> DataStreamWriter:
    """A stream of `count` rows in all: files, which come once each, as many tasks as files."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    for first in range(0, count, 10):
        path = source / f"{first}.txt"
        if not path.exists():
            temporary = folder / path.name
            temporary.write_text("".join(f"number-{number}\n" for number in range(first, first + 10)))
            temporary.rename(path)
    spark.conf.set("spark.sql.files.openCostInBytes", 134_217_728)  # a task a file
    writer = spark.readStream.format("text").load(str(source)).writeStream.trigger(availableNow=True)
    writer.option("checkpointLocation", str(folder / "checkpoint"))
    return writer.options(endpoint=endpoint, log=log)


if __name__ == "__main__":
    endpoint, folder = sys.argv[1], Path(sys.argv[2])
    point, rows, log = sys.argv[3:] or ("appended-1", str(ROWS), LOG)
    die_at(folder / "checkpoint", point, os.getpgid(0))
    spark = fast_session("killed")
    spark.dataSource.register(MortalSource)
    query = numbers(spark, folder, int(rows), endpoint, log).format("mortal-commitlog").start()
    query.awaitTermination()
