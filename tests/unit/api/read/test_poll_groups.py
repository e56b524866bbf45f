"""Long polls of one content at one index are answered together, each as the plain route answers it."""

import asyncio
import itertools
import random
import re
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from app.api.http.dependencies import PIECE_BYTES
from app.api.read.poll_groups import PollGroups
from app.api.read.reader import LogHead, Reader
from app.api.read.tail_pace import WOKEN_AT_ONCE, TailPace, pace_of
from app.errors import IndexTrimmed, ReadIndexUnavailable
from app.node.replica.driver import LogDriver
from tests.support.connections import FakeTransport
from tests.support.event_loop import run, until
from tests.support.in_process import InProcess, node_in_process
from tests.unit.api.read.test_lane import READER, RECORDS, WRITER, Fronts, fill, get, whole_answers

LANE, PLAIN = 0, 1
LONG = b"?from_index=%d&wait_ms=60000"


class Scene:
    """A node with some records, and clients that poll it by the lane and by the plain route."""

    def __init__(self, node: InProcess, fronts: Fronts) -> None:
        self.node = node
        self.fronts = fronts
        self.clients: list[tuple[Any, FakeTransport]] = []

    @property
    def driver(self) -> LogDriver:
        driver = self.node.broker.lookup.find("default").driver
        assert driver is not None
        return driver

    @property
    def groups(self) -> PollGroups:
        return self.fronts.lane._groups

    @property
    def end(self) -> int:
        """The next index."""
        return self.driver.committed_index + 1

    def poll(self, request: bytes | None = None, front: int = LANE) -> FakeTransport:
        """Send a poll, by default one at the end of the log, by a new client."""
        connection, transport = self.fronts.connect(front)
        self.clients.append((connection, transport))
        connection.data_received(request or get(LONG % self.end))
        return transport

    def both(self, request: bytes) -> tuple[FakeTransport, FakeTransport]:
        return self.poll(request), self.poll(request, PLAIN)

    def leave(self, transport: FakeTransport) -> None:
        connection = next(each for each, own in self.clients if own is transport)
        transport.close()
        connection.connection_lost(None)

    async def waiting(self, count: int, groups: int = 1) -> None:
        """Wait until so many polls wait in so many groups at the end of the log."""
        waiting = self.groups.waiting
        await until(lambda: sum(len(group._polls) for group in waiting.values()) == count)
        assert (len(waiting), len(self.groups.arriving)) == (groups, 0)

    async def answered(self, transports: list[FakeTransport], answers: int = 1) -> list[bytes]:
        """Return what clients got, once each has so many whole answers."""
        await until(lambda: all(whole_answers(each.sent) >= answers for each in transports))
        return [re.sub(rb"\r\ndate: [^\r]+", b"", bytes(each.sent)) for each in transports]

    async def is_left(self) -> None:
        """Wait until nothing of a poll is left."""
        await until(lambda: not self.fronts.in_flight.requests)
        assert [*self.groups.waiting, *self.groups.arriving] == []
        assert self.fronts.in_flight.bytes == 0
        callers = [self.fronts.tokens._unrestricted, *self.fronts.tokens._callers.values()]
        assert not any(caller.in_flight for caller in callers)


def play(folder: Path, test: Callable[[Scene], Awaitable[None]], *, tokens: bool = False) -> None:
    async def played() -> None:
        async with node_in_process(folder) as node:
            scene = Scene(node, Fronts(node, tokens=tokens))
            await fill(node, 3)
            await test(scene)
            await scene.is_left()

    run(played)


