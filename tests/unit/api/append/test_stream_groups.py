"""Plain lines of a stream that enter the log as one append, and are answered as if each was one."""

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from app.api.access.caller import UNRESTRICTED, Caller
from app.api.append import stream as module
from app.api.append.call import AppendCall
from app.api.append.handler import AppendAnswer
from app.api.append.parameters import AppendParameters
from app.api.append.stream_groups import GROUP_BYTES, lines_of_answers, records_of_group, take_group
from app.api.append.stream_window import StreamWindows
from app.api.http.in_flight_limit import InFlightLimit
from app.api.http.messages import Response
from app.log.producers import Producer
from app.settings.model import HttpSettings, Limits

WINDOW = 100  # of a stream alone


def answer(first_index: int, count: int) -> bytes:
    last_index = first_index + count - 1
    return msgspec.json.encode(
        AppendAnswer(
            "lo.g", first_index, last_index, count, 7, 5, 99, 3, 60, 61, "n1", "quorum", "fsync", False
        )
    )


class Handler:
    """Acknowledges each append at the next turn of the loop, unless one of its records is b"bad"."""

    def __init__(self) -> None:
        self.in_flight = InFlightLimit(100_000, 1 << 30)
        self.stream_windows = StreamWindows(Limits(max_pending_requests=2 * WINDOW), HttpSettings())
        self.counts: list[int] = []
        self._next_index = 10

    def handle(self, call: AppendCall, done: Callable[[Response], None]) -> None:
        values = [None] if call.records is None else call.records.values
        self.counts.append(len(values))
        first_index, self._next_index = self._next_index, self._next_index + len(values)
        self.in_flight.leave(call.reserved_bytes)
        bad = b"bad" in values or b"bad" in call.body
        given = Response(412, [], b"problem") if bad else Response(200, [], answer(first_index, len(values)))
        asyncio.get_running_loop().call_soon(done, given)


def run(
    blocks: list[list[bytes]],
    parameters: AppendParameters | None = None,
    *,
    on_invalid: str | None = None,
    limited: bool = False,
) -> tuple[list[Any], Handler]:
    """Return the answers that a client gets (a problem as bytes), and the handler."""
    newest = None if on_invalid is None else SimpleNamespace(record=SimpleNamespace(on_invalid=on_invalid))
    state = SimpleNamespace(schemas=SimpleNamespace(newest=newest))
    hosted: Any = SimpleNamespace(name="lo.g", driver=SimpleNamespace(state=state))
    path = SimpleNamespace(path="/v1/logs/lo.g/records:stream")
    request: Any = SimpleNamespace(url=path, headers=SimpleNamespace(raw=[]))
    handler: Any = Handler()

    async def pieces() -> AsyncIterator[list[bytes]]:
        for block in blocks:
            await asyncio.sleep(0)
            yield block

    async def whole() -> list[Any]:
        stream = module._AppendStream(
            request, handler, hosted, "application/json", parameters or AppendParameters(), Limits()
        )
        async with asyncio.timeout(20):
            text = b"".join([line async for line in stream.lines(pieces())])
        assert handler.in_flight.bytes == handler.in_flight.requests == 0
        assert handler.stream_windows.busy == 0
        return [json.loads(line) if line[:1] == b"{" else line for line in text.splitlines()]

    with pytest.MonkeyPatch.context() as patch:
        caller = Caller(replace(UNRESTRICTED, requests_per_s=1_000_000.0 if limited else None))
        patch.setattr(module, "caller_of", lambda _: caller)
        patch.setattr(module, "request_id_of", lambda _: b"id")
        return asyncio.run(whole()), handler


def lines(*values: str) -> list[bytes]:
    return [json.dumps({"value": value}).encode() for value in values]


def test_a_group_has_the_answers_of_single_appends() -> None:
    whole = lines_of_answers(Response(200, [], answer(20, 3)), 3).splitlines()
    singles = [json.loads(answer(index, 1)) for index in (20, 21, 22)]
    assert [json.loads(line) for line in whole] == singles
    assert whole[0] == answer(20, 1)


def test_plain_lines_that_arrive_together_are_one_append() -> None:
    answers, handler = run([lines(*map(str, range(100))), lines("last")])
    assert [each["first_index"] for each in answers] == list(range(10, 111))
    assert {each["count"] for each in answers} == {1}
    assert handler.counts == [100, 1]


def test_lines_that_are_not_plain_stay_single_appends() -> None:
    others = [
        b'{"value_json":{"a":1}}',
        b'{"records":[{"value":"x"}]}',
        b'{"value":"x","match_index":5}',
        b"[",
    ]
    for other in others:
        answers, handler = run([[*lines("a"), other, *lines("b")]])
        assert handler.counts == [1, 1, 1]
        assert [each["first_index"] for each in answers] == [10, 11, 12]


def test_a_group_is_limited_in_lines_and_bytes() -> None:
    arrived = deque([b"x" * (GROUP_BYTES // 4)] * 9 + [b"y" * (2 * GROUP_BYTES)])
    groups = []
    while arrived:
        groups.append(len(take_group(arrived, 100, Limits())))
    assert groups == [3, 3, 3, 1]
    assert len(take_group(deque([b"x"] * 10), 4, Limits())) == 4
    assert (
        len(take_group(deque([b"x" * 40] * 10), 10, Limits(max_request_bytes=100, max_record_bytes=100))) == 2
    )
    assert records_of_group(lines("x" * 50, "y"), Limits(max_record_bytes=49)) is None


def test_the_window_counts_the_lines_of_a_group() -> None:
    answers, handler = run([lines(*["x"] * 1_000)])
    assert len(answers) == 1_000
    assert handler.counts[:3] == [WINDOW, WINDOW, WINDOW]


def test_the_problem_of_a_group_is_the_last_line() -> None:
    answers, _ = run([lines("a", "b"), lines("c", "bad", "d"), lines("e")])
    assert [each if isinstance(each, bytes) else each["first_index"] for each in answers] == [
        10,
        11,
        b"problem",
    ]


def test_conditions_of_single_lines_keep_the_lines_apart() -> None:
    """A schema that rejects, a rate limit, the sequence of a producer, a condition of the first append."""
    block = [lines("a", "b", "c")]
    assert run(block, on_invalid="reject")[1].counts == [1, 1, 1]
    assert run(block, limited=True)[1].counts == [1, 1, 1]
    assert run(block, AppendParameters(producer=Producer("p", 1, 10)))[1].counts == [1, 1, 1]
    assert run(block, AppendParameters(match_index=10))[1].counts == [1, 2]
    assert run(block, on_invalid="quarantine")[1].counts == [3]
