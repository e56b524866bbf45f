"""All tables of one log: which of its jobs is due, and their progress."""

import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from app.client import CommitlogClient
from app.client.connection import ClusterConnection
from spark_jobs.errors import LogTrimmed, SourceError, Unreachable, is_disk_full
from spark_jobs.job_lines import warn
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.entries import SMALL_BATCH_BYTES, SMALL_BATCH_RECORDS, EntriesJob
from spark_jobs.materialize.epochs import EpochClash, EpochsJob
from spark_jobs.materialize.events import EventsJob
from spark_jobs.materialize.journal_poller import JournalPoller
from spark_jobs.materialize.lease import LeasedEntries, MaterializerLease
from spark_jobs.materialize.progress import LogProgress
from spark_jobs.materialize.query import LogRows, RecordsQuery
from spark_jobs.materialize.supervisor import MAX_FAILURES, Supervisor, failure_of, reason_of
from spark_jobs.materialize.typed import TypedTables
from spark_jobs.materialize.workers import Kind, Workers
from spark_jobs.source.ends_poller import LogEndsPoller
from spark_jobs.source.log_reads import LogReads
from spark_jobs.source.options import JOINS_AGAIN
from spark_jobs.source.planning import SmallBatchPace
from spark_jobs.tables.conflicts import is_conflict
from spark_jobs.tables.table import ENTRIES, EPOCH_FILES, EPOCHS, Table, table_path

EPOCHS_EACH_S = 1.0  # least time between two refreshes of a log's epochs while they change
EPOCHS_SHARE_S = 0.05  # that time grows by this for each log of the job
EPOCHS_RETRY_S = 15.0  # longest pause while a node does not answer
EPOCHS_IDLE_S = 60.0  # without a change, for each 50 logs
PROBE_EACH_S = 5.0  # a log of which no node reports an end
IDLE_STEP_EACH_S = 30.0  # a check of an idle log's tables for RESTORE and removal, for each 50 logs
BEHIND_AFTER_S = 10.0  # beyond the longest delay: the query does not bring what a log has
FORGET_S = 3.0  # an answer of a node older than this does not count as knowledge of the log's end


@dataclass(frozen=True, kw_only=True)
class SharedParts:
    """Parts that all logs of a job share.

    query: brings the new records of all logs, None where the job of each log reads its own: with
    available_now, and over Spark Connect.
    patient, quick: connections to the endpoints, with the time limit of the configuration and with a short
    one.
    """

    config: MaterializeConfig
    spark: SparkSession
    workers: Workers
    ends_poller: LogEndsPoller
    journals: JournalPoller
    query: RecordsQuery | None
    patient: ClusterConnection
    quick: ClusterConnection


