"""A controller that is asked by a node that knows more than it does (C-09)."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.controller.config import ControllerConfig
from app.controller.log_state import MetadataLogState
from app.controller.messages import AnyControllerMessage, BrokerHeartbeat
from app.errors import CommitlogError, ReadIndexUnavailable
from app.log.contract import Role
from app.node.metadata.controller_server import ControllerServer, ControllerSetup
from app.node.replica.driver import LogDriver


class Leader:
    """A driver of `__controller` that believes it leads term 1; a test decides if a quorum confirms it."""

    def __init__(self) -> None:
        self.role, self.term, self.leader_id, self.committed_index = Role.LEADER, 1, "c1", 0
        self.log = SimpleNamespace(end_index=0, last_term=1, next_index=1, begin_index=0)
        self.state = MetadataLogState()
        self.reads: list[Any] = []

    def read_index(self, done: Any) -> None:
        self.reads.append(done)


class Bench:
    def __init__(self) -> None:
        self.leader = Leader()
        self.sent: list[AnyControllerMessage] = []
        clock = SimpleNamespace(monotonic_ms=lambda: 1_000, now_ms=lambda: 1_000)
        self.server = ControllerServer(
            setup=ControllerSetup(
                node_id="c1",
                config=ControllerConfig(),
                brokers=("n1",),
                configured={},
                make_log_id=lambda _name, generation: generation,
            ),
            replica=lambda: cast(LogDriver, self.leader),
            connected=lambda: ("n1",),
            send=lambda _target, message: self.sent.append(message),
            clock=cast(Any, clock),
            scheduler=cast(Any, SimpleNamespace(call_soon=lambda callback: None)),
        )
        self.server.tick()
        assert self.server.is_active

    def ask(self, result: int | CommitlogError) -> None:
        """n1 knows the metadata up to index 7."""
        self.server.take("n1", BrokerHeartbeat(1, 7, ()))
        for done in self.leader.reads:
            done(result)
        self.leader.reads.clear()


@pytest.mark.rule("C-09", "R-08")
def test_a_leader_that_was_overtaken_decides_nothing_and_reports_no_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    with caplog.at_level(logging.CRITICAL):
        bench.ask(ReadIndexUnavailable())
    assert not bench.server.is_active
    assert not caplog.records
    bench.leader.term = bench.leader.log.last_term = 3  # it leads again, and has caught up
    bench.leader.state.metadata._applied_index = 7
    bench.ask(7)
    assert bench.server.is_active


@pytest.mark.rule("C-09")
def test_a_confirmed_leader_that_knows_less_reports_the_loss_once(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    with caplog.at_level(logging.CRITICAL):
        bench.ask(ReadIndexUnavailable())
        bench.ask(0)
        bench.ask(0)
    assert not bench.server.is_active
    assert len(caplog.records) == 1
