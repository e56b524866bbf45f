"""Properties of a table. This process reads and changes them itself where it makes the commits of the table
(local/commits.py); Spark does so elsewhere.
"""

import contextlib
from collections.abc import Mapping

from pyspark.sql import SparkSession

from app.tables.delta_log import DeltaLog, DeltaLogError
from spark_jobs.tables.local.commits import NeedsSpark
from spark_jobs.tables.table import identifier, property_list
from spark_jobs.tables.table_writer import links_commits, local_table


def table_properties(spark: SparkSession, path: str) -> Mapping[str, str]:
    """Return the properties of a table, which exists."""
    if links_commits(spark, path):
        with contextlib.suppress(DeltaLogError):
            if (snapshot := DeltaLog(path, keeps_files=False).snapshot()) is not None:
                return snapshot.properties
    rows = spark.sql(f"SHOW TBLPROPERTIES {identifier(path)}").collect()
    return {row["key"]: row["value"] for row in rows}


def set_properties(spark: SparkSession, path: str, changed: Mapping[str, str]) -> None:
    """Set properties of a table, which exists."""
    if links_commits(spark, path):
        with contextlib.suppress(NeedsSpark, DeltaLogError):
            local_table(spark, path, keeps_files=False).set_properties(changed)
            return
    spark.sql(f"ALTER TABLE {identifier(path)} SET TBLPROPERTIES ({property_list(changed)})")
