"""The gap without an acknowledged append after `kill -9` of the leader; clients go on by themselves.

`python -m tests.bench.failover [--kills 20]` prints one JSON line a kill and one for all; a violation of the
clients' histories ends it with exit code 1.
"""

import argparse
import asyncio
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.bench.local_cluster import print_figure
from tests.fault.history import find_violations
from tests.fault.workload import Workload, read_log
from tests.support.cluster import Cluster, running

APPENDS_BETWEEN = 200


def longest_gap_ms(moments: Sequence[float]) -> float:
    """moments: the kill, then every acknowledgement; those before the kill do not count."""
    killed_at, *acknowledged = moments
    after = [killed_at, *(moment for moment in acknowledged if moment > killed_at)]
    return max(later - earlier for earlier, later in itertools.pairwise(after)) * 1000


async def kill_leaders(cluster: Cluster, kills: int) -> tuple[list[float], list[str]]:
    """Return the gaps in milliseconds and the violations."""
    workload = Workload([cluster.url(node) for node in cluster.ids])
    gaps: list[float] = []
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(workload.run())
        await workload.progress(APPENDS_BETWEEN)
        for _ in range(kills):
            leader = await asyncio.to_thread(cluster.leader)
            killed_at = time.monotonic()
            cluster.kill(leader)
            await workload.progress(APPENDS_BETWEEN)
            gaps.append(longest_gap_ms([killed_at, *workload.acknowledged_at]))
            print_figure(figure="failover", killed=leader, gap_ms=round(gaps[-1]))
            cluster.start(leader)
            await asyncio.to_thread(cluster.wait_ready, leader)
            await workload.progress(APPENDS_BETWEEN)
        workload.stop()
    await asyncio.to_thread(cluster.wait_even)
    log = await read_log(cluster.url(cluster.ids[0]))
    return gaps, find_violations(workload.operations, workload.reads, log)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--nodes", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), options.nodes) as cluster:
        gaps, violations = asyncio.run(kill_leaders(cluster, options.kills))
    print_figure(
        figure="failover, all",
        kills=len(gaps),
        p50_ms=round(statistics.median(gaps)),
        p99_ms=round(max(gaps) if len(gaps) < 100 else statistics.quantiles(gaps, n=100)[98]),
        max_ms=round(max(gaps)),
        violations=violations,
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
