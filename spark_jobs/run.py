"""Process that materializes logs as Delta tables: `python -m spark_jobs.run --endpoint URL --tables DIR`.

A log has two streaming queries, one for `entries` and one for the journals; the small epoch tables are
updated in between. The tables themselves record their progress (entries.py, events.py), so each start of a
query (the first, after a kill, or after a failure) begins there with a new Spark checkpoint, and the loss of
a checkpoint needs no special treatment.
"""

import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from pyspark.sql import SparkSession

from app.client import CommitlogClient
from app.errors import ConfigError
from spark_jobs.errors import LogTrimmed, OptionError, RequestRefused, SourceError, Unreachable, own_error
from spark_jobs.materialize.entries import EntriesJob
from spark_jobs.materialize.epochs import EpochsJob
from spark_jobs.materialize.events import EventsJob
from spark_jobs.materialize.groups import FAILURES as GROUP_FAILURES
from spark_jobs.materialize.groups import Groups, split_names
from spark_jobs.materialize.lease import MOVE_EACH_S, LeasedEntries, MaterializerLease
from spark_jobs.materialize.progress import LogProgress, Progress, ProgressFile
from spark_jobs.materialize.remote import RemoteWrite
from spark_jobs.materialize.supervisor import MAX_FAILURES, Job, MaterializeFailed, Supervisor, reason_of
from spark_jobs.materialize.typed import TypedTables
from spark_jobs.session.jars import JarsUnavailable
from spark_jobs.session.locations import is_url, location
from spark_jobs.session.settings import (
    SparkSettings,
    given_options,
    logs_option,
    settings_of,
    spark_options,
    tables_option,
    token_option,
)
from spark_jobs.session.spark_session import INTERPRETED, JavaNotFound, is_remote, open_session
from spark_jobs.source import CommitlogDataSource
from spark_jobs.source.log_reads import GIVE_UP_S, LogReads
from spark_jobs.source.options import parse_endpoints
from spark_jobs.tables.table import ENTRIES, EPOCH_FILES, EPOCHS, SPARK_ERRORS, Table, table_path

LOOK_EACH_S = 0.25
EPOCHS_EACH_S = 1.0
TABLES_EACH_S = 5.0  # reads their progress, when other processes write them
STATUS_GIVE_UP_S = 1.0
MIN_RECORDS = 100  # of a micro-batch; fewer may wait for more
MAX_DELAY = "5s"
FILE_PATH = click.Path(path_type=Path)
# Plans are created each second over few rows: to change them while they run, to compile them, or to spread a
# table's log over several tasks costs more than it saves (entries.py compiles for many rows).
SETTINGS = {
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    **INTERPRETED,
}
FAILURES = (*GROUP_FAILURES, ConfigError, JarsUnavailable, JavaNotFound)


