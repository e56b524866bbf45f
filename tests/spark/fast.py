"""A session for tables of a few rows, and for a Java that ends within minutes.

It has the settings of the jobs, but for these: one partition for a shuffle, since few rows need no second,
no place in the source code with each column, which errors alone show, and options of Java that shorten its
start. None of them changes the number of tasks that list files, nor a result.
"""

from pyspark.sql import SparkSession

from spark_jobs.run import SETTINGS
from spark_jobs.session.jars import DEFAULT_JARS_FOLDER, ensure_jars
from spark_jobs.session.spark_session import DRIVER_JAVA, DRIVER_MEMORY, EXECUTOR_JAVA, build_session
from tests.support.quick_java import QUICKLY

JAVA_NAMES = (DRIVER_JAVA, EXECUTOR_JAVA)
FAST_SETTINGS = {
    **SETTINGS,
    "spark.sql.shuffle.partitions": "1",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    DRIVER_MEMORY: "2g",  # as in conf/spark.toml; 1 GiB is full after some hundred tests
    **dict.fromkeys(JAVA_NAMES, QUICKLY),
}


def fast_session(name: str) -> SparkSession:
    """Return a session of this process. Its heap has its size from the start: Java would collect all of it
    each time before it grows."""
    ensure_jars()
    whole_heap = {DRIVER_JAVA: f"{QUICKLY} -Xms{FAST_SETTINGS[DRIVER_MEMORY]} -XX:MetaspaceSize=256m"}
    return build_session(name, jars_folder=DEFAULT_JARS_FOLDER, extra={**FAST_SETTINGS, **whole_heap})
