"""How far a read may see, by its consistency (docs/api.md §5)."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import Response

from app.api.http.log_call import AnsweredElsewhere
from app.api.read.event_stream import client_events
from app.api.read.events import EventStream
from app.api.read.query import ReadQuery
from app.api.read.reader import Range, Reader, confirmed_reader
from app.api.read.selection import Consistency, RecordPage
from app.api.routes.block_digests import DigestsQuery, digests
from app.errors import IndexTrimmed, NoLeader, RateLimited, ReadIndexUnavailable, Repairing
from app.log.contract import Role
from app.node.request_waits import Waits
from storage.format.batch import Batch
from storage.log.commitlog import Commitlog
from storage.log.segment import StoredBatches
from storage.units import KIB
from tests.support.in_process import node_in_process
from tests.unit.node.replica.driver_support import Node, leading_node


@pytest.mark.rule("R-08")
def test_only_a_local_read_sees_what_is_not_committed(tmp_path: Path) -> None:
    node = leading_node(tmp_path)
    node.ask(b"v")
    node.seams.run()
    assert (node.driver.log.end_index, node.driver.committed_index) == (1, -1)
    here = cast(Any, SimpleNamespace(broker=None, hosted=None, driver=node.driver))
    for consistency, visible_end in (
        (Consistency.LINEARIZABLE, -1),
        (Consistency.COMMITTED, -1),
        (Consistency.LOCAL, 1),
    ):
        reader = Reader(here, consistency)
        assert reader.visible_end == visible_end
        assert reader.has_more(RecordPage(0), Range(0, None)) is (visible_end >= 0)


class _Waits:
    """Waits that end at once, and count."""

    stopping = False

    def __init__(self) -> None:
        self.pauses = 0

    async def pause(self, seconds: float) -> None:
        self.pauses += 1


def _reader_of_five_records(tmp_path: Path) -> tuple[Node, Reader]:
    node = Node(tmp_path)
    for _ in range(4):
        node.append(b"v")
    assert node.driver.committed_index == 4
    hosted = SimpleNamespace(driver=node.driver)
    broker = SimpleNamespace(waits=_Waits())
    here = cast(Any, SimpleNamespace(broker=broker, hosted=hosted, driver=node.driver))
    return node, Reader(here, Consistency.COMMITTED)


async def _page(reader: Reader, start_index: int) -> RecordPage:
    query = ReadQuery(from_index=start_index)  # type: ignore[call-arg]
    return await reader.page(await reader.range_of(query), query.selection(), 0)


def test_a_replica_that_was_reset_reports_its_begin(tmp_path: Path) -> None:
    """Its leader has trimmed beyond all that it held: the log is empty, its committed index still the old."""
    node, reader = _reader_of_five_records(tmp_path)
    node.driver.log.reset(100, 10_000)
    assert (node.driver.committed_index, node.driver.log.end_index) == (4, -1)
    with pytest.raises(IndexTrimmed, match="100"):
        asyncio.run(_page(reader, 3))
    with pytest.raises(IndexTrimmed, match="100"):
        reader.check_index(3)
    last = ReadQuery(last=2)  # type: ignore[call-arg]
    assert asyncio.run(reader.range_of(last)).start_index == 5  # what comes next; nothing is held


def test_committed_records_that_a_reset_took_away_are_not_read_as_missing(tmp_path: Path) -> None:
    node, reader = _reader_of_five_records(tmp_path)
    node.driver.log.reset(2, node.driver.log.batch_at(2).offset)
    with pytest.raises(Repairing):
        asyncio.run(_page(reader, 3))


def test_a_read_waits_for_a_truncation_in_the_disk_thread(tmp_path: Path) -> None:
    node, reader = _reader_of_five_records(tmp_path)
    node.driver._syncer.is_truncating = True
    with pytest.raises(Repairing):
        asyncio.run(_page(reader, 0))
    assert reader.broker.waits.pauses > 5  # type: ignore[attr-defined]
    node.driver._syncer.is_truncating = False
    assert asyncio.run(_page(reader, 0)).count == 4


def test_the_last_n_records_stay_n_when_appends_come_in(tmp_path: Path) -> None:
    node, reader = _reader_of_five_records(tmp_path)

    async def last(count: int) -> RecordPage:
        query = ReadQuery(last=count)  # type: ignore[call-arg]
        range_ = await reader.range_of(query)
        node.append(b"later")
        page = await reader.page(range_, query.selection(), 0)
        assert reader.has_more(page, range_)
        return page

    for count in (1, 2):
        page = asyncio.run(last(count))
        assert page.count == count
        assert page.next_index == node.driver.log.end_index  # where the record that came in stands


@pytest.mark.rule("R-08")
def test_an_uncommitted_record_does_not_end_a_range_by_its_timestamp(tmp_path: Path) -> None:
    """Truncated, it would give its place to an older record, which belongs to the range."""
    node = leading_node(tmp_path)
    node.ask(b"v")
    node.seams.run()
    here = cast(
        Any, SimpleNamespace(broker=None, hosted=SimpleNamespace(driver=node.driver), driver=node.driver)
    )
    query = ReadQuery(until_timestamp=node.driver.log.batch_at(1).timestamp_ms)  # type: ignore[call-arg]
    for consistency, until_index in (
        (Consistency.COMMITTED, None),
        (Consistency.LINEARIZABLE, None),
        (Consistency.LOCAL, 1),
    ):
        range_ = asyncio.run(Reader(here, consistency).range_of(query))
        assert (range_.until_index, range_.until_timestamp_ms is None) == (until_index, until_index == 1)
    node.driver._core._member.committed_index = 1  # type: ignore[attr-defined]
    assert asyncio.run(Reader(here, Consistency.COMMITTED).range_of(query)).until_index == 1


def test_records_that_arrive_during_a_read_do_not_exceed_its_last_timestamp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, reader = _reader_of_five_records(tmp_path)
    node.append(b"v" * 200_000)  # selected in a thread

    async def to_thread(*call: Any) -> None:
        node.tick(1_000)
        node.append(b"later")
        call[0](*call[1:])

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    end_ms = node.driver.log.batch_at(5).timestamp_ms + 1
    query = ReadQuery(from_index=5, until_timestamp=end_ms)  # type: ignore[call-arg]

    async def read() -> RecordPage:
        return await reader.page(await reader.range_of(query), query.selection(), 0)

    assert asyncio.run(read()).count == 1
    assert node.driver.committed_index == 6


def test_a_read_from_a_timestamp_in_the_future_waits_for_it(tmp_path: Path) -> None:
    """Records that arrive meanwhile and are older do not belong to the range."""
    node, reader = _reader_of_five_records(tmp_path)
    wanted_ms = node.driver.log.batch_at(4).timestamp_ms + 1_000
    query = ReadQuery(from_timestamp=wanted_ms)  # type: ignore[call-arg]
    arrivals = [lambda: node.append(b"older"), lambda: node.tick(2_000), lambda: node.append(b"newer")]

    async def committed(_hosted: object, index: int, _timeout_s: float) -> bool:
        while arrivals and node.driver.committed_index < index:
            arrivals.pop(0)()
        return node.driver.committed_index >= index

    reader.broker.waits.committed = committed  # type: ignore[method-assign,assignment]

    async def read() -> tuple[bool, Range]:
        range_ = await reader.range_of(query)
        assert (range_.start_index, range_.from_timestamp_ms) == (5, wanted_ms)
        return await reader.started(range_, 10.0), range_

    started, range_ = asyncio.run(read())
    assert (started, range_.start_index, range_.from_timestamp_ms) == (True, 6, None)
    assert node.driver.log.batch_at(5).timestamp_ms < wanted_ms


def test_a_read_from_a_timestamp_that_does_not_come_ends_after_the_older_records(tmp_path: Path) -> None:
    node, reader = _reader_of_five_records(tmp_path)
    wanted_ms = node.driver.log.batch_at(4).timestamp_ms + 1_000
    query = ReadQuery(from_timestamp=wanted_ms)  # type: ignore[call-arg]

    async def committed(_hosted: object, index: int, _timeout_s: float) -> bool:
        if index == 5:
            node.append(b"older")
        return node.driver.committed_index >= index

    reader.broker.waits.committed = committed  # type: ignore[method-assign,assignment]

    async def read() -> tuple[bool, Range]:
        range_ = await reader.range_of(query)
        return await reader.started(range_, 10.0), range_

    started, range_ = asyncio.run(read())
    assert (started, range_.start_index, range_.from_timestamp_ms) == (False, 6, wanted_ms)


def test_an_epoch_event_is_not_ended_by_an_epoch_that_may_be_truncated(tmp_path: Path) -> None:
    node, reader = _reader_of_five_records(tmp_path)
    node.restart()  # the leader opens an epoch, which is not committed yet
    reader = Reader(
        cast(
            Any,
            SimpleNamespace(
                broker=reader.broker, hosted=SimpleNamespace(driver=node.driver), driver=node.driver
            ),
        ),
        Consistency.COMMITTED,
    )
    epochs = node.driver.log.epochs
    assert len(epochs) == 2
    for committed_index, expected_end in ((epochs[1].start_index - 1, None), (node.driver.log.end_index, 4)):
        node.driver._core._member.committed_index = committed_index  # type: ignore[attr-defined]
        stream = EventStream(reader, Range(0, None), ReadQuery())  # type: ignore[call-arg]
        [event] = stream._epoch_before(committed_index if expected_end is None else 4)
        assert json.loads(event.split(b"data: ")[1])["end_index"] == expected_end
        following = stream._epoch_before(epochs[1].start_index)
        assert len(following) == (0 if expected_end is None else 1)


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("consistency", [Consistency.COMMITTED, Consistency.LOCAL])
def test_an_event_stream_ends_once_its_replica_has_left_the_log(
    tmp_path: Path, consistency: Consistency
) -> None:
    """No record arrives there any more: its client would wait permanently, and continues at a member."""
    node, reader = _reader_of_five_records(tmp_path)
    broker = cast(Any, reader.broker)
    broker.waits, broker.settings = Waits(1_000), SimpleNamespace(http=SimpleNamespace(sse_ping_ms=1))
    reader = Reader(reader.here, consistency)

    async def names(count: int) -> list[str]:
        stream, found = EventStream(reader, Range(5, None), ReadQuery()), list[str]()  # type: ignore[call-arg]
        async for event in client_events(stream, None):
            found.append(event.split(b"\n")[0].decode())
            if len(found) == count:
                break
            if len(found) == 3:
                node.driver._core._member.role = Role.REMOVED  # type: ignore[attr-defined]
        return found

    if consistency is Consistency.LOCAL:  # what this very replica holds, for operators
        assert asyncio.run(names(6)) == ["event: epoch", *["event: ping"] * 5]
    else:
        with pytest.raises(NoLeader, match="left the log"):
            asyncio.run(names(6))


def test_an_event_stream_pings_although_records_arrive_that_it_does_not_select(tmp_path: Path) -> None:
    _, reader = _reader_of_five_records(tmp_path)
    broker = cast(Any, reader.broker)
    broker.waits, broker.settings = Waits(1_000), SimpleNamespace(http=SimpleNamespace(sse_ping_ms=20))

    async def names() -> list[list[str]]:
        stream = EventStream(reader, Range(0, None), ReadQuery(key="other"))  # type: ignore[call-arg]
        first = [event async for event in stream.first_events()]
        await asyncio.sleep(0.02)
        found = first, await stream.next_events()
        assert stream.position.next_index == 5
        return [[event.split(b"\n")[0].decode() for event in events] for events in found]

    assert asyncio.run(names()) == [["event: epoch", "event: ping"], ["event: ping"]]


@pytest.mark.parametrize("refused", [False, True])
def test_an_event_counts_as_in_flight_until_its_client_has_read_it_and_leaves_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    """Each event stream whose client does not read took 10 MB, with any number of clients."""
    monkeypatch.setattr("app.api.read.event_stream.PIECE_BYTES", 100)
    _, reader = _reader_of_five_records(tmp_path)
    broker = cast(Any, reader.broker)
    broker.waits, broker.settings = Waits(1_000), SimpleNamespace(http=SimpleNamespace(sse_ping_ms=20))
    cast(Any, reader.hosted).name = "default"
    held = [0]

    def hold(size_bytes: int) -> None:
        if refused and size_bytes:
            raise RateLimited("256 MiB of requests are in flight")
        held.append(size_bytes)

    async def received() -> list[tuple[bytes, int]]:
        stream = EventStream(reader, Range(0, 5), ReadQuery(), hold)  # type: ignore[call-arg]
        return [(piece, held[-1]) async for piece in client_events(stream, None)]

    if refused:
        with pytest.raises(RateLimited):
            asyncio.run(received())
        return
    epoch, _ping, *pieces = asyncio.run(received())
    batch = b"".join(piece for piece, _ in pieces)
    assert epoch[0].startswith(b"event: epoch")
    assert batch.startswith(b"event: batch")
    assert [len(piece) for piece, _ in pieces[:-1]] == [100] * (len(batch) // 100)
    assert {size_bytes for _, size_bytes in pieces} == {len(batch)}
    assert held[-1] == 0


def test_a_stream_that_waits_holds_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each idle client kept its last event, which may have 64 MiB and more, and it was not counted."""
    monkeypatch.setattr("app.api.read.event_stream.PIECE_BYTES", 10)
    event = bytes(25)
    unshared = sys.getrefcount(event)

    async def first_events() -> AsyncIterator[bytes]:
        yield b"first"

    async def scenario() -> None:
        follows: asyncio.Future[list[bytes]] = asyncio.get_running_loop().create_future()
        answers = [follows, asyncio.sleep(0, [b"", event])]
        stream: Any = SimpleNamespace(first_events=first_events, next_events=lambda: answers.pop())
        stream.is_over, stream.has_sent = False, lambda: None
        events = client_events(stream, None)
        assert [len(await anext(events)) for _ in range(4)] == [5, 10, 10, 5]
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        assert answers == []
        assert sys.getrefcount(event) == unshared
        waiting.cancel()

    asyncio.run(scenario())


