"""Settings of the controllers that are changed on a running cluster (C-01, C-02)."""

import pytest

from app.controller.commands import ChangeControllers, Reason
from app.controller.config import changed_config
from app.controller.metadata import CONTROLLER_LOG
from app.controller.state_machine import Metadata
from app.errors import ConfigError
from tests.unit.controller.support import CONFIG, Quorum


def change(change_id: str = "x", version: int | None = None, **changes: object) -> ChangeControllers:
    return ChangeControllers(CONTROLLER_LOG, changes, change_id, version)


def live(quorum: Quorum, *nodes: str, ms: int) -> None:
    for _ in range(ms // 100):
        quorum.pass_time(100)
        quorum.heartbeats(*nodes)
        quorum.turn()


@pytest.mark.rule("C-01", "C-05")
def test_a_longer_timeout_counts_at_once_and_after_a_fail_over() -> None:
    for fails_over in (False, True):
        quorum = Quorum()
        quorum.with_master()
        quorum.join_all()
        quorum.done(change(broker_timeout_ms=5_000))
        if fails_over:
            quorum.fail_over()
            quorum.heartbeats()
        live(quorum, "n2", "n3", ms=4_500)
        assert quorum.log().master_node == "n1"
        live(quorum, "n2", "n3", ms=1_000)
        assert quorum.log().master_epoch == 2


def test_null_brings_the_value_of_the_file_back_and_a_repeat_changes_nothing() -> None:
    quorum = Quorum()
    quorum.done(change("1", lease_ms=1_800, elect_unclean=True))
    assert (quorum.active.config.lease_ms, quorum.active.config.elect_unclean) == (1_800, True)
    quorum.done(change("2", lease_ms=None))
    assert quorum.active.config.lease_ms == CONFIG.lease_ms
    assert quorum.metadata.settings == {"elect_unclean": True}
    quorum.done(change("1", lease_ms=1_800, elect_unclean=True))
    assert quorum.metadata.settings == {"elect_unclean": True}


@pytest.mark.parametrize(
    "bad",
    [
        {"lease_ms": 2_000},  # not below broker_timeout_ms
        {"broker_timeout_ms": 0},
        {"broker_timeout_ms": "5 s"},
        {"elect_unclean": 1},
        {"scan_interval_ms": True},
        {"heartbeat_interval_ms": 400},  # of the nodes
        {"nodes": ["n1"]},
        {"nodes": None},
    ],
)
def test_settings_that_contradict_or_cannot_be_changed_are_refused(bad: dict[str, object]) -> None:
    quorum = Quorum()
    assert quorum.refused(change(**bad)) is Reason.INVALID
    assert quorum.events == []


def test_the_refusal_of_a_lease_names_the_limit_and_the_value() -> None:
    with pytest.raises(ConfigError, match=f"at least {2 * CONFIG.heartbeat_interval_ms}.*, got 1$"):
        changed_config(CONFIG, {"lease_ms": 1})
    with pytest.raises(
        ConfigError, match=rf"below broker_timeout_ms \({CONFIG.broker_timeout_ms}\).* got 9000$"
    ):
        changed_config(CONFIG, {"lease_ms": 9_000})


def test_a_version_guards_the_change() -> None:
    quorum = Quorum()
    quorum.done(change("1", version=-1, scan_interval_ms=70))
    assert quorum.refused(change("2", version=-1, scan_interval_ms=80)) is Reason.CONFIG_CHANGED
    quorum.done(change("3", version=quorum.metadata.settings_version, scan_interval_ms=90))
    assert quorum.active.config.scan_interval_ms == 90


@pytest.mark.rule("C-09")
def test_the_snapshot_keeps_them() -> None:
    quorum = Quorum()
    quorum.done(change(trim_after_records=77))
    restored = Metadata.restore(quorum.metadata.snapshot())
    assert (restored.settings, restored.settings_version) == ({"trim_after_records": 77}, 0)
    assert restored.copy().settings == {"trim_after_records": 77}


@pytest.mark.rule("C-05")
def test_unclean_elections_of_every_log_can_be_allowed_at_run_time() -> None:
    quorum = Quorum()
    quorum.with_master()
    live(quorum, "n2", "n3", ms=3_000)
    assert quorum.log().master is None
    quorum.done(change(elect_unclean=True))
    live(quorum, "n2", "n3", ms=500)
    assert quorum.log().unclean_epoch == 2


@pytest.mark.rule("A-11")
def test_a_lease_that_was_granted_is_not_shortened() -> None:
    """The log's epoch has the length that its election recorded."""
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.heartbeats()
    quorum.done(change(lease_ms=1_000))
    answer = quorum.heartbeat("n1")
    assert answer.leases == (CONFIG.lease_ms * 9 // 10,)
    assert quorum.active.liveness.may_be_leased("a", quorum.now_ms + CONFIG.lease_ms)
