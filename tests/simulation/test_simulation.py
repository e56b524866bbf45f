"""Whole clusters under faults, seed by seed: every promise is checked after every step (checks.py).

A failure names the one command that replays it. More seeds: `python -m tests.simulation.run --seeds 1000`.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from app.replication import Durability
from tests.simulation.checks import Violation
from tests.simulation.cluster import ClusterPlan, SimulatedCluster
from tests.simulation.run import replay_command, run_seed

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
CHUNKS = 8
SEEDS_A_CHUNK = 20
PROMISES = ("R-01", "R-02", "R-05", "R-06", "R-07", "R-08", "R-11", "R-12", "D-20", "D-24", "D-25", "D-28")


@pytest.mark.rule(*PROMISES)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_clusters_keep_every_promise_under_faults(chunk: int) -> None:
    total: Counter[str] = Counter()
    for seed in range(chunk * SEEDS_A_CHUNK, (chunk + 1) * SEEDS_A_CHUNK):
        try:
            _, counts = run_seed(seed, SECONDS)
        except Violation as violation:
            raise AssertionError(f"{violation}\nreplay: {replay_command(seed, SECONDS)}") from violation
        total.update(counts)
    rare = ("elections", "replays", "truncations", "crash", "crash_all", "isolate", "one_way", "link")
    never = [name for name in rare if not total[name]]
    assert not never, f"a run that never meets {never} proves little"


def test_a_calm_cluster_elects_once_and_serves() -> None:
    cluster = SimulatedCluster(1, ClusterPlan(faults=None))
    cluster.run(30)
    cluster.settle()
    assert cluster.checker.elections == 1
    assert len(cluster.ledger.acknowledged) > 50
    assert cluster.ledger.reads > 5


@pytest.mark.rule("R-11")
@pytest.mark.parametrize("nodes", [1, 3, 5])
def test_what_was_acknowledged_survives_the_power_failure_of_all(nodes: int) -> None:
    cluster = SimulatedCluster(7, ClusterPlan(nodes=nodes, faults=None))
    for _ in range(5):
        cluster.run(4)
        for name in cluster.names:
            cluster.crash(name)
        for name in cluster.names:
            cluster.restart(name)
    cluster.settle()
    assert len(cluster.ledger.acknowledged) > 10


def test_with_replicated_durability_acknowledged_records_survive_kills() -> None:
    cluster = SimulatedCluster(3, ClusterPlan(durability=Durability.REPLICATED))
    cluster.run(60)
    cluster.settle()
    assert len(cluster.ledger.acknowledged) > 50


@pytest.mark.parametrize("seed", [3, 4])
def test_a_seed_gives_the_same_trace_whatever_the_hash_seed(seed: int) -> None:
    command = [sys.executable, "-m", "tests.simulation.run", "--seed", str(seed), "--seconds", "20"]
    outputs = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        outputs.append(done.stdout.partition('"trace"')[2])
    assert outputs[0] == outputs[1] != ""
