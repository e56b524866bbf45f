"""The lane of appends and the plain route give the same bytes, whatever a client sends (docs/design.md)."""

import asyncio
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.api.access.tokens import Tokens
from app.api.append.lane import AppendLane
from app.api.http.in_flight_limit import InFlightLimit
from app.api.http.lane_call import KNOWN_HEADS_MAX
from app.errors import RateLimited
from app.listener.listener import PIPELINED_MAX
from tests.unit.api.append.lane_node import HTTP, LIMITS, Node

WRITER = b"Bearer writer"
APPENDS = b"/v1/logs/default/records"


def append(body: bytes = b"v", *lines: bytes, url: bytes = b"/v1/logs/default/records") -> bytes:
    head = [b"POST %s HTTP/1.1" % url, b"Host: x", b"X-Request-Id: same", *lines]
    if not any(line.lower().startswith((b"content-length", b"transfer-encoding")) for line in lines):
        head.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join((*head, b"", body))


OCTETS = b"Content-Type: application/octet-stream"
JSON = b"Content-Type: application/json"
NDJSON = b"Content-Type: application/x-ndjson"
LINES = (
    NDJSON, b"Content-Type: application/vnd.commitlog.batch", b"Commitlog-Timestamp: -62135596800000",
    b"Commitlog-Timestamp: 253402300799999", b"Commitlog-Timestamp: 253402300800000", b"Commitlog-Key: \xff",
    b"Commitlog-Key: \xc3\xa9", b"Commitlog-Key:", b"Idempotency-Key:", b"Idempotency-Key: a b",
    b"Idempotency-Key: " + b"k" * 256, b"Commitlog-No-Forward: 0", b"Traceparent: 00-1-1-01",
    b"Content-Length: 03", b"Content-Length: +3", b"Accept: text/html", OCTETS, JSON,
    b"content-type: APPLICATION/JSON; charset=utf-8", b"Content-Type: text/plain",
    b"Authorization: " + WRITER, b"Authorization: Bearer reader", b"Authorization: none",
    b"Idempotency-Key: k", b"Idempotency-Key: \xff", b"Commitlog-Key: key", b"Commitlog-Timestamp: x",
    b"Commitlog-No-Forward: 1", b"X-Request-Id: other", b"X-Request-Id: not one", b"Connection: close",
    b"Connection: keep-alive", b"Origin: http://evil", b"Origin: http://x", b"Expect: 100-continue",
    b"Content-Encoding: gzip", b"Content-Encoding: rot13", b"Content-Length: 3", b"Content-Length: 9999",
    b"Content-Length: x", b"Upgrade: websocket", b"Long: " + b"x" * 5000, b"Broken line",
)  # fmt: skip
URLS = (
    b"/v1/logs/default/records", b"/v1/logs/default/records?acks=leader", b"/v1/logs/default/records?foo=1",
    b"/v1/logs/default/records?timeout_ms=0", b"/v1/logs/none/records", b"/v1/logs/NO/records",
    b"/v1/logs/def%61ult/records", b"/v1/logs/default/records/", b"/v1/logs//records", b"/healthz",
    b"/v1/logs/default/records#x", b"http://x/v1/logs/default/records", b"/v1/logs/a/b/records",
    b"/v1/logs/default/records?acks=leader&acks=all", b"/v1/logs/default/records?", b"*",
    *(b"/v1/logs/default/records?" + query for query in (
        b"match_index=9007199254740993", b"match_index=9223372036854775807",
        b"match_index=9223372036854775808", b"match_term=0&fencing_token=a%20b+c", b"fencing_token=",
        b"fencing_token=" + b"f" * 256, b"acks=ALL",
        b"producer_id=p&producer_epoch=0&producer_sequence=0&producer_allow_gap=true", b"producer_id=p",
        b"&&", b"producer_allow_gap=true", b"timeout_ms=60000", b"timeout_ms=60001", b"timeout_ms=+5",
        b"timeout_ms=05", b"timeout_ms=%35", b"acks=leader&timeout_ms=7", b"fencing_token=%ff", b"=",
        b"acks", b"match_index=-1",
    )),
)  # fmt: skip
BODIES = (
    b"v", b"", b"refused", b"unknown", b'{"value":"a"}', b'{"records":[{"value":"a"},{"value":"b"}]}', b"{",
    b'{"value":"a","x":1}', b"x" * 1024, b"x" * 1025, b"x" * 2048, b"x" * 2049,
    b'{"value":"a"}\n{"value":"b","key":"k"}', b'{"value":"a"}\r\n\r\n{"value":null,"timestamp":-1}\n',
    b"\n", b"[]", b'{"value":"a"}{"value":"b"}', b'{"value":"a"}\n{"value":"b"',
    b'{"value_json":{"a": 1e400, "a":"\\u00e9"}}', b'{"value":"\\ud83d\\ude00"}', b'{"value":"\\ud83d"}',
    b'{"value":"\xff"}', b'\xef\xbb\xbf{"value":"a"}', b'{"value":"a","value_base64":"YQ=="}',
    b'{"value_base64":"YQ==","key_base64":"/w=="}', b'{"key":"k"}', b'{"value_base64":"Y"}',
    b'{"value":"a","headers":[["n","v"],["n",{"base64":"/w=="}]]}', b'"a"', b"null",
    b'{"value":"a","headers":[]}', b'{"value":"a","headers":[["n"]]}', b'{"value":"a","value":"refused"}',
    b'{"value":"a","timestamp":253402300800000}', b'{"value":"a","timestamp":1.0}',
    b'{"value":"a","timestamp":1e3}',
    b'{"records":[{"value":"a"}],"producer":{"id":"p","epoch":0,"sequence":0}}',
    b'{"value":"a","match_index":1}', b'{"records":[{"value":"a"}],"match_index":null,"fencing_token":"f"}',
    b'{"records":[],"match_index":1}', b'{"records":[{"value":"a"}],"match_index":9223372036854775808}',
    b'{"records":[{"value":"a"}],"value":"b"}',
    b'{"records":[{"value":"' + b"x" * 1020 + b'","key":"12345"}]}', b'{"value_json":null}',
    b'{"value_json":"a"}',
)  # fmt: skip


