"""Metrics of the slaves of a log, in both modes that have slaves."""

from types import SimpleNamespace
from typing import Any

import pytest

from app.api.metrics.logs import peer_metrics
from app.api.metrics.slaves import slave_metrics
from app.ha.frames import ClassicReport
from app.ha.messages import Closed
from app.log.contract import LogOptions
from storage.log.hard_state import HardState
from tests.unit.ha.classic.test_classic import Master
from tests.unit.ha.classic.test_history import connect, log_of
from tests.unit.ha.lab import Lab, Replicated
from tests.unit.ha.masters import in_sync_with_n2


def samples_of(core: Any) -> dict[str, dict[str, float]]:
    """Return by metric and peer what a node that is master of the log `a` shows of its slaves."""
    seen: Any = [("a", SimpleNamespace(core=core.status()))]
    drivers: Any = [SimpleNamespace(log_name="a", watermarks=core.watermarks)]
    return {
        family.name: {sample.labels["peer"]: sample.value for sample in family.samples}
        for family in (*slave_metrics(seen), *peer_metrics(drivers, seen))
        if family.samples and "peer" in family.samples[0].labels
    }


def classic() -> tuple[Lab, str]:
    log = log_of(b"a", opened_by="n1")
    master = Master(log, hard_state=HardState(1, "n1"))
    return master, connect(master, master.log, place=2)


def controller() -> tuple[Replicated, str]:
    return in_sync_with_n2()


@pytest.mark.rule("H-05")
@pytest.mark.rule("C-07")
@pytest.mark.parametrize("mode", [classic, controller])
def test_a_slave_without_a_connection_is_shown_in_both_modes(mode: Any) -> None:
    """`CommitlogSlaveDisconnected` is about both."""
    master, key = mode()
    assert samples_of(master.core)["commitlog_ha_slave_connected"] == {"n2": 1.0, "n3": 0.0}
    master.deliver(key, Closed("gone"))
    assert samples_of(master.core)["commitlog_ha_slave_connected"] == {"n2": 0.0, "n3": 0.0}


@pytest.mark.rule("H-02")
def test_a_slave_that_names_no_node_begins_no_series_with_each_connection() -> None:
    master, _ = classic()
    for number in (7, 8):
        key = master.connected(number)
        master.deliver(key, ClassicReport(master.log.end_offset))
    assert {peer.id for peer in master.core.status().peers} >= {"in-7", "in-8"}
    for name, by_peer in samples_of(master.core).items():
        assert set(by_peer) <= {"n1", "n2", "n3"}, name


@pytest.mark.rule("H-07")
@pytest.mark.rule("C-12")
@pytest.mark.parametrize("mode", [classic, controller])
def test_the_time_below_the_floor_is_counted_in_both_modes(mode: Any) -> None:
    """`CommitlogBelowFloor` was silent for a log in classic mode that refused every append."""

    def below_floor_s() -> float:
        seen: Any = [("a", SimpleNamespace(core=master.core.status()))]
        families = {family.name: family for family in slave_metrics(seen)}
        (sample,) = families["commitlog_ha_below_floor_seconds"].samples
        return float(sample.value)

    master, _ = mode()
    master.tick(100)
    assert below_floor_s() == 0.0
    options = LogOptions(durability=master.durability, min_in_sync_replicas=3)
    master.core.apply_options(options, master.now_ms)
    master.tick(400)
    assert below_floor_s() == 0.4
