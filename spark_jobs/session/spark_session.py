"""The Spark session of a job: a new one, the one that the process was started in, or a server's.

A new session has Delta from local jars, UTC, and little output; with `local[N]` it is bound to this machine.
On a cluster the executors get this package from the driver (package.py); all other packages must be installed
there.
"""

import logging
import os
import re
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseServer
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from app.errors import ConfigError
from spark_jobs.private_folder import private_folder
from spark_jobs.session import class_archive
from spark_jobs.session.archive import make_zip, package_root
from spark_jobs.session.jars import (
    CATALOG_CLASS,
    LOG_STORE_CLASS,
    OBJECT_LOG_STORE_CLASS,
    ensure_jars,
    jar_paths,
)
from spark_jobs.session.java import JavaNotFound, find_java
from spark_jobs.session.machine import session_problem
from spark_jobs.session.settings import SparkSettings
from spark_jobs.session.spark_home import spark_home
from storage.units import MIB

__all__ = ["JavaNotFound", "build_session", "find_java", "is_remote", "open_session"]

# Spark's own log lines go to stderr from ERROR on; the jobs report everything else.
LOG4J = """rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
# Set explicitly: otherwise the shell that hosts Python's gateway logs the level that it chose.
logger.shell.name = org.apache.spark.api.python
logger.shell.level = error
# It would log each stopped query a second time: `run` reports it once, with the reason.
logger.stream.name = org.apache.spark.sql.execution.streaming
logger.stream.level = off
"""

DRIVER_JAVA = "spark.driver.extraJavaOptions"
EXECUTOR_JAVA = "spark.executor.extraJavaOptions"
SCRATCH = "commitlog-spark"  # folder of generated configuration and of archives of our code
CONNECT_PORT = 15_002  # default port of the server
CONNECT_TIMEOUT_S = 10.0
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
RUNTIME_SETTINGS = {  # settings that may be changed in a session that another program has started
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.streaming.stopTimeout": "30s",
    # its default, INT96, is nanoseconds for other readers: before 1677 and after 2262 they read other times
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
SETTINGS = {
    **RUNTIME_SETTINGS,
    "spark.sql.extensions": DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": CATALOG_CLASS,  # SessionCatalog.java
    "spark.delta.logStore.file.impl": LOG_STORE_CLASS,  # LinkLogStore.java
    "spark.delta.logStore.s3.impl": OBJECT_LOG_STORE_CLASS,  # ConditionalLogStore.java
    "spark.delta.logStore.s3a.impl": OBJECT_LOG_STORE_CLASS,
    # otherwise a commit to a small table lists its files a second time, after a Spark job that finds them
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    # A table has no folders inside: more tasks that list its files would find nothing (Spark's default is
    # 10,000 tasks, for each table that VACUUM looks through).
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "8",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # a notebook and a job may read the tables from one folder: no embedded metastore is ever opened
    "spark.sql.catalogImplementation": "in-memory",
    # a row group stays in memory until it is complete: a quarter of Parquet's default leaves little to clean
    # up
    "spark.hadoop.parquet.block.size": str(32 * MIB),
    # of the Python workers, for the reason of `_allocate_by_libc`
    "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL": "system",
}
ON_THIS_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # the default one starts shell programs for each file that it renames
    "spark.sql.streaming.checkpointFileManagerClass": "org.apache.spark.sql.execution.streaming."
    "checkpointing.FileSystemBasedCheckpointFileManager",
}
# UTC; and a locale with the digits 0 to 9. Delta and Parquet name files by `%020d` of the default locale,
# which has other digits in Arabic, Persian or Marathi: no reader finds a commit with such a name.
PLACE = "-Duser.timezone=UTC -Duser.language=en -Duser.country=US"
ON_A_CLUSTER = {EXECUTOR_JAVA: f"{PLACE} -Xss4m"}

