"""Metrics of the replicas of a node: its lead, the distance of the Delta tables from the end of a log."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from app.api.metrics.logs import replica_metrics
from app.log.contract import CoreStatus, Role
from tests.unit.ha.lab import Replicated


def driver(log_name: str, fence_lag: int | None) -> Any:
    return SimpleNamespace(
        log_name=log_name,
        log=SimpleNamespace(begin_offset=0, end_offset=0),
        state=SimpleNamespace(key_count=0, producer_count=0, cursors={}, fence_lag=fence_lag),
        waiting_reads=0,
        dropped_messages=0,
    )


def test_a_log_has_one_lag_and_without_a_fencing_cursor_none() -> None:
    families = {each.name: each for each in replica_metrics([driver("a", 5), driver("b", None)], [])}
    samples = families["commitlog_fence_lag_records"].samples
    assert [(sample.labels, sample.value) for sample in samples] == [({"log": "a"}, 5.0)]


def leading(core: CoreStatus) -> float:
    status: Any = SimpleNamespace(core=core, begin_index=0, end_index=0, next_index=1, end_offset=0)
    families = {each.name: each for each in replica_metrics([], [("a", status)])}
    return families["commitlog_leading"].samples[0].value


@pytest.mark.rule("A-11")
def test_a_master_without_its_lease_does_not_count_as_leading() -> None:
    """It remains master until it hears of another one; `CommitlogNoLeader` adds up the nodes that lead."""
    master = Replicated()
    master.lead(lease_ms=500)
    assert leading(master.core.status()) == 1
    master.tick(501)
    assert leading(master.core.status()) == 0


@pytest.mark.rule("H-07")
def test_a_classic_master_that_waits_does_not_count_as_leading() -> None:
    core = CoreStatus(role=Role.MASTER, term=1, leader_id="n1", committed_index=4)
    assert leading(core) == 1
    assert leading(replace(core, waits_for="n2 may hold synchronous appends that this copy lacks")) == 0