@dataclass(frozen=True, kw_only=True)
class MaterializeConfig:
    """Logs to materialize, destination and intervals.

    endpoint: base URLs of replicas, comma-separated. tables: folder or URL with one folder per log. logs:
    names, and patterns such as `orders-*`. checkpoints: a scratch folder that driver and executors share,
    None for one beside the tables. available_now: end when everything that was committed at the start is in
    the tables. trigger, events_trigger: Spark intervals. max_records_per_trigger: of one log.
    max_records_per_partition: of one task of a micro-batch, which writes one file.
    min_records_per_trigger, max_trigger_delay: as the options of the source, so that a steady trickle costs
    few commits and files. give_up_s: time for which
    nodes that do not answer are retried; a job that follows then starts again. cursor_each_s: least time
    between two moves of the log's cursor, each a record of the log; with available_now each commit moves it.
    data_folders: of nodes on this machine, read in place. progress: a JSON file kept up to date, None for
    `progress.json` beside the tables. as_json: output format of `main`. spark: where it runs.
    """

    endpoint: str
    tables: Path | str
    logs: tuple[str, ...] = ("default",)
    token: str | None = None
    checkpoints: Path | None = None
    available_now: bool = False
    trigger: str = "1 second"
    events_trigger: str = "10 seconds"
    max_records_per_trigger: int = 1_000_000
    max_records_per_partition: int = 100_000
    min_records_per_trigger: int = MIN_RECORDS
    max_trigger_delay: str = MAX_DELAY
    give_up_s: float = GIVE_UP_S
    cursor_each_s: float = MOVE_EACH_S
    data_folders: tuple[str, ...] = ()
    progress: Path | None = None
    as_json: bool = False
    spark: SparkSettings = field(default_factory=SparkSettings)

    def __post_init__(self) -> None:
        for name in ("checkpoints", "progress"):
            if is_url(self.tables_root) and getattr(self, name) is None:
                raise ConfigError(f"{name}: set a path; it is required if the tables are at a URL")

    @property
    def endpoints(self) -> tuple[str, ...]:
        return parse_endpoints(self.endpoint)

    @property
    def tables_root(self) -> str:
        return location(str(self.tables))

    @property
    def checkpoints_folder(self) -> Path:
        return self.checkpoints or Path(self.tables_root) / "_checkpoints"

    @property
    def progress_file(self) -> Path:
        return self.progress or Path(self.tables_root) / "progress.json"


