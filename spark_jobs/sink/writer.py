"""Writes to `format("commitlog")`: each row once, by the producer's sequence (docs/api.md §3).

Tasks stage their rows to files. The driver's commit makes the list of those files durable under the batch's
id, then appends them in that order, one append per chunk: sequence = batch id * 2^20 + chunk. A repeated
commit, after a kill at any moment, finds the list, appends what the service does not have yet, and ignores
its new files. So each row becomes exactly one record. A batch is not atomic: readers see it chunk by chunk.
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from app.client import ClientError, CommitlogClient, Problem
from spark_jobs.errors import SinkClash, SinkError
from spark_jobs.sink.options import SinkOptions
from spark_jobs.sink.staging import CHUNK_BYTES, AppendSizeLimits, StagedFile, StagedList, Staging
from spark_jobs.source.log_reads import GIVE_UP_S, LogReads

CHUNKS_A_BATCH = 2**20
MAX_STEPS_BACK = 20  # of one commit, each after a leader was lost with an unacknowledged append
BATCH_ID_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True)
class ServiceLimits:
    """appends: limits of one. remembered_ms: time for which the service remembers a silent producer."""

    appends: AppendSizeLimits
    remembered_ms: int


def service_limits(options: SinkOptions) -> ServiceLimits:
    """Get the limits, which also shows whether the service is running and has the log. Raises Unreachable,
    Refused."""
    with closing(LogReads(options.endpoints, options.log, options.token)) as client:
        client.log_id()
        limits = client.limits()
    return ServiceLimits(
        AppendSizeLimits(
            record_bytes=limits["max_record_bytes"],
            chunk_bytes=max(limits["max_record_bytes"], min(CHUNK_BYTES, limits["max_request_bytes"])),
            chunk_records=limits["max_request_records"],
        ),
        limits["idempotency_ms"],
    )


class Delivery:
    """Appends one batch's list to the log, exactly once."""

    def __init__(
        self, options: SinkOptions, staging: Staging, client: CommitlogClient, remembered_ms: int
    ) -> None:
        self.options = options
        self.staging = staging
        self.client = client
        self.remembered_ms = remembered_ms

    def run(self, batch_id: int, files: Sequence[StagedFile]) -> StagedList:
        """Return the list that is in the log now: that of `files`, or an earlier one of the batch.

        Raises SinkClash, also on a repeat, SinkError; a repeat continues where this call ended.
        """
        found, own = self.staging.find(batch_id), False
        if found is None:
            begin = int(self.client.tail()["committed_index"]) + 1
            staged = StagedList(tuple(files), begin, self.options.query)
            found, own = self.staging.publish(batch_id, staged)
        if found.query != self.options.query:
            raise self._clash(batch_id)
        if found.done:
            return found
        if found.chunks > CHUNKS_A_BATCH:
            raise SinkError(f"a batch may have at most {CHUNKS_A_BATCH} appends, got {found.chunks}")
        if not own:
            self._check_remembered(batch_id)
        self._append(batch_id, found)
        self.staging.finish(batch_id, found)
        return found

    def _append(self, batch_id: int, staged: StagedList) -> None:
        """Append what the log lacks.

        If the service has more chunks than this call has appended, it answers with the sequence that it
        expects. The append before that may not be committed yet, and may be lost with its leader: so it is
        sent again, which waits for its outcome, before the next one. All before it are committed: each was,
        before the next was sent.
        """
        first = batch_id * CHUNKS_A_BATCH
        due = first
        steps_back = 0
        while (following := self._append_from(due, first, staged)) is not None:
            steps_back += following <= due
            if steps_back > MAX_STEPS_BACK:
                raise SinkError(
                    f"batch {batch_id}: an append was lost {steps_back} times; check the nodes of the log"
                )
            due = following

    def _append_from(self, due: int, first: int, staged: StagedList) -> int | None:
        """Append the chunks from sequence `due` on; return the sequence to continue at instead, None when
        all are in."""
        batch_id = first // CHUNKS_A_BATCH
        stored = "nothing"
        for sequence, chunk in enumerate(self.staging.chunks(staged), first):
            if sequence < due:
                continue
            try:
                answer = self.client.append_arrow(
                    chunk,
                    producer_id=self.options.producer_id,
                    producer_epoch=self.options.producer_epoch,
                    producer_sequence=sequence,
                    producer_allow_gap=sequence == first,
                )
            except ClientError as error:
                expected = expected_sequence(error)
                if expected is None:
                    raise self._failed(batch_id, sequence - first, staged, stored, error) from error
                if expected > first + staged.chunks:
                    known = self.staging.find(batch_id)
                    if known is not None and not known.done:
                        raise self._clash(batch_id) from error
                    return None  # another driver has finished it, and started a later one
                return expected - 1
            if answer.first_index < staged.begin:
                raise self._clash(batch_id)
            stored = f"rows up to index {answer.last_index}"
            os.utime(self.staging.list_path(batch_id))
        return None

    def _clash(self, batch_id: int) -> SinkClash:
        return SinkClash(self.options.log, self.options.producer_id, batch_id)

    def _failed(
        self, batch_id: int, chunk: int, staged: StagedList, stored: str, error: ClientError
    ) -> SinkError:
        remedy = "write it again: what is stored is not stored twice"
        if not self.options.repeatable:
            remedy = "a repeat would store them again; name a producerId to be able to repeat a write"
        return SinkError(
            f"log {self.options.log!r}: batch {batch_id} stopped at append {chunk + 1} of {staged.chunks}: "
            f"{error}. This time it stored {stored}; {remedy}"
        )

    def _check_remembered(self, batch_id: int) -> None:
        """Raise SinkError when the service may have forgotten its part of a list that was begun, or the clock
        of this machine or of the storage is wrong by as much: the age is then not known."""
        path = self.staging.list_path(batch_id)
        silent_ms = (time.time() - path.stat().st_mtime) * 1_000
        if abs(silent_ms) > self.remembered_ms / 2:
            hours, remembered_hours = silent_ms / 3_600_000, self.remembered_ms / 3_600_000
            raise SinkError(
                f"batch {batch_id} was begun {hours:.1f} hours ago by the clock of this machine, and the "
                f"service remembers a silent producer for {remembered_hours:.1f}: a repeat might store rows "
                f"twice. Look in the log for the rows of the files that {path} lists; take the files whose "
                "rows are there off the list, and touch it"
            )


