"""How far a read may see, by its consistency (docs/api.md §5)."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.api.read.reader import Range, Reader
from app.api.read.selection import Consistency, Page
from tests.unit.node.replica.driver_support import leading_node


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
        assert reader.has_more(Page(0), Range(0, None)) is (visible_end >= 0)
