"""A session without Spark, for jobs whose tables are in a local folder: these need no JVM."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from spark_jobs.session.jars import LOG_STORE_CLASS
from spark_jobs.tables.table_writer import LOG_STORE


class _Elements:
    """Tasks that run in this thread, one after the other, from copies of what a driver sends."""

    def __init__(self, elements: Sequence[Any]) -> None:
        self._elements = elements

    def map(self, task: Callable[[Any], Any]) -> "_Elements":
        tasks = [cloudpickle.loads(cloudpickle.dumps((task, element))) for element in self._elements]
        return _Elements([task(element) for task, element in tasks])

    def collect(self) -> list[Any]:
        return list(self._elements)


def no_spark() -> SparkSession:
    """Return a session that knows its settings and runs tasks of Python, and fails with AttributeError at
    everything else."""
    settings = {LOG_STORE: LOG_STORE_CLASS}
    hadoop = SimpleNamespace(get=lambda name, default: default)
    context = SimpleNamespace(
        _jsc=SimpleNamespace(hadoopConfiguration=lambda: hadoop),
        parallelize=lambda elements, slices: _Elements(elements),
        addJobTag=lambda tag: None,
        removeJobTag=lambda tag: None,
        cancelJobsWithTag=lambda tag: None,
    )
    session: Any = SimpleNamespace(
        conf=SimpleNamespace(get=lambda name, default=None: settings.get(name, default)),
        sparkContext=context,
        dataSource=SimpleNamespace(register=lambda source: None),
        interruptTag=lambda tag: [],
    )
    return cast(SparkSession, session)
