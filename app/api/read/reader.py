"""Reads of one log at this node: their visible end, their start, and their waiting."""

import asyncio
from dataclasses import dataclass
from typing import Final

from app.api.http.log_call import LogCall, Served
from app.api.read.query import ReadQuery, StartPosition
from app.api.read.selection import SCAN_MAX_BYTES, Consistency, RecordPage, Selection, select, window_of_last
from app.errors import (
    CursorNotFound,
    IndexOutOfRange,
    IndexTrimmed,
    NotYetReplicated,
    ReadIndexUnavailable,
    Repairing,
)
from app.node.hosted_log import HostedLog
from storage.errors import CorruptLog, DiskError
from storage.format.batch import Batch
from storage.units import KIB

_IN_PLACE_BYTES: Final = 128 * KIB  # larger reads and selections run in a thread
_CHUNK_MIN_BYTES: Final = 64 * KIB
_TRUNCATION_S: Final = 1.0  # a disk that takes longer hangs
_POLL_S: Final = 0.05  # neither uncommitted records nor the knowledge of other nodes wake a waiting read
DEFAULT_MIN_INDEX_WAIT_MS: Final = 5_000


@dataclass(slots=True)
class Range:
    """The range from start_index to the visible end, or to `until_index`.

    from_timestamp_ms: the range begins at its first record at or after that time, from start_index on; None
    once it is known.
    until_timestamp_ms: also ends the range, at its first record at or after that time; None once it is known.
    counted_to: the start was counted back from this index (`last`): the first page ends there, or it would
    hold more records than requested when appends arrive meanwhile.
    """

    start_index: int
    until_index: int | None  # exclusive
    until_timestamp_ms: int | None = None
    counted_to: int | None = None
    from_timestamp_ms: int | None = None

    def is_over(self, next_index: int) -> bool:
        """Return whether the range, as far as its end is known, ends before `next_index`."""
        return self.until_index is not None and next_index >= self.until_index

    def last_index(self, visible_end: int) -> int:
        return visible_end if self.until_index is None else min(visible_end, self.until_index - 1)

    def page_end(self, visible_end: int) -> int:
        """Return the last index of the next page."""
        end = self.last_index(visible_end)
        return end if self.counted_to is None else min(end, self.counted_to)


@dataclass(frozen=True, slots=True)
class LogHead:
    """State of a log that an answer reports. visible_end: the last index that the request may see."""

    begin_index: int
    end_index: int
    committed_index: int
    term: int
    visible_end: int


