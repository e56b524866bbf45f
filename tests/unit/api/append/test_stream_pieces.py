"""A stream of appends that is cut or damaged ends with a refusal, never with an exception; one that is not
read any more ends at once."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

from app.api.append.stream_pieces import pieces_of
from app.errors import InvalidBody
from app.media_types import ARROW_STREAM, NDJSON


async def outcome_of(data: bytes) -> str:
    async def body() -> AsyncIterator[bytes]:
        yield data

    _, pieces = pieces_of(body(), ARROW_STREAM, 1 << 20)
    try:
        return f"{sum([len(found) async for found in pieces])} appends"
    except InvalidBody:
        return "refused"


def test_an_arrow_stream_may_end_anywhere() -> None:
    batch = pa.record_batch({"value": ["a", "b"], "key": [b"k", None]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
        writer.write_batch(batch)
    whole = sink.getvalue().to_pybytes()

    async def run() -> None:
        assert await outcome_of(whole) == "2 appends"
        found = {await outcome_of(whole[:size]) for size in range(0, len(whole), 7)}
        assert found <= {"refused", "0 appends", "1 appends", "2 appends"}
        assert "refused" in found
        for at in range(0, len(whole), 11):
            await outcome_of(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])

    asyncio.run(run())


@pytest.mark.parametrize("shares_a_part", [True, False])
def test_bytes_after_the_end_of_an_arrow_stream_are_refused(shares_a_part: bool) -> None:
    """A second stream would otherwise be lost, and the answers end as if all was stored."""
    batch = pa.record_batch({"value": ["a"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    stream = sink.getvalue().to_pybytes()

    async def run(rest: bytes) -> None:
        async def body() -> AsyncIterator[bytes]:
            for part in [stream + rest] if shares_a_part else [stream, rest]:
                yield part

        _, pieces = pieces_of(body(), ARROW_STREAM, 1 << 20)
        assert len(await anext(pieces)) == 1
        with pytest.raises(InvalidBody, match="bytes follow the end of the Arrow stream"):
            await anext(pieces)

    for rest in (stream, b"\0"):
        asyncio.run(run(rest))


def test_an_arrow_stream_that_is_given_up_stops_neither_the_loop_nor_its_thread() -> None:
    """An append of the stream was refused while the client sends nothing: the thread of Arrow's reader waits
    for bytes that the event loop has to give it."""
    batch = pa.record_batch({"value": ["a", "b"]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    begun = sink.getvalue().to_pybytes()[:-8]  # without the mark of its end
    returned = threading.Event()

    async def run() -> None:
        is_silent = asyncio.Event()

        async def body() -> AsyncIterator[bytes]:
            yield begun
            is_silent.set()
            await asyncio.Event().wait()

        _, pieces = pieces_of(body(), ARROW_STREAM, 1 << 20)
        assert len(await anext(pieces)) == 1
        incoming = asyncio.ensure_future(anext(pieces, None))
        await is_silent.wait()
        incoming.cancel()
        await asyncio.wait([incoming])
        for thread in threading.enumerate():
            if thread.name.startswith("arrow stream"):
                await asyncio.to_thread(thread.join)
        returned.set()

    loop = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    loop.start()
    assert returned.wait(20)


async def lines_of(parts: list[bytes]) -> list[list[bytes]]:
    async def body() -> AsyncIterator[bytes]:
        for part in parts:
            yield part

    _, pieces = pieces_of(body(), NDJSON, 1 << 24)
    return [found async for found in pieces]


def test_lines_are_the_same_in_any_parts() -> None:
    text = b"a\n\nbc\r\n  \nd\ne"
    for size in range(1, len(text) + 1):
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        found = [line for lines in asyncio.run(lines_of(parts)) for line in lines]
        assert found == [b"a", b"bc\r", b"d", b"e"]
    assert asyncio.run(lines_of([b"a\nb\nc", b"\n"])) == [[b"a", b"b"], [b"c"]]
    assert asyncio.run(lines_of([b"", b"\n", b" "])) == []


def test_a_long_line_byte_by_byte_is_not_copied_with_each_byte() -> None:
    """The loop would copy 12 MB for each byte that arrives."""
    begun_s = time.thread_time()
    [[line]] = asyncio.run(lines_of([bytes(12_000_000), *[b"x"] * 2_000, b"\n"]))
    assert len(line) == 12_002_000
    assert time.thread_time() - begun_s < 3
