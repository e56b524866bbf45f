"""GET of a cursor, and a read by cursor, are linearizable reads: they show what is committed (R-08)."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.api.read.query import ReadQuery
from app.api.routes.cursors import CursorIn, cursor, cursors, drop_cursor, move_cursor
from app.api.routes.reads import read
from app.errors import CursorMoved, CursorNotFound, Repairing
from app.log.commands import Command, CommandResult
from app.log.control_records import CursorRecord
from app.log.state import LogState
from storage.format.batch import FIRST_CHAIN, stamp
from storage.format.records import encode_control


def moved(state: LogState, index: int, position: int | None, name: str = "etl") -> None:
    value = {"kind": "cursor", "name": name, "index": position, "fence": True}
    state.apply(
        stamp(
            encode_control(value),
            log_id=1,
            base_index=index,
            term=1,
            timestamp_ms=1,
            offset=0,
            previous_chain=FIRST_CHAIN,
            control=True,
        )
    )


def call_of(state: LogState, reopened: LogState | None = None, **headers: str) -> Any:
    """Return a call at the leader of a log with that state. reopened: that the log has when the read is
    confirmed, because it was repaired meanwhile."""
    driver = SimpleNamespace(state=state, log=None, runs_ahead=False)
    hosted = SimpleNamespace(name="default", driver=driver, interrupted=Repairing())

    async def confirmed(_hosted: object) -> int:
        if reopened is not None:
            hosted.driver = SimpleNamespace(state=reopened)
        return hosted.driver.state.committed_index

    async def answer_rows(_rows: int, content: Callable[[], Any]) -> Any:
        return content()

    async def leader(_log: str) -> Any:
        return SimpleNamespace(
            broker=SimpleNamespace(waits=SimpleNamespace(read_index=confirmed)),
            hosted=hosted,
            driver=driver,
            answer=lambda content, headers=(): {**content, "headers": headers},
            answer_rows=answer_rows,
        )

    request = SimpleNamespace(headers={name.replace("_", "-"): value for name, value in headers.items()})
    return SimpleNamespace(leader=leader, request=request)


def get(state: LogState) -> dict[str, Any]:
    answer: Any = asyncio.run(cursor(call_of(state), "default", "etl", None))  # type: ignore[arg-type]
    return dict(answer)


def listed(state: LogState) -> list[dict[str, Any]]:
    answer: Any = asyncio.run(cursors(call_of(state), "default", None))  # type: ignore[arg-type]
    found: list[dict[str, Any]] = answer["cursors"]
    return found


@pytest.mark.rule("R-08")
def test_a_cursor_is_shown_as_it_is_committed() -> None:
    state = LogState()
    moved(state, 0, 42)
    with pytest.raises(CursorNotFound):
        get(state)
    state.committed(0)
    moved(state, 1, 50)
    assert (get(state)["index"], get(state)["headers"]) == (42, [(b"etag", b'"0"')])
    state.committed(1)
    assert (get(state)["index"], get(state)["headers"]) == (50, [(b"etag", b'"1"')])


@pytest.mark.rule("R-08")
def test_a_cursor_is_not_read_from_a_log_that_was_repaired_meanwhile() -> None:
    """The confirmed index is that of the log which is open now."""
    state, reopened = LogState(), LogState()
    for each in (state, reopened):
        moved(each, 0, 42)
        each.committed(0)
    moved(reopened, 1, 50)
    reopened.committed(1)
    with pytest.raises(Repairing):
        asyncio.run(cursor(call_of(state, reopened), "default", "etl", None))  # type: ignore[arg-type]
    with pytest.raises(Repairing):
        asyncio.run(cursors(call_of(state, reopened), "default", None))  # type: ignore[arg-type]


class _Elsewhere(Exception):
    """The request is forwarded to another replica."""


def read_by_cursor(state: LogState, consistency: str, *, runs_ahead: bool = False) -> None:
    """Read at a replica that has committed up to index 7; its leader permits 6 if it runs ahead."""

    async def confirmed(_hosted: object) -> int:
        return 6 if runs_ahead else 7

    driver = SimpleNamespace(
        state=state,
        committed_index=7,
        runs_ahead=runs_ahead,
        is_truncating=False,
        log=SimpleNamespace(first_index=5, end_index=7),
        lacks_records=False,
    )
    hosted = SimpleNamespace(driver=driver)
    broker = SimpleNamespace(
        lookup=SimpleNamespace(find=lambda _log: hosted), waits=SimpleNamespace(read_index=confirmed)
    )

    async def replica_of(_hosted: object, *, own: bool) -> Any:
        return SimpleNamespace(broker=broker, hosted=hosted, driver=driver)

    async def elsewhere(_hosted: object) -> Any:
        raise _Elsewhere

    request = SimpleNamespace(headers={}, scope={"headers": []})
    call: Any = SimpleNamespace(request=request, broker=broker, replica_of=replica_of, elsewhere=elsewhere)
    query = ReadQuery.model_validate({"cursor": "etl", "consistency": consistency})
    asyncio.run(read(call, "default", query))


@pytest.mark.rule("R-08")
@pytest.mark.parametrize(
    ("consistency", "refusal"),
    [("linearizable", _Elsewhere), ("committed", _Elsewhere), ("local", CursorNotFound)],
)
def test_a_read_by_cursor_at_a_replica_without_the_state_is_forwarded(
    consistency: str, refusal: type[Exception]
) -> None:
    """After a reset the state arrives later than the records: no cursor is known until then."""
    with pytest.raises(refusal):
        read_by_cursor(LogState(), consistency)


@pytest.mark.rule("R-08")
@pytest.mark.parametrize(
    ("consistency", "refusal"),
    [("linearizable", _Elsewhere), ("committed", CursorNotFound), ("local", CursorNotFound)],
)
def test_a_read_by_cursor_at_a_slave_that_is_ahead_of_its_master_is_forwarded(
    consistency: str, refusal: type[Exception]
) -> None:
    """Its cursors may be later than what the master has acknowledged, and other slaves show."""
    state = LogState()
    state.pass_over(8)
    with pytest.raises(refusal):
        read_by_cursor(state, consistency, runs_ahead=True)


@pytest.mark.rule("R-08")
def test_the_list_has_the_committed_cursors_in_the_order_of_their_names() -> None:
    state = LogState()
    for index, (name, position) in enumerate((("b", 1), ("a", 2), ("c", 3))):
        moved(state, index, position, name)
    state.committed(1)
    expected = [
        {"log": "default", "name": "a", "index": 2, "fence": True, "version": "1"},
        {"log": "default", "name": "b", "index": 1, "fence": True, "version": "0"},
    ]
    assert listed(state) == expected
    moved(state, 3, None, "a")
    moved(state, 4, 7, "b")
    moved(state, 5, 9, "b")
    assert listed(state) == expected
    state.committed(5)
    assert [(each["name"], each["index"]) for each in listed(state)] == [("b", 9), ("c", 3)]


def leader_call(state: LogState, before: int | None, **headers: str) -> Any:
    """Return a call at a leader that decides a move of the cursor to `before` (None: its deletion) after the
    call has begun, and before the call's own command."""

    async def commit(command: Command) -> CommandResult:
        moved(state, state.applied_index + 1, before)
        record = command.control(state, SimpleNamespace(max_cursors=9))  # type: ignore[arg-type]
        assert isinstance(record, CursorRecord)
        moved(state, state.applied_index + 1, record.index)
        return CommandResult(state.applied_index, 1, True)

    here = SimpleNamespace(
        hosted=SimpleNamespace(name="default"),
        driver=SimpleNamespace(state=state),
        commit=commit,
        answer=lambda content, headers=(): {**content, "headers": headers},
    )

    async def asked(_kind: type) -> CursorIn:
        return CursorIn(index=9)

    async def at_leader(_hosted: object, act: Any) -> Any:
        return await act(here)

    request = SimpleNamespace(headers={name.replace("_", "-"): value for name, value in headers.items()})
    return SimpleNamespace(find=lambda _log: None, asked=asked, at_leader=at_leader, request=request)