class Reader:
    """One log, one request. `visible_end` is the last index that the request may see.

    A replica that is ahead of its leader shows a linearizable read no more than the leader permitted: the
    next reader, elsewhere, would not see it (R-08).
    """

    def __init__(self, here: Served, consistency: Consistency) -> None:
        self.here = here
        self.broker = here.broker
        self.hosted = here.hosted
        self.driver = here.driver
        self.log = here.driver.log
        self.consistency = consistency
        self._given: int | None = None  # by the leader, where that limits what may be seen

    @property
    def visible_end(self) -> int:
        if self.consistency is Consistency.LOCAL:
            return self.log.end_index
        return self.committed_index

    @property
    def committed_index(self) -> int:
        """The committed index that this request may report."""
        committed = self.driver.committed_index
        return committed if self._given is None else min(committed, self._given)

    @property
    def is_limited(self) -> bool:
        """True if the leader limits what the request may see, because this replica may be ahead of it."""
        return self._given is not None

    @property
    def lacks_state(self) -> bool:
        """True if this replica has not yet received the state of the log (cursors, schemas) at the visible
        end."""
        return self.driver.state.applied_index < self.visible_end

    def head(self) -> LogHead:
        """Return the log as it is now."""
        log = self.log
        return LogHead(
            log.begin_index, log.end_index, self.committed_index, self.driver.term, self.visible_end
        )

    @property
    def knows_cursors(self) -> bool:
        """True if the cursors here are those at the visible end. A replica that is ahead of its leader may
        know later ones, which the next reader, elsewhere, would not see."""
        return not self.lacks_state and self.visible_end >= self.driver.committed_index

    def lacks(self, from_index: int | None) -> bool:
        """Return whether this copy lacks records from there on that were not trimmed, and that another
        replica can show: the request is not about this very copy."""
        if from_index is None or from_index >= self.log.first_index or self.consistency is Consistency.LOCAL:
            return False
        return self.driver.lacks_records and not self.hosted.leads

    async def confirm(self) -> None:
        """Wait, in a linearizable read, until this node has what was committed at the call (R-08).

        Raises ReadIndexUnavailable, Repairing.
        """
        if self.consistency is Consistency.LINEARIZABLE:
            index = await self.broker.waits.read_index(self.hosted)
            self.check_served()
            if self.driver.runs_ahead:
                self._given = index

    async def reach(self, min_index: int | None, wait_ms: int = DEFAULT_MIN_INDEX_WAIT_MS) -> None:
        """Commitlog-Min-Index: wait until this node has it, otherwise raise NotYetReplicated."""
        if min_index is not None and not await self.grown(min_index, wait_ms / 1000):
            raise NotYetReplicated(self.visible_end + 1, min_index, wait_ms)

    async def grown(self, index: int, timeout_s: float) -> bool:
        """Wait until `index` may be seen, at most for the time limit; return whether it may."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        if self.consistency is not Consistency.LOCAL:
            grown = await self.broker.waits.committed(self.hosted, index, timeout_s)
            self.check_served()
            if self._given is None or not grown:
                return grown
            await self.confirm()
        while self.visible_end < index and not self.broker.waits.stopping:
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                break
            await self.broker.waits.pause(min(left_s, _POLL_S))
            self.check_served()
            await self.confirm()
        return self.visible_end >= index

    def check_served(self) -> None:
        """Raise Repairing or LogDeleting when the log was found damaged or deleted since this read began."""
        if self.hosted.driver is not self.driver:
            raise self.hosted.interrupted

    # --- where a read starts and ends ---------------------------------------------------------------------

    async def range_of(self, query: ReadQuery, last_event_id: int | None = None) -> Range:
        """Resolve the start and the end of a query.

        Raises IndexTrimmed, IndexOutOfRange, CursorNotFound, Repairing.
        """
        await self._undisturbed()
        end = self.visible_end
        counted_to = from_timestamp_ms = None
        if last_event_id is not None:
            start = self._checked(last_event_id + 1, end)
        elif query.from_index is not None:
            start = self._checked(query.from_index, end)
        elif query.from_timestamp is not None:
            start, from_timestamp_ms = self._begin(), query.from_timestamp
        elif query.last is not None:
            start = await self._last(query.last, end)
            counted_to = end if start <= end else None
        elif query.cursor is not None:
            state = self.driver.state
            local = self.consistency is Consistency.LOCAL
            cursor = state.cursors.get(query.cursor) if local else state.committed_cursor(query.cursor)
            if cursor is None:
                raise CursorNotFound(query.cursor)
            start = self._checked(cursor.position, end)
        elif query.from_ is StartPosition.LATEST:
            start = self.committed_index + 1
        else:
            start = self._begin()
        range_ = Range(start, query.until_index, query.until_timestamp, counted_to, from_timestamp_ms)
        await self.bound(range_)
        return range_

    async def bound(self, range_: Range) -> None:
        """Find the records that begin and end the range by their timestamps, if they have arrived by now.

        An uncommitted record ends only the range of a local read: another one may take its place. Raises
        Repairing.
        """
        if range_.from_timestamp_ms is not None:
            await self._undisturbed()
            self._find_start(range_, range_.from_timestamp_ms)
            if range_.from_timestamp_ms is not None:
                return
        if range_.until_timestamp_ms is not None:
            await self._undisturbed()
            local = self.consistency is Consistency.LOCAL
            end = self.log.end_index if local else self.driver.committed_index
            found = self.log.first_index_at_or_after(range_.until_timestamp_ms, range_.start_index)
            if found is not None and found <= end:
                until = range_.until_index
                range_.until_index = found if until is None else min(until, found)
                range_.until_timestamp_ms = None

    def _find_start(self, range_: Range, timestamp_ms: int) -> None:
        end = self.visible_end
        found = self.log.first_index_at_or_after(timestamp_ms, range_.start_index)
        if found is not None and found <= end:
            range_.start_index, range_.from_timestamp_ms = found, None
        else:
            range_.start_index = max(range_.start_index, end + 1)

    async def started(self, range_: Range, timeout_s: float) -> bool:
        """Wait until the record that begins the range by its timestamp has arrived, at most for the time
        limit; return whether it has. Raises Repairing."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while range_.from_timestamp_ms is not None:
            left_s = deadline - loop.time()
            if left_s <= 0 or not await self.grown(range_.start_index, left_s):
                return False
            await self.bound(range_)
        return True

    def check_index(self, index: int) -> None:
        """Raise IndexTrimmed or IndexOutOfRange for an index that the request may not see."""
        end = self.visible_end
        if index > end:
            raise IndexOutOfRange(index, end + 1)
        self._check_begin(index)

    def _check_begin(self, index: int) -> None:
        """Raise IndexTrimmed before the beginning, which after a reset is beyond committed indexes; Repairing
        if this copy has begun there since the read began, and the records are not trimmed."""
        if self.lacks(index):
            raise Repairing()
        if index < self.log.first_index:
            raise IndexTrimmed(self.log.first_index)

    def _begin(self) -> int:
        """Return the index of the first record that was not trimmed. Raises Repairing if this copy has begun
        after it since the read began."""
        if self.lacks(0):
            raise Repairing()
        return self.log.first_index

    def _checked(self, index: int, end: int) -> int:
        self._check_begin(index)
        if index > end + 1 and self.consistency is not Consistency.COMMITTED:
            raise IndexOutOfRange(index, end + 1)
        return index

    async def _last(self, wanted: int, end: int) -> int:
        log, start = self.log, end + 1
        self._begin()
        while wanted > 0 and log.first_index < start <= log.next_index:
            start, wanted = window_of_last(log, start - 1, wanted)
            await asyncio.sleep(0)  # counting back far must not block replication
            await self._undisturbed()
        return start

    # --- reading ------------------------------------------------------------------------------------------

    async def page(self, range_: Range, wanted: Selection, wait_ms: int) -> RecordPage:
        """Return the selected records of the range; without any, wait for the first one, up to wait_ms."""
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        page = RecordPage(range_.start_index)
        while True:
            await self.fill(page, range_, wanted)
            range_.counted_to = None
            if page.count or self.has_more(page, range_):
                return page
            if not await self._grows(range_, page.next_index, deadline):
                return page

    async def reached(self, range_: Range, wait_ms: int) -> bool:
        """Wait until the first record of the range may be seen, up to wait_ms; return whether it may.

        Reads no record. Raises Repairing.
        """
        deadline = asyncio.get_running_loop().time() + wait_ms / 1000
        while True:
            await self.bound(range_)
            if range_.start_index <= range_.last_index(self.visible_end):
                return True
            if not await self._grows(range_, range_.start_index, deadline):
                return False

    async def _grows(self, range_: Range, index: int, deadline: float) -> bool:
        """Wait until `index` of the range may be seen; return whether it may, before the range is over."""
        left_s = deadline - asyncio.get_running_loop().time()
        return not range_.is_over(index) and left_s > 0 and await self.grown(index, left_s)

    def has_more(self, page: RecordPage, range_: Range) -> bool:
        return page.next_index <= range_.last_index(self.visible_end)

    async def fill(self, page: RecordPage, range_: Range, wanted: Selection) -> None:
        """Select visible records from page.next_index on, until the page is full or the limit is reached."""
        scanned = in_turn = 0
        while not page.full and scanned < SCAN_MAX_BYTES:
            if in_turn > _IN_PLACE_BYTES:
                in_turn = 0
                await asyncio.sleep(0)  # many small parts must not block replication
            await self.bound(range_)  # by a record that has arrived since the last batches
            end = range_.page_end(self.visible_end)  # uncommitted records may be truncated meanwhile
            if page.next_index > end:
                return
            room = wanted.max_bytes - page.size_bytes
            if page.count and wanted.key is None and self._would_cut(page.next_index, room):
                page.full = True
                return
            batches = await self.raw(page.next_index, end, max(room, _CHUNK_MIN_BYTES))
            size = sum(batch.size_bytes for batch in batches)
            scanned += size
            if size <= _IN_PLACE_BYTES:
                in_turn += size
                select(batches, page, end, wanted)
            else:
                await asyncio.to_thread(select, batches, page, end, wanted)

    def _would_cut(self, index: int, room: int) -> bool:
        """Return whether the page would end within the batch at `index`, and the batch is large: the next
        page would read it again."""
        if not self.log.begin_index <= index <= self.log.end_index:
            return False
        return self.log.entries(index, index)[0].size > max(room, _IN_PLACE_BYTES)

    async def raw(self, from_index: int, end: int, max_bytes: int) -> list[Batch]:
        """Return whole batches from the one that holds from_index; the last one may extend beyond `end`.

        A disk that is slow delays this read, not replication: what may take long is read in a thread. Raises
        IndexTrimmed; Repairing while the leader replaces what this copy held; CorruptLog, DiskError.
        """
        await self._undisturbed()
        self._check_begin(from_index)
        if from_index > self.log.end_index:
            raise Repairing()
        stored = self.log.stored_batches(from_index, max_bytes, end)
        if stored is None:
            return self.log.read_batches(from_index, max_bytes, end)
        if stored.size_bytes <= _IN_PLACE_BYTES:
            return stored.read()
        try:
            return await asyncio.to_thread(stored.read)
        except (CorruptLog, DiskError):
            self.check_served()
            self._check_begin(from_index)  # what was trimmed meanwhile need not be readable
            raise

    async def _undisturbed(self) -> None:
        """Wait while the disk thread truncates or resets the log: a read would see a part of it.

        Raises Repairing when that takes longer than a second, or when the log was found damaged.
        """
        tries = int(_TRUNCATION_S / _POLL_S)
        while self.driver.is_truncating:
            if not tries:
                raise Repairing()
            tries -= 1
            await self.broker.waits.pause(_POLL_S)
        self.check_served()


async def confirmed_reader(
    call: LogCall,
    hosted: HostedLog,
    consistency: Consistency,
    min_index: int | None,
    wait_ms: int = DEFAULT_MIN_INDEX_WAIT_MS,
    *,
    from_index: int | None = None,
) -> Reader:
    """Return a reader of the log at a replica that may answer, after `confirm` and `reach`.

    from_index: the first index that the answer depends on, None if it depends on no record before the
    beginning of a copy. A copy that began with a later one (A-09, H-06) lets another replica answer, unless
    the request is about this very copy.

    Raises what LogCall.replica_of, LogCall.elsewhere, Reader.confirm and Reader.reach raise.
    """
    here = await call.replica_of(hosted, own=consistency is Consistency.LOCAL)
    reader = Reader(here, consistency)
    if reader.lacks(from_index):
        await call.elsewhere(hosted)
    try:
        await reader.confirm()
    except ReadIndexUnavailable:
        if not hosted.removed:
            raise
        await call.elsewhere(hosted)  # this node has just learnt that it is no member
    await reader.reach(min_index, wait_ms)
    if reader.lacks(from_index):  # an empty copy has begun meanwhile
        await call.elsewhere(hosted)
    return reader
