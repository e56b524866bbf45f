"""Positions in bytes and in indexes (app/ha/log.py)."""

import pytest

from app.ha.log import offset_after
from app.log.contract import NO_INDEX
from tests.unit.ha.lab import new_log, write


@pytest.mark.rule("C-03")
@pytest.mark.parametrize("index", [NO_INDEX, 9_328])
def test_an_empty_log_that_begins_anywhere_has_one_place(index: int) -> None:
    """After a reset the records before it are committed, and none of them is here."""
    log = new_log()
    write(log, 1)
    log.reset(9_329, 70_000)
    assert offset_after(log, index) == 70_000
