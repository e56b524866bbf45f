"""Splits the body of `records:stream` into appends as it arrives: lines, Arrow record batches, stored
batches. What arrives together is given together, so that it can share a batch of the log."""

import asyncio
import io
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa

from app.errors import CommitlogError, InvalidBody, TooLarge
from app.media_types import ARROW_STREAM, BATCHES, JSON, NDJSON
from storage.format.batch import HEADER_SIZE_BYTES, stored_size

STREAM_TYPES: Final = (NDJSON, ARROW_STREAM, BATCHES)


def pieces_of(
    body: AsyncIterator[bytes], media_type: str, max_bytes: int
) -> tuple[str, AsyncIterator[list[bytes]]]:
    """Return the Content-Type of one piece, and the pieces in lists, none empty: each piece is the body of
    one append, at most max_bytes.

    media_type: one of STREAM_TYPES. The iterator raises TooLarge or InvalidBody.
    """
    if media_type == NDJSON:
        return JSON, _lines(body, max_bytes)
    if media_type == BATCHES:
        return BATCHES, _batches(body, max_bytes)
    return ARROW_STREAM, _arrow(body, max_bytes)


def _too_large(max_bytes: int) -> TooLarge:
    return TooLarge(f"an append in a stream may have at most {max_bytes} bytes, got more", max_bytes)


async def _lines(body: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[list[bytes]]:
    rest = bytearray()  # not copied with each part: a long line may arrive byte by byte
    async for part in body:
        first, *lines = part.split(b"\n")
        rest += first
        if lines:
            lines.insert(0, bytes(rest))
            rest = bytearray(lines.pop())
        if found := [line for line in lines if line and not line.isspace()]:
            yield found
        if len(rest) > max_bytes:
            raise _too_large(max_bytes)
    if rest and not rest.isspace():
        yield [bytes(rest)]


async def _batches(body: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[list[bytes]]:
    held = bytearray()
    async for part in body:
        held += part
        found: list[bytes] = []
        problem: CommitlogError | None = None
        while len(held) >= HEADER_SIZE_BYTES and problem is None:
            size = stored_size(held)
            if size > max_bytes:
                problem = _too_large(max_bytes)
            elif size < HEADER_SIZE_BYTES:
                problem = InvalidBody("the stream contains a malformed packed batch")
            elif len(held) < size:
                break
            else:
                found.append(bytes(held[:size]))
                del held[:size]
        if found:
            yield found
        if problem is not None:
            raise problem
    if held:
        raise InvalidBody("the stream ends in the middle of a batch")


async def _arrow(body: AsyncIterator[bytes], max_bytes: int) -> AsyncIterator[list[bytes]]:
    """Arrow's own reader blocks while it reads, so it runs in a separate thread."""
    loop = asyncio.get_running_loop()
    source = _BlockingBody(body, loop, max_bytes)
    thread = ThreadPoolExecutor(1, "arrow stream")
    try:
        reader = await loop.run_in_executor(thread, pa.ipc.open_stream, source)
        while (batch := await loop.run_in_executor(thread, _next_batch, reader)) is not None:
            source.unread_bytes = 0
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield [sink.getvalue().to_pybytes()]
        if await loop.run_in_executor(thread, source.read, 1):
            raise InvalidBody("bytes follow the end of the Arrow stream; send one stream per request")
    except (pa.ArrowException, OSError, EOFError, ValueError) as error:
        if source.exceeded:
            raise _too_large(max_bytes) from error
        raise InvalidBody(f"the body is not a valid Arrow stream: {error}") from error
    finally:
        source.abandon()
        thread.shutdown(wait=False)  # the thread may still wait for this loop to give it the end


def _next_batch(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
    try:
        return reader.read_next_batch()
    except StopIteration:
        return None


class _BlockingBody(io.RawIOBase):
    """The body for a thread that reads it. unread_bytes: read since the last whole batch."""

    def __init__(self, body: AsyncIterator[bytes], loop: asyncio.AbstractEventLoop, max_bytes: int) -> None:
        self.unread_bytes = 0
        self.exceeded = False
        self._body = body
        self._loop = loop
        self._max_bytes = max_bytes
        self._held = bytearray()
        self._abandoned = asyncio.Event()

    def readable(self) -> bool:
        return True

    def abandon(self) -> None:
        """Let a thread that still waits for more see the end."""
        self._abandoned.set()

    def read(self, size: int = -1) -> bytes:
        while size < 0 or len(self._held) < size:
            part = asyncio.run_coroutine_threadsafe(self._next_part(), self._loop).result()
            if not part:
                break
            self._held += part
            self.unread_bytes += len(part)
            if self.unread_bytes > 2 * self._max_bytes:
                self.exceeded = True
                break
        if size < 0:
            size = len(self._held)
        data = bytes(memoryview(self._held)[:size])
        del self._held[:size]
        return data

    async def _next_part(self) -> bytes:
        """Return the next bytes, b"" at the end, or when they are not wanted any more."""
        part = asyncio.ensure_future(anext(self._body, b""))
        abandoned = asyncio.ensure_future(self._abandoned.wait())
        done, _ = await asyncio.wait((part, abandoned), return_when=asyncio.FIRST_COMPLETED)
        abandoned.cancel()
        if part in done:
            return part.result()
        part.cancel()
        return b""