class LogMaterializer:
    """All tables of one log, and their progress."""

    def __init__(self, spark: SparkSession, config: MaterializeConfig, log: str) -> None:
        def path(table: Table) -> str:
            return table_path(config.tables_root, log, table)

        endpoints = config.endpoints
        options = {"endpoint": config.endpoint, "log": log}
        if config.token is not None:
            options["token"] = config.token
        entries_options = {
            **options,
            "maxRecordsPerTrigger": str(config.max_records_per_trigger),
            "maxRecordsPerPartition": str(config.max_records_per_partition),
            "minRecordsPerTrigger": str(config.min_records_per_trigger),
            "maxTriggerDelay": config.max_trigger_delay,
        }
        if config.data_folders:
            entries_options["dataFolder"] = ",".join(config.data_folders)
        self.log = log
        self.status = LogReads(endpoints, log, config.token, give_up_s=STATUS_GIVE_UP_S)
        client = LogReads(endpoints, log, config.token, give_up_s=config.give_up_s)
        now = config.available_now
        self.typed = TypedTables(spark, client, path, follows=not now)
        self.entries = EntriesJob(
            spark, client, path(ENTRIES), entries_options, follows=not now, followers=(self.typed,)
        )
        # a damaged journal continues after the gap, which is no reason to stop following the log
        events_options = {**options, "failOnDataLoss": "false"}
        journals = LogReads(endpoints, log, config.token, give_up_s=config.give_up_s)
        self.events = EventsJob(spark, journals, path, events_options)
        self.epochs = EpochsJob(spark, self.status, path(EPOCHS), path(EPOCH_FILES))
        checkpoints = config.checkpoints_folder / log
        self.lease = MaterializerLease(CommitlogClient(endpoints, log=log, token=config.token))
        self.leased = LeasedEntries(self.entries, self.lease, 0.0 if now else config.cursor_each_s)
        self.writers: list[Job] = [self.leased, self.events]
        self.remote = is_remote(spark)
        jobs: list[Job] = [self.entries, self.events] if self.remote else self.writers
        self.supervisors = [
            Supervisor(
                job,
                checkpoints,
                None if now else trigger,
                elsewhere=partial(RemoteWrite, partial(make_writer, config, log, job.name))
                if self.remote
                else None,
            )
            for job, trigger in zip(jobs, (config.trigger, config.events_trigger), strict=True)
        ]
        self.committed_index: int | None = None
        self.through_index = -1  # only control records are between the table's end and this index
        self.epochs_at_s = self.tables_at_s = 0.0
        self.epochs_failures = 0

    def start(self) -> None:
        """Start the queries first, so nothing is created for a log that does not exist. Raises
        SourceError."""
        for supervisor in self.supervisors:
            supervisor.ensure_running()
        self.epochs.open()

    def stop(self) -> None:
        for supervisor in self.supervisors:
            supervisor.stop()
        if not self.remote:
            self.leased.finish()

    def poll(self, *, final: bool = False) -> None:
        """Do what is due: restarts, the epoch tables, and the progress."""
        for supervisor in self.supervisors:
            supervisor.ensure_running()
        try:
            self.leased.check()
        except SourceError as error:
            raise MaterializeFailed(f"{self.leased.name}: {error}") from error
        now_s = time.monotonic()
        begun = all(supervisor.done or supervisor.query is not None for supervisor in self.supervisors)
        if self.remote and begun and (final or now_s >= self.tables_at_s):  # other processes write them
            self.tables_at_s = now_s + TABLES_EACH_S
            self.entries.refresh()
            self.events.refresh()
        if final or now_s >= self.epochs_at_s:
            self.epochs_at_s = now_s + EPOCHS_EACH_S
            try:
                self.epochs.refresh()
                self.epochs_failures = 0
                self._measure_lag()
            except Unreachable:
                self.committed_index = None
            except SPARK_ERRORS as error:
                self._epochs_failed(error)

    def _epochs_failed(self, error: Exception) -> None:
        """The next check retries. Raises MaterializeFailed when that does not help."""
        if "DELTA_CONCURRENT" in str(error):
            return  # another driver wrote the same: the next check finds it there
        self.epochs_failures += 1
        reason = reason_of(error)
        if self.epochs_failures > MAX_FAILURES:
            raise MaterializeFailed(f"epochs: {reason}") from error
        sys.stderr.write(f"epochs: {reason}; retrying\n")

    def _measure_lag(self) -> None:
        """Return the end of the log, and whether the table lacks control records alone."""
        covered = self.entries.covered_index
        committed = self.status.tail(confirmed=False).next_index - 1
        self.committed_index = committed
        try:
            if covered < committed and self.status.first_data_index(covered + 1, committed + 1) is None:
                self.through_index = committed
        except LogTrimmed:
            if self.remote:
                self.entries.refresh()
            if self.entries.covered_index == covered:
                raise
            # the table has advanced since, and its rows may be trimmed from the log: the next check decides

    @property
    def done(self) -> bool:
        return all(supervisor.done for supervisor in self.supervisors)

    def progress(self) -> LogProgress:
        return LogProgress(
            entries_rows=self.entries.rows,
            materialized_index=max(self.entries.covered_index, self.through_index),
            committed_index=self.committed_index,
            events_rows=self.events.events.rows,
            watermarks_rows=self.events.watermarks.rows,
            epochs_rows=len(self.epochs.committed),
            restarts=sum(max(0, supervisor.starts - 1) for supervisor in self.supervisors),
            last_batch=self.supervisors[0].last_batch,
        )


def make_writer(config: MaterializeConfig, log: str, name: str, spark: SparkSession) -> Job:
    """Return the writer of the micro-batches of one query, created where it runs (remote.py)."""
    return next(job for job in LogMaterializer(spark, config, log).writers if job.name == name)


def materialize(
    config: MaterializeConfig,
    *,
    stop: threading.Event | None = None,
    report: Callable[[Progress], None] | None = None,
    spark: SparkSession | None = None,
) -> Progress:
    """Keep the tables of `config.logs` up to date until `stop` is set, or, with available_now, to the end.

    report: called with each progress that is written to the file. spark: a session to use and to leave
    running. Raises MaterializeFailed, SourceError (the log clashes with the tables, or could not be reached
    at the start), TableClash, ConfigError, JarsUnavailable, JavaNotFound.
    """
    stop = stop or threading.Event()
    config.progress_file.parent.mkdir(parents=True, exist_ok=True)
    file = ProgressFile(config.progress_file, report)
    own = partial(open_session, "commitlog-materialize", config.spark, SETTINGS)
    with own() if spark is None else nullcontext(spark) as session:
        return _follow(session, config, stop, file)


