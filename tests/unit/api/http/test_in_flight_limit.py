"""Requests and bytes in flight: overload is refused, and what a request held comes back."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.api.http.dependencies import PIECE_BYTES, body_answer
from app.api.http.in_flight_limit import InFlightLimit
from app.errors import RateLimited
from tests.support.in_process import node_in_process


def test_an_answer_counts_until_it_has_been_sent() -> None:
    room = InFlightLimit(10, 100)
    room.enter(0)
    reservation = room.reservation()
    reservation.reach(60)
    reservation.reach(40)  # already held
    assert (reservation.bytes, room.bytes) == (60, 60)
    with pytest.raises(RateLimited):
        room.reservation().reach(41)
    other = room.reservation()
    other.reach(40)
    with pytest.raises(RateLimited):
        reservation.reach(61)
    assert (reservation.bytes, room.bytes) == (60, 100)
    room.leave(other.bytes, requests=0)
    room.leave(reservation.bytes)
    assert (room.requests, room.bytes) == (0, 0)


def test_an_answer_without_end_holds_the_part_that_its_client_has_not_read() -> None:
    room = InFlightLimit(10, 100)
    room.enter(0)
    stream = room.reservation()
    for size_bytes in (60, 90, 0, 30):
        stream.hold(size_bytes)
        assert (stream.bytes, room.bytes, room.requests) == (size_bytes, size_bytes, 1)
    with pytest.raises(RateLimited):
        room.reservation().hold(71)
    room.leave(stream.bytes)
    assert (room.requests, room.bytes) == (0, 0)


def test_one_answer_of_any_size_fits() -> None:
    room = InFlightLimit(10, 100)
    room.reservation().reach(1_000)
    with pytest.raises(RateLimited):
        room.reservation().reach(1)


def test_one_answer_of_any_size_fits_also_when_its_size_is_known_in_two_steps() -> None:
    """An idle node would refuse the same read each time that its client repeats it."""
    room = InFlightLimit(10, 100)
    reservation = room.reservation()
    for size_bytes in (60, 1_000):
        reservation.reach(size_bytes)
    assert room.bytes == 1_000


def test_one_body_without_a_length_fits_in_pieces(tmp_path: Path) -> None:
    async def run() -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"x" * 60

        async with node_in_process(tmp_path, http={"max_open_bytes": 100}) as node:
            appended = await node.client.post(
                "/v1/logs/default/records",
                content=pieces(),
                headers={"Content-Type": "application/octet-stream"},
            )
            assert appended.status_code == 200, appended.text
            read = await node.client.get("/v1/logs/default/records")
            assert len(read.json()["records"][0]["value"]) == 180

    asyncio.run(run())


def test_a_large_body_leaves_in_pieces() -> None:
    body = bytes(range(256)) * (PIECE_BYTES // 100)
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError

    asyncio.run(body_answer(body, "application/octet-stream")({"type": "http"}, receive, send))
    start, *pieces = sent
    assert (b"content-length", b"%d" % len(body)) in start["headers"]
    assert b"".join(piece["body"] for piece in pieces) == body
    assert max(len(piece["body"]) for piece in pieces) == PIECE_BYTES
    assert [piece.get("more_body", False) for piece in pieces] == [True] * (len(pieces) - 1) + [False]
