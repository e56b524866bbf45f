"""A stream into a log, in a process of its own that kills itself: `python -m tests.spark.sink_to_kill POINT`.

POINT: `staged` (files, no list), `listed` (a list, nothing appended), `appended-1`, `appended-2` (so many
appends in the log), `committed` (all of it, and Spark does not know). ENDPOINT and FOLDER stand in the
environment, which Spark's Python workers inherit: the commit runs in one of them.
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
from spark_jobs.jars import DEFAULT_JARS_FOLDER
from spark_jobs.session import build_session
from spark_jobs.sink import CommitlogStreamWriter
from spark_jobs.sink_options import parse_sink_options
from spark_jobs.source import CommitlogDataSource

POINTS = ("staged", "listed", "appended-1", "appended-2", "committed")
LOG = "killed"
ROWS = 20  # at first, in two tasks: one append each


def die(*_: object) -> None:
    os.killpg(int(os.environ["DRIVER_GROUP"]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


class MortalClient(CommitlogClient):
    """Dies before its first append, or after so many."""

    appends = 0

    def append_arrow(self, *arguments: Any, **options: Any) -> Appended:
        point = os.environ["POINT"]
        if point == "listed":
            die()
        answer = super().append_arrow(*arguments, **options)
        self.appends += 1
        if point == f"appended-{self.appends}":
            die()
        return answer


class MortalWriter(CommitlogStreamWriter):
    def open_client(self) -> CommitlogClient:
        return MortalClient(self.options.endpoints, log=self.options.log)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        if os.environ["POINT"] == "staged":
            die()
        super().commit(messages, batchId)
        if os.environ["POINT"] == "committed":
            die()


class MortalSource(CommitlogDataSource):
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return MortalWriter(parse_sink_options(self.options, streaming=True))


def numbers(spark: SparkSession, folder: Path, count: int) -> DataStreamWriter:
    """A stream of `count` rows in all: files, which come once each, as many tasks as files."""
    source = folder / "source"
    source.mkdir(exist_ok=True)
    for first in range(0, count, 10):
        path = source / f"{first}.txt"
        if not path.exists():
            temporary = folder / path.name
            temporary.write_text("".join(f"number-{number}\n" for number in range(first, first + 10)))
            temporary.rename(path)
    stream = spark.readStream.format("text").load(str(source))
    return stream.writeStream.format("commitlog").trigger(availableNow=True)


if __name__ == "__main__":
    os.environ["POINT"] = sys.argv[1]
    os.environ["DRIVER_GROUP"] = str(os.getpgid(0))
    folder = Path(os.environ["FOLDER"])
    spark = build_session(
        "killed",
        jars_folder=DEFAULT_JARS_FOLDER,
        fast_tests=True,
        extra={"spark.sql.files.openCostInBytes": "134217728"},  # a task a file
    )
    spark.dataSource.register(MortalSource)
    query = numbers(spark, folder, ROWS).option("checkpointLocation", str(folder / "checkpoint"))
    query.options(endpoint=os.environ["ENDPOINT"], log=LOG).start().awaitTermination()
