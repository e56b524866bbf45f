"""The Spark process of the demo: it reads the Delta tables, then runs the notebook.

`python -m app.demo.spark_side --tables DIR --endpoint URLS --answer FILE --notebook FILE` writes its findings
as one JSON document. The demo, which has sent the records, decides whether they are right.
"""

import json
import sys
from pathlib import Path
from typing import Any

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from app.demo.flights import ContentHash
from app.setup.environment import ROOT
from spark_jobs.notebook import NotebookFailed, run_notebook
from spark_jobs.session.jars import DEFAULT_JARS_FOLDER
from spark_jobs.session.spark_session import build_session
from spark_jobs.tables.table import (
    DEAD_LETTERS,
    ENTRIES,
    EPOCH_FILES,
    EPOCHS,
    EVENTS,
    RECORDS,
    WATERMARKS,
    Table,
    read_table,
    table_path,
)
from spark_jobs.tables.transforms import index_check, latest_watermarks

LOG = "default"
NOTEBOOK = ROOT / "notebooks" / "01_append_and_read.py"
SETTINGS = {  # for two processors and tables of one file
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.adaptive.enabled": "false",
}
A_PATH = click.Path(path_type=Path)
EVENT_COLUMNS = ("node", "kind", "term", "timestamp", "data")


def collect_findings(spark: SparkSession, tables: Path) -> dict[str, Any]:
    """Return all that the demo compares of the tables."""

    def table(which: Table) -> DataFrame:
        return read_table(spark, table_path(tables, LOG, which))

    entries = table(ENTRIES)
    indexes = index_check(entries).collect()[0].asDict()
    roles = table(EVENTS).where(F.col("kind") == "role").orderBy("timestamp", "node", "seq")
    return {
        "entries": {**indexes, "content_hash": content_hash(entries)},
        "typed": {each.name: table(each).count() for each in (RECORDS, DEAD_LETTERS)},
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


def replace_text(file: Path, text: str) -> None:
    """Write a file that a reader finds complete or not at all."""
    unfinished = file.with_name(f"{file.name}.new")
    unfinished.write_text(text, "utf-8")
    unfinished.replace(file)


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Rows as JSON: times as milliseconds since 1970."""
    times = [field.name for field in frame.schema if field.dataType.typeName() == "timestamp"]
    for name in times:
        frame = frame.withColumn(name, F.unix_millis(name))
    return [row.asDict(recursive=True) for row in frame.collect()]


@click.command()
@click.option("--tables", required=True, type=A_PATH, help="Folder of the Delta tables.")
@click.option("--endpoint", required=True, metavar="URLS", help="Base URLs of nodes, comma-separated.")
@click.option("--answer", required=True, type=A_PATH, help="JSON file of the findings; it appears whole.")
@click.option("--notebook", required=True, type=A_PATH, help="HTML file of the notebook's page.")
@click.option("--progress", required=True, type=A_PATH, help="Text file of what is done at present.")
def main(tables: Path, endpoint: str, answer: Path, notebook: Path, progress: Path) -> None:
    """Read the Delta tables of the demo, then run its notebook.

    Exit code 1: a cell of the notebook fails. The answer is written before it runs.
    """
    spark = build_session("commitlog-demo", jars_folder=DEFAULT_JARS_FOLDER, extra=SETTINGS)
    try:
        replace_text(progress, "Spark counts and compares the rows")
        replace_text(answer, json.dumps(collect_findings(spark, tables)) + "\n")
        parameters = {"tables": str(tables), "endpoint": endpoint, "log": LOG}
        run_notebook(NOTEBOOK, parameters, notebook, spark, lambda line: replace_text(progress, line))
    except NotebookFailed as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