def test_polls_at_the_end_share_their_confirmation_their_task_and_their_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"fill": 0, "read_index": 0}

    def counted(kind: type, name: str, driver_of: Callable[[Any], LogDriver], driver: LogDriver) -> None:
        original = getattr(kind, name)

        def call(own: Any, *arguments: Any) -> Any:
            counts[name] += driver_of(own) is driver
            return original(own, *arguments)

        monkeypatch.setattr(kind, name, call)

    async def test(scene: Scene) -> None:
        counted(Reader, "fill", lambda reader: reader.driver, scene.driver)
        counted(LogDriver, "read_index", lambda driver: driver, scene.driver)
        clients = [scene.poll() for _ in range(20)]
        await scene.waiting(20)
        assert counts == {"fill": 0, "read_index": 1}
        tasks = {task for connection, _ in scene.clients for task in connection.tasks}
        assert len(tasks) == 1
        clients += [scene.poll() for _ in range(20)]  # of a later turn: they need a confirmation of their own
        await scene.waiting(40)
        assert counts == {"fill": 0, "read_index": 2}
        await fill(scene.node, 1)
        answers = await scene.answered(clients)
        assert set(answers) == {answers[0]}
        assert b'"value":"v0"' in answers[0]
        assert counts == {"fill": 1, "read_index": 2}

    play(tmp_path, test)


