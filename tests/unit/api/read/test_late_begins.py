"""Reads at a copy that began with a later record than its log, as the master's last segment (A-09, H-06)."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.responses import Response

from app.api.http.log_call import AnsweredElsewhere
from app.api.read.query import ReadQuery
from app.api.read.reader import Reader, confirmed_reader
from app.api.read.selection import Consistency
from app.api.routes.block_digests import DigestsQuery, digests
from app.api.routes.reads import _first_index
from app.errors import IndexTrimmed, Repairing
from app.log.commands import Trim
from tests.unit.node.replica.driver_support import Node, classic_mode, result
from tests.unit.node.replica.test_driver_commands import done
from tests.unit.node.replica.test_driver_state_transfer import transferred


def slave_from(tmp_path: Path, begin_index: int, *, trimmed: bool) -> Node:
    """A slave whose copy begins there. trimmed: the master has removed what precedes it."""
    copy, begin = new_slave(tmp_path, begin_index, trimmed=trimmed)
    begin()
    return copy


def new_slave(tmp_path: Path, begin_index: int, *, trimmed: bool) -> tuple[Node, Callable[[], None]]:
    """An empty slave, and what lets its copy begin there."""
    source = Node(tmp_path / "source")
    for _ in range(4):
        result(source.append())
    log = source.driver.log
    offset, batches = log.batch_at(begin_index).offset, log.read_batches(begin_index, 1 << 20)
    if trimmed:
        done(source.command(Trim(begin_index)))
    copy = Node(tmp_path / "copy", mode=classic_mode("n2"))

    def begin() -> None:
        copy.driver.log.reset(begin_index, offset)
        copy.driver.log.append(batches)
        copy.driver._state.judge_electable()
        transferred(source, copy)

    return copy, begin


def nothing() -> None:
    pass


def call_at(copy: Node, *, leads: bool = False, meanwhile: Callable[[], None] = nothing) -> Any:
    """A call at that node. meanwhile: happens while it waits for what was committed at the call."""
    hosted = SimpleNamespace(driver=copy.driver, removed=False, leads=leads)

    async def read_index(_hosted: object) -> int:
        meanwhile()
        return copy.driver.committed_index

    broker = SimpleNamespace(waits=SimpleNamespace(read_index=read_index))
    here = SimpleNamespace(broker=broker, hosted=hosted, driver=copy.driver)

    async def replica_of(_hosted: object, *, own: bool) -> Any:
        return here

    async def elsewhere(_hosted: object) -> None:
        raise AnsweredElsewhere(Response())

    return SimpleNamespace(find=lambda _log: hosted, replica_of=replica_of, elsewhere=elsewhere)


def is_passed_on(copy: Node, consistency: Consistency, from_index: int | None, **options: Any) -> bool:
    """options: of call_at."""
    call = call_at(copy, **options)
    try:
        asyncio.run(confirmed_reader(call, call.find("a"), consistency, None, from_index=from_index))
    except AnsweredElsewhere:
        return True
    return False


@pytest.mark.rule("A-09", "H-06")
@pytest.mark.parametrize("consistency", [Consistency.LINEARIZABLE, Consistency.COMMITTED])
def test_a_read_of_records_before_the_begin_of_a_copy_is_passed_on(
    tmp_path: Path, consistency: Consistency
) -> None:
    """They are at the master: "index-trimmed" would be final, and false."""
    copy = slave_from(tmp_path, 3, trimmed=False)
    assert is_passed_on(copy, consistency, 0)
    assert is_passed_on(copy, consistency, 2)
    assert not is_passed_on(copy, consistency, 3)
    assert not is_passed_on(copy, consistency, None)
    assert not is_passed_on(copy, Consistency.LOCAL, 0)
    assert not is_passed_on(copy, consistency, 0, leads=True)


@pytest.mark.rule("A-09", "H-06")
@pytest.mark.parametrize("query", [{}, {"from_index": 2}])
def test_digests_of_records_before_the_begin_of_a_copy_are_passed_on(
    tmp_path: Path, query: dict[str, int]
) -> None:
    copy = slave_from(tmp_path, 3, trimmed=False)
    with pytest.raises(AnsweredElsewhere):
        asyncio.run(digests(call_at(copy), "a", DigestsQuery.model_validate(query)))


@pytest.mark.rule("A-09", "H-06")
def test_a_copy_answers_by_itself_for_records_that_are_trimmed(tmp_path: Path) -> None:
    assert not is_passed_on(slave_from(tmp_path, 3, trimmed=True), Consistency.COMMITTED, 0)


@pytest.mark.rule("A-09", "H-06")
@pytest.mark.parametrize("trimmed", [False, True])
def test_a_read_that_waits_at_a_new_slave_until_its_copy_begins_is_passed_on(
    tmp_path: Path, *, trimmed: bool
) -> None:
    copy, begin = new_slave(tmp_path, 3, trimmed=trimmed)
    assert is_passed_on(copy, Consistency.LINEARIZABLE, 0, meanwhile=begin) is not trimmed


@pytest.mark.rule("A-09", "H-06")
def test_a_read_that_began_before_its_copy_neither_reports_records_as_trimmed_nor_passes_over_them(
    tmp_path: Path,
) -> None:
    """A stream, a poll, or a read that waits for the disk: the client repeats the request."""
    copy = slave_from(tmp_path, 3, trimmed=False)
    hosted = SimpleNamespace(driver=copy.driver, leads=False)
    here = cast(Any, SimpleNamespace(broker=None, hosted=hosted, driver=copy.driver))
    reader = Reader(here, Consistency.COMMITTED)
    with pytest.raises(Repairing):
        asyncio.run(reader.raw(2, 2, 1))
    starts: tuple[dict[str, Any], ...] = ({}, {"from_timestamp": 5}, {"last": 5}, {"from_index": 2})
    for start in starts:
        with pytest.raises(Repairing):
            asyncio.run(reader.range_of(ReadQuery.model_validate(start)))
    with pytest.raises(IndexTrimmed):
        asyncio.run(Reader(here, Consistency.LOCAL).raw(2, 2, 1))


@pytest.mark.parametrize(
    ("start", "last_event_id", "first_index"),
    [
        ({}, None, 0),
        ({"from_index": 7}, None, 7),
        ({"from_index": 7}, 9, 10),
        ({"from": "latest"}, None, None),
        ({"from": "earliest"}, None, 0),
        ({"last": 5}, None, 0),
        ({"from_timestamp": 5}, None, 0),
        ({"cursor": "etl"}, None, 0),
    ],
)
def test_the_start_of_a_read_is_the_first_record_that_its_answer_depends_on(
    start: dict[str, Any], last_event_id: int | None, first_index: int | None
) -> None:
    assert _first_index(ReadQuery.model_validate(start), last_event_id) == first_index