def random_request(chance: random.Random) -> bytes:
    body = chance.choice(BODIES)
    lines = [chance.choice((OCTETS, JSON, NDJSON))] if chance.random() < 0.9 else []
    if chance.random() < 0.8:
        lines.append(b"Authorization: " + WRITER)
    while chance.random() < 0.4:
        lines.append(chance.choice(LINES))
    url = chance.choice(URLS) if chance.random() < 0.3 else URLS[0]
    if chance.random() < 0.1:
        lines.append(b"Transfer-Encoding: chunked")
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if body else b"0\r\n\r\n"
    request = append(body, *lines, url=url)
    if chance.random() < 0.05:
        method = chance.choice((b"GET", b"PUT", b"post", b"HEAD"))
        request = request.replace(b"POST", method, 1)
    if chance.random() < 0.03:
        request = request.replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    if chance.random() < 0.03:
        request = request[: chance.randrange(len(request))]
    return request


def in_pieces(data: bytes, chance: random.Random) -> list[bytes]:
    cuts = sorted(chance.randrange(len(data) + 1) for _ in range(chance.choice((0, 0, 1, 3))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True) if a < b]


def without_clocks(answer: bytes) -> bytes:
    return re.sub(rb"\r\ndate: [^\r]+", b"", answer)


def before_broken_bytes(answer: bytes) -> bytes:
    """Without the end of a connection by bytes that are not HTTP. A refusal of them is written only when all
    earlier requests are answered, which the lane has done sooner."""
    answer = re.sub(
        rb"HTTP/1.1 [^\n]+\n[^{]*\{[^{]*\"code\":\"(bad-request|head-too-large)\"[^}]*\}$", b"", answer
    )
    return answer.replace(b"\r\nconnection: close", b"")


