"""State of a replica that begins to lead."""

from pathlib import Path

import pytest

from app.log.state import LogState
from storage.format.batch import AppendMark
from tests.unit.log.test_state import DIGEST, Log
from tests.unit.node.replica.driver_support import Node


@pytest.mark.rule("D-28", "C-05")
@pytest.mark.parametrize("committed", [False, True])
def test_a_leader_forgets_what_a_received_state_knows_of_records_that_never_came(
    tmp_path: Path, committed: bool
) -> None:
    """A retry would be answered with the place of a record that no log holds. That committed ones are missing
    happens after an unclean election only, which is in the journal."""
    node = Node(tmp_path, "n1")
    keeper, log = node.driver._state, node.driver.log
    ahead, state = Log(), LogState()
    for mark in (AppendMark(0, 1, "held", digest=DIGEST), AppendMark(0, 1, "lost", digest=DIGEST)):
        state.apply(ahead.add(mark, count=1))
    state.committed(1 if committed else 0)
    keeper.state.become(state)
    assert (keeper.state.applied_index, log.end_index) == (1, 0)
    keeper.begin_to_lead(node.driver._journal_writer)
    assert keeper.state.applied_index == log.end_index
    assert keeper.state.find_key("lost") is None
    assert (keeper.state.find_key("held") is None) is committed
    node.seams.run()
    kinds = [event.kind for event in node.driver.journal.read(0, 100)[0]]
    assert ("corruption" in kinds) is committed
