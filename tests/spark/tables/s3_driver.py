"""A driver that appends to a table in an object store until it has a number of rows: the program of a test.

python -m tests.spark.tables.s3_driver NAME TABLE ROWS SETTINGS, with Spark's settings as JSON. Each append
adds ROWS_EACH rows from the index after the table's last one, under that index as its claim. It prints a JSON
object for each append that the table took, and one with the table's rows at the end.
"""

import json
import sys
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from spark_jobs.session.exclusive import check_exclusive
from spark_jobs.session.jars import DEFAULT_JARS_FOLDER, ensure_jars
from spark_jobs.session.spark_session import build_session
from spark_jobs.tables.claims import append_once
from spark_jobs.tables.schemas import arrow_schema
from spark_jobs.tables.table import ENTRIES, create_table, read_table
from tests.spark.fast import FAST_SETTINGS

ROWS_EACH = 5


def tell(**values: object) -> None:
    sys.stdout.write(json.dumps(values) + "\n")
    sys.stdout.flush()


def rows_from(spark: SparkSession, first: int, writer: str) -> pa.Table:
    numbers = range(first, first + ROWS_EACH)
    columns: dict[str, list[Any]] = {field.name: [None] * ROWS_EACH for field in arrow_schema(ENTRIES.schema)}
    columns |= {
        "log": ["default"] * ROWS_EACH,
        "index": list(numbers),
        "value": [writer.encode()] * ROWS_EACH,
    }
    return pa.table(columns, schema=arrow_schema(ENTRIES.schema))


def main(name: str, path: str, wanted: str, settings: str) -> None:
    ensure_jars()
    extra = {**FAST_SETTINGS, **json.loads(settings)}
    spark = build_session(name, jars_folder=DEFAULT_JARS_FOLDER, master="local[1]", extra=extra)
    check_exclusive(
        spark,
        path.rpartition("/")[0],
        single_driver=bool(json.loads(settings).get("spark.commitlog.singleDriver")),
    )
    create_table(spark, path, ENTRIES)
    tell(ready=name)
    sys.stdin.readline()
    while True:
        held = read_table(spark, path).agg(F.coalesce(F.max("index") + 1, F.lit(0))).collect()[0][0]
        if held >= int(wanted):
            break
        rows = spark.createDataFrame(rows_from(spark, held, name), ENTRIES.schema)
        taken = append_once(rows, path, application="race", claim=held, position="index", note={})
        if taken is not None:
            tell(first=held, rows=taken[0])
    found = read_table(spark, path).select("index").collect()
    tell(indexes=sorted(row[0] for row in found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
