"""By which clock records grow old: never by one that is ahead of the other replicas (app/RULES.md)."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app.log.contract import Role
from app.node.network.repair_messages import PeerCall, TermAnswer, TermRequest
from app.node.retention import records as module
from app.node.retention.clocks import KEPT_MS, TRIES, PeerClocks, earlier_of
from app.node.retention.records import RetentionKeeper
from app.settings.model import Replication, RetentionConfig
from tests.unit.node.retention.test_records import HOUR_MS, NOW_MS, Log

DAY_MS = 24 * HOUR_MS


@pytest.mark.parametrize(
    ("ahead_ms", "expected_ms"),
    [
        ((), 100),
        ((0, 0), 100),
        ((-50, -50), 50),  # this clock is ahead of both others
        ((-50, 0), 100),  # one other clock is late: two agree
        ((-50,), 50),  # of two clocks the earlier one
        ((70,), 100),
        ((70, 70), 100),  # a late clock only keeps records longer
        ((-50, -50, 0, 0), 100),
        ((-50, -50, -50, 0), 50),
    ],
)
def test_the_median_of_the_clocks_counts_when_it_is_earlier(
    ahead_ms: tuple[int, ...], expected_ms: int
) -> None:
    assert earlier_of(100, ahead_ms) == expected_ms


class Peers:
    """Clock of this node, and the clocks that its peers report; None: no answer."""

    def __init__(self, own_ms: int, **clocks_ms: int | None) -> None:
        self.own_ms = own_ms
        self.clocks_ms = clocks_ms
        self.asked: list[str] = []
        self.running_ms = 0

    def now_ms(self) -> int:
        return self.own_ms

    def monotonic_ms(self) -> int:
        return self.running_ms

    async def ask(self, peer: str, log_id: int, make: type[TermRequest], timeout_s: float) -> PeerCall | None:
        self.asked.append(peer)
        clock_ms = self.clocks_ms[peer]
        return None if clock_ms is None else TermAnswer(make(1).id, 1, clock_ms or None)


class Hosted:
    """A log that this node leads, all of it committed and durable."""

    def __init__(self, log: Log, replication: Replication = Replication.RAFT) -> None:
        self.name, self.log_id, self.voters, self.leads = "default", 1, ("n1", "n2", "n3"), True
        self.settings = SimpleNamespace(retention=None, replication=replication)
        self.trims: list[int] = []
        self.driver: Any = SimpleNamespace(
            log=log.log,
            state=log.state,
            role=Role.LEADER,
            committed_index=log.log.end_index,
            command=lambda command, done: self.trims.append(command.until_index),
        )


def settle(log: Log) -> None:
    ticket = log.log.start_sync()
    assert ticket is not None
    ticket.run()
    log.log.finish_sync(ticket)


def trims_of(peers: Peers, replication: Replication = Replication.RAFT) -> list[int]:
    """Records that a retention of a day removes from a log with records of 0 to 9 hours."""
    log = Log()
    for age_h in (9, 6, 3, 0):
        log.data(age_ms=age_h * HOUR_MS)
    settle(log)
    hosted: Any = Hosted(log, replication)
    keeper = RetentionKeeper(RetentionConfig(ms=DAY_MS), PeerClocks(peers, peers), "n1")
    asyncio.run(keeper.trim_all([hosted, hosted]))
    return list(hosted.trims)


def test_a_leader_that_starts_days_ahead_removes_nothing_that_is_young() -> None:
    ahead_ms = NOW_MS + 10 * DAY_MS
    assert trims_of(Peers(ahead_ms, n2=NOW_MS, n3=NOW_MS)) == []
    assert trims_of(Peers(ahead_ms, n2=NOW_MS, n3=None)) == []
    assert trims_of(Peers(ahead_ms, n2=ahead_ms, n3=NOW_MS)) == [4, 4]  # a majority agrees
    assert trims_of(Peers(ahead_ms, n2=None, n3=NOW_MS), Replication.CLASSIC) == []


def test_a_raft_leader_that_knows_no_majority_of_the_clocks_removes_nothing_by_age() -> None:
    late_ms = NOW_MS + 10 * DAY_MS
    assert trims_of(Peers(late_ms, n2=None, n3=None)) == []
    assert trims_of(Peers(late_ms, n2=0, n3=0)) == []  # older versions, which report no clock
    assert trims_of(Peers(late_ms, n2=None, n3=None), Replication.CLASSIC) == [4, 4]


def test_a_fence_that_keeps_old_records_and_does_not_move_is_named_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log grows until the disk is full: the cursor may be one of any reader."""
    now_s, log, peers = 0.0, Log(), Peers(NOW_MS, n2=NOW_MS, n3=NOW_MS)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s))
    for _ in range(8):
        log.data(age_ms=9 * HOUR_MS)
    keeper = RetentionKeeper(RetentionConfig(ms=HOUR_MS), PeerClocks(peers, peers), "n1")

    def named_at(at_s: float, *logs: Any) -> list[tuple[str, str, int, int]]:
        nonlocal now_s
        now_s = at_s
        caplog.clear()
        asyncio.run(keeper.trim_all(logs))
        lines = [line.__dict__ for line in caplog.records if "fencing cursor" in line.message]
        return [(line["log"], line["cursor"], line["next_index"], line["until_index"]) for line in lines]

    settle(log)
    log.control(kind="cursor", name="etl", index=2, fence=True)
    hosted: Any = Hosted(log)
    assert named_at(0, hosted) == []  # it may move until the next check
    assert named_at(30, hosted) == [("default", "etl", 2, 8)]
    log.control(kind="cursor", name="other", index=6, fence=True)
    assert (named_at(60, hosted), len(named_at(90, hosted))) == ([], 1)
    log.control(kind="cursor", name="etl", index=5, fence=True)
    assert named_at(150, hosted) == []  # it has moved
    assert named_at(180) == []  # the log is gone, or another node leads it
    assert named_at(210, hosted) == []


