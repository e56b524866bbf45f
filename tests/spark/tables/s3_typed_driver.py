"""A driver of typed tables in an object store: the program of a test.

python -m tests.spark.tables.s3_typed_driver NAME TABLES ENDPOINTS UNTIL SETTINGS, with Spark's settings as
JSON. It makes `entries` unless another driver does, and extends the typed tables in steps. It prints a JSON
object for each step, and the indexes in each table and the violations of their invariants at the end.
"""

import json
import sys

from pyspark.sql import SparkSession

from spark_jobs.materialize.entries import APPLICATION
from spark_jobs.materialize.typed import TypedTables
from spark_jobs.session.jars import DEFAULT_JARS_FOLDER, ensure_jars
from spark_jobs.session.spark_session import build_session
from spark_jobs.source import CommitlogDataSource
from spark_jobs.source.log_reads import LogReads
from spark_jobs.tables.claims import append_once
from spark_jobs.tables.table import DEAD_LETTERS, ENTRIES, create_table, read_table
from spark_jobs.tables.transforms import entries
from spark_jobs.typed.invariants import misplaced, outdated
from tests.spark.fast import FAST_SETTINGS
from tests.spark.tables.s3_driver import tell

STEP = 4


def main(name: str, tables: str, endpoints: str, until: str, settings: str) -> None:
    ensure_jars()
    extra = {**FAST_SETTINGS, **json.loads(settings)}
    spark = build_session(name, jars_folder=DEFAULT_JARS_FOLDER, master="local[1]", extra=extra)
    spark.dataSource.register(CommitlogDataSource)
    client = LogReads(endpoints.split(","), "default")
    typed = TypedTables(spark, client, lambda table: f"{tables}/{table.name}", follows=False)
    tell(ready=name)
    sys.stdin.readline()
    create_table(spark, f"{tables}/{ENTRIES.name}", ENTRIES)
    options = {"endpoint": endpoints, "log": "default"}
    rows = entries(spark.read.format("commitlog").options(**options).load())
    path = f"{tables}/{ENTRIES.name}"
    append_once(rows, path, application=APPLICATION, claim=0, position="index", note={})
    typed.open()
    for step in (*range(STEP, int(until), STEP), int(until)):
        typed.extend(step)
        tell(step=step)
    report(spark, tables, typed, int(until))
    spark.stop()


def report(spark: SparkSession, tables: str, typed: TypedTables, until: int) -> None:
    assert typed.decoder is not None
    [group] = typed.decoder.layout
    names = ENTRIES.name, group.records().name, DEAD_LETTERS.name, group.current().name
    held, records, letters, current = (read_table(spark, f"{tables}/{each}") for each in names)
    breaches = misplaced(held, [records], letters, until).collect()
    breaches += outdated(held, records, current, group.keys, until).collect()
    tell(
        records=sorted(row[0] for row in records.select("_index").collect()),
        letters=sorted(row[0] for row in letters.select("index").collect()),
        current={bytes(row[0]).decode(): row[1] for row in current.select("_key", "_index").collect()},
        breaches=list(map(str, breaches)),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