def _follow(
    spark: SparkSession, config: MaterializeConfig, stop: threading.Event, file: ProgressFile
) -> Progress:
    spark.dataSource.register(CommitlogDataSource)
    client = LogReads(config.endpoints, "", config.token, give_up_s=config.give_up_s)
    logs = Groups(config.logs, partial(LogMaterializer, spark, config), client.log_names)
    state = "failed"
    try:
        logs.start()
        while not stop.is_set():
            logs.poll()
            file.write("running", logs.progress())
            if logs.done:
                break
            stop.wait(LOOK_EACH_S)
        if not stop.is_set():
            logs.poll(final=True)
            logs.finish()
        state = "stopped" if stop.is_set() else "done"
    finally:
        logs.stop()
        client.close()
        last = file.write(state, logs.progress(), force=True)
    return last


@click.command(
    epilog="\b\nExamples:\n"
    "  python -m spark_jobs.run --endpoint http://127.0.0.1:8101 --tables commitlog-data/tables\n"
    "  python -m spark_jobs.run --endpoint URLS --conf conf/spark.toml --log 'orders-*' --available-now"
)
@click.option("--endpoint", required=True, metavar="URLS", help="Base URLs of replicas, comma-separated.")
@tables_option
@logs_option
@token_option
@click.option("--checkpoints", type=FILE_PATH, help="Scratch folder.  [default: beside the tables]")
@click.option(
    "--available-now", is_flag=True, help="Stop when all records committed so far are in the tables."
)
@click.option("--trigger", default="1 second", show_default=True, help="Interval of writes to entries.")
@click.option(
    "--events-trigger", default="10 seconds", show_default=True, help="Interval of writes to events."
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
@click.option(
    "--give-up-s",
    type=click.FloatRange(0),
    default=GIVE_UP_S,
    show_default=True,
    help="Time limit for retries while no node answers, seconds.",
)
@click.option(
    "--cursor-each-s",
    type=click.FloatRange(0),
    default=MOVE_EACH_S,
    show_default=True,
    help="Minimum interval between moves of the log's cursor, seconds.",
)
@click.option("--json", is_flag=True, help="Print the progress in JSON, one object per line.")
@spark_options
@click.option("--driver-memory", help="Heap of the driver.  [default: 2g]")
@click.option("--progress", type=FILE_PATH, help="JSON file of the progress.  [default: beside the tables]")
def options(**given: Any) -> SimpleNamespace:
    """Materialize logs as Delta tables."""
    return SimpleNamespace(**given)


def parse_arguments(arguments: Sequence[str] | None = None) -> MaterializeConfig:
    """Return the configuration. Ends the process when an option is invalid. Raises ConfigError."""
    given: SimpleNamespace = given_options(options, "spark_jobs.run", arguments)
    settings = settings_of(given)
    tables = given.tables or settings.locations.tables
    if tables is None:
        raise ConfigError("set --tables, or locations.tables in the --conf file")
    return MaterializeConfig(
        endpoint=given.endpoint,
        tables=tables,
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
    )


def tell(progress: Progress) -> None:
    sys.stdout.write(f"{progress}\n")
    sys.stdout.flush()


def tell_json(progress: Progress) -> None:
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
    """Run `materialize` until SIGTERM or SIGINT, and print its progress. Return the exit code."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        config = parse_arguments(arguments)
        materialize(config, stop=stop, report=tell_json if config.as_json else tell)
    except FAILURES as error:
        sys.stderr.write(f"{error}\n")
        return exit_code(error)
    return 0


if __name__ == "__main__":
    from spark_jobs.run import main as run_main  # other processes unpickle objects under this module name

    sys.exit(run_main())
