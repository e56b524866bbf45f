"""A driver of another Spark: `python -m tests.spark.session.cluster_driver CONF ENDPOINT LOG TARGET
STAGING DATA`.

Fills the tables of LOG, then reads it as a batch, notes where each task ran and which package it imported,
writes the values into TARGET, and prints its results as one JSON line. DATA: a node's folder, read in place.
"""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import functions as F

from spark_jobs.run import materialize, parse_arguments
from spark_jobs.session.spark_session import open_session

PLACES = "index bigint, pid bigint, folder string, package string"
PARTITIONS = 4


def tell_place(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Each index, with the process that has it."""
    import spark_jobs

    place = [os.getpid(), str(Path.cwd()), str(spark_jobs.__file__)]
    for batch in batches:
        columns = [batch.column("index"), *(pa.array([one] * batch.num_rows) for one in place)]
        yield pa.RecordBatch.from_arrays(columns, [column.split()[0] for column in PLACES.split(", ")])


def main(conf: str, endpoint: str, log: str, target: str, staging: str, data: str) -> None:
    job = ["--conf", conf, "--endpoint", endpoint, "--log", log, "--available-now", "--data-folder", data]
    config = parse_arguments(job)
    with open_session("cluster-driver", config.spark) as spark:
        filled = materialize(config, spark=spark)
        options = {"endpoint": endpoint, "log": log, "minPartitions": PARTITIONS}
        records = spark.read.format("commitlog").options(**options).load()
        ran = records.select("index").mapInArrow(tell_place, PLACES).toPandas()
        rows = records.select("value", F.col("index").cast("string").alias("key"))
        writer = rows.write.format("commitlog").mode("append")
        writer.options(endpoint=endpoint, log=target, stagingLocation=staging).save()
        reported = {
            "filled": filled.to_json(),
            "pid": os.getpid(),
            "indexes": sorted(ran["index"].tolist()),
            "pids": sorted(set(ran["pid"].tolist())),
            "folders": sorted(set(ran["folder"])),
            "packages": sorted(set(ran["package"])),
        }
    sys.stdout.write(f"{json.dumps(reported)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
