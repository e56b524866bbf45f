"""One way to start Spark: Delta from local jars, bound to this machine, UTC, and quiet."""

import logging
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from spark_jobs.jars import jar_paths
from spark_jobs.java import JavaNotFound, find_java

__all__ = ["JavaNotFound", "build_session", "find_java"]

# Spark's own log lines go to stderr from ERROR on: what a person should know, the jobs say themselves.
LOG4J = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Said outright, or the shell that hosts Python's gateway announces a level of its own.
logger.shell.name = org.apache.spark.api.python
logger.shell.level = error
# Tells each stopped query a second time: `run` reports it once, with the reason.
logger.stream.name = org.apache.spark.sql.execution.streaming
logger.stream.level = off
"""

DRIVER_JAVA = "spark.driver.extraJavaOptions"
SETTINGS = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.streaming.stopTimeout": "30s",
    "spark.sql.python.filterPushdown.enabled": "true",  # pushdown.py
    # a notebook and a job may look at the tables from one folder: no embedded metastore is ever opened
    "spark.sql.catalogImplementation": "in-memory",
}

FAST_SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    "spark.sql.adaptive.enabled": "false",
    # compiling costs more than interpreting when a plan runs once over a few rows
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
# UTC, and room for Spark to match long error texts by recursion. The first compiler alone: a driver is up
# in half the time of the processor, and a warm one needs 15 % more for the same rows (measured: 400 000 of
# 1 KiB into Delta).
JAVA_OPTIONS = "-Duser.timezone=UTC -Xss4m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def build_session(
    app_name: str,
    *,
    jars_folder: Path,
    master: str = "local[2]",
    fast_tests: bool = False,
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """A Spark session that reads and writes Delta, or the process's own one if it has one already.

    jars_folder: where `jars.ensure_jars` put the jars. master: `local[N]`, or a cluster's address.
    fast_tests: settings for tables of a few rows. extra: Spark settings that win over the ones here.
    Needs no network. Sets JAVA_HOME and PYSPARK_PYTHON of this process: Spark starts its own by them.
    Raises JavaNotFound; FileNotFoundError when a jar is missing.
    """
    jars = jar_paths(jars_folder)
    if missing := [str(path) for path in jars if not path.is_file()]:
        raise FileNotFoundError(f"no {', '.join(missing)}: run `python -m spark_jobs.jars`")
    os.environ["JAVA_HOME"] = str(find_java().parent.parent)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    _let_workers_import_us()
    if master.startswith("local"):
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    own = {**SETTINGS, **(FAST_SETTINGS if fast_tests else {}), **_files(jars)}
    settings = {**own, **(extra or {})}
    if extra and DRIVER_JAVA in extra:  # the last of two that contradict one another counts
        settings[DRIVER_JAVA] = f"{own[DRIVER_JAVA]} {extra[DRIVER_JAVA]}"
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # tell each exception once more
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    return session


def _let_workers_import_us() -> None:
    """Spark's Python workers find this package as this process did, whether it is installed or not."""
    root = str(Path(__file__).resolve().parent.parent)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])


def _files(jars: Sequence[Path]) -> dict[str, str]:
    """Settings that name files: the jars, the log's configuration, and a warehouse that nothing writes to."""
    folder = Path(tempfile.gettempdir()) / f"commitlog-spark-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    log4j = folder / "log4j2.properties"
    log4j.write_text(LOG4J)
    return {
        "spark.jars": ",".join(str(path) for path in jars),
        DRIVER_JAVA: f"-Dlog4j2.configurationFile={log4j} {JAVA_OPTIONS}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
