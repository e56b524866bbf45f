"""The liveness checker reports a healthy majority without a leader or a commit, and nothing else."""

import pytest

from app.raft.core import RaftCore
from app.raft.elections import Ballot
from app.raft.quorum import QuorumChecker
from tests.simulation.raft.cluster import SimulatedCluster
from tests.simulation.raft.plans import ClusterPlan
from tests.simulation.world.promises import Violation


def led_cluster() -> tuple[SimulatedCluster, str]:
    """A quiet cluster of three nodes, and its leader."""
    cluster = SimulatedCluster(1, ClusterPlan(faults=None))
    cluster.run(6)
    number = cluster.leading()
    assert number is not None
    return cluster, cluster.names[number]


def stop_elections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RaftCore, "_ask_pre_votes", lambda _core, _now_ms: None)
    monkeypatch.setattr(Ballot, "repeat", lambda _ballot: None)


def within_s(cluster: SimulatedCluster) -> float:
    return cluster.plan.leader_within_us / 1e6


@pytest.mark.rule("R-03")
def test_a_healthy_majority_that_elects_no_leader_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, leader = led_cluster()
    stop_elections(monkeypatch)
    cluster.crash(leader, power=False)
    cluster.run(within_s(cluster) / 2)
    with pytest.raises(Violation, match="no leader for"):
        cluster.run(2 * within_s(cluster))
    cluster.close()


@pytest.mark.rule("R-05")
def test_a_leader_that_commits_nothing_in_its_term_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, leader = led_cluster()
    cluster.crash(leader, power=False)
    monkeypatch.setattr(QuorumChecker, "check", lambda _quorum: None)
    with pytest.raises(Violation, match="no commit in the term of the leader for"):
        cluster.run(10 * within_s(cluster))
    cluster.close()


def test_a_minority_is_excused_and_the_bound_begins_when_a_majority_is_healthy_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, leader = led_cluster()
    others = [name for name in cluster.names if name != leader]
    for name in others:
        cluster.crash(name, power=False)
    cluster.run(3 * within_s(cluster))
    assert cluster.liveness.leaderless["down"] > 0
    stop_elections(monkeypatch)
    cluster.restart(others[0])
    cluster.run(within_s(cluster) / 2)
    with pytest.raises(Violation, match="no leader for"):
        cluster.run(2 * within_s(cluster))
    cluster.close()