def test_few_polls_are_answered_in_a_turn_of_the_loop(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        clients = [scene.poll() for _ in range(2 * WOKEN_AT_ONCE + 1)]
        await scene.waiting(len(clients))
        appended = asyncio.ensure_future(fill(scene.node, 1))
        turns = [0]  # answers after each
        while turns[-1] < len(clients):
            await asyncio.sleep(0)
            turns.append(sum(bool(each.sent) for each in clients))
        steps = {after - before for before, after in itertools.pairwise(turns)}
        assert steps == {0, 1, WOKEN_AT_ONCE}
        await appended

    play(tmp_path, test)


QUERIES = (
    LONG, b"?wait_ms=60000&from_index=%d", LONG + b"&limit=1", LONG + b"&consistency=committed",
    LONG + b"&encoding=base64", LONG + b"&include=control", LONG + b"&until_index=99",
    LONG + b"&until_index=3",
    LONG + b"&until_timestamp=250000000000000", LONG + b"&until_timestamp=1", LONG + b"&key=k",
    LONG + b"&max_bytes=1", b"?from_index=%d&wait_ms=1", b"?from_index=%d&wait_ms=1&consistency=committed",
)  # fmt: skip
LINES = (
    b"Accept: application/x-ndjson", b"Accept: application/vnd.apache.arrow.stream", b"Connection: close",
    b"X-Request-Id: other", b"Accept: application/vnd.apache.parquet",
)  # fmt: skip


@pytest.mark.parametrize("is_revoked", [False, True])
def test_many_different_polls_get_what_the_plain_route_gives_each(tmp_path: Path, is_revoked: bool) -> None:
    async def test(scene: Scene) -> None:
        chance = random.Random(7)
        pairs, brief = [], []
        for _ in range(90):
            query, lines = chance.choice(QUERIES), [chance.choice((READER, READER, READER, WRITER))]
            while chance.random() < 0.3:
                lines.append(chance.choice(LINES))
            index = scene.end + chance.choice((0, 0, 0, -1, -2, 1))
            pairs.append(scene.both(get(query % index, *lines)))
            brief += pairs[-1] if b"wait_ms=1" in query else ()
        lane, plain = ([pair[front] for pair in pairs] for front in (LANE, PLAIN))
        await scene.answered(brief)
        await until(lambda: scene.fronts.in_flight.requests == len(_unanswered(lane + plain)))
        assert len(scene.groups.waiting) > 5
        if is_revoked:
            scene.fronts.tokens._replace({})
        records = {"records": [{"value": "one"}, {"value": "two", "key": "k"}]}
        assert (await scene.node.client.post(RECORDS.decode(), json=records)).status_code == 200
        got = await scene.answered(lane)
        assert got == await scene.answered(plain)
        statuses = {answer[9:12] for answer in got}
        assert statuses == ({b"200", b"401", b"403", b"416"} if is_revoked else {b"200", b"403", b"416"})

    play(tmp_path, test, tokens=True)


def _unanswered(clients: list[FakeTransport]) -> list[FakeTransport]:
    return [each for each in clients if not each.sent]


def test_polls_end_with_their_own_waits_and_the_others_go_on(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        request = get(b"?from_index=%d&wait_ms=50" % scene.end)
        first, plain = scene.both(request)
        second = scene.poll(request)
        await scene.waiting(2)
        (group,) = scene.groups.waiting.values()
        group._polls[list(group._polls)[1]] += 3600  # as if it had come later
        answers = await scene.answered([first, plain])
        assert answers[0] == answers[1]
        assert b'"records":[]' in answers[0]
        assert not second.sent
        await fill(scene.node, 1)
        assert b'"value":"v0"' in (await scene.answered([second]))[0]

    play(tmp_path, test)


def test_a_client_that_disconnects_takes_no_answer_from_others(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        leaves, stays = scene.poll(), scene.poll()
        await scene.waiting(2)
        scene.leave(leaves)
        assert scene.fronts.in_flight.requests == 1
        early = scene.poll()
        scene.leave(early)  # before its group has begun
        await fill(scene.node, 1)
        await scene.answered([stays])
        assert leaves.sent == early.sent == b""
        last = [scene.poll() for _ in range(2)]
        await scene.waiting(2)
        (group,) = scene.groups.waiting.values()
        for each in last:
            scene.leave(each)
        await until(group.task.done)
        assert group.task.cancelled()

    play(tmp_path, test)


@pytest.mark.parametrize("size_bytes", [10, 2 * PIECE_BYTES])
def test_no_poll_waits_for_the_slow_client_of_another(tmp_path: Path, size_bytes: int) -> None:
    async def test(scene: Scene) -> None:
        clients = [scene.poll() for _ in range(3)]
        await scene.waiting(3)
        slow = scene.clients[0][0]
        slow.pause_writing()  # the transport's buffer is full
        octets = {"content-type": "application/octet-stream"}
        sent = await scene.node.client.post(RECORDS.decode(), content=b"v" * size_bytes, headers=octets)
        assert sent.status_code == 200
        answers = await scene.answered(clients[1:])
        await until(lambda: scene.fronts.in_flight.requests == 1)
        assert not clients[0].sent
        assert scene.fronts.in_flight.bytes > size_bytes  # reserved until the client reads
        assert any(not task.done() for task in slow.tasks)  # a clean stop waits for it
        slow.resume_writing()
        assert (await scene.answered(clients[:1]))[0].endswith(answers[0].partition(b"\r\n\r\n")[2])
        clients[0].sent.clear()
        slow.data_received(get(LONG % scene.end))
        await scene.waiting(1)
        slow.pause_writing()
        await fill(scene.node, 1)
        await until(lambda: scene.fronts.in_flight.bytes)
        scene.leave(clients[0])  # meanwhile
        await until(lambda: not slow.tasks)
        assert not clients[0].sent

    play(tmp_path, test)


def test_a_connection_that_fails_harms_no_other_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(scene: Scene) -> None:
        broken, sound = scene.poll(), scene.poll()
        await scene.waiting(2)

        def fail(_: object) -> None:
            raise OSError("a defect")

        monkeypatch.setattr(broken, "writelines", fail)
        await fill(scene.node, 1)
        assert b'"value":"v0"' in (await scene.answered([sound]))[0]
        await scene.is_left()

    play(tmp_path, test)


def test_answers_beyond_the_memory_of_a_node_are_refused_one_by_one(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        pairs = [scene.both(get(LONG % index)) for index in (scene.end, scene.end, 0)]
        await until(lambda: all(bool(each.sent) for each in pairs[2]))
        await scene.waiting(2)
        in_flight = scene.fronts.in_flight
        in_flight.bytes += in_flight._max_bytes
        pairs.append(scene.both(get(LONG % 0)))  # not at the end, so it waits for nothing
        await scene.answered([*pairs[3]])
        in_flight.bytes -= in_flight._max_bytes
        await fill(scene.node, 1)
        got = [await scene.answered([*pair]) for pair in pairs]
        assert all(lane == plain for lane, plain in got)
        assert [lane[9:12] for lane, _ in got] == [b"200", b"200", b"200", b"429"]

    play(tmp_path, test)


@pytest.mark.parametrize("deleting", [False, True])
def test_a_log_that_is_deleted_or_repaired_ends_the_polls_at_it(tmp_path: Path, deleting: bool) -> None:
    async def test(scene: Scene) -> None:
        hosted, driver = scene.node.broker.lookup.find("default"), scene.driver
        pairs = [scene.both(get(LONG % scene.end)) for _ in range(WOKEN_AT_ONCE + 1)]
        await scene.waiting(len(pairs))
        (group,) = scene.groups.waiting.values()
        await until(lambda: len(pace_of(group._reader)._waiting) == len(pairs) + 1)
        hosted.driver, hosted.deleting = None, deleting
        pace_of(group._reader)._wake()
        while not any(lane.sent for lane, _ in pairs):  # noqa: ASYNC110  # in each turn
            await asyncio.sleep(0)
        assert not scene.groups.waiting  # the group refuses the rest, and takes no other poll
        answers = {each for pair in pairs for each in await scene.answered([*pair])}
        hosted.driver, hosted.deleting = driver, False
        assert len(answers) == 1
        assert (b"log-deleting" if deleting else b"repairing") in answers.pop()

    play(tmp_path, test)


def test_a_log_that_is_deleted_between_two_answers_refuses_the_second(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        hosted, driver = scene.node.broker.lookup.find("default"), scene.driver
        clients = [scene.poll() for _ in range(WOKEN_AT_ONCE + 1)]
        await scene.waiting(len(clients))
        appended = asyncio.ensure_future(fill(scene.node, 1))
        while len(_unanswered(clients)) > 1:  # noqa: ASYNC110  # in each turn
            await asyncio.sleep(0)
        hosted.driver = None
        assert b"repairing" in (await scene.answered(clients))[-1]
        hosted.driver = driver
        await appended

    play(tmp_path, test)


@pytest.mark.parametrize("error", [partial(IndexTrimmed, 2), ReadIndexUnavailable, RuntimeError])
def test_an_error_of_a_read_ends_all_polls_that_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Callable[[], Exception]
) -> None:
    """A trim, a lost leadership or a defect between the arrival of a poll and its read."""

    async def fail(*arguments: object) -> None:
        raise error()  # one that is kept would keep the connections of its traceback

    async def test(scene: Scene) -> None:
        is_unconfirmed = error is ReadIndexUnavailable
        pairs = [scene.both(get(LONG % 0)) for _ in range(WOKEN_AT_ONCE + 1)]
        monkeypatch.setattr(Reader, "confirm" if is_unconfirmed else "range_of", fail)
        answers = {each for pair in pairs for each in await scene.answered([*pair])}
        assert len(answers) == 1
        assert re.match(rb"HTTP/1.1 (410|500|503) ", answers.pop())

    play(tmp_path, test)


def test_a_clean_stop_answers_all_polls(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        pairs = [scene.both(get(LONG % scene.end)) for _ in range(WOKEN_AT_ONCE + 1)]
        await scene.waiting(len(pairs))
        connections = [connection for connection, _ in scene.clients]
        assert all(connection.tasks for connection in connections[::2])  # uvicorn waits for them
        for connection in connections:
            connection.shutdown()
        scene.node.broker.waits.end()
        answers = {each for pair in pairs for each in await scene.answered([*pair])}
        assert len(answers) == 1
        assert re.search(rb'connection: close.*"records":\[\]', answers.pop(), re.DOTALL)
        await until(lambda: not any(connection.tasks for connection in connections))
        late = scene.both(get(LONG % scene.end))
        assert len(set(await scene.answered([*late]))) == 1

    play(tmp_path, test)


def test_a_stop_that_does_not_wait_leaves_nothing(tmp_path: Path) -> None:
    async def test(scene: Scene) -> None:
        clients = [scene.poll() for _ in range(2)]
        await scene.waiting(2)
        for task in scene.clients[0][0].tasks:
            task.cancel()
        await scene.is_left()
        assert not any(each.sent for each in clients)

    play(tmp_path, test)


def test_a_poll_that_joins_late_sees_what_was_committed_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the moment that its group gets is of an earlier time."""
    moment = TailPace.moment
    joined: list[FakeTransport] = []

    async def test(scene: Scene) -> None:
        async def late(
            pace: TailPace, index: int, known_end: int, cost_s: float, head: Callable[[], LogHead]
        ) -> LogHead:
            found = await moment(pace, index, known_end, cost_s, head)
            if not joined:
                await fill(scene.node, 1)
                joined.append(scene.poll(request))
                await until(lambda: len(group._polls) == 2)
            return found

        request = get(LONG % scene.end)
        first = scene.poll(request)
        await scene.waiting(1)
        (group,) = scene.groups.waiting.values()
        monkeypatch.setattr(TailPace, "moment", late)
        await fill(scene.node, 1)
        (answer,) = await scene.answered([first])
        assert [answer] == await scene.answered(joined)
        assert answer.count(b'"value":"v0"') == 2

    play(tmp_path, test)


def test_polls_at_a_replica_that_may_be_ahead_of_its_leader_see_what_each_was_permitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(scene: Scene) -> None:
        permitted = scene.driver.committed_index

        async def read_index(_: object) -> int:
            return permitted

        monkeypatch.setattr(LogDriver, "runs_ahead", True)
        monkeypatch.setattr(scene.node.broker.waits, "read_index", read_index)
        request = get(LONG % scene.end)
        await fill(scene.node, 1)
        pairs = [scene.both(request) for _ in range(2)]
        await until(lambda: not scene.groups.arriving)
        await asyncio.sleep(0)
        assert not scene.groups.waiting  # a group at the end takes polls that were permitted more
        assert not any(each.sent for pair in pairs for each in pair)
        permitted += 1
        answers = {each for pair in pairs for each in await scene.answered([*pair])}
        assert len(answers) == 1
        assert b'"value":"v0"' in answers.pop()

    play(tmp_path, test)


@pytest.mark.parametrize("late_is_there", [False, True])
def test_a_group_continues_after_records_that_it_does_not_select(tmp_path: Path, late_is_there: bool) -> None:
    """It shares the page with the polls that wait where it arrives, but no poll waits beyond its end."""

    async def test(scene: Scene) -> None:
        query, end = LONG + b"&consistency=committed", scene.end
        early = [scene.poll(get(query % end)) for _ in range(2)]
        await scene.waiting(2)
        (group,) = scene.groups.waiting.values()
        late = [scene.poll(get(query % (end + 1)))] if late_is_there else []
        await scene.waiting(2 + len(late), groups=1 + len(late))
        poll, other = group._polls
        group._polls = {poll: asyncio.get_running_loop().time(), other: group.gives_up_s}
        moved = await scene.node.client.put("/v1/logs/default/cursors/c", json={"index": 0})
        assert moved.status_code == 200, moved.text
        (ended,) = await scene.answered(early[:1])
        assert b'"records":[]' in ended
        await until(lambda: [key[1] for key in scene.groups.waiting] == [end + 1])  # type: ignore[index]
        late.append(scene.poll(get(query % (end + 1))))
        await scene.waiting(2)
        assert (group in scene.groups.waiting.values()) is not late_is_there
        await fill(scene.node, 1)
        answers = await scene.answered([*early[1:], *late])
        assert set(answers) == {answers[0]}
        assert b'"value":"v0"' in answers[0]

    play(tmp_path, test)


def test_polls_that_have_seen_more_than_a_replaced_copy_has_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slave's committed index falls when its master's log replaces its own from an earlier batch on."""
    moment = TailPace.moment

    async def test(scene: Scene) -> None:
        request, calls, seen = get(LONG % (scene.end - 2)), itertools.count(), scene.end - 1

        def fallen(_: LogDriver) -> int:
            assert next(calls) < 1000  # the event loop turns
            return seen - 1

        async def falling(pace: TailPace, *arguments: Any) -> LogHead:
            monkeypatch.setattr(LogDriver, "committed_index", property(fallen))
            return await moment(pace, *arguments)

        monkeypatch.setattr(TailPace, "moment", falling)
        answers = [(await scene.answered([scene.poll(request, front)]))[0] for front in (LANE, PLAIN)]
        assert answers[0] == answers[1]
        assert answers[0].count(b'"value":') == 1

    play(tmp_path, test)