class LogMaterializer:
    """The jobs of one log. All methods are called by one thread; the jobs run in those of the workers."""

    def __init__(self, shared: SharedParts, log: str) -> None:
        def path(table: Table) -> str:
            return table_path(config.tables_root, log, table)

        def client(connection: ClusterConnection) -> LogReads:
            return LogReads(config.endpoints, log, config.token, connection=connection)

        config, spark = shared.config, shared.spark
        follows = not config.available_now
        self.log = log
        self.config = config
        self._ends_poller, self._journals, self._workers = shared.ends_poller, shared.journals, shared.workers
        self._query = shared.query
        self._waiting_since_s: float | None = None
        self._status = client(shared.quick)
        records = client(shared.patient)
        self.typed = TypedTables(
            spark, records, path, follows=follows, change_data_feed=config.change_data_feed
        )
        self.entries = EntriesJob(
            spark,
            records,
            path(ENTRIES),
            entries_options(config, log),
            follows=follows,
            dependents=(self.typed,),
        )
        self.events = EventsJob(
            spark,
            client(shared.patient),
            path,
            {**source_options(config, log), "failOnDataLoss": "false"},
            follows=follows,
        )
        self.epochs = EpochsJob(spark, client(shared.quick), path(EPOCHS), path(EPOCH_FILES))
        lease = MaterializerLease(CommitlogClient(config.endpoints, log=log, token=config.token))
        self.leased = LeasedEntries(self.entries, lease, config.cursor_each_s if follows else 0.0)
        self._records = Supervisor(
            self.leased,
            shared.workers,
            log=log,
            follows=follows,
            check=partial(client(shared.quick).tail, confirmed=True),
        )
        self._journal = Supervisor(
            self.events, shared.workers, log=log, follows=follows, kind=Kind.BACKGROUND
        )
        self._pace = SmallBatchPace(config.min_records_per_trigger, config.max_delay_s)
        self.committed_index: int | None = None
        self.through_index = -1  # only control records are between the table's end and this index
        self._epochs_refresh: Future[bool] | None = None  # in progress
        self._epochs_refreshed_at_s = float("-inf")
        self._epochs_refreshed_for: int | None = None  # the term before that, as reported
        self._term: int | None = None  # as reported last
        self._incomplete = 0  # consecutive refreshes that did not get the epochs of all nodes
        self._epochs_failures = 0

    def start(self) -> None:
        """Open the job of the records; nothing is created for a log that does not exist. The others open in
        the background. Raises SourceError."""
        self._records.open()

    def take(self, delivery: LogRows) -> None:
        """Write the rows of a micro-batch of the query, in the thread of the caller. Raises nothing."""
        self._records.deliver(lambda: self.leased.take(delivery))

    def stop(self) -> None:
        """Make the last move of the cursor, once no step runs any more."""
        if not self._records.is_running:
            self.leased.finish()

    def poll(self, *, final: bool = False, logs: int = 1) -> None:
        """Begin what is due. final: all records are in the tables; do what is left. logs: number of logs of
        the job. Raises MaterializeFailed, SourceError."""
        now_s = time.monotonic()
        ends = self._ends_poller.ends(self.log, now_s - FORGET_S)
        self.committed_index = None if ends is None else max(ends.next_index - 1, self.entries.covered_index)
        self._records.ensure_running(
            due=self._records_are_due(now_s) or self._is_idle(now_s, logs),
            answers=ends is not None,
        )
        journals = self._journals.of(self.log)
        is_time = now_s >= self._journal.begun_at_s + self.config.events_trigger_s
        self._journal.ensure_running(
            due=self.config.available_now
            or (is_time and not self._journal.is_running and self.events.has_new_events(journals))
        )
        self._term = self._term if ends is None else ends.term
        self._poll_epochs(now_s, self._term, logs)
        if final:
            self._finish()

    def _records_are_due(self, now_s: float) -> bool:
        supervisor, job = self._records, self.entries
        is_time = job.has_more or now_s >= supervisor.begun_at_s + self.config.trigger_s
        if self.config.available_now:
            return True
        if supervisor.is_running or not is_time:
            return False
        if self.leased.move_is_due:
            return True
        query = self._query
        ends = self._ends_poller.ends(self.log, supervisor.ended_at_s)
        if query is not None and query.passed(self.log) > job.read_until:
            # the table lacks records that the query has passed, unless an unclean election has lost them
            return ends is None or ends.next_index != job.read_until
        if ends is None:
            return now_s >= supervisor.ended_at_s + PROBE_EACH_S
        if ends.log_id != job.offset.log_id or ends.next_index < job.read_until:
            return True  # another log, or a shorter one: the step finds out
        job.waiting = ends.next_index - job.read_until
        if query is not None and query.delivers:
            return self._is_behind(now_s)
        return job.waiting > 0 and self._pace.takes(job.waiting, now_s)

    def _is_idle(self, now_s: float, logs: int) -> bool:
        """Return whether the log has had no step for a while. A step notices that `entries` was removed,
        and moves the cursor back before the records are trimmed, and repairs the typed tables."""
        return now_s >= self._records.ended_at_s + max(1, logs // 50) * IDLE_STEP_EACH_S

    def _is_behind(self, now_s: float) -> bool:
        """Return whether records have waited for the query for too long: it left the log out."""
        if self.entries.waiting <= 0 or self._waiting_since_s is None:
            self._waiting_since_s = now_s
        since_s = max(self._waiting_since_s, self._records.ended_at_s)
        return now_s >= since_s + self.config.max_delay_s + BEHIND_AFTER_S

    def _poll_epochs(self, now_s: float, reported: int | None, logs: int) -> None:
        """Note how the last refresh of the epochs has ended, and begin the next one if it is due."""
        if self._epochs_refresh is not None:
            if not self._epochs_refresh.done():
                return
            refresh, self._epochs_refresh = self._epochs_refresh, None
            if not refresh.cancelled():
                self._note_refresh(refresh.exception())
                # incomplete: a node did not answer, or its last epoch is not committed yet
                is_complete = refresh.exception() is None and refresh.result()
                self._incomplete = 0 if is_complete else self._incomplete + 1
        least_s = max(EPOCHS_EACH_S, EPOCHS_SHARE_S * logs)
        if reported != self._epochs_refreshed_for:
            each_s = least_s
        elif self._incomplete:
            each_s = max(least_s, min(1.0 * self._incomplete, EPOCHS_RETRY_S))
        else:
            each_s = max(1, logs // 50) * EPOCHS_IDLE_S
        if now_s >= self._epochs_refreshed_at_s + each_s and not self._workers.stopping.is_set():
            self._epochs_refreshed_at_s, self._epochs_refreshed_for = now_s, reported
            self._epochs_refresh = self._workers.submit(self.epochs.refresh, Kind.BACKGROUND)

    def _note_refresh(self, error: BaseException | None) -> None:
        """The next refresh repeats a failed one. Raises MaterializeFailed when that does not help, and
        SourceError."""
        if error is None:
            self._epochs_failures = 0
            return
        if isinstance(error, Unreachable):
            return
        is_final = isinstance(error, SourceError) and not isinstance(error, EpochClash)
        if is_final or not isinstance(error, Exception):
            raise error
        if is_conflict(error):
            return  # another driver wrote the same: the next refresh finds it there
        self._epochs_failures += 1
        if self._epochs_failures > MAX_FAILURES:
            if is_disk_full(error) and not self.config.available_now:
                return  # it was reported
            raise failure_of("epochs", error) from error
        warn(f"epochs: {reason_of(error)}; retrying")

    def _finish(self) -> None:
        """Write the last changes of the epochs, and learn what the table lacks."""
        if self._epochs_refresh is not None:
            refresh, self._epochs_refresh = self._epochs_refresh, None
            self._note_refresh(refresh.exception())
        for attempt in range(MAX_FAILURES + 1):
            if attempt > 0:
                time.sleep(EPOCHS_EACH_S)
            error: BaseException | None = None
            try:
                self.epochs.refresh()
                self._measure_lag()
            except Exception as failure:
                error = failure
            self._note_refresh(error)
            if error is None or isinstance(error, Unreachable):
                break

    def _measure_lag(self) -> None:
        """Learn the end of the log, and whether the table lacks control records alone."""
        covered = self.entries.covered_index
        committed = self._status.tail(confirmed=False).next_index - 1
        self.committed_index = committed
        try:
            if covered < committed and self._status.first_data_index(covered + 1, committed + 1) is None:
                self.through_index = committed
        except LogTrimmed:
            self.entries.refresh()  # another driver may have written them
            if self.entries.covered_index == covered:
                raise

    @property
    def read_until(self) -> int:
        return self.entries.read_until

    @property
    def done(self) -> bool:
        return self._records.done and self._journal.done

    def progress(self) -> LogProgress:
        return LogProgress(
            entries_rows=self.entries.rows,
            materialized_index=max(self.entries.covered_index, self.through_index),
            committed_index=self.committed_index,
            events_rows=self.events.events.rows,
            watermarks_rows=self.events.watermarks.rows,
            epochs_rows=len(self.epochs.committed),
            restarts=sum(max(0, supervisor.starts - 1) for supervisor in (self._records, self._journal)),
            last_batch=self.entries.last_batch,
            typed=self.typed.progress(),
        )


def source_options(config: MaterializeConfig, log: str) -> dict[str, str]:
    options = {"endpoint": config.endpoint, "log": log}
    return options if config.token is None else {**options, "token": config.token}


def entries_options(config: MaterializeConfig, log: str) -> Mapping[str, str]:
    options: dict[str, Any] = {
        **source_options(config, log),
        "maxRecordsPerTrigger": str(config.max_records_per_trigger),
        "maxRecordsPerPartition": str(config.max_records_per_partition),
    }
    if config.data_folders:
        options["dataFolder"] = ",".join(config.data_folders)
    return options


def query_options(config: MaterializeConfig) -> dict[str, str]:
    """Return the options of the query that reads all logs. The driver takes small micro-batches in memory."""
    options = {
        "endpoint": config.endpoint,
        "logs": ",".join(config.logs),
        "maxRecordsPerTrigger": str(config.max_records_per_trigger),
        "maxRecordsPerPartition": str(config.max_records_per_partition),
        "maxBytesPerTrigger": str(SMALL_BATCH_BYTES),
        "backlogRecords": str(SMALL_BATCH_RECORDS),
        "minRecordsPerTrigger": str(config.min_records_per_trigger),
        "maxTriggerDelay": config.max_trigger_delay,
        JOINS_AGAIN: "true",
    }
    if config.token is not None:
        options["token"] = config.token
    if config.data_folders:
        options["dataFolder"] = ",".join(config.data_folders)
    return options
