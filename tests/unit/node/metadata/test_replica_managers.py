"""The ReplicasManagers of a node: when its copies may be counted on."""

from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from app.controller.config import ControllerConfig
from app.controller.state_machine import Metadata
from app.node.metadata.replica_managers import ReplicasManagers
from tests.support.memory_files import MemoryFiles
from tests.unit.controller.test_replicas_manager import View


@pytest.mark.rule("C-05", "C-10")
def test_without_the_metadata_a_node_reports_no_copy_so_that_others_take_over() -> None:
    """Its copy of `__controller` is in repair: no role or set reaches its masters, and their lease ends."""
    known: list[Metadata | None] = [Metadata()]
    unused: Any = None
    services: Any = SimpleNamespace(
        node_id="n1",
        files=MemoryFiles(Random(1)),
        data_folder="data",
        disk=unused,
        clock=unused,
        random=Random(1),
        fail=lambda _what, error: None,
    )
    managers = ReplicasManagers(services, ControllerConfig(), metadata=lambda: known[0], client=unused)
    view: Any = View()
    managers.attach("a", 0, unused, view, "n1:1", lambda: True)
    assert [report.log for report in managers.reports()] == ["a"]
    known[0] = None
    assert managers.reports() == ()
