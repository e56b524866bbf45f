"""A stream of appends: what arrives together begins together, and answers leave in order."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import Request

from app.api.access.caller import UNRESTRICTED, Caller, Grant, Scope
from app.api.append import stream as module
from app.api.append.call import AppendCall
from app.api.append.parameters import AppendParameters
from app.api.append.stream_window import StreamWindows
from app.api.http.in_flight_limit import InFlightLimit
from app.api.http.json_decoding import MAX_ORDINAL
from app.api.http.messages import Response, problem_response
from app.errors import StorageFull
from app.log.producers import Producer
from app.node.network.http_forwarder import Forwarder, Lost
from app.settings.model import HttpSettings, Limits, SecuritySettings

WINDOW = 400  # of a stream alone


class Handler:
    """Answers each append one turn of the loop after the next one is asked for, the newest first."""

    def __init__(self) -> None:
        self.in_flight = InFlightLimit(100_000, 1 << 30)
        self.stream_windows = StreamWindows(Limits(max_pending_requests=2 * WINDOW), HttpSettings())
        self.calls: list[AppendCall] = []
        self.turns: list[int] = []  # appends begun in each turn
        self.broken: list[bool] = []  # the state of the stream when the driver takes an append
        self._waiting: list[tuple[AppendCall, Callable[[Response], None]]] = []

    def handle(self, call: AppendCall, done: Callable[[Response], None]) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_later(0, self._answer)
        self._waiting.append((call, done))
        self.calls.append(call)
        if call.body == b"refused":
            self._waiting.pop()
            self.in_flight.leave(call.reserved_bytes)
            done(Response(422, [], call.body))

    def _answer(self) -> None:
        waiting, self._waiting = self._waiting, []
        self.turns.append(len(waiting))
        for call, done in reversed(waiting):
            self.in_flight.leave(call.reserved_bytes)
            stream = call.stream
            assert stream is not None
            self.broken.append(stream.broken)
            done(Response(412 if call.body == b"bad" else 200, [], call.body))


def hosted(on_invalid: str | None = None) -> Any:
    """on_invalid: of the newest schema of the log, None: it has no schema."""
    newest = None if on_invalid is None else SimpleNamespace(record=SimpleNamespace(on_invalid=on_invalid))
    state = SimpleNamespace(schemas=SimpleNamespace(newest=newest))
    return SimpleNamespace(name="default", driver=SimpleNamespace(state=state))


def run(blocks: list[list[bytes]], parameters: AppendParameters | None = None) -> tuple[list[bytes], Handler]:
    """Return the lines that a client gets, and the handler."""

    async def whole() -> tuple[list[bytes], Handler]:
        handler: Any = Handler()
        request: Any = SimpleNamespace(
            url=SimpleNamespace(path="/v1/logs/default/records:stream"), headers=SimpleNamespace(raw=[])
        )

        async def pieces() -> AsyncIterator[list[bytes]]:
            for block in blocks:
                await asyncio.sleep(0)
                yield block

        stream = module._AppendStream(
            request, handler, hosted(), "application/json", parameters or AppendParameters()
        )
        async with asyncio.timeout(20):
            lines = [line async for line in stream.lines(pieces())]
        assert handler.in_flight.bytes == 0
        assert handler.stream_windows.busy == 0
        return b"".join(lines).splitlines(), handler

    return asyncio.run(whole())


@pytest.fixture(autouse=True)
def anyone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "caller_of", lambda _: Caller(UNRESTRICTED))
    monkeypatch.setattr(module, "request_id_of", lambda _: b"id")


def test_lines_that_arrive_together_begin_in_one_turn() -> None:
    records = [b"%d" % number for number in range(200)]
    lines, handler = run([records[:150], records[150:]])
    assert lines == records
    assert len(handler.turns) <= 3
    assert max(handler.turns) >= 150


def test_a_long_block_is_begun_in_parts_within_the_window() -> None:
    records = [b"%d" % number for number in range(3 * WINDOW)]
    lines, handler = run([records])
    assert lines == records
    assert max(handler.turns) == WINDOW  # the handler answers each second turn


def test_the_first_failure_is_the_last_line() -> None:
    lines, handler = run([[b"a", b"bad", b"c"], [b"d"]])
    assert lines == [b"a", b"bad"]
    assert b"d" not in [call.body for call in handler.calls]


def test_an_append_that_is_refused_at_once_leaves_the_earlier_ones_alone() -> None:
    """The driver has not seen the earlier appends of this turn yet: their stream is not broken."""
    lines, handler = run([[b"a", b"b", b"refused", b"c"], [b"d"]])
    assert lines == [b"a", b"b", b"refused"]
    assert [call.body for call in handler.calls] == [b"a", b"b", b"refused"]
    assert handler.broken == [False, False]


def test_only_the_first_append_has_the_conditions_and_sequences_rise() -> None:
    first = AppendParameters(match_index=7, match_term=3, producer=Producer("p", 1, 10))
    _, handler = run([[b"a", b"b"], [b"c"]], first)
    given = [call.parameters for call in handler.calls]
    assert [each and each.match_index for each in given] == [7, None, None]
    assert [each and each.match_term for each in given] == [3, None, None]
    assert [each and each.producer and each.producer.sequence for each in given] == [10, 11, 12]


def test_a_stream_whose_sequences_exceed_their_range_is_refused_there() -> None:
    """A larger one cannot be stored."""
    last = AppendParameters(producer=Producer("p", 1, MAX_ORDINAL - 1))
    lines, handler = run([[b"a", b"b", b"c", b"d"]], last)
    assert [call.body for call in handler.calls] == [b"a", b"b"]
    assert lines[:2] == [b"a", b"b"]
    [problem] = [json.loads(line) for line in lines[2:]]
    assert (problem["status"], problem["errors"][0]["pointer"]) == (422, "/query/producer_sequence")


@pytest.mark.parametrize("groups", [None, Limits()])
def test_an_append_that_a_thread_decodes_holds_the_later_ones_back(groups: Limits | None) -> None:
    """The thread may take long: a later append, decoded at once, would enter the log before it."""
    slow = b'{"value_json":[' + b",".join([b'"x"'] * 20_000) + b"]}"
    handler: Any = Handler()
    begun: list[list[bytes]] = []

    async def pieces() -> AsyncIterator[list[bytes]]:
        yield [b'{"value_json":1}', slow, b'{"value_json":2}', b'{"value_json":3}']

    async def whole() -> list[bytes]:
        request: Any = SimpleNamespace(
            url=SimpleNamespace(path="/v1/logs/default/records:stream"), headers=SimpleNamespace(raw=[])
        )
        stream = module._AppendStream(
            request, handler, hosted(), "application/json", AppendParameters(), groups
        )
        answer = handler._answer

        def noted() -> None:
            begun.append([call.body for call, _ in handler._waiting])
            answer()

        handler._answer = noted
        async with asyncio.timeout(20):
            return [line async for line in stream.lines(pieces())]

    later = [b'{"value_json":2}', b'{"value_json":3}']
    assert b"".join(asyncio.run(whole())).splitlines() == [b'{"value_json":1}', slow, *later]
    assert begun == [[b'{"value_json":1}', slow], later]


def test_one_turn_begins_a_limited_number_of_bytes() -> None:
    records = [b"%06d" % number + b" " * 50_000 for number in range(20)]
    lines, handler = run([records])
    assert lines == records
    assert max(handler.turns) <= 2 * (module.TURN_BYTES // 50_000 + 1)  # the handler answers each second turn


@pytest.mark.parametrize("change", ["removed", "narrowed", "moved to another log"])
def test_a_stream_stores_nothing_more_once_its_token_has_lost_rights(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when it sends no answer meanwhile: the check is before each append, not before each answer."""
    caller = Caller(Grant(name="writer", scopes=frozenset((Scope.APPEND,)), logs=("default",)))
    monkeypatch.setattr(module, "caller_of", lambda _: caller)
    handler: Any = Handler()
    request: Any = SimpleNamespace(
        url=SimpleNamespace(path="/v1/logs/default/records:stream"), headers=SimpleNamespace(raw=[])
    )

    async def pieces() -> AsyncIterator[list[bytes]]:
        yield [b"a", b"b"]
        if change == "removed":
            caller.revoked = True
        elif change == "narrowed":
            caller.grant = Grant(name="writer", scopes=frozenset((Scope.READ,)), logs=("default",))
        else:
            caller.grant = Grant(name="writer", scopes=frozenset((Scope.APPEND,)), logs=("other",))
        yield [b"c"]

    async def whole() -> list[bytes]:
        stream = module._AppendStream(request, handler, hosted(), "application/json", AppendParameters())
        async with asyncio.timeout(20):
            return [line async for line in stream.lines(pieces())]

    lines = b"".join(asyncio.run(whole())).splitlines()
    assert [call.body for call in handler.calls] == [b"a", b"b"]
    assert lines[:2] == [b"a", b"b"]
    assert b"/problems/unauthenticated" in lines[2]
    assert handler.in_flight.bytes == 0