@pytest.mark.rule("R-08")
def test_a_confirmed_read_does_not_see_a_log_that_was_repaired_meanwhile(tmp_path: Path) -> None:
    """The index that the leader confirms is committed in the log that is open now, not in the one before."""
    node, reader = _reader_of_five_records(tmp_path)
    hosted, waits = cast(Any, reader.hosted), cast(Any, reader.broker.waits)

    async def read_index(_hosted: object) -> int:
        hosted.driver, hosted.interrupted = SimpleNamespace(committed_index=9), Repairing()
        return 9

    waits.read_index = read_index
    linearizable = Reader(reader.here, Consistency.LINEARIZABLE)
    with pytest.raises(Repairing):
        asyncio.run(linearizable.confirm())
    assert linearizable.visible_end == node.driver.committed_index < 9


@pytest.mark.rule("R-10")
@pytest.mark.parametrize(("removed", "refusal"), [(True, AnsweredElsewhere), (False, ReadIndexUnavailable)])
def test_a_read_at_a_replica_that_learns_meanwhile_that_it_was_removed_is_passed_on(
    tmp_path: Path, removed: bool, refusal: type[Exception]
) -> None:
    """The leader does not answer the question of a node that is not a member; the members can."""
    _, reader = _reader_of_five_records(tmp_path)
    hosted = cast(Any, reader.hosted)
    hosted.removed = False

    async def read_index(_hosted: object) -> int:
        hosted.removed = removed
        raise ReadIndexUnavailable

    async def replica_of(_hosted: object, *, own: bool) -> Any:
        assert not own
        return reader.here

    async def elsewhere(_hosted: object) -> None:
        raise AnsweredElsewhere(Response())

    cast(Any, reader.broker.waits).read_index = read_index

    async def replica(_log: str) -> Any:
        return reader.here

    call = cast(Any, SimpleNamespace(find=lambda _log: hosted, replica=replica, replica_of=replica_of))
    call.elsewhere = elsewhere
    with pytest.raises(refusal):
        asyncio.run(confirmed_reader(call, hosted, Consistency.LINEARIZABLE, None))
    hosted.removed = False
    with pytest.raises(refusal):
        asyncio.run(digests(call, "a", DigestsQuery()))  # type: ignore[call-arg]