@pytest.mark.parametrize("existed", [False, True])
def test_a_deletion_answers_with_the_cursor_that_it_has_deleted(existed: bool) -> None:
    """Another client has created or moved it since the call began."""
    state = LogState()
    if existed:
        moved(state, 0, 42)
    answer: Any = asyncio.run(drop_cursor(leader_call(state, 50), "default", "etl", None))  # type: ignore[arg-type]
    assert (answer["index"], state.cursors) == (50, {})
    assert answer["headers"] == [(b"etag", b'"%d"' % existed)]


def test_a_move_that_requires_the_cursor_does_not_create_it_again() -> None:
    """Another client has deleted it since the call began."""
    state = LogState()
    moved(state, 0, 42)
    call = leader_call(state, None, if_match="*")
    with pytest.raises(CursorMoved):
        asyncio.run(move_cursor(call, "default", "etl", None))  # type: ignore[arg-type]
    assert not state.cursors


def test_a_move_that_requires_the_cursor_moves_any_version() -> None:
    state = LogState()
    asyncio.run(move_cursor(leader_call(state, 50, if_match="*"), "default", "etl", None))  # type: ignore[arg-type]
    assert state.cursors["etl"].position == 9


@pytest.mark.parametrize(("tag", "moves"), [('"0"', False), ('"7", W/"0"', False), ('"7"', True)])
def test_a_move_is_refused_if_the_cursor_has_a_version_that_it_excludes(tag: str, moves: bool) -> None:
    """RFC 9110, section 13.1.2."""
    state = LogState()
    moved(state, 0, 42)
    call = leader_call(state, 50, if_none_match=tag)
    if moves:
        asyncio.run(move_cursor(call, "default", "etl", None))  # type: ignore[arg-type]
        assert state.cursors["etl"].position == 9
    else:
        with pytest.raises(CursorMoved):
            asyncio.run(move_cursor(call, "default", "etl", None))  # type: ignore[arg-type]


@pytest.mark.parametrize(("tag", "is_read"), [('"0"', True), ("*", True), ('"7"', False), ('W/"0"', False)])
def test_a_read_of_a_cursor_may_require_its_version(tag: str, is_read: bool) -> None:
    """RFC 9110, section 13.1.1."""
    state = LogState()
    moved(state, 0, 42)
    state.committed(0)
    call = call_of(state, if_match=tag)
    if is_read:
        answer: Any = asyncio.run(cursor(call, "default", "etl", None))  # type: ignore[arg-type]
        assert answer["index"] == 42
    else:
        with pytest.raises(CursorMoved):
            asyncio.run(cursor(call, "default", "etl", None))  # type: ignore[arg-type]