async def forwarded(arriving: AsyncIterator[bytes], may_lead: Callable[[], bool]) -> tuple[list[bytes], Any]:
    """Return the answers that a node passes on, and the problem after them."""
    closed: list[bool] = []
    stream: Any = SimpleNamespace(pieces=lambda: arriving, close=lambda: closed.append(True))
    request: Any = SimpleNamespace(url=SimpleNamespace(path="/v1/logs/default/records:stream"))
    *answers, last = b"".join(
        [line async for line in module._answers_of(stream, request, may_lead)]
    ).splitlines()
    assert closed
    return answers, json.loads(last)


@pytest.mark.parametrize("pieces", [[b"1\n2", b"\n"], [b"1\n2\n", b'{"first'], [b"1\n2\n"]])
def test_a_forwarded_stream_whose_leader_is_lost_ends_with_a_problem(pieces: list[bytes]) -> None:
    """The outcome of the appends without an answer is unknown. A part of an answer is not passed on."""

    async def arrive() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        raise Lost("n2: connection reset")

    answers, problem = asyncio.run(forwarded(arrive(), lambda: True))
    assert answers == [b"1", b"2"]
    assert (problem["code"], problem["outcome"], problem["first_index"]) == (
        "quorum-timeout",
        "unknown",
        None,
    )


