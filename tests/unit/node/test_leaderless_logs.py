"""Log lines about logs without a leader: one for all of them, after a time, and one at the end."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.node.hosted_logs import HostedLogs
from app.node.hosting import leaderless_logs
from app.node.hosting.leaderless_logs import LEADERLESS_S, LeaderlessLogs
from app.node.hosting.rival_groups import REPEAT_S


class Scene:
    """A node n1 with logs of n1, n2 and n3, and a clock that the test moves."""

    def __init__(self, patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *names: str) -> None:
        self.now_s = 100.0
        self.connected = {"n2", "n3"}
        self._caplog = caplog
        patch.setattr(leaderless_logs, "_now_s", lambda: self.now_s)
        members = ("n1", "n2", "n3")
        self.logs = [
            SimpleNamespace(name=name, driver=object(), members=members, removed=False, has_leader=True)
            for name in names
        ]
        hosted = cast(HostedLogs, self.logs)
        self.watch = LeaderlessLogs("n1", hosted, lambda peer: peer in self.connected)

    def lead(self, has_leader: bool) -> None:
        for log in self.logs:
            log.has_leader = has_leader

    def lines_after(self, seconds: float) -> list[Any]:
        """Let time pass; return the lines that it brings."""
        self.now_s += seconds
        before = len(self._caplog.records)
        self.watch.check()
        return list(self._caplog.records[before:])


def scene_of(patch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *names: str) -> Scene:
    caplog.set_level(logging.INFO)
    scene = Scene(patch, caplog, *names)
    assert not scene.lines_after(1)
    return scene


def test_logs_without_a_leader_are_one_line_with_the_nodes_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = scene_of(monkeypatch, caplog, "a", "b")
    scene.connected = {"n2"}
    scene.lead(False)
    assert not scene.lines_after(1)
    (line,) = scene.lines_after(LEADERLESS_S)
    assert "no leader" in line.message
    assert (line.levelname, line.logs, line.names, line.not_connected) == ("WARNING", 2, "a, b", "n3")
    assert not scene.lines_after(REPEAT_S - 1)
    assert len(scene.lines_after(1)) == 1


def test_an_election_of_the_usual_duration_brings_no_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = scene_of(monkeypatch, caplog, "a")
    scene.lead(False)
    assert not scene.lines_after(1)
    scene.lead(True)
    assert not scene.lines_after(LEADERLESS_S)


def test_the_end_is_a_line_and_the_next_time_begins_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = scene_of(monkeypatch, caplog, "a")
    for _ in range(2):
        scene.lead(False)
        assert not scene.lines_after(1)
        assert len(scene.lines_after(LEADERLESS_S)) == 1
        scene.lead(True)
        (line,) = scene.lines_after(1)
        assert line.levelname == "INFO"
        assert not scene.lines_after(1)


def test_a_replica_that_was_removed_or_is_not_open_brings_no_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = scene_of(monkeypatch, caplog, "a", "b")
    scene.lead(False)
    scene.logs[0].removed, scene.logs[1].driver = True, None
    assert not scene.lines_after(1)
    assert not scene.lines_after(LEADERLESS_S)


def test_a_line_about_many_logs_names_ten_of_them(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scene = scene_of(monkeypatch, caplog, *(f"log{number}" for number in range(30)))
    scene.lead(False)
    scene.lines_after(1)
    (line,) = scene.lines_after(LEADERLESS_S)
    assert line.names.startswith("log0, log1, ")
    assert line.names.endswith(" and 20 more")
