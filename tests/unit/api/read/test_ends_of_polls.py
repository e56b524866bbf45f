"""Ends of long polls that share a read: refusals as those of the plain route, and nothing is left."""

import asyncio
import gc
import itertools
import weakref
from pathlib import Path

import pytest

from app.api.read.reader import Reader
from app.api.read.tail_pace import WOKEN_AT_ONCE
from storage.errors import CorruptLog, DiskError
from tests.unit.api.read.test_lane import READER, fill, get
from tests.unit.api.read.test_poll_groups import LANE, LONG, Scene, play


def test_polls_are_answered_when_the_repair_that_they_report_cannot_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk that has damaged the log does not read the note of the repair either."""

    async def damaged(*arguments: object) -> None:
        raise CorruptLog("logs/default/0", 7, "checksum")

    def fail(*arguments: object) -> bool:
        raise DiskError("repairs/default", "read", "input/output error")

    async def test(scene: Scene) -> None:
        monkeypatch.setattr(scene.node.broker.repairs, "report", fail)
        pairs = [scene.both(get(LONG % scene.end)) for _ in range(3)]
        monkeypatch.setattr(Reader, "range_of", damaged)
        answers = {each for pair in pairs for each in await scene.answered([*pair])}
        assert len(answers) == 1
        assert b'"code":"internal"' in answers.pop()

    play(tmp_path, test)


def test_polls_whose_token_was_removed_learn_no_other_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(scene: Scene) -> None:
        pair = scene.both(get(LONG % scene.end, READER))
        await scene.waiting(1)
        hosted = scene.node.broker.lookup.find("default")
        driver, hosted.driver = hosted.driver, None
        scene.fronts.tokens._replace({})
        scene.node.broker.waits.end()
        answers = {*await scene.answered([*pair])}
        hosted.driver = driver
        assert len(answers) == 1
        assert answers.pop().startswith(b"HTTP/1.1 401 ")

    play(tmp_path, test, tokens=True)


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_closed_connection_needs_no_garbage_collector(tmp_path: Path, is_answered: bool) -> None:
    """A node whose collector runs rarely would keep many."""

    async def test(scene: Scene) -> None:
        connection, transport = scene.fronts.connect(LANE)
        connection.data_received(get(LONG % (0 if is_answered else scene.end)))
        if is_answered:
            await scene.answered([transport])
        else:
            await scene.waiting(1)
        transport.close()
        connection.connection_lost(None)
        found = weakref.ref(connection)
        del connection
        await asyncio.sleep(0)
        assert found() is None

    gc.disable()
    try:
        play(tmp_path, test)
    finally:
        gc.enable()


def test_few_polls_are_refused_in_a_turn_of_the_loop(tmp_path: Path) -> None:
    """A read before the end of the log, for which the node has no memory."""

    async def test(scene: Scene) -> None:
        await fill(scene.node, 10)
        in_flight = scene.fronts.in_flight
        in_flight.bytes += in_flight._max_bytes
        clients = [scene.poll(get(LONG % 0 + b"&limit=1")) for _ in range(2 * WOKEN_AT_ONCE + 1)]
        turns = [0]  # answers after each
        while turns[-1] < len(clients):
            await asyncio.sleep(0)
            turns.append(sum(bool(each.sent) for each in clients))
        in_flight.bytes -= in_flight._max_bytes
        assert {after - before for before, after in itertools.pairwise(turns)} <= {0, 1, WOKEN_AT_ONCE}
        assert {each[9:12] for each in await scene.answered(clients)} == {b"429"}

    play(tmp_path, test)