@pytest.fixture(autouse=True)
def one_request_id_and_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def here(function: Callable[[], Any]) -> Any:
        return function()

    monkeypatch.setattr(asyncio, "to_thread", here)
    for module in ("app.api.http.messages", "app.api.append.lane", "app.listener.connection"):
        monkeypatch.setattr(f"{module}.new_request_id", lambda: b"generated")


@pytest.mark.parametrize("tokens", [False, True])
def test_lane_and_plain_route_agree_on_random_requests(tokens: bool) -> None:
    async def run() -> None:
        nodes = [Node(lane=True, tokens=tokens), Node(lane=False, tokens=tokens)]
        for seed in range(400):
            chance = random.Random(seed)
            data = b"".join(random_request(chance) for _ in range(chance.choice((1, 1, 2, 4))))
            pieces = in_pieces(data, chance)
            answers = [without_clocks(await node.exchange(pieces)) for node in nodes]
            if any(b'"code":"bad-request"' in answer or b'"code":"head-too' in answer for answer in answers):
                answers = [before_broken_bytes(answer) for answer in answers]
            assert answers[0] == answers[1], (seed, data)
        assert nodes[0].driver.stored == nodes[1].driver.stored
        assert nodes[0].driver.rows == nodes[1].driver.rows
        assert len(nodes[0].driver.stored) > 40
        assert [node.handler.in_flight.requests for node in nodes] == [0, 0]
        assert [node.handler.in_flight.bytes for node in nodes] == [0, 0]
        for node in nodes:
            callers = [node.tokens._unrestricted, *node.tokens._callers.values()]
            assert [caller.in_flight for caller in callers] == [0] * len(callers)

    asyncio.run(run())


REPEATED = (
    append(b"a", OCTETS, b"Authorization: " + WRITER), append(b"", OCTETS), append(b"refused", OCTETS),
    append(b"x" * 900, OCTETS), append(b'{"value":"a"}', JSON), append(b"b", OCTETS, b"Connection: close"),
    append(b"c\r\n\r\nd", OCTETS, b"Upgrade: h2c"), b"\r\n\r\n" + append(b"e", OCTETS),
    append(b"f", OCTETS).replace(b"\r\n", b"\n"), b"\r\n" + append(b"g", OCTETS, b"Authorization: " + WRITER),
    append(b"h", b"Content-Type: a/b\n", OCTETS), append(b"i" * 9, b"Content-Length: 3", OCTETS),
    append(b"j", OCTETS, url=b"/v1/logs/default/records?acks=leader"), append(b"k", b"Content-Length: 9999"),
    b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
)  # fmt: skip


@pytest.mark.parametrize("tokens", [False, True])
def test_repeated_heads_change_no_answer(tokens: bool) -> None:
    """A head that the lane knows is not parsed again, whatever stands before, in or after it."""

    async def run() -> None:
        nodes = [Node(lane=True, tokens=tokens), Node(lane=False, tokens=tokens)]
        for seed in range(150):
            chance = random.Random(seed)
            requests = [chance.choice(REPEATED) for _ in range(chance.choice((2, 4)))]
            whole = chance.random() < 0.5
            pieces = requests if whole else in_pieces(b"".join(requests), chance)
            answers = [without_clocks(await node.exchange(pieces)) for node in nodes]
            if any(b'"code":"bad-request"' in answer for answer in answers):
                answers = [before_broken_bytes(answer) for answer in answers]
            assert answers[0] == answers[1], (seed, pieces)
        assert nodes[0].driver.stored == nodes[1].driver.stored
        assert [node.handler.in_flight.requests for node in nodes] == [0, 0]
        assert nodes[0].lane is not None
        known = [raw for raw in REPEATED if nodes[0].lane.known(raw[: raw.find(b"\r\n\r\n") + 4])]
        assert len(known) == (1 if tokens else 8), known

    asyncio.run(run())


