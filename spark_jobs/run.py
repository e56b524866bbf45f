"""Process that materializes logs as Delta tables: `python -m spark_jobs.run --endpoint URL --tables DIR`.

One Structured Streaming query reads the new records of all logs (query.py), and a few threads extend the
tables of those that have some. The tables themselves record their progress (entries.py, events.py), so each
start (the first, after a kill, or after a failure) begins there: what the query does not bring, the job of a
log reads itself.
"""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from spark_jobs.interruption import INTERRUPTED, STOPPED, end_at_once, finish_at_signals

if __name__ == "__main__":
    end_at_once(INTERRUPTED if "--available-now" in sys.argv else dict.fromkeys(INTERRUPTED, STOPPED))

import click

from app.durations import Seconds
from app.errors import ConfigError
from app.extras import imports_of_extra

with imports_of_extra("spark", __name__):
    from pyspark.sql import SparkSession

from spark_jobs.errors import OptionError, RequestRefused, SourceError, Unreachable, own_error, write_failure
from spark_jobs.job_lines import line_of, waits_reported
from spark_jobs.materialize.backlog import interrupt_backlogs
from spark_jobs.materialize.config import MAX_DELAY, MIN_RECORDS, TRIGGER, MaterializeConfig
from spark_jobs.materialize.followed_logs import FAILURES as LOG_FAILURES
from spark_jobs.materialize.followed_logs import FollowedLogs, first_line
from spark_jobs.materialize.journal_poller import JournalPoller
from spark_jobs.materialize.lease import MOVE_EACH_S
from spark_jobs.materialize.log_materializer import LogMaterializer, SharedParts, query_options
from spark_jobs.materialize.progress import WRITE_EACH_S, LogProgress, Progress, ProgressFile
from spark_jobs.materialize.query import LogRows, RecordsQuery
from spark_jobs.materialize.supervisor import MaterializeFailed
from spark_jobs.materialize.workers import Kind, Workers
from spark_jobs.session.exclusive import check_exclusive
from spark_jobs.session.jars import JarsUnavailable
from spark_jobs.session.settings import (
    give_up_option,
    given_options,
    logs_option,
    settings_of,
    spark_options,
    tables_of,
    tables_option,
    token_option,
)
from spark_jobs.session.spark_session import INTERPRETED, JavaNotFound, is_remote, open_session
from spark_jobs.source import CommitlogDataSource
from spark_jobs.source.ends_poller import LogEndsPoller
from spark_jobs.source.log_names import split_names
from spark_jobs.source.log_reads import GIVE_UP_S, LogReads, connect
from spark_jobs.tables.catalog import CatalogTables, parse_catalog
from spark_jobs.tables.checkpoints import CHECKPOINTS

POLL_INTERVAL_S = 0.25  # without a change
MIN_PAUSE_S = 0.01  # after a poll
PAUSE_FACTOR = 10  # the pause after a poll lasts at least this many times as long as the poll
LONGEST_PAUSE_S = 2.0  # of that pause: a poll lasts for minutes if the machine is suspended meanwhile
STATUS_GIVE_UP_S = 1.0
CATALOG_EACH_S = 5.0
CHECKPOINTS_STOP_S, CHECKPOINTS_END_S = 5.0, 60.0  # to write those that are due, when stopped and at the end
FILE_PATH = click.Path(path_type=Path)
# Plans are created often over few rows: to change them while they run, to compile them, or to spread a
# table's log over several tasks costs more than it saves (entries.py compiles for many rows).
SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    **INTERPRETED,
}
FAILURES = (*LOG_FAILURES, ConfigError, JarsUnavailable, JavaNotFound)


def materialize(
    config: MaterializeConfig,
    *,
    stop: threading.Event | None = None,
    report: Callable[[Progress], None] | None = None,
    spark: SparkSession | None = None,
    started: Callable[[], None] | None = None,
) -> Progress:
    """Keep the tables of `config.logs` up to date until `stop` is set, or, with available_now, to the end.

    report: called with each progress that is written to the file. spark: a session to use and to leave
    running. started: called once there is a session. Raises MaterializeFailed, SourceError (the log clashes
    with the tables, or could not be reached at the start), TableClash, ConfigError, JarsUnavailable,
    JavaNotFound.
    """
    stop = stop or threading.Event()
    try:
        config.progress_file.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"progress: {config.progress_file} cannot be written: {error}") from error
    file = ProgressFile(config.progress_file, report)
    own = partial(open_session, "commitlog-materialize", config.spark, SETTINGS)
    with own() if spark is None else nullcontext(spark) as session:
        if started is not None:
            started()
        check_exclusive(session, config.tables_root, single_driver=config.single_driver)
        return _follow(session, config, stop, file)