def test_a_large_read_waits_for_the_disk_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is slow, or many bytes, delay the read alone: the event loop runs replication."""
    node, _ = _reader_of_five_records(tmp_path)
    values = [bytes([place]) * 200_000 for place in range(4)]
    for value in values:
        node.append(value)
    node.restart()  # nothing is in memory
    node.append(b"v")
    node.driver.log.settle(node.driver.committed_index)
    hosted = SimpleNamespace(driver=node.driver)
    broker = SimpleNamespace(waits=_Waits())
    here = cast(Any, SimpleNamespace(broker=broker, hosted=hosted, driver=node.driver))
    loop_thread, readers = threading.get_ident(), list[int]()
    read = StoredBatches.read

    def noted(stored: StoredBatches) -> list[Batch]:
        readers.append(threading.get_ident())
        return read(stored)

    monkeypatch.setattr(StoredBatches, "read", noted)
    page = asyncio.run(_page(Reader(here, Consistency.COMMITTED), 5))
    found = [value for rows in page.columns for value in rows.column("value").to_pylist()]
    assert found == [*values, b"v"]
    assert readers
    assert loop_thread not in readers


def test_a_search_through_many_small_parts_lets_others_run(tmp_path: Path) -> None:
    """Each part is small enough to be read on the event loop, and an answer may read a thousand of them."""
    node, reader = _reader_of_five_records(tmp_path)
    for _ in range(12):
        node.append(Random(1).randbytes(60 * KIB))
    turns = 0

    async def scenario() -> RecordPage:
        def count() -> None:
            nonlocal turns
            nonlocal counting
            turns += 1
            counting = loop.call_soon(count)

        loop = asyncio.get_running_loop()
        counting = loop.call_soon(count)
        query = ReadQuery(from_index=0, key="none", max_bytes=1)  # type: ignore[call-arg]
        page = await reader.page(await reader.range_of(query), query.selection(), 0)
        counting.cancel()
        return page

    page = asyncio.run(scenario())
    assert (page.count, page.next_index) == (0, node.driver.log.next_index)
    assert turns >= 12 // 3


def test_counting_back_reads_no_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts over a thousand records, which may be a gibibyte."""
    _, reader = _reader_of_five_records(tmp_path)

    def refuse(*_call: object) -> None:
        raise AssertionError("a batch was read")

    monkeypatch.setattr(Commitlog, "read_batches", refuse)
    for count, start in ((1, 4), (3, 2), (4, 1), (9, 0)):
        query = ReadQuery(last=count)  # type: ignore[call-arg]
        assert asyncio.run(reader.range_of(query)).start_index == start


def test_a_page_ends_before_a_large_batch_that_does_not_fit(tmp_path: Path) -> None:
    """The next page would read it again. A page that must cut a batch, or a small one, holds what fits."""

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            large = {"records": [{"value": "v" * 4_000}] * 50}  # above the size of reads on the loop
            small = {"records": [{"value": "v"}] * 50}
            ends = [
                (await node.client.post("/v1/logs/default/records", json=batch)).json()["last_index"]
                for batch in (large, large, small, small)
            ]

            async def page(from_index: int, max_bytes: int) -> tuple[int, bool]:
                query = {"from_index": from_index, "max_bytes": max_bytes}
                answer = (await node.client.get("/v1/logs/default/records", params=query)).json()
                return answer["records"][-1]["index"], answer["has_more"]

            first = ends[0] - 49
            assert await page(first, 250_000) == (ends[0], True)
            assert await page(first, 100_000) == (first + 24, True)
            assert await page(ends[0] + 1, 200_000 + 70) == (ends[2] + 20, True)

    asyncio.run(run())
