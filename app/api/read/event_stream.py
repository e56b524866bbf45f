"""Records as server-sent events (WHATWG HTML, section 9.2): batch, epoch, ping, error (docs/api.md §5)."""

import logging
from collections.abc import AsyncIterator, Iterable, Iterator

from starlette.responses import Response, StreamingResponse

from app.api.http.dependencies import PIECE_BYTES
from app.api.read.events import EventStream, event
from app.api.read.outlet import Write
from app.api.read.shared_stream import follow
from app.errors import CommitlogError, Internal, Repairing
from app.media_types import EVENTS
from storage.errors import StorageError

logger = logging.getLogger(__name__)


def event_stream(
    stream: EventStream,
    request_id: str,
    instance: str,
    *,
    head: bool,
    write: Write | None = None,
) -> Response:
    """Return the answer to a read that accepts text/event-stream; it ends at `until_*`, at an error or a
    stop.

    write: the outlet of the response; None if it has none.
    """
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    if head:
        return Response(status_code=200, headers=headers, media_type=EVENTS)

    async def events() -> AsyncIterator[bytes]:
        try:
            async for found in client_events(stream, write):
                yield found
        except CommitlogError as error:
            yield event("error", error.problem(instance, request_id))
        except StorageError as error:
            logger.error("event stream: %s", error, extra={"request_id": request_id})
            damaged = stream.reader.broker.repairs.report(error, "read")
            refusal = Repairing() if damaged else Internal()
            yield event("error", refusal.problem(instance, request_id))
        except Exception:
            logger.exception("event stream failed", extra={"request_id": request_id})
            yield event("error", Internal().problem(instance, request_id))

    return StreamingResponse(events(), media_type=EVENTS, headers=headers)


async def client_events(stream: EventStream, write: Write | None) -> AsyncIterator[bytes]:
    """Return the events of one client, without those that a shared stream writes to it meanwhile.

    A large event leaves in pieces: each waits until the client has read the one before.
    """
    async for found in stream.first_events():
        yield found
    while not stream.is_over:
        if write is not None:
            await follow(stream, write)
            if stream.is_over:
                return
        for piece in _pieces(await stream.next_events()):
            yield piece
        stream.has_sent()


def _pieces(events: Iterable[bytes]) -> Iterator[bytes]:
    """Return what of the events is sent at once. The generator alone holds an event, until its last piece."""
    for found in events:
        for start in range(0, len(found), PIECE_BYTES):
            yield found[start : start + PIECE_BYTES]
