"""A session without Spark, for jobs whose tables are in a local folder: small batches need no JVM."""

from types import SimpleNamespace
from typing import Any, cast

from pyspark.sql import SparkSession

from spark_jobs.session.jars import LOG_STORE_CLASS
from spark_jobs.tables.table_writer import LOG_STORE


def no_spark() -> SparkSession:
    """Return a session that knows its settings, and fails with AttributeError at everything else."""
    settings = {LOG_STORE: LOG_STORE_CLASS}
    hadoop = SimpleNamespace(get=lambda name, default: default)
    session: Any = SimpleNamespace(
        conf=SimpleNamespace(get=lambda name, default=None: settings.get(name, default)),
        sparkContext=SimpleNamespace(_jsc=SimpleNamespace(hadoopConfiguration=lambda: hadoop)),
        dataSource=SimpleNamespace(register=lambda source: None),
        interruptTag=lambda tag: [],
    )
    return cast(SparkSession, session)
