"""One Spark driver that brings one system's topic or log into Delta, again and again: the first pass is cold.

Each pass is one micro-batch into a new table. A query's time is from its start to its end; the job's, which
makes and fills other tables meanwhile, from the making of `entries` to the commit of its rows (`run_s` is all
of the job). Run by `python -m tests.bench.kafka`; prints one JSON line a pass.
"""

import argparse
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from pyspark.sql import DataFrame, SparkSession

from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.run import materialize
from spark_jobs.session.jars import DEFAULT_JARS_FOLDER, ensure_jars, jar_paths
from spark_jobs.session.spark_session import DRIVER_JAVA, build_session
from spark_jobs.source import CommitlogDataSource
from spark_jobs.tables.table import ENTRIES, read_table
from spark_jobs.tables.transforms import entries
from tests.bench.spark.backlog import commits, micro_batches
from tests.bench.systems.local_cluster import print_figure
from tests.support.programs import run_program

KAFKA_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value")
TASKS = 2  # of local[2]
BUSY_LOOK_S = 1.0

Pass = Callable[[Path], None]  # into a folder


def session(jars: list[Path], java: str) -> SparkSession:
    """Settings of the jobs, with Kafka's connector beside Delta's jars. java: more options of the JVM."""
    ensure_jars(DEFAULT_JARS_FOLDER)
    extra = {
        "spark.jars": ",".join(str(path) for path in [*jar_paths(DEFAULT_JARS_FOLDER), *jars]),
        "spark.driver.memory": "3g",
        **({DRIVER_JAVA: java} if java else {}),
    }
    return build_session("bench", jars_folder=DEFAULT_JARS_FOLDER, extra=extra)


def query(rows: DataFrame, folder: Path) -> None:
    """Spark's own stream into a Delta table, Trigger.AvailableNow."""
    writer = rows.writeStream.format("delta").option("checkpointLocation", str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start(str(folder / "table")).awaitTermination()


def kafka_pass(spark: SparkSession, given: argparse.Namespace) -> Pass:
    """From the earliest offset, `--tasks` at a time."""

    def run(folder: Path) -> None:
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", given.endpoint)
        reader = reader.option("subscribe", given.topic).option("startingOffsets", "earliest")
        rows = reader.option("minPartitions", given.tasks).load()
        query(rows.select(*KAFKA_COLUMNS), folder)

    return run


def source_pass(spark: SparkSession, given: argparse.Namespace) -> Pass:
    """The same with our source: its rows into Spark's own Delta sink, nothing of the job."""
    spark.dataSource.register(CommitlogDataSource)

    def run(folder: Path) -> None:
        reader = spark.readStream.format("commitlog").option("endpoint", given.endpoint)
        reader = reader.options(startingIndex="earliest", minPartitions=given.tasks)
        if given.data_folders:
            reader = reader.option("dataFolder", given.data_folders)
        query(entries(reader.load()), folder)

    return run


def job_pass(spark: SparkSession, given: argparse.Namespace) -> Pass:
    """The whole job: `entries` exactly once, and the tables of the journals and epochs, into new tables."""

    def run(folder: Path) -> None:
        config = MaterializeConfig(
            endpoint=given.endpoint,
            tables=folder,
            available_now=True,
            max_records_per_trigger=2 * given.records,
            data_folders=tuple(filter(None, given.data_folders.split(","))),
        )
        materialize(config, spark=spark)

    return run


WAYS: dict[str, tuple[Callable[[SparkSession, argparse.Namespace], Pass], str]] = {
    "kafka": (kafka_pass, "table"),
    "source": (source_pass, "table"),
    "job": (job_pass, f"default/{ENTRIES.name}"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--endpoint", required=True, help="Kafka's bootstrap servers, or our nodes")
    parser.add_argument("--topic", default="")
    parser.add_argument("--data-folders", default="")
    parser.add_argument("--jars", nargs="*", type=Path, default=[])
    parser.add_argument("--java", default="", help="options of the JVM that win over the session's own")
    parser.add_argument("--folder", type=Path, required=True, help="for the tables")
    parser.add_argument("--records", type=int, required=True, help="that there are")
    parser.add_argument("--tasks", type=int, default=TASKS)
    parser.add_argument("--passes", type=int, default=4, help="the first is cold")
    given = parser.parse_args()
    started = time.perf_counter()
    spark = session(given.jars, given.java)
    spark.range(1).collect()
    session_s = time.perf_counter() - started
    make, table = WAYS[given.way]
    run = make(spark, given)
    for number in range(given.passes):
        folder = given.folder / f"pass-{number}"
        folder.mkdir()
        busy = psutil.cpu_percent(BUSY_LOOK_S) / 100
        started = time.perf_counter()
        run(folder)
        run_s = time.perf_counter() - started
        seconds = micro_batches(folder / table)[0].seconds if given.way == "job" else run_s
        rows = read_table(spark, str(folder / table)).count()
        assert rows == given.records, f"{rows} rows in the table of {given.records} records"
        print_figure(
            figure="pass",
            way=given.way,
            in_place=bool(given.data_folders),
            tasks=given.tasks,
            session="warm" if number else "cold",
            rows=rows,
            micro_batches=sum(1 for _, rows in commits(folder / table) if rows),
            seconds=round(seconds, 2),
            rows_per_s=round(rows / seconds),
            run_s=round(run_s, 2),
            session_s=round(session_s, 1),
            java=given.java,
            busy_before=round(busy, 2),
        )
        shutil.rmtree(folder)
    spark.stop()


if __name__ == "__main__":
    run_program(main)