# Compiling costs more than interpreting when a plan runs once over a few rows.
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
# Stack space for Spark to match long error texts by recursion. The second compiler only compiles
# what runs ten times as often as its default requires: a short job starts nearly as fast as with the first
# one alone, a long one processes 50 % more rows (tests/bench/kafka --java).
JAVA_OPTIONS = (
    f"{PLACE} -Xss4m -XX:+IgnoreUnrecognizedVMOptions -XX:+UseParallelGC "
    "-XX:Tier3DelayOn=0 -XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
# Part of the heap for young objects, from the start: most of a task's buffers die before they are copied.
YOUNG_PART = 5
DRIVER_MEMORY = "spark.driver.memory"
SPARKS_DRIVER_MEMORY = "1g"  # default
UNITS_MIB = {"": 1.0, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0 * 1024}


@contextmanager
def open_session(
    app_name: str, settings: SparkSettings, extra: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """Yield the session that `settings` specify, stopped at the end. If this process was started in one (by
    spark-submit, Databricks, a notebook), use that one, whatever they specify; it is left running.

    extra: Spark settings of the job, which those of the file override. Raises ConfigError, JarsUnavailable,
    JavaNotFound.
    """
    wanted = {**(extra or {}), **settings.conf}
    if settings.session.remote is None and _was_given():
        session = SparkSession.builder.appName(app_name).getOrCreate()
        yield _adopt(session, {**RUNTIME_SETTINGS, **wanted})
        return
    if settings.session.remote is not None:
        session = _connect(settings.session.remote, {**RUNTIME_SETTINGS, **wanted})
    else:
        ensure_jars(settings.session.jars)
        session = build_session(
            app_name,
            jars_folder=settings.session.jars,
            master=settings.session.master,
            extra={**settings.session.spark_settings(), **wanted},
        )
    try:
        yield session
    finally:
        with suppress(Py4JNetworkError, ConnectionError):  # Java was killed: the job reports its own failure
            session.stop()


def build_session(
    app_name: str,
    *,
    jars_folder: Path,
    master: str = "local[2]",
    extra: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session that reads and writes Delta, or the existing one of the process.

    jars_folder: where `jars.ensure_jars` put the jars. master: `local[N]`, or a cluster's address. extra:
    Spark settings that override the ones here. Needs no network. Sets JAVA_HOME, PYSPARK_PYTHON and, unless
    it is set, SPARK_HOME of this process: Spark starts its own processes by them. Raises JavaNotFound;
    FileNotFoundError when a jar is missing; ConfigError for a machine that cannot run a session (machine.py).
    """
    if problem := session_problem():
        raise ConfigError(problem)
    is_local = master.startswith("local")
    memory = (extra or {}).get(DRIVER_MEMORY, SPARKS_DRIVER_MEMORY)
    launch = launch_settings(jars_folder, is_local=is_local, driver_memory=memory)
    os.environ["JAVA_HOME"] = str(find_java().parent.parent)
    if "SPARK_HOME" not in os.environ and (home := spark_home()) is not None:
        os.environ["SPARK_HOME"] = str(home)
    launch[DRIVER_JAVA] += class_archive.java_options()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    _let_workers_import_us()
    _allocate_by_libc()
    if is_local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in with_extra(launch, extra or {}).items():
        builder = builder.config(name, value)
    try:
        with _own_interrupt_handler():
            session = builder.getOrCreate()
    except (Py4JNetworkError, ConnectionError, PySparkRuntimeError) as error:
        raise ConfigError(
            "Java ended while Spark started; its own message, if any, is above. Without one the kernel has "
            f"probably killed it: Spark may take {memory} of heap (spark.driver.memory) and as much beside it"
        ) from error
    except Py4JError as error:
        raise ConfigError(f"Spark does not start at {master}: {_reason(error)}") from error
    if not is_local:
        session.sparkContext.addPyFile(str(make_zip(private_folder(SCRATCH))))
    _expect_closed_connections(session.sparkContext._accumulatorServer)
    return _quiet(session)


def launch_settings(
    jars_folder: Path, *, is_local: bool, driver_memory: str = SPARKS_DRIVER_MEMORY
) -> dict[str, str]:
    """Return the settings with which the JVM of a new session starts. driver_memory: its heap.

    Raises FileNotFoundError when a jar is missing.
    """
    jars = jar_paths(jars_folder)
    if missing := [str(path) for path in jars if not path.is_file()]:
        raise FileNotFoundError(
            f"missing jars: {', '.join(missing)}; run `python -m spark_jobs.session.jars`"
        )
    settings = {**SETTINGS, **(ON_THIS_MACHINE if is_local else ON_A_CLUSTER), **_files()}
    settings["spark.jars"] = ",".join(map(str, jars))
    settings[DRIVER_JAVA] += f" -XX:NewSize={young_mib(driver_memory)}m"
    return settings


def with_extra(launch: Mapping[str, str], extra: Mapping[str, str]) -> dict[str, str]:
    """Return both sets of settings; those of `extra` override. Java options are added after ours, so the
    JVM takes the last of two that contradict each other."""
    both = [name for name in (DRIVER_JAVA, EXECUTOR_JAVA) if name in launch and name in extra]
    return {**launch, **extra, **{name: f"{launch[name]} {extra[name]}" for name in both}}


def young_mib(memory: str) -> int:
    """Return the size of the young generation for a heap in Spark's notation: `2g`, `512m`, or MiB."""
    match = re.match(r"\s*(\d+)\s*([kmgt]?)", memory.lower())
    if match is None:
        raise ConfigError(f"{DRIVER_MEMORY} must be a size such as 2g, got {memory!r}")
    return int(int(match[1]) * UNITS_MIB[match[2]] / YOUNG_PART)


def is_remote(session: SparkSession) -> bool:
    """Return whether it is a server's, reached by Spark Connect: then callbacks of Spark run there."""
    return type(session).__module__.startswith("pyspark.sql.connect.")


@contextmanager
def kept_active(session: SparkSession) -> Iterator[None]:
    """Let `session` be the active one of this thread afterwards: Spark finds a registered data source by it,
    and `createDataFrame` makes its own session the active one."""
    try:
        yield
    finally:
        session.createDataFrame([], "nothing INT")


def delta_snapshot(session: SparkSession, path: str) -> tuple[Any, Any]:
    """Return Delta's log of a table and its newest snapshot, objects of Java. Not for Spark Connect.

    `session` is the active one of this thread in Java from now on: otherwise Delta's own functions fail at a
    table that has a checkpoint. Raises Py4JError, and TypeError where Spark has no such classes.
    """
    jvm: Any = session._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)
    found = jvm.org.apache.spark.sql.delta.DeltaLog.forTableWithSnapshot(session._jsparkSession, path)
    return found._1(), found._2()


def sibling_of(session: SparkSession) -> SparkSession:
    """Return a session of the same Spark whose settings can be changed alone. It begins with the settings of
    this module that the given one has; Spark's own `newSession` has those of Spark's start, which another
    program may have made."""
    sibling = session.newSession()
    for name in RUNTIME_SETTINGS:
        value = session.conf.get(name, None)
        if value is not None:
            sibling.conf.set(name, value)
    return sibling


def on_databricks() -> bool:
    """Return whether this process runs on a cluster of Databricks."""
    return "DATABRICKS_RUNTIME_VERSION" in os.environ


def _was_given() -> bool:
    """Return whether another program has started Spark for this process."""
    named = {"PYSPARK_GATEWAY_PORT", "DATABRICKS_RUNTIME_VERSION"}
    return not named.isdisjoint(os.environ) or SparkSession.getActiveSession() is not None


def _adopt(session: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Configure a session that another program started. Raises ConfigError for settings that only its
    start can set."""
    extensions = session.conf.get("spark.sql.extensions", "") or ""
    if not on_databricks() and DELTA_EXTENSION not in extensions:
        raise ConfigError(
            "this Spark was started without Delta (spark.sql.extensions): start it with the settings that "
            "`python -m spark_jobs.package` writes"
        )
    for name, value in settings.items():
        try:
            session.conf.set(name, value)
        except AnalysisException as error:
            if not f" {session.conf.get(name, None)}".endswith(f" {value}"):  # Java's may follow ours
                raise ConfigError(f"{name} = {value} cannot be applied: Spark is already running") from error
    return session if is_remote(session) else _quiet(session)


def _connect(url: str, settings: Mapping[str, str]) -> SparkSession:
    """Return a session of the server at `url`, with this package sent to it. Raises ConfigError."""
    place = urlsplit(url)
    try:  # the client itself would retry for many minutes
        socket.create_connection(
            (place.hostname or "", place.port or CONNECT_PORT), CONNECT_TIMEOUT_S
        ).close()
    except OSError as error:
        raise ConfigError(f"no server of Spark Connect answers at {url}: {error}") from error
    session = SparkSession.builder.remote(url).getOrCreate()
    session.addArtifacts(str(make_zip(private_folder(SCRATCH))), pyfile=True)
    return _adopt(session, settings)


@contextmanager
def _own_interrupt_handler() -> Iterator[None]:
    """Put the program's handler of Ctrl-C back, if it has one: Spark's ends in a traceback of Py4J."""
    own = signal.getsignal(signal.SIGINT)
    yield
    if own is not signal.default_int_handler and signal.getsignal(signal.SIGINT) is not own:
        signal.signal(signal.SIGINT, own)


def _reason(error: Py4JError) -> str:
    """Return the message of the Java exception in one line."""
    java_error = getattr(error, "java_exception", None)
    return str(error if java_error is None else java_error.getMessage()).partition("\n")[0]


def _quiet(session: SparkSession) -> SparkSession:
    session.sparkContext.setLogLevel("ERROR")
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):  # these log each exception again
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    return session


def _expect_closed_connections(counters: BaseServer) -> None:
    """Let no traceback be printed for a connection that Spark has closed.

    counters: PySpark's server to which Spark reports counters. A query that is stopped may be interrupted in
    such a report, which closes the connection; Spark opens another one for the next report.
    """
    report = counters.handle_error

    def handle_error(request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), (EOFError, ConnectionError)):
            report(request, client_address)

    counters.handle_error = handle_error  # type: ignore[method-assign]


def _allocate_by_libc() -> None:
    """Let Arrow reuse freed memory, instead of giving it back to the kernel after each block: that is half of
    the system time of a job (docs/performance.md). The user's environment wins."""
    if "ARROW_DEFAULT_MEMORY_POOL" not in os.environ:
        pa.set_memory_pool(pa.system_memory_pool())


def _let_workers_import_us() -> None:
    """Let Spark's Python workers on this machine find this package as this process did, installed or not."""
    root = str(package_root())
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([root, *filter(None, paths)])


def _files() -> dict[str, str]:
    """Return settings that name files: the configuration of the log, the folder of temporary files, and a
    warehouse that is never written."""
    folder = private_folder(SCRATCH)
    log4j = folder / "log4j2.properties"
    log4j.write_text(LOG4J, "utf-8")
    return {
        # Java does not read TMPDIR; Spark splits the options at spaces outside of quotes
        DRIVER_JAVA: f"-Dlog4j2.configurationFile={log4j.as_uri()} {JAVA_OPTIONS} "
        f'"-Djava.io.tmpdir={tempfile.gettempdir()}"',
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