IN_A_GROUP = (b"v", b"", b"x" * 1024, b"x" * 1025, b"x" * 2048, b"refused", b"%d%b")
TYPES_IN_A_GROUP = {OCTETS: IN_A_GROUP, JSON: BODIES, NDJSON: BODIES}


def test_a_group_gives_each_member_the_answer_that_it_gets_alone() -> None:
    """Several connections in one turn, with good and bad bodies, other acks and other request ids."""

    def request(chance: random.Random) -> bytes:
        media_type = chance.choice((OCTETS, OCTETS, OCTETS, OCTETS, JSON, NDJSON))
        body = chance.choice(TYPES_IN_A_GROUP[media_type])
        query = chance.choice((b"", b"", b"", b"?acks=leader", b"?timeout_ms=9", b"?match_index=1"))
        sent = append(body, media_type, url=APPENDS + query)
        return sent.replace(b"same", b"id-%d" % chance.randrange(1_000_000))

    async def run() -> None:
        nodes = [Node(lane=True), Node(lane=False)]
        for seed in range(60):
            chance = random.Random(seed)
            requests = [request(chance) for _ in range(12)]
            answers = []
            for node in nodes:
                clients = [node.connect() for _ in requests]
                for (connection, _), sent in zip(clients, requests, strict=True):
                    connection.data_received(sent)
                for _ in range(30):
                    await asyncio.sleep(0)
                answers.append([without_indexes(bytes(transport.sent)) for _, transport in clients])
            assert answers[0] == answers[1], seed
        members = [sorted(map(repr, node.driver.rows)) for node in nodes]
        assert members[0] == members[1]
        assert max(nodes[0].driver.counts) >= 5
        assert set(nodes[1].driver.counts) == {1}
        assert nodes[0].broker.meter.answers == nodes[1].broker.meter.answers
        assert nodes[0].broker.meter.append_counts == nodes[1].broker.meter.append_counts
        assert nodes[0].broker.meter.appended_bytes == nodes[1].broker.meter.appended_bytes
        assert (nodes[0].handler.in_flight.requests, nodes[0].handler.in_flight.bytes) == (0, 0)
        assert nodes[0].tokens._unrestricted.in_flight == 0

    asyncio.run(run())


def without_indexes(answer: bytes) -> bytes:
    """Appends of one turn may enter the log in any order: without their indexes, and what depends on them."""
    return re.sub(rb'(date|content-length): [^\r]+\r\n|"(first|last)_index":\d+', b"", answer)


def test_a_known_head_is_refused_once_its_token_is_gone_or_the_node_is_full() -> None:
    async def run() -> None:
        node = Node(lane=True, tokens=True)
        request = append(b"v", OCTETS, b"Authorization: " + WRITER)
        assert b" 200 " in await node.exchange([request, request])
        node.handler.in_flight.requests += 1_000_000
        assert b" 429 " in await node.exchange([request])
        node.handler.in_flight.requests -= 1_000_000
        node.tokens._replace({})
        assert b" 401 " in await node.exchange([request])
        assert len(node.driver.stored) == 2

    asyncio.run(run())


def test_the_lane_takes_no_append_that_the_token_does_not_permit() -> None:
    """It checks the rights once for a head: again whenever the rights of the token have changed."""

    async def run() -> None:
        node = Node(lane=True, tokens=True)
        reader, writer = (
            append(b"v", OCTETS, b"Authorization: Bearer " + name) for name in (b"reader", b"writer")
        )

        def set_rights(of_writer: str) -> None:
            lines = Tokens(Path("tokens"), f"writer {of_writer}\nreader read\n")._callers
            for digest, caller in lines.items():
                node.tokens._callers[digest].grant = caller.grant

        for rights, status in (("write", b" 200 "), ("read", b" 403 "), ("write", b" 200 ")):
            set_rights(rights)
            assert b" 403 " in await node.exchange([reader, reader])
            assert (await node.exchange([writer, writer])).count(status) == 2
        set_rights("write logs=other.*")
        assert b" 403 " in await node.exchange([writer])
        assert len(node.driver.stored) == 4

    asyncio.run(run())