def _follow(
    spark: SparkSession, config: MaterializeConfig, stop: threading.Event, file: ProgressFile
) -> Progress:
    """Follow the logs until they are done or `stop` is set; stop every part; return the last progress."""
    spark.dataSource.register(CommitlogDataSource)
    wake = threading.Event()  # something has changed, or ended
    shared = _shared_parts(spark, config, wake, lambda delivery: logs.take(delivery))
    logs = FollowedLogs(
        config.logs,
        partial(LogMaterializer, shared),
        LogReads(config.endpoints, "", connection=shared.patient).log_names,
        lambda opening: shared.workers.submit(opening, Kind.OPENING),
        shared.ends_poller.ends,
    )
    named = None
    if config.catalog is not None:
        named = CatalogTables(spark, parse_catalog(config.catalog), config.tables_root)
    state, reason = "failed", None
    shared.ends_poller.start()
    try:
        logs.start()
        _poll(logs, shared, named, stop, wake, file)
        if not stop.is_set():
            logs.poll(final=True)
            logs.finish()
        state = "stopped" if stop.is_set() else "done"
    except Exception as error:
        if error not in logs.failed.values():
            reason = first_line(error)
        raise
    finally:
        shared.ends_poller.stop()
        if shared.query is not None:
            shared.query.stop()
        shared.workers.stop()
        logs.stop()
        CHECKPOINTS.finish(CHECKPOINTS_STOP_S if stop.is_set() else CHECKPOINTS_END_S)
        shared.patient.close()
        shared.quick.close()
        last = file.write(state, logs.progress(), force=True, error=reason)
    return last


def _shared_parts(
    spark: SparkSession, config: MaterializeConfig, wake: threading.Event, give: Callable[[LogRows], None]
) -> SharedParts:
    """Return what the jobs of all logs share. give: gets the rows of the query."""
    quick = connect(config.endpoints, config.token, STATUS_GIVE_UP_S)
    return SharedParts(
        config=config,
        spark=spark,
        workers=Workers(partial(interrupt_backlogs, spark), wake),
        ends_poller=LogEndsPoller(config.endpoints, config.token, wake),
        query=_query(spark, config, give),
        journals=JournalPoller(LogReads(config.endpoints, "", connection=quick), config.events_trigger_s),
        patient=connect(config.endpoints, config.token, config.give_up_s),
        quick=quick,
    )


def _poll(
    logs: FollowedLogs,
    shared: SharedParts,
    named: CatalogTables | None,
    stop: threading.Event,
    wake: threading.Event,
    file: ProgressFile,
) -> None:
    """Let the jobs of all logs work until they are done or `stop` is set. named: gives the tables names."""
    named_at_s = 0.0
    while not stop.is_set():
        began_s = time.monotonic()
        shared.journals.ask_when_due(shared.workers)
        if shared.query is not None:
            shared.query.ensure_running(logs.ends)
        logs.poll()
        file.write("running", logs.progress())
        # without the catalog, which may take seconds for each table
        polled_s = time.monotonic() - began_s
        if named is not None and (logs.done or began_s >= named_at_s):
            named.refresh(_with_reports(logs, file))
            named_at_s = time.monotonic() + CATALOG_EACH_S
        if logs.done:
            return
        stop.wait(pause_after(polled_s))
        wake.wait(POLL_INTERVAL_S)
        wake.clear()


def _with_reports(logs: FollowedLogs, file: ProgressFile) -> Iterator[str]:
    """Yield the logs for the catalog, which may take seconds for each table, and report between them."""
    for log in logs.progress():
        if time.monotonic() - file.written_at_s >= WRITE_EACH_S:
            file.write("running", logs.progress())
        yield log


def pause_after(polled_s: float) -> float:
    """Return the seconds to wait after a poll, so that polls of many logs leave the processor to the jobs."""
    return min(LONGEST_PAUSE_S, max(MIN_PAUSE_S, PAUSE_FACTOR * polled_s))


def _query(
    spark: SparkSession, config: MaterializeConfig, give: Callable[[LogRows], None]
) -> RecordsQuery | None:
    """Return the query; None for a job that ends with what is there, which needs no start of a query, and
    over Spark Connect, whose server would call the function of the micro-batches in another process, without
    the jobs."""
    if config.available_now or is_remote(spark):
        return None
    return RecordsQuery(spark, query_options(config), config.checkpoints, config.trigger_s, give)


