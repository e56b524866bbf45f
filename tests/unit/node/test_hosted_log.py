"""The state of a served log: its leader."""

from typing import Any

import pytest

from app.controller.metadata import LogSpec
from app.ha.roles import MANAGER, Lease
from app.node.hosted_log import HostedLog
from app.settings.model import LogSettings
from tests.unit.ha.lab import Replicated


@pytest.mark.rule("A-11")
def test_a_master_without_a_lease_is_no_leader() -> None:
    """It accepts nothing, so that a load balancer must not choose its node for that log's sake."""
    master = Replicated()
    master.lead(epoch=4, lease_ms=None)
    spec = LogSpec(replication="controller", replicas=("n1", "n2"))
    hosted: Any = HostedLog(LogSettings.of_spec("a", spec), 1, None)
    hosted.driver, hosted.ha = master.core, master.core
    master.deliver(MANAGER, Lease(master.now_ms + 500))
    assert hosted.has_leader
    master.tick(501)
    assert (hosted.has_leader, hosted.leader_id) == (False, "n1")
    master.deliver(MANAGER, Lease(master.now_ms + 500))
    assert hosted.has_leader
