"""The lease of a materializer on its log: the fencing cursor `__entries`.

The cursor is where the table `entries` ends, so neither retention nor `:trim` removes records that the table
lacks. Every move names the version that this job made and the job itself: the job that started last has the
cursor, and a job that finds it moved by another one ends. (Rows are safe without the lease: the table itself
refuses rows that it holds, tables/claims.py.)

A move is a control record of the log. A micro-batch without rows moves nothing, or each move would cause the
next one. There is at most one move every MOVE_EACH_S; for at most that time retention and `:trim` keep rows
that the table has.
"""

import math
import time
from contextlib import suppress
from socket import gethostname
from typing import Final
from uuid import uuid4

from app.client import ClientError, CommitlogClient, ConditionFailed, NotFound
from app.client.operations import Cursor, Operations
from app.tables.names import CURSOR
from spark_jobs.errors import LogClash, SourceError, Unreachable
from spark_jobs.materialize.entries import EntriesJob
from spark_jobs.materialize.query import LogRows
from spark_jobs.source.answers import source_error

MOVE_EACH_S: Final = 10.0


class LeaseLost(SourceError):
    """Another materializer has taken the cursor of the log."""

    condition = "COMMITLOG_LEASE_LOST"
    is_final = True

    def __init__(self, log: str, found: Cursor | None) -> None:
        where = "it was deleted" if found is None else f"it is at index {found.index}"
        if found is not None and found.holder is not None:
            where += f", moved by {found.holder}"
        super().__init__(
            f"log {log!r}: another job has taken over its table (cursor {CURSOR}: {where}). This job stops; "
            "its records are in the table exactly once. Only one materializer of a log may run: stop the "
            "other one before you start this one again."
        )


class MaterializerLease:
    """The cursor of one log, held by one job. `index`: the next one that the table needs, as recorded in
    the log.

    Calls are rare, and a job may hold hundreds of leases: no connection is kept between two of them.
    """

    def __init__(self, client: CommitlogClient) -> None:
        self._log = client.log
        self._client = client
        self._operations = Operations(client)
        self._holder = f"materializer {gethostname()[:100]} {uuid4().hex[:12]}"
        self._held: Cursor | None = None
        self._before: Cursor | None = None  # what the first move of this job replaced

    @property
    def index(self) -> int:
        return -1 if self._held is None else self._held.index

    def take(self, index: int) -> None:
        """Take the cursor at `index`, from any previous holder; later calls check that it is still held. If
        an unclean election has lost all moves of this job, the cursor is as before them, and is taken again.

        Raises LeaseLost, RequestRefused, Unreachable.
        """
        if self._held is not None:
            if self._find() != self._before:
                self.move(index)
                return
            self._held = None
        while self._held is None:
            self._before = found = self._find()
            try:
                self._held = self._put(index, "" if found is None else found.version)
            except ConditionFailed:
                continue  # another job moved it in between: take it from there

    def move(self, index: int) -> None:
        """Record that the table holds every record before `index`. Raises as `take`."""
        assert self._held is not None
        try:
            self._held = self._put(index, self._held.version)
        except ConditionFailed:
            found = self._find()
            if found is None or found.holder != self._holder:
                raise LeaseLost(self._log, found) from None
            self._held = found  # this job moved it, and the answer was lost
            if found.index != index:  # the answer of an earlier move
                self.move(index)

    def _find(self) -> Cursor | None:
        try:
            return self._operations.cursor(CURSOR)
        except NotFound as error:
            if error.code != "cursor-not-found":
                raise source_error(self._log, error) from error
            return None
        except ClientError as error:
            raise source_error(self._log, error) from error

    def _put(self, index: int, if_match: str) -> Cursor:
        try:
            return self._operations.move_cursor(
                CURSOR, index, fence=True, if_match=if_match, holder=self._holder
            )
        except ConditionFailed:
            raise
        except ClientError as error:
            raise source_error(self._log, error) from error
        finally:
            self._client.close()


class LeasedEntries:
    """The job that fills `entries`, and moves the log's cursor after its commits, at most once every
    `each_s`.

    A move is a record of the log, so a steady stream of batches must not cost one each. A step makes a move
    that is due, also without rows. Rows do not depend on it: the table itself refuses rows that it holds.
    """

    name = EntriesJob.name

    def __init__(self, entries: EntriesJob, lease: MaterializerLease, each_s: float = MOVE_EACH_S) -> None:
        """each_s: least time between two moves, 0 for a move after each commit."""
        self.entries = entries
        self.lease = lease
        self._each_s = each_s
        self._due_s = -math.inf  # monotonic

    @property
    def is_large(self) -> bool:
        return self.entries.is_large

    @property
    def done(self) -> bool:
        return self.entries.done

    def open(self) -> None:
        self.entries.open()
        self.lease.take(self.entries.next_index)  # back too: the table may have been made again

    def take(self, delivery: LogRows) -> bool:
        """Write the rows of a micro-batch, and move the cursor if that is due; return whether the table holds
        the rows. Raises as `step`."""
        taken = False
        self.entries.check_log(delivery.log_id)
        try:
            if delivery.batch is not None:
                taken = self.entries.take_large(
                    delivery.batch, delivery.first, delivery.until, delivery.began_s
                )
            elif delivery.rows is not None:
                taken = self.entries.take(delivery.rows, delivery.began_s)
        except LogClash as clash:
            self._open_after(clash)
        if self.move_is_due:
            self._move()
        return taken

    def step(self) -> bool:
        """Write the rows, and move the cursor if that is due. Control records after the last row stay fenced
        too: the next driver begins there, and does not know them.

        Raises LeaseLost; LogClash when the cursor was removed with the records that an unclean election lost.
        """
        had_batch = False
        try:
            had_batch = self.entries.step()
        except LogClash as clash:
            self._open_after(clash)
        if self.move_is_due:
            self._move()
        return had_batch

    def _open_after(self, clash: LogClash) -> None:
        """As `EntriesJob.open_after`. Moves of the cursor may be among the records that were lost."""
        self.entries.open_after(clash)
        self.lease.take(self.entries.next_index)

    @property
    def move_is_due(self) -> bool:
        return self.entries.next_index > self.lease.index and time.monotonic() >= self._due_s

    def finish(self) -> None:
        """Make a postponed move: no more rows follow. On a failure the cursor stays where it is."""
        if self.entries.next_index > self.lease.index >= 0:
            with suppress(SourceError):
                self.lease.move(self.entries.next_index)

    def _move(self) -> None:
        """Move the cursor; if the log cannot take the move now, it is repeated later. Raises as `step`."""
        self._due_s = time.monotonic() + self._each_s
        try:
            self.lease.move(self.entries.next_index)
        except Unreachable:
            self._due_s = time.monotonic() + max(self._each_s, 1.0)
        except LeaseLost:
            self.entries.open()
            raise