@click.command(
    epilog="\b\nExamples:\n"
    "  python -m spark_jobs.run --endpoint http://127.0.0.1:8101 --tables commitlog-data/tables\n"
    "  python -m spark_jobs.run --endpoint URLS --conf conf/spark.toml --log 'orders-*' --available-now"
)
@click.option("--endpoint", required=True, metavar="URLS", help="Base URLs of replicas, comma-separated.")
@tables_option
@logs_option
@token_option
@click.option(
    "--checkpoints",
    type=FILE_PATH,
    help="Folder for scratch files of the streaming query.  [default: in the folder of temporary files]",
)
@click.option(
    "--available-now", is_flag=True, help="Stop when all records committed so far are in the tables."
)
@click.option("--trigger", default=TRIGGER, show_default=True, help="Least interval of writes to entries.")
@click.option(
    "--events-trigger", default="10 seconds", show_default=True, help="Least interval of writes to events."
)
@click.option(
    "--max-records",
    type=click.IntRange(1),
    default=1_000_000,
    show_default=True,
    help="Records in a micro-batch.",
)
@click.option(
    "--max-records-per-partition",
    type=click.IntRange(1),
    default=100_000,
    show_default=True,
    help="Records in a task, which writes one file.",
)
@click.option(
    "--min-records",
    type=click.IntRange(1),
    default=MIN_RECORDS,
    show_default=True,
    help="A steady trickle of fewer records in a micro-batch waits for more; 1: never.",
)
@click.option(
    "--max-delay", default=MAX_DELAY, show_default=True, help="Longest time that --min-records may take."
)
@click.option(
    "--data-folder",
    multiple=True,
    help="Data folder of a node on this machine; its files are read directly; may be repeated.",
)
@give_up_option(GIVE_UP_S)
@click.option(
    "--cursor-each-s",
    type=Seconds(),
    default=MOVE_EACH_S,
    show_default=True,
    help="Minimum interval between moves of the log's cursor, seconds.",
)
@click.option("--json", is_flag=True, help="Print the progress in JSON, one object per line.")
@click.option(
    "--catalog", metavar="NAME", help="CATALOG or CATALOG.SCHEMA in which the tables get names as well."
)
@click.option(
    "--single-driver",
    is_flag=True,
    help="No other driver writes these tables: start even if their store's commits are not exclusive.",
)
@click.option(
    "--change-data-feed", is_flag=True, help="Record the changes of the rows of `current` (Delta's CDF)."
)
@spark_options
@click.option("--driver-memory", help="Heap of the driver.  [default: 2g]")
@click.option("--progress", type=FILE_PATH, help="JSON file of the progress.  [default: beside the tables]")
def options(**given: Any) -> SimpleNamespace:
    """Materialize logs as Delta tables."""
    return SimpleNamespace(**given)


def parse_arguments(arguments: Sequence[str] | None = None) -> MaterializeConfig:
    """Return the configuration. Ends the process when an option is invalid. Raises ConfigError."""
    given = given_options(options, "spark_jobs.run", arguments)
    settings = settings_of(given)
    return MaterializeConfig(
        endpoint=given.endpoint,
        tables=tables_of(given, settings),
        logs=split_names(given.log or ("default",)),
        token=given.token,
        checkpoints=given.checkpoints or settings.locations.checkpoints,
        available_now=given.available_now,
        trigger=given.trigger,
        events_trigger=given.events_trigger,
        max_records_per_trigger=given.max_records,
        max_records_per_partition=given.max_records_per_partition,
        min_records_per_trigger=given.min_records,
        max_trigger_delay=given.max_delay,
        give_up_s=given.give_up_s,
        cursor_each_s=given.cursor_each_s,
        data_folders=tuple(given.data_folder),
        progress=given.progress,
        as_json=given.json,
        spark=settings,
        catalog=given.catalog,
        single_driver=given.single_driver,
        change_data_feed=given.change_data_feed,
    )


class ProgressLines:
    """Lines of the progress for people. A log appears when it has changed: there may be thousands."""

    def __init__(self) -> None:
        self._last: Mapping[str, LogProgress] = {}

    def __call__(self, progress: Progress) -> None:
        errors = [log.error for log in progress.logs.values()]
        if progress.state == "failed" and (all(errors) or not any(errors)):
            return  # the reason follows on standard error; the logs that did not fail have a last line
        sys.stdout.write(line_of(str(progress.since(self._last)), sys.stdout))
        sys.stdout.flush()
        self._last = progress.logs


def print_progress_json(progress: Progress) -> None:
    sys.stdout.write(json.dumps(progress.to_json()) + "\n")
    sys.stdout.flush()


def exit_code(error: Exception) -> int:
    """Return the exit code: 2 usage, 4 no such log, 5 no answer, else 1 (docs/api.md §7)."""
    reason = error.__cause__ if isinstance(error, MaterializeFailed) and error.__cause__ else error
    own = own_error(reason)
    kind = SourceError if own is None else own[0]
    if isinstance(reason, ConfigError) or issubclass(kind, OptionError):
        return 2
    if isinstance(reason, RequestRefused) and reason.status == 404:
        return 4
    return 5 if issubclass(kind, Unreachable) else 1


def main(arguments: list[str] | None = None) -> int:
    """Run `materialize` until SIGTERM or SIGINT, and print its progress. Return the exit code.

    With --available-now, a signal before the end is not a success.
    """
    stop = threading.Event()
    signals: list[int] = []
    config: MaterializeConfig | None = None
    try:
        config = parse_arguments(arguments)
        report = print_progress_json if config.as_json else ProgressLines()
        started = partial(finish_at_signals, stop, signals.append)
        with waits_reported(as_json=config.as_json):
            last = materialize(config, stop=stop, report=report, started=started)
    except FAILURES as error:
        code = exit_code(error)
        as_json = config.as_json if config else "--json" in (arguments or sys.argv)
        write_failure(error, code, as_json=as_json)
        return code
    if config.available_now and last.state == "stopped" and signals:
        return INTERRUPTED[signals[0]]
    return STOPPED


if __name__ == "__main__":
    from spark_jobs.run import main as run_main  # other processes unpickle objects under this module name

    sys.exit(run_main())