@pytest.mark.parametrize("is_alone", [True, False])
def test_the_problem_of_a_leader_is_the_last_line_also_if_its_connection_is_lost(is_alone: bool) -> None:
    """The leader closes a connection of which it has not read all, which may reset it."""
    refused = problem_response(StorageFull("n2"), instance="/v1/logs/x/records:stream", request_id=b"r1")

    async def arrive() -> AsyncIterator[bytes]:
        if is_alone:
            yield b"1\n2\n"
            yield refused.body + b"\n"
        else:
            yield b"1\n2\n" + refused.body + b"\n"
        raise Lost("n2: connection reset")

    answers, problem = asyncio.run(forwarded(arrive(), lambda: True))
    assert answers == [b"1", b"2"]
    assert problem["code"] == "storage-full"


def test_a_forwarded_stream_ends_when_another_node_leads_and_nothing_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader that is paused or cut off closes no connection."""
    monkeypatch.setattr(module, "_QUIET_S", 0.02)
    looks: list[bool] = []

    def may_lead() -> bool:
        looks.append(len(looks) < 3)
        return looks[-1]

    async def arrive() -> AsyncIterator[bytes]:
        yield b"1\n"
        await asyncio.Event().wait()

    answers, problem = asyncio.run(forwarded(arrive(), may_lead))
    assert answers == [b"1"]
    assert looks == [True, True, True, False, False]
    assert (problem["code"], problem["first_index"]) == ("quorum-timeout", None)


def test_a_forwarded_stream_ends_at_both_nodes_when_its_client_disconnects() -> None:
    """Otherwise the leader waits for more of the stream, this node for its answers, both without end."""

    async def run() -> None:
        has_ended = asyncio.Event()
        incoming: list[dict[str, Any]] = [{"type": "http.request", "body": b"1\n", "more_body": True}]

        async def leader(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            await reader.read()
            writer.close()
            has_ended.set()

        async def receive() -> dict[str, Any]:
            return incoming.pop(0) if incoming else {"type": "http.disconnect"}

        async def send(_: object) -> None:
            await asyncio.sleep(0)

        scope: Any = {"type": "http", "method": "POST", "headers": [], "query_string": b""}
        scope |= {"path": "/v1/logs/default/records:stream", "commitlog.request_id": b"r1"}
        forwarder = Forwarder(SecuritySettings())
        await forwarder.start()
        try:
            async with await asyncio.start_server(leader, "127.0.0.1", 0) as server:
                url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
                broker: Any = SimpleNamespace(forwarder=forwarder)
                node: Any = SimpleNamespace(id="n2", url=url)
                hosted: Any = SimpleNamespace(serving=None)
                response = await module._forwarded(Request(scope, receive), broker, hosted, node)
                async with asyncio.timeout(5):
                    await response(scope, receive, send)
                    await has_ended.wait()
        finally:
            await forwarder.stop()

    asyncio.run(run())
