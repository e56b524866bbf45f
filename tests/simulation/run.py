"""Run seeds: `python -m tests.simulation.run --seed 7` replays one, `--seeds 100` runs many and counts.

A failure prints its seed, the trace digest up to there, and the command that replays it.
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence

from app.replication import Durability
from tests.simulation.checks import Violation
from tests.simulation.cluster import ClusterPlan, SimulatedCluster, storm

NODE_COUNTS = (3, 3, 3, 5, 1)


def plan_of(seed: int) -> ClusterPlan:
    """Every seed has its own shape: number of nodes, durability, calm or storm."""
    durability = Durability.REPLICATED if seed % 10 == 9 else Durability.FSYNC
    nodes = NODE_COUNTS[seed % len(NODE_COUNTS)]
    if seed % 4 == 3:
        return storm(nodes, durability)
    return ClusterPlan(nodes=nodes, durability=durability)


def run_seed(seed: int, seconds: float) -> tuple[SimulatedCluster, Counter[str]]:
    """Let one cluster live and heal. Raises Violation."""
    cluster = SimulatedCluster(seed, plan_of(seed))
    cluster.run(seconds)
    cluster.settle()
    counts = Counter(
        elections=cluster.checker.elections,
        appends=len(cluster.ledger.acknowledged),
        replays=cluster.ledger.replays,
        reads=cluster.ledger.reads,
        frames=cluster.network.sent,
        frames_lost=cluster.network.lost,
        steps=cluster.world.steps,
        truncations=cluster.checker.truncations,
    )
    if cluster.nemesis is not None:
        counts.update(cluster.nemesis.counts)
        counts["faults"] = cluster.nemesis.counts.total()
    return cluster, counts


def replay_command(seed: int, seconds: float) -> str:
    return f"python -m tests.simulation.run --seed {seed} --seconds {seconds:g}"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when every seed kept every promise, 1 after the first that did not."""
    parser = argparse.ArgumentParser(prog="commitlog sim", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed, to replay it")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated seconds a seed")
    options = parser.parse_args(argv)
    one = options.seed is not None
    seeds = [options.seed] if one else range(options.first, options.first + options.seeds)
    total: Counter[str] = Counter()
    started, started_cpu = time.perf_counter(), time.process_time()
    simulated_s = 0.0
    for seed in seeds:
        try:
            cluster, counts = run_seed(seed, options.seconds)
        except Violation as violation:
            sys.stderr.write(f"seed {seed}: {violation}\n")
            sys.stderr.write(f"replay: {replay_command(seed, options.seconds)}\n")
            return 1
        total.update(counts)
        simulated_s += cluster.world.now_us / 1e6
    took_s, took_cpu_s = time.perf_counter() - started, time.process_time() - started_cpu
    figures = {
        "seeds": len(seeds),
        "simulated_s": round(simulated_s),
        "seconds": round(took_s, 1),
        "cpu_s": round(took_cpu_s, 1),
        "simulated_s_per_cpu_s": round(simulated_s / took_cpu_s),
        **total,
    }
    if one:
        figures["trace"] = cluster.world.trace_digest
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
