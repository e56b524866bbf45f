"""The events of a stream of records: batch, epoch, ping (docs/api.md §5)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from functools import partial
from typing import Any, NamedTuple

from app.api.http.messages import as_json
from app.api.read.epochs import epoch_object, position_at
from app.api.read.page_rendering import page_object, rendered
from app.api.read.query import ReadQuery
from app.api.read.reader import LogHead, Range, Reader
from app.api.read.selection import Consistency, RecordPage
from app.api.read.shared_pages import RenderedPage
from app.api.read.tail_pace import EVENT_S, pace_of
from app.errors import NoLeader
from app.log.contract import Role


def event(name: str, data: dict[str, Any] | bytes, event_id: int | None = None) -> bytes:
    """Return one event. The JSON has no line breaks."""
    body = data if isinstance(data, bytes) else as_json(data)
    identity = b"" if event_id is None else b"id: %d\n" % event_id
    return b"event: %s\n%sdata: %s\n\n" % (name.encode("ascii"), identity, body)


class Position(NamedTuple):
    """State of a client: it has received all records before `next_index`, and this epoch."""

    next_index: int
    epoch: int | None


class EventStream:
    """One stream of events. `position`: that of its client.

    Invariant: a batch never holds records of two epochs, so that an `epoch` event can precede it.
    """

    def __init__(
        self, reader: Reader, range_: Range, query: ReadQuery, hold: Callable[[int], None] = lambda _: None
    ) -> None:
        """hold(bytes): counts those of the event that waits for the client, also while it is rendered."""
        self.reader = reader
        self.pace = pace_of(reader)
        self.position = Position(range_.start_index, None)
        self._range = range_
        self._query = query
        self._hold = hold
        self._wanted = query.selection()
        self._known_end = reader.visible_end  # when the stream began
        self._sent_s = 0.0  # time of the last events

    # --- sharing ------------------------------------------------------------------------------------------

    @property
    def content(self) -> Hashable:
        """Key of what determines the events, beside the log, its consistency and the position."""
        return self._wanted, self._query.encoding

    @property
    def may_share(self) -> bool:
        """Return whether all clients with the same content get the same events from this position on."""
        reader, range_ = self.reader, self._range
        return (
            reader.consistency is not Consistency.LOCAL
            and not reader.is_limited
            and range_.until_index is None
            and range_.until_timestamp_ms is None
            and self._known_end < self.position.next_index
        )

    def twin(self) -> "EventStream":
        """Return a stream with the same content from this position on. Requires `may_share`."""
        reader = Reader(self.reader.here, self.reader.consistency)
        stream = EventStream(reader, Range(self.position.next_index, None), self._query)
        stream.position, stream._sent_s = self.position, self._sent_s
        return stream

    # --- events -------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        return self.reader.broker.waits.stopping or self._range.is_over(self.position.next_index)

    @property
    def _ping_s(self) -> float:
        return self.reader.broker.settings.http.sse_ping_ms / 1000

    async def first_events(self) -> AsyncIterator[bytes]:
        """Return the events before the record that begins the range has arrived. The stream may be over."""
        reader, range_ = self.reader, self._range
        self._sent_s = asyncio.get_running_loop().time()
        for found in self._epoch_before(range_.start_index):
            yield found
        yield self._ping()
        while not await reader.started(range_, self._ping_s):
            self._check_member()
            if reader.broker.waits.stopping or range_.is_over(range_.start_index):
                break
            yield self._ping()
        self.position = self.position._replace(next_index=range_.start_index)

    async def next_events(self) -> list[bytes]:
        """Wait for the next batch; return it, after its epoch if that is new. A ping if none arrives in time,
        nothing if no record is selected before that time.

        Raises NoLeader, RateLimited, and what Reader.grown and Reader.fill raise.
        """
        loop = asyncio.get_running_loop()
        ping_at_s = self._sent_s + self._ping_s
        found = await self._batch_before(max(0.0, ping_at_s - loop.time()))
        if found is None or (not found and loop.time() >= ping_at_s):
            found = [self._ping()]
        if found:
            self._sent_s = loop.time()
        return found

    def has_sent(self) -> None:
        """The client has read the events, except for the last piece."""
        self._hold(0)

    async def _batch_before(self, timeout_s: float) -> list[bytes] | None:
        """Return the next batch as next_events does; None if no record arrives in time."""
        reader, index = self.reader, self.position.next_index
        is_local = reader.consistency is Consistency.LOCAL
        grown = reader.grown if is_local else partial(self.pace.grown, reader)
        if not await grown(index, timeout_s):
            self._check_member()
            return None
        await reader.bound(self._range)
        found = self._epoch_before(index)
        batch = await self._batch_from(index)
        self.position = self.position._replace(next_index=batch.next_index)
        if batch.body is not None:
            self._hold(len(batch.body))
            found.append(bytes(batch.body))
        return found

    def _check_member(self) -> None:
        """Raise NoLeader when no more records will arrive: this replica has left the log (R-10). The client
        continues at a member. A local read shows what this replica holds."""
        reader = self.reader
        if reader.consistency is not Consistency.LOCAL and reader.driver.role is Role.REMOVED:
            raise NoLeader("this replica has left the log; continue at a member, with Last-Event-ID")

    def _ping(self) -> bytes:
        return event("ping", {"committed_index": self.reader.committed_index})

    def _epoch_before(self, index: int) -> list[bytes]:
        """Return the epoch of the record at `index`, unless the client has it.

        An epoch that begins after the visible end is neither named nor the end of another one: it may be
        truncated.
        """
        epochs, visible_end = self.reader.log.epochs, self.reader.visible_end
        position = position_at(epochs, min(index, visible_end))
        if position is None or epochs[position].epoch == self.position.epoch:
            return []
        self.position = self.position._replace(epoch=epochs[position].epoch)
        following = position + 1
        if following < len(epochs) and epochs[following].start_index > visible_end:
            epochs = epochs[:following]
        return [event("epoch", epoch_object(epochs, position))]

    def _batch_range(self, index: int, head: LogHead) -> Range:
        """Return the rest of the range within the epoch of `index`, as far as it is visible at that head."""
        epochs = self.reader.log.epochs
        position = position_at(epochs, index)
        following = 0 if position is None else position + 1
        until = head.visible_end + 1
        if self._range.until_index is not None:
            until = min(until, self._range.until_index)
        if following < len(epochs):
            until = min(until, epochs[following].start_index)
        return Range(index, until)

    async def _batch_from(self, index: int) -> RenderedPage:
        """Return the next batch as an event."""
        reader, pace = self.reader, self.pace
        if reader.consistency is Consistency.LOCAL:  # uncommitted records change
            head = reader.head()
            return await self._rendered(self._batch_range(index, head), head)
        head = await pace.moment(index, self._known_end, EVENT_S, reader.head)
        await reader.bound(self._range)  # by a record that has arrived meanwhile
        range_ = self._batch_range(index, head)
        # Everything that determines the batch: committed records never change.
        key = (index, range_.until_index, self._range.until_index, head, self._wanted, self._query.encoding)
        return await pace.pages.get(key, partial(self._rendered, range_, head))

    async def _rendered(self, range_: Range, head: LogHead) -> RenderedPage:
        page = RecordPage(range_.start_index)
        await self.reader.fill(page, range_, self._wanted)
        if not page.count:
            return RenderedPage(page.next_index, False, None)
        self._hold(page.size_bytes)
        has_more = page.next_index <= self._range.last_index(head.visible_end)

        def render() -> bytes:
            content = page_object(self.reader.hosted.name, head, page, has_more, self._query.encoding)
            return event("batch", content, page.next_index - 1)

        return RenderedPage(page.next_index, has_more, await rendered(page, render))
