"""The tables of a log by name, for SQL: temporary views, including one of the present watermarks."""

from pathlib import Path

from pyspark.sql import SparkSession

from spark_jobs.tables.table import TABLES, WATERMARKS, is_table, read_table, table_path
from spark_jobs.tables.transforms import latest_watermarks

LATEST_WATERMARKS = "latest_watermarks"


def create_views(spark: SparkSession, tables: Path | str, log: str = "default") -> list[str]:
    """Create a view of each existing table, and `latest_watermarks`. Return their names."""
    names = []
    for table in TABLES:
        path = table_path(tables, log, table)
        if is_table(spark, path):
            read_table(spark, path).createOrReplaceTempView(table.name)
            names.append(table.name)
    if WATERMARKS.name in names:
        latest_watermarks(spark.table(WATERMARKS.name)).createOrReplaceTempView(LATEST_WATERMARKS)
        names.append(LATEST_WATERMARKS)
    return names
