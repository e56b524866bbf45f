"""The tables of a log by name, for SQL: temporary views, including one of the present watermarks."""

from pathlib import Path

from pyspark.sql import SparkSession

from app.errors import ConfigError
from spark_jobs.session.locations import location
from spark_jobs.tables.table import TABLES, WATERMARKS, is_table, read_table, table_path
from spark_jobs.tables.transforms import latest_watermarks

LATEST_WATERMARKS = "latest_watermarks"


def create_views(spark: SparkSession, tables: Path | str, log: str = "default") -> list[str]:
    """Create a view of each existing table, and `latest_watermarks`. Return their names.

    tables: folder or URL; a relative path starts at the current folder. Raises ConfigError when it contains
    no table of the log.
    """
    names = []
    for table in TABLES:
        path = table_path(tables, log, table)
        if is_table(spark, path):
            read_table(spark, path).createOrReplaceTempView(table.name)
            names.append(table.name)
    if not names:
        raise ConfigError(
            f"{location(str(tables))} contains no table of log {log!r}: set the folder that the job writes "
            "to (`commitlog up` and `commitlog materialize`: commitlog-data/tables, `commitlog demo`: "
            "demo-data/tables)"
        )
    if WATERMARKS.name in names:
        latest_watermarks(spark.table(WATERMARKS.name)).createOrReplaceTempView(LATEST_WATERMARKS)
        names.append(LATEST_WATERMARKS)
    return names
