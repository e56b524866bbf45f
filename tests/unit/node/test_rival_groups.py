"""Reports about groups that contradict each other: after a time, repeated, and only while it is so."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.log.contract import GroupConfig, Role
from app.node.hosted_log import CONFIGURED
from app.node.hosted_logs import HostedLogs
from app.node.hosting import rival_groups
from app.node.hosting.rival_groups import ASK_AFTER_S, GREETING_S, REPEAT_S, REPORT_AFTER_S, RivalGroups
from app.node.network.group_claims import GroupClaim
from app.settings.model import Replication


class Scene:
    """A node n1 with one log, a peer n2, and a clock that the test moves."""

    def __init__(self, patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        self.now_s = 100.0
        self.connected = True
        self.has_called_all = True
        self.may_found: bool | None = None
        self.greeted: list[str] = []
        self._caplog = caplog
        patch.setattr(rival_groups, "_now_s", lambda: self.now_s)
        self.state = SimpleNamespace(membership=None)
        self.driver = SimpleNamespace(
            role=Role.FOLLOWER,
            leader_id=None,
            state=self.state,
            group=GroupConfig(voters=("n1",)),
            is_unborn=True,
            let_found=lambda may_found: setattr(self, "may_found", may_found),
        )
        settings = SimpleNamespace(replication=Replication.RAFT, replicas=("n1",))
        hosted = SimpleNamespace(name="a", generation=CONFIGURED, driver=self.driver, settings=settings)
        self.rivals = RivalGroups("n1", cast(HostedLogs, [hosted]))
        self.rivals.peers = self
        self.rivals.opened({})

    def is_connected(self, _peer_id: str) -> bool:
        return self.connected

    def greet(self, peer_id: str) -> None:
        self.greeted.append(peer_id)

    def name_group(self, *voters: str) -> None:
        self.driver.is_unborn = False
        self.state.membership = SimpleNamespace(voters=voters)

    def hear(self, *voters: str, is_named: bool = True) -> None:
        self.rivals.heard("n2", {"a": GroupClaim("raft", voters, is_named)})

    def lines_after(self, seconds: float) -> int:
        """Let time pass; return how many lines it brings."""
        self.now_s += seconds
        before = len(self._caplog.records)
        self.rivals.check()
        return len(self._caplog.records) - before


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.ERROR)
    return Scene(monkeypatch, caplog)


def test_a_contradiction_is_logged_after_a_time_and_again_rarely(scene: Scene) -> None:
    scene.hear("n2")
    assert scene.lines_after(REPORT_AFTER_S - 1) == 0
    assert not scene.rivals.reported
    assert scene.lines_after(1) == 1
    assert len(scene.rivals.reported) == 1
    assert scene.lines_after(REPEAT_S - 1) == 0
    assert scene.lines_after(1) == 1


@pytest.mark.rule("R-10")
def test_a_group_begins_once_the_rival_has_disconnected(scene: Scene) -> None:
    scene.hear("n2")
    assert scene.may_found is False
    scene.connected = False
    assert scene.lines_after(REPORT_AFTER_S) == 0
    assert scene.may_found is True
    assert not scene.rivals.reported


@pytest.mark.rule("R-10")
def test_a_new_group_waits_for_calls_in_progress_for_a_limited_time(scene: Scene) -> None:
    scene.has_called_all = False
    scene.rivals.check()
    assert scene.may_found is False
    scene.now_s += GREETING_S
    scene.rivals.check()
    assert scene.may_found is True


@pytest.mark.rule("R-10")
def test_groups_that_agreed_once_may_change_without_a_report(scene: Scene) -> None:
    """The claim is of the beginning of the connection: n2 was a member then, and has been replaced since."""
    scene.name_group("n1", "n2")
    scene.hear("n1", "n2")
    scene.name_group("n3", "n4")
    assert scene.lines_after(2 * REPORT_AFTER_S) == 0


@pytest.mark.rule("R-10")
def test_a_group_that_exists_continues_and_is_reported(scene: Scene) -> None:
    scene.name_group("n1")
    scene.hear("n2")
    assert scene.may_found is True
    assert scene.lines_after(REPORT_AFTER_S) == 1


def test_a_replica_that_was_removed_reports_nothing(scene: Scene) -> None:
    scene.driver.role = Role.REMOVED
    scene.hear("n2")
    assert scene.lines_after(REPORT_AFTER_S) == 0
    assert scene.rivals.claims() == {}


@pytest.mark.rule("R-10")
def test_the_peer_is_asked_again_before_a_contradiction_is_reported(scene: Scene) -> None:
    """A hello is as old as its connection. A node with a new disk, whose file names the former members, was
    reported by the present ones until it restarted, although it had received the log."""
    scene.name_group("n1")
    scene.hear("n2", is_named=False)
    assert scene.lines_after(ASK_AFTER_S) == 0
    assert scene.greeted == ["n2"]
    scene.hear("n1")
    assert scene.lines_after(REPORT_AFTER_S) == 0
    assert scene.greeted == ["n2"]
    assert not scene.rivals.reported


@pytest.mark.rule("R-10")
def test_a_group_that_waits_for_an_outdated_report_begins(scene: Scene) -> None:
    scene.hear("n2")
    assert scene.may_found is False
    assert scene.lines_after(ASK_AFTER_S) == 0
    scene.rivals.heard("n2", {})
    assert scene.greeted == ["n2"]
    assert scene.may_found is True


@pytest.mark.rule("R-10")
def test_a_replica_that_follows_a_leader_outside_its_group_reports_nothing(scene: Scene) -> None:
    """It receives the changes of members; until then it does not begin a group either."""
    scene.driver.leader_id = "n2"
    scene.hear("n2")
    assert scene.rivals.claims() == {}
    assert scene.lines_after(REPORT_AFTER_S) == 0
    assert scene.may_found is False
    scene.driver.leader_id = None
    assert list(scene.rivals.claims()) == ["a"]
    assert scene.lines_after(0) == 0
    assert scene.lines_after(REPORT_AFTER_S) == 1
