"""GET of a cursor is a linearizable read: it shows what is committed (R-08)."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.api.routes.fences import cursor
from app.errors import CursorNotFound
from app.log.state import LogState
from storage.format.batch import FIRST_CHAIN, stamp
from storage.format.records import encode_control


def moved(state: LogState, index: int, position: int) -> None:
    value = {"kind": "cursor", "name": "etl", "index": position, "fence": True}
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


def get(state: LogState) -> dict[str, Any]:
    async def confirmed(_hosted: object) -> int:
        return state.committed_index

    async def leader(_log: str) -> Any:
        return SimpleNamespace(
            broker=SimpleNamespace(waits=SimpleNamespace(read_index=confirmed)),
            hosted=SimpleNamespace(name="default"),
            driver=SimpleNamespace(state=state),
            answer=lambda content, headers: {**content, "headers": headers},
        )

    call: Any = SimpleNamespace(leader=leader)
    answer: Any = asyncio.run(cursor(call, "default", "etl", None))  # type: ignore[arg-type]
    return dict(answer)


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
