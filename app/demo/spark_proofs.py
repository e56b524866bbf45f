"""What Spark finds in the Delta tables: a process of its own, which answers with one JSON document.

`python -m app.demo.spark_proofs --tables DIR --answer FILE [--notebook DIR]`. It only looks: whether what
it finds is right, the demo decides, which knows what was sent.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from app.demo.flights import ContentHash
from spark_jobs.jars import DEFAULT_JARS_FOLDER
from spark_jobs.session import FAST_SETTINGS, build_session
from spark_jobs.tables import ENTRIES, EPOCH_FILES, EPOCHS, EVENTS, WATERMARKS, Table, read_table, table_path
from spark_jobs.transforms import index_check, latest_watermarks

LOG = "default"
EVENT_COLUMNS = ("node", "kind", "term", "timestamp", "data")


def look(spark: SparkSession, tables: Path) -> dict[str, Any]:
    """Everything that the demo asks of the tables."""

    def table(which: Table) -> DataFrame:
        return read_table(spark, table_path(tables, LOG, which))

    entries = table(ENTRIES)
    indexes = index_check(entries).collect()[0].asDict()
    roles = table(EVENTS).where(F.col("kind") == "role").orderBy("timestamp", "node", "seq")
    return {
        "entries": {**indexes, "content_hash": content_hash(entries)},
        "epochs": _rows(table(EPOCHS).orderBy("epoch")),
        "epoch_files": _rows(table(EPOCH_FILES).orderBy("node", "epoch")),
        "watermarks": _rows(latest_watermarks(table(WATERMARKS)).orderBy("term", "peer")),
        "watermarks_rows": table(WATERMARKS).count(),
        "events_rows": table(EVENTS).count(),
        "roles": _rows(roles.select(*EVENT_COLUMNS)),
    }


def content_hash(entries: DataFrame) -> str:
    """The hash of keys and values in the order of their indexes, made as the sender made it."""
    content = ContentHash()
    rows = entries.select("index", "key", "value").toArrow().sort_by("index")
    for batch in rows.to_batches():
        for key, value in zip(batch["key"].to_pylist(), batch["value"].to_pylist(), strict=True):
            content.add(key, value)
    return content.hex


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON: times as milliseconds since 1970."""
    times = [field.name for field in frame.schema if field.dataType.typeName() == "timestamp"]
    for name in times:
        frame = frame.withColumn(name, F.unix_millis(name))
    return [row.asDict(recursive=True) for row in frame.collect()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", required=True, type=Path)
    parser.add_argument("--answer", required=True, type=Path)
    options = parser.parse_args()
    spark = build_session("commitlog-demo", jars_folder=DEFAULT_JARS_FOLDER, extra=FAST_SETTINGS)
    try:
        options.answer.write_text(json.dumps(look(spark, options.tables)) + "\n")
    finally:
        spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
