"""Whole clusters under faults, seed by seed: every promise is checked after every step (checks.py).

A failure names the one command that replays it. The full size: `make sim`.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.log.contract import NO_INDEX, Durability, LogOptions, Role
from app.log.state import LogState
from app.node.opening import open_replica
from app.node.state.checkpoints import LoadedState
from storage.errors import DiskError
from tests.simulation.raft.cluster import SimulatedCluster
from tests.simulation.raft.many_logs import ManyLogs, run_many_logs, without_faults
from tests.simulation.raft.plans import ClusterPlan
from tests.simulation.raft.run import replay_command, run_seed, run_seeds, total_of
from tests.simulation.raft.shrink import shrink
from tests.simulation.raft.sometimes import POINTS
from tests.simulation.world.network import LinkFaults
from tests.simulation.world.promises import Violation

ROOT = Path(__file__).parents[3]
SEEDS, SECONDS = 45, 100.0
RARE = ("flip-at-start", "repair-set-aside")  # so rare that this sample may miss it; `make sim` may not
LEAST = {"cluster_hours": 0.85, "faults": 850, "elections": 280}
PROMISES = ("R-01", "R-02", "R-05", "R-06", "R-07", "R-08", "R-11", "R-12", "D-20", "D-24", "D-25", "D-28")


@pytest.mark.rule(*PROMISES)
@pytest.mark.timeout(900)
def test_clusters_keep_every_promise_under_faults() -> None:
    total = total_of(run_seeds(range(SEEDS), SECONDS, os.cpu_count() or 1))
    for failure in total.failures:
        pytest.fail(f"{failure.message}\nreplay: {replay_command(failure.seed, failure.seconds)}")
    assert total.counts["simulated_us"] / 3.6e9 >= LEAST["cluster_hours"]
    assert total.counts["faults"] >= LEAST["faults"]
    assert total.counts["elections"] >= LEAST["elections"]
    never = [point for point in POINTS if not total.sometimes[point] and point not in RARE]
    assert not never, f"a run that never meets {never} proves little"


def test_a_calm_cluster_elects_once_and_serves() -> None:
    cluster = SimulatedCluster(1)
    cluster.run(30)
    cluster.settle()
    assert cluster.checker.elections == 1
    assert len(cluster.ledger.acknowledged) > 50
    assert cluster.ledger.reads > 5


@pytest.mark.rule("R-11")
@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_acknowledged_records_survive_the_power_failure_of_all(nodes: int) -> None:
    cluster = SimulatedCluster(7, ClusterPlan(nodes=nodes, faults=None))
    for _ in range(5):
        cluster.run(4)
        for name in cluster.names:
            cluster.crash(name, power=True)
        for name in cluster.names:
            cluster.restart(name)
    cluster.settle()
    assert len(cluster.ledger.acknowledged) > 10


def test_with_replicated_durability_acknowledged_records_survive_kills() -> None:
    cluster = SimulatedCluster(3, ClusterPlan(durability=Durability.REPLICATED), seconds=60)
    cluster.run(60)
    cluster.settle()
    assert len(cluster.ledger.acknowledged) > 50


@pytest.mark.rule("R-11")
def test_a_follower_that_has_not_heard_of_fsync_yet_acknowledges_what_its_leader_requires() -> None:
    """It is the only one beside the leader, and its disk hangs: nothing is acknowledged meanwhile."""
    plan = ClusterPlan(faults=None, links=LinkFaults(), think_us=(1_000, 100_000))
    cluster = SimulatedCluster(1, plan)
    cluster.run(5)
    number = cluster.leading()
    assert number is not None
    stale, other = (node for place, node in enumerate(cluster.members) if place != number)
    other.crash(power=False)
    stale.change_options(LogOptions(durability=Durability.REPLICATED))
    cluster.run(1)
    stale.hang_disk(3_000_000)
    before = cluster.ledger.highest_index
    cluster.run(2.9)
    assert cluster.members[number].driver.role is Role.LEADER
    assert cluster.ledger.highest_index - before <= 1
    cluster.restart(other.name)
    cluster.settle()
    cluster.close()


@pytest.mark.rule("R-11")
@pytest.mark.parametrize("seed", range(2))
def test_many_logs_over_one_disk_keep_every_promise_under_faults(seed: int) -> None:
    violation, counts = run_many_logs(seed, 15)
    assert violation is None
    assert counts["appends"] > 20


def test_sixty_logs_have_leaders_soon_after_the_start() -> None:
    cluster = ManyLogs(1, without_faults(60))
    cluster.run(4)
    assert all(checker.elections == 1 for checker in cluster.checkers.values())
    assert max(each.leader.longest_us for each in cluster.liveness) <= 3_000_000
    cluster.close()


@pytest.mark.parametrize("seed", [3, 4])
def test_a_seed_gives_the_same_trace_whatever_the_hash_seed(seed: int) -> None:
    """That of this process is drawn at its start."""
    cluster, _ = run_seed(seed, 30)
    command = [sys.executable, "-m", "tests.simulation.raft.run", "--seed", str(seed), "--seconds", "30"]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["trace"] == cluster.world.trace_digest


def test_a_failure_is_replayed_with_a_part_of_its_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that a restart forgets, until the repeat that is stored twice; without faults nothing fails."""
    monkeypatch.setattr(
        open_replica, "load_state", lambda *_given, **_options: LoadedState(LogState(), NO_INDEX)
    )
    failing = next(seed for seed in range(3, 400, 4) if run_seed(seed, 60)[1] is not None)
    whole, violation = run_seed(failing, 60)
    only = [fault.number for fault in whole.faults if fault.at_us <= whole.world.now_us]
    cluster, again = run_seed(failing, 60, only, tell=True)
    assert str(again) == str(violation)
    assert len(cluster.faults) == len(only)
    assert cluster.world.lines
    assert run_seed(failing, 10, [])[1] is None


