"""Records as server-sent events (WHATWG HTML, section 9.2): batch, epoch, ping, error (docs/api.md §5)."""

import logging
from collections.abc import AsyncIterator, Hashable
from typing import Any, Final
from weakref import WeakKeyDictionary

from starlette.responses import Response, StreamingResponse

from app.api.http.messages import as_json
from app.api.read.epochs import epoch_object, position_at
from app.api.read.page_rendering import page_object, rendered
from app.api.read.query import ReadQuery
from app.api.read.reader import Range, Reader
from app.api.read.selection import Consistency, RecordPage
from app.api.read.shared_batches import SharedBatches
from app.errors import CommitlogError, Internal, Repairing
from app.media_types import EVENTS
from app.node.replica.driver import LogDriver
from storage.errors import StorageError

logger = logging.getLogger(__name__)
_SHARED: Final[WeakKeyDictionary[LogDriver, SharedBatches]] = WeakKeyDictionary()


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
        self._shared = _SHARED.setdefault(reader.driver, SharedBatches())
        self._known_epoch: int | None = None  # the epoch that the client knows

    async def events(self) -> AsyncIterator[bytes]:
        reader, range_ = self._reader, self._range
        ping_s = reader.broker.settings.http.sse_ping_ms / 1000
        next_index = range_.start_index
        for event in self._epoch_before(min(next_index, reader.visible_end)):
            yield event
        yield self._ping()
        while not reader.broker.waits.stopping:
            if range_.until_index is not None and next_index >= range_.until_index:
                return
            if not await reader.grown(next_index, ping_s):
                yield self._ping()
                continue
            await reader.bound(range_)
            for event in self._epoch_before(next_index):
                yield event
            next_index, batch = await self._batch_from(next_index)
            if batch is not None:
                yield batch

    def _ping(self) -> bytes:
        return _event("ping", {"committed_index": self._reader.committed_index})

    def _epoch_before(self, index: int) -> list[bytes]:
        """Return the epoch of the record at `index`, unless the client has it."""
        epochs = self._reader.log.epochs
        position = position_at(epochs, index)
        if position is None or epochs[position].epoch == self._known_epoch:
            return []
        self._known_epoch = epochs[position].epoch
        return [_event("epoch", epoch_object(epochs, position))]

    def _epoch_range(self, index: int) -> Range:
        """Return the rest of the range within the epoch of `index`."""
        epochs = self._reader.log.epochs
        position = position_at(epochs, index)
        following = 0 if position is None else position + 1
        until = self._range.until_index
        if following < len(epochs):
            start = epochs[following].start_index
            until = start if until is None else min(until, start)
        return Range(index, until)

    async def _batch_from(self, index: int) -> tuple[int, bytes | None]:
        """Return the index after the next batch, and its event; None when no record of it is selected."""
        key = self._key(index)
        if (kept := self._shared.get(key)) is not None:
            return kept
        page = RecordPage(index)
        await self._reader.fill(page, self._epoch_range(index), self._wanted)
        event = await self._event_of(page) if page.count else None
        if self._reader.consistency is not Consistency.LOCAL and key == self._key(index):
            self._shared.put(key, page.next_index, event)
        return page.next_index, event

    def _key(self, index: int) -> Hashable:
        """Return everything that determines the next batch: committed records never change."""
        reader, log = self._reader, self._reader.log
        return (
            index,
            self._epoch_range(index).until_index,
            self._range.until_index,
            (log.begin_index, log.end_index, reader.committed_index, reader.driver.term),
            (reader.consistency, self._wanted, self._query.encoding),
        )

    async def _event_of(self, page: RecordPage) -> bytes:
        reader = self._reader
        has_more = reader.has_more(page, Range(page.next_index, self._range.until_index))

        def render() -> bytes:
            content = page_object(reader, page, has_more, self._query.encoding)
            return _event("batch", content, page.next_index - 1)

        return await rendered(page, render)