def test_pipelined_requests_are_answered_in_their_order() -> None:
    async def run() -> None:
        node = Node(lane=True)
        plain = append(b"b", OCTETS, url=b"/v1/logs/def%61ult/records")
        requests = [
            append(b"a", OCTETS),
            plain,
            append(b"c", OCTETS),
            append(b"d", OCTETS, b"Connection: close"),
        ]
        answer = await node.exchange([b"".join(requests) + append(b"never", OCTETS)])
        assert node.driver.stored == [[b"a"], [b"b"], [b"c"], [b"d"]]
        assert re.findall(rb'"first_index":(\d+)', answer) == [b"10", b"11", b"12", b"13"]
        assert answer.count(b"connection: close") == 1

    asyncio.run(run())


def test_a_client_cannot_fill_the_memory_with_requests_before_their_answers() -> None:
    """Each parsed request takes 50 times its bytes, and each answer let the node read 256 KiB more."""

    async def run() -> None:
        node = Node(lane=True)
        answer = await node.exchange([append(b"a", OCTETS) * 5_000])
        statuses = re.findall(rb"HTTP/1.1 (\d+)", answer)
        assert len(statuses) == 1 + PIPELINED_MAX
        assert len(node.driver.stored) == statuses.count(b"200")  # nothing is stored without an answer
        assert answer.count(b"connection: close") == 1

    asyncio.run(run())


def test_a_client_that_disconnects_harms_no_other() -> None:
    """Before the body is complete nothing is stored; afterwards the append goes on without its client."""

    async def run() -> None:
        node = Node(lane=True)
        whole = append(b"value", OCTETS)
        for length in range(1, len(whole)):
            assert await node.exchange([whole[:length]], then_leave=True) == b""
            assert (node.driver.stored, node.handler.in_flight.requests) == ([], 0)
        assert await node.exchange([whole], then_leave=True) == b""
        assert node.driver.stored == [[b"value"]]
        assert (node.handler.in_flight.requests, node.handler.in_flight.bytes) == (0, 0)
        assert node.tokens._unrestricted.in_flight == 0
        assert b" 200 " in await node.exchange([whole])

    asyncio.run(run())


def test_a_body_that_is_late_is_refused_as_by_the_plain_route() -> None:
    async def run() -> None:
        node = Node(lane=True)
        connection, transport = node.connect()
        connection.data_received(append(b"value", OCTETS)[:-2])
        connection.enforce(asyncio.get_running_loop().time() + 1)
        assert transport.sent.startswith(b"HTTP/1.1 400 ")
        assert b"the body did not arrive within 0.1 s" in transport.sent
        assert node.handler.in_flight.requests == 0
        assert node.broker.meter.answers == {("POST", "/v1/logs/{log}/records", 400): 1}
        connection.data_received(b"ue" + append(b"next", OCTETS))
        await asyncio.sleep(0.01)
        assert node.driver.stored == [[b"next"]]
        assert transport.sent.count(b"HTTP/1.1 200 ") == 1

    asyncio.run(run())


def test_a_late_body_after_a_known_head_is_refused_and_its_rest_ignored() -> None:
    async def run() -> None:
        node = Node(lane=True)
        await node.exchange([append(b"value", OCTETS)])
        connection, transport = node.connect()
        connection.data_received(append(b"value", OCTETS)[:-2])
        connection.enforce(asyncio.get_running_loop().time() + 1)
        assert transport.sent.startswith(b"HTTP/1.1 400 ")
        connection.data_received(b"ue" + append(b"next", OCTETS))
        await asyncio.sleep(0.01)
        assert node.driver.stored == [[b"value"], [b"next"]]
        assert transport.sent.count(b"HTTP/1.1 200 ") == 1
        assert node.handler.in_flight.requests == 0

    asyncio.run(run())