def expected_sequence(error: ClientError) -> int | None:
    """Return the sequence that the service expects next, None when the error is about something else."""
    if isinstance(error, Problem) and error.code == "sequence-gap":
        return int(error.document["expected_sequence"])
    return None


class SinkTask:
    """Common part of the writers: of a task, wherever it runs, and of the driver."""

    def __init__(self, options: SinkOptions) -> None:
        self.options = options
        self.limits = service_limits(options)
        self.identity = self.staging.identify()

    @property
    def staging(self) -> Staging:
        return Staging(self.options.staging)

    def stage(self, batch_id: int, rows: Iterator[pa.RecordBatch]) -> StagedFile:
        """Stage a task's part where the driver finds it. Raises SinkError."""
        self.staging.check(self.identity)
        return self.staging.stage(batch_id, rows, self.limits.appends)

    def open_client(self) -> CommitlogClient:
        options = self.options
        return CommitlogClient(options.endpoints, log=options.log, token=options.token, give_up_s=GIVE_UP_S)

    def deliver(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """The driver's commit. Raises SinkClash, SinkError."""
        with self.open_client() as client:
            delivery = Delivery(self.options, self.staging, client, self.limits.remembered_ms)
            delivery.run(batch_id, staged_files(messages))

    def give_up(self, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
        """The driver's abort: files of a list stay, for the repeat."""
        found = self.staging.find(batch_id)
        kept = {file.path for file in found.files} if found is not None else set()
        self.staging.remove(file for file in staged_files(messages) if file.path not in kept)


def staged_files(messages: Sequence[WriterCommitMessage | None]) -> list[StagedFile]:
    """Return the files of the tasks, in their order; a task without rows has none."""
    return [message for message in messages if isinstance(message, StagedFile) and message.chunks]


class CommitlogWriter(SinkTask, DataSourceArrowWriter):
    """`df.write`: one batch, under a new name or the one in the options."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.stage(self.options.batch_id, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.deliver(messages, self.options.batch_id)
        self.staging.discard(self.options.batch_id)
        self._tidy()

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.give_up(messages, self.options.batch_id)
        self._tidy()

    def _tidy(self) -> None:
        """A write without a name cannot be repeated: nothing of it needs to stay."""
        if not self.options.repeatable:
            self.staging.remove_all()


class CommitlogStreamWriter(SinkTask, DataSourceStreamArrowWriter):
    """`writeStream`: one batch per micro-batch, under the id of the query."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        batch_id = None if context is None else context.getLocalProperty(BATCH_ID_PROPERTY)
        if batch_id is None:
            raise SinkError(
                f"this version of Spark does not pass the micro-batch to its tasks ({BATCH_ID_PROPERTY})"
            )
        return self.stage(int(batch_id), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.deliver(messages, batchId)
        self.staging.discard_until(batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self.give_up(messages, batchId)
