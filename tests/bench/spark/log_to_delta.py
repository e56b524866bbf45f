"""Records per second from the log into Delta: 1 KiB records, three nodes, one Spark driver, one machine.

`python -m tests.bench.spark.log_to_delta [--records 1000000]` fills a log, then materializes it once with a
cold session and, after as many records again, with the warm one; prints one JSON line a figure. Before each
the same records go through the source to nowhere: what remains is Delta's part. --in-place: from the files.
"""

import argparse
import io
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.run import materialize
from spark_jobs.session.jars import DEFAULT_JARS_FOLDER, ensure_jars
from spark_jobs.session.spark_session import build_session
from spark_jobs.source import CommitlogDataSource
from tests.bench.systems.local_cluster import print_figure
from tests.support.cluster import Cluster, running
from tests.support.programs import run_program

RECORD_BYTES = 1024
REQUEST_RECORDS = 5_000
ARROW = {"Content-Type": "application/vnd.apache.arrow.stream"}


def fill(cluster: Cluster, records: int, record_bytes: int = RECORD_BYTES) -> float:
    """Append so many records of random letters to the leader; return the seconds that the appends took."""
    url = cluster.url(cluster.leader()) + "/v1/logs/default/records"
    chance = np.random.default_rng(1)
    seconds = 0.0
    with httpx.Client(timeout=60) as client:
        for first in range(0, records, REQUEST_RECORDS):
            body = letters(chance, min(REQUEST_RECORDS, records - first), record_bytes)
            started = time.perf_counter()
            client.post(url, content=body, headers=ARROW).raise_for_status()
            seconds += time.perf_counter() - started
    return seconds


def letters(chance: np.random.Generator, records: int, record_bytes: int) -> bytes:
    """A request: values of random capital letters, no two alike, which compress as Kafka's own load does."""
    data = chance.integers(ord("A"), ord("Z") + 1, records * record_bytes, np.uint8)
    ends = pa.array(np.arange(records + 1, dtype=np.int32) * record_bytes)
    values = pa.Array.from_buffers(pa.binary(), records, [None, ends.buffers()[1], pa.py_buffer(data)])
    sink = io.BytesIO()
    batch = pa.record_batch({"value": values})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def scan(spark: SparkSession, config: MaterializeConfig, first: int) -> float:
    """Read the log from an index on as the job does, and drop the rows; return the seconds that took."""
    reader = spark.read.format("commitlog").options(endpoint=config.endpoint, startingIndex=first)
    longest = config.max_records_per_partition
    reader = reader.options(maxRecordsPerPartition=longest, dataFolder=",".join(config.data_folders))
    started = time.perf_counter()
    reader.load().write.format("noop").mode("overwrite").save()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--in-place", action="store_true", help="read the files, not over HTTP")
    options = parser.parse_args()
    ensure_jars(DEFAULT_JARS_FOLDER)
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as cluster:
        spark = build_session("bench", jars_folder=DEFAULT_JARS_FOLDER, extra={"spark.driver.memory": "4g"})
        folders = [str(cluster.folder / node) for node in cluster.ids] if options.in_place else []
        config = MaterializeConfig(
            endpoint=",".join(cluster.url(node) for node in cluster.ids),
            tables=Path(folder) / "tables",
            available_now=True,
            max_records_per_trigger=options.records,
            data_folders=tuple(folders),
        )
        spark.dataSource.register(CommitlogDataSource)
        first = 0
        for session in ("cold", "warm"):
            seconds = fill(cluster, options.records)
            print_figure(
                figure="arrow append", records=options.records, records_per_s=round(options.records / seconds)
            )
            seconds = scan(spark, config, first)
            print_figure(
                figure="source to nowhere",
                session=session,
                in_place=options.in_place,
                seconds=round(seconds, 1),
                records_per_s=round(options.records / seconds),
            )
            first = cluster.status("n1")["committed_index"] + 1
            started = time.perf_counter()
            progress = materialize(config, spark=spark)
            seconds = time.perf_counter() - started
            print_figure(
                figure="log to delta",
                session=session,
                in_place=options.in_place,
                records=options.records,
                seconds=round(seconds, 1),
                records_per_s=round(options.records / seconds),
                rows=progress.logs["default"].entries_rows,
            )
        spark.stop()


if __name__ == "__main__":
    run_program(main)