def test_each_peer_that_answers_is_asked_once_a_round() -> None:
    peers = Peers(NOW_MS, n2=NOW_MS, n3=None)
    trims_of(peers)
    assert peers.asked == ["n2", "n3", "n3"]


def agreed(clocks: PeerClocks, least: int = 1) -> int | None:
    clocks.begin_round()
    return asyncio.run(clocks.agreed_ms(1, ("n2", "n3"), least))


def test_a_peer_that_does_not_serve_one_log_is_asked_by_another() -> None:
    """It does not answer about a log that it repairs: a master that is ahead would believe its own clock."""
    peers = Peers(NOW_MS + 10 * DAY_MS, n2=NOW_MS, n3=None)
    clocks = PeerClocks(peers, peers)
    peers.clocks_ms["n2"] = None
    agreed(clocks)
    peers.clocks_ms["n2"] = NOW_MS
    assert asyncio.run(clocks.agreed_ms(2, ("n2", "n3"), 1)) == NOW_MS
    for log_id in range(3, 10):
        asyncio.run(clocks.agreed_ms(log_id, ("n2", "n3"), 1))
    assert (peers.asked.count("n2"), peers.asked.count("n3")) == (2, TRIES)


@pytest.mark.parametrize(("ahead_ms", "least"), [(10 * DAY_MS, 1), (10 * DAY_MS, 2), (-DAY_MS, 2)])
def test_a_peer_whose_answers_are_often_lost_counts_in_every_round(
    ahead_ms: int, least: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Otherwise a master whose clock is days ahead would trust it in the first round without an answer."""
    caplog.set_level("INFO", "app.node.retention.clocks")
    peers = Peers(NOW_MS + ahead_ms, n2=NOW_MS, n3=NOW_MS)
    clocks = PeerClocks(peers, peers)
    for number in range(20):
        peers.clocks_ms = {"n2": peers.own_ms - ahead_ms if number % 2 == 0 else None, "n3": None}
        assert agreed(clocks, least) == peers.own_ms - max(0, ahead_ms)
        peers.own_ms += 30_000
        peers.running_ms += 30_000
    assert len(caplog.records) == (ahead_ms > 0)  # the warning does not alternate


@pytest.mark.parametrize("ahead_ms", [10 * DAY_MS, -10 * DAY_MS])
def test_the_clock_of_a_peer_that_is_silent_for_long_counts_no_longer(ahead_ms: int) -> None:
    """It may have been wrong: records would be kept permanently."""
    peers = Peers(NOW_MS, n2=NOW_MS - ahead_ms, n3=NOW_MS - ahead_ms)
    clocks = PeerClocks(peers, peers)
    before = agreed(clocks)
    peers.clocks_ms = {"n2": None, "n3": None}
    peers.running_ms += KEPT_MS
    assert agreed(clocks) == before == NOW_MS - max(0, ahead_ms)
    assert agreed(clocks, 2) == before
    peers.running_ms += 1
    assert (agreed(clocks), agreed(clocks, 2)) == (NOW_MS, None)
    peers.clocks_ms = {"n2": NOW_MS - ahead_ms, "n3": None}  # it answers again
    assert agreed(clocks, 2) == before