@dataclass
class FakeRun:
    """A run that fails when all faults in `needs` are in it."""

    needs: frozenset[int]
    count: int = 40
    runs: int = 0

    def __call__(self, only: Sequence[int] | None) -> tuple[Any, Violation | None]:
        self.runs += 1
        numbers = range(self.count) if only is None else only
        faults = [SimpleNamespace(number=number, at_us=number) for number in numbers]
        failed = Violation(f"n1 lost {len(faults)}") if self.needs <= set(numbers) else None
        return SimpleNamespace(faults=faults, world=SimpleNamespace(now_us=self.count)), failed


@pytest.mark.parametrize("needs", [(), (7,), (3, 31), (0, 1, 20, 39)])
def test_a_failure_is_shrunk_to_the_faults_that_it_needs(needs: tuple[int, ...]) -> None:
    run = FakeRun(frozenset(needs))
    assert shrink(run) == list(needs)
    assert run.runs < 120
    assert shrink(run, budget_s=-1) == ([*range(run.count)])  # what a spent budget leaves


def test_a_commit_at_a_copy_that_has_rotted_is_seen_at_another_member() -> None:
    """The leader commits and answers in the step in which the checker finds its damage."""
    assert run_seed(73_000_154, 400, [0])[1] is None


def test_a_leader_that_answers_and_fails_in_one_step_has_committed() -> None:
    cluster = SimulatedCluster(1, ClusterPlan(faults=None))
    cluster.run(5)
    number = cluster.leading()
    assert number is not None
    leader = cluster.members[number]
    answered, failed = cluster.ledger.answered, []

    def fail_after(door: Any, request: Any, value: str, answer: Any) -> None:
        answered(door, request, value, answer)
        if not failed and door is leader:
            failed.append(value)
            leader.files.sicken("write_error", 0)
            leader.fail("write", DiskError("segment", "write", "input/output error"))
            cluster.cure_disk(leader.name)

    cluster.ledger.answered = fail_after  # type: ignore[method-assign]
    cluster.run(5)
    cluster.settle()
    assert failed[0] in cluster.ledger.acknowledged
    cluster.close()
