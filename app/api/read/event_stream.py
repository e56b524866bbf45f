"""Records as server-sent events (WHATWG HTML, section 9.2): batch, epoch, ping, error (docs/api.md §5)."""

import logging
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.responses import Response, StreamingResponse

from app.api.http.messages import as_json
from app.api.read.epochs import epoch_object, position_at
from app.api.read.page_rendering import page_object, rendered
from app.api.read.query import ReadQuery
from app.api.read.reader import LogHead, Range, Reader
from app.api.read.selection import Consistency, RecordPage
from app.api.read.shared_pages import RenderedPage
from app.api.read.tail_pace import EVENT_S, pace_of
from app.errors import CommitlogError, Internal, NoLeader, Repairing
from app.log.contract import Role
from app.media_types import EVENTS
from storage.errors import StorageError

logger = logging.getLogger(__name__)


def event_stream(
    reader: Reader, range_: Range, query: ReadQuery, request_id: str, instance: str, *, head: bool
) -> Response:
    """Return the answer to a read that accepts text/event-stream; it ends at `until_*`, at an error or a
    stop."""
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    if head:
        return Response(status_code=200, headers=headers, media_type=EVENTS)

    async def events() -> AsyncIterator[bytes]:
        stream = _EventStream(reader, range_, query)
        try:
            async for event in stream.events():
                yield event
        except CommitlogError as error:
            yield _event("error", error.problem(instance, request_id))
        except StorageError as error:
            logger.error("event stream: %s", error, extra={"request_id": request_id})
            damaged = reader.broker.repairs.report(error, "read")
            refusal = Repairing() if damaged else Internal()
            yield _event("error", refusal.problem(instance, request_id))
        except Exception:
            logger.exception("event stream failed", extra={"request_id": request_id})
            yield _event("error", Internal().problem(instance, request_id))

    return StreamingResponse(events(), media_type=EVENTS, headers=headers)


def _event(name: str, data: dict[str, Any] | bytes, event_id: int | None = None) -> bytes:
    """Return one event. The JSON has no line breaks."""
    body = data if isinstance(data, bytes) else as_json(data)
    identity = b"" if event_id is None else b"id: %d\n" % event_id
    return b"event: %s\n%sdata: %s\n\n" % (name.encode("ascii"), identity, body)


class _EventStream:
    """One client's stream. Invariant: a batch never holds records of two epochs, so that an `epoch` event
    can precede it."""

    def __init__(self, reader: Reader, range_: Range, query: ReadQuery) -> None:
        self._reader = reader
        self._range = range_
        self._query = query
        self._wanted = query.selection()
        self._pace = pace_of(reader)
        self._known_end = reader.visible_end  # when the stream began
        self._known_epoch: int | None = None  # the epoch that the client knows

    async def events(self) -> AsyncIterator[bytes]:
        reader, range_ = self._reader, self._range
        ping_s = reader.broker.settings.http.sse_ping_ms / 1000
        is_local = reader.consistency is Consistency.LOCAL
        grown = reader.grown if is_local else partial(self._pace.grown, reader)
        for event in self._epoch_before(range_.start_index):
            yield event
        yield self._ping()
        while not await reader.started(range_, ping_s):
            self._check_member()
            if reader.broker.waits.stopping or range_.is_over(range_.start_index):
                return
            yield self._ping()
        next_index = range_.start_index
        while not reader.broker.waits.stopping:
            if range_.is_over(next_index):
                return
            if not await grown(next_index, ping_s):
                self._check_member()
                yield self._ping()
                continue
            await reader.bound(range_)
            for event in self._epoch_before(next_index):
                yield event
            batch = await self._batch_from(next_index)
            next_index = batch.next_index
            if batch.body is not None:
                yield bytes(batch.body)

    def _check_member(self) -> None:
        """Raise NoLeader when no more records will arrive: this replica has left the log (R-10). The client
        continues at a member. A local read shows what this replica holds."""
        reader = self._reader
        if reader.consistency is not Consistency.LOCAL and reader.driver.role is Role.REMOVED:
            raise NoLeader("this replica has left the log; continue at a member, with Last-Event-ID")

    def _ping(self) -> bytes:
        return _event("ping", {"committed_index": self._reader.committed_index})

    def _epoch_before(self, index: int) -> list[bytes]:
        """Return the epoch of the record at `index`, unless the client has it.

        An epoch that begins after the visible end is neither named nor the end of another one: it may be
        truncated.
        """
        epochs, visible_end = self._reader.log.epochs, self._reader.visible_end
        position = position_at(epochs, min(index, visible_end))
        if position is None or epochs[position].epoch == self._known_epoch:
            return []
        self._known_epoch = epochs[position].epoch
        following = position + 1
        if following < len(epochs) and epochs[following].start_index > visible_end:
            epochs = epochs[:following]
        return [_event("epoch", epoch_object(epochs, position))]

    def _batch_range(self, index: int, head: LogHead) -> Range:
        """Return the rest of the range within the epoch of `index`, as far as it is visible at that head."""
        epochs = self._reader.log.epochs
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
        reader, pace = self._reader, self._pace
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
        await self._reader.fill(page, range_, self._wanted)
        if not page.count:
            return RenderedPage(page.next_index, False, None)
        has_more = page.next_index <= self._range.last_index(head.visible_end)

        def render() -> bytes:
            content = page_object(self._reader.hosted.name, head, page, has_more, self._query.encoding)
            return _event("batch", content, page.next_index - 1)

        return RenderedPage(page.next_index, has_more, await rendered(page, render))