def test_a_stop_closes_the_connection_after_the_answer() -> None:
    async def run() -> None:
        node = Node(lane=True)
        connection, transport = node.connect()
        connection.data_received(append(b"value", OCTETS))
        connection.shutdown()
        await asyncio.sleep(0.01)
        assert b"connection: close" in transport.sent
        assert transport.closing
        idle, idle_transport = node.connect()
        idle.shutdown()
        assert idle_transport.closing

    asyncio.run(run())


def test_a_silent_client_is_disconnected_after_an_answer_of_the_lane() -> None:
    async def run() -> None:
        node = Node(lane=True)
        connection, transport = node.connect()
        connection.data_received(append(b"value", OCTETS))
        now_s = asyncio.get_running_loop().time()
        connection.enforce(now_s + 10_000)
        assert not transport.closing  # the append is not answered yet
        await asyncio.sleep(0.01)
        connection.enforce(now_s + 1)
        assert not transport.closing
        connection.enforce(now_s + 10_000)
        assert transport.closing

    asyncio.run(run())


def lane_of(in_flight: InFlightLimit, *, refused: bool = False) -> AppendLane:
    """Return a lane. refused: by the token."""

    def enter() -> None:
        if refused:
            raise RateLimited("the token has too many appends in flight")

    caller = SimpleNamespace(require=lambda *_: None, enter=enter, grant=None)
    handler: Any = SimpleNamespace(check_log=lambda log: None, in_flight=in_flight)
    tokens: Any = SimpleNamespace(caller=lambda path, authorization: caller)
    return AppendLane(
        SimpleNamespace(handler=handler),
        tokens,  # type: ignore[arg-type]
        LIMITS,
        HTTP.body_timeout_ms,
    )


def take(lane: AppendLane, raw: bytes, url: bytes = APPENDS) -> tuple[bool, bool]:
    """Return whether the lane takes an append, and whether it remembers its head."""
    taken = lane.take(raw, url, [(b"content-length", b"7")], keep_alive=True, now_s=0.0)
    return taken is not None, lane.known(raw) is not None


def test_an_append_that_the_lane_does_not_take_is_not_in_flight() -> None:
    raw, in_flight = b"POST / HTTP/1.1\r\n\r\n", InFlightLimit(1, 7)
    lane = lane_of(in_flight)
    assert take(lane_of(in_flight, refused=True), raw) == (False, False)
    assert take(lane, raw, b"/v1/logs/__controller/records") == (False, False)
    assert take(lane, raw) == (True, True)  # the whole limit is free


@pytest.mark.parametrize("raw", [b"POST / HTTP/1.1\nx: y\r\n\r\n", b"\r\nPOST / HTTP/1.1\r\n\r\n"])
def test_a_head_that_parsers_may_end_elsewhere_is_not_remembered(raw: bytes) -> None:
    assert take(lane_of(InFlightLimit(1, 7)), raw) == (True, False)


def test_the_heads_that_a_lane_remembers_are_bounded() -> None:
    heads = [b"POST /%d HTTP/1.1\r\n\r\n" % number for number in range(KNOWN_HEADS_MAX + 1)]
    lane = lane_of(InFlightLimit(len(heads), 7 * len(heads)))
    assert {take(lane, head) for head in heads} == {(True, True)}
    assert [head for head in heads if lane.known(head) is not None] == heads[-1:]


@pytest.mark.parametrize("lane", [True, False])
@pytest.mark.parametrize(
    "line",
    [OCTETS, b"Idempotency-Key: k", b"Commitlog-Key: k", b"Commitlog-No-Forward: 1", b"Authorization: a"],
)
def test_an_append_that_gives_a_header_twice_is_refused(lane: bool, line: bytes) -> None:
    async def run() -> None:
        node = Node(lane=lane)
        lines = [OCTETS, line] if line == OCTETS else [OCTETS, line, line]
        answer = await node.exchange([append(b"v", *lines), append(b"w", OCTETS)])
        assert answer.startswith(b"HTTP/1.1 422 "), answer
        assert b'"detail":"given twice"' in answer, answer
        assert node.driver.stored == [[b"w"]]  # the connection continues

    asyncio.run(run())
