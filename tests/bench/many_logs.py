"""Time until every log of a cluster has a leader, on a disk whose syncs are slow. One JSON line a moment.

`python -m tests.bench.many_logs [--logs 60] [--sync-ms 5] [--folder DIR]`: three nodes on this machine. The
moments: a first start, a kill -9 of one node, its return, a kill -9 of all, a start after it.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.bench.systems.local_cluster import print_figure
from tests.bench.systems.slow_sync_node import DELAY_ENV
from tests.support.cluster import Cluster
from tests.support.programs import run_program

LIMIT_S = 180.0
QUIET_S = 10.0


class SlowCluster(Cluster):
    """Nodes whose syncs are slow."""

    def command(self, node: str) -> list[str]:
        config = ["--config", str(self.config), "--node", node]
        return [sys.executable, "-m", "tests.bench.systems.slow_sync_node", *config]


def metrics(cluster: Cluster, node: str, name: str) -> dict[str, int]:
    """Return a gauge of a node by log."""
    found = {}
    for line in cluster.get(node, "/metrics").text.splitlines():
        if line.startswith(name + "{"):
            found[line.split('"')[1]] = int(float(line.rpartition(" ")[2]))
    return found


def led(cluster: Cluster) -> dict[str, int]:
    """Return the logs that one of the running nodes leads, with the term."""
    found: dict[str, int] = {}
    for node in cluster.running:
        try:
            leading = metrics(cluster, node, "commitlog_leading")
            terms = metrics(cluster, node, "commitlog_term")
        except httpx.TransportError:
            continue
        for log, leads in leading.items():
            if leads:
                found[log] = max(found.get(log, 0), terms[log])
    return found


def serves(cluster: Cluster, node: str) -> bool:
    """Return whether the process has opened all its logs and answers."""
    try:
        return cluster.get(node, "/healthz").status_code == 200
    except httpx.TransportError:
        return False


def measure(cluster: Cluster, moment: str, logs: int, act: Callable[[], None]) -> None:
    """Act, and print the time until all nodes serve and all logs are led, and the largest terms."""
    began = time.monotonic()
    act()
    half_s = serving_s = None
    while len(now := led(cluster)) < logs:
        took_s = time.monotonic() - began
        if serving_s is None and all(serves(cluster, node) for node in cluster.running):
            serving_s = took_s
        if half_s is None and len(now) * 2 >= logs:
            half_s = took_s
        if took_s > LIMIT_S:
            print_figure(moment=moment, logs=logs, led=len(now), gave_up_after_s=round(took_s, 2))
            return
        time.sleep(0.1)
    all_s = time.monotonic() - began
    time.sleep(QUIET_S)
    later = led(cluster)
    print_figure(
        moment=moment,
        logs=logs,
        serving_s=None if serving_s is None else round(serving_s, 2),
        half_s=None if half_s is None else round(half_s, 2),
        all_s=round(all_s, 2),
        term_max=max(now.values()),
        term_max_later=max(later.values()),
        led_later=len(later),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=60)
    parser.add_argument("--sync-ms", type=float, default=5.0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    os.environ[DELAY_ENV] = str(options.sync_ms)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        tables = tuple({"name": f"log-{number}"} for number in range(options.logs - 1))
        cluster = SlowCluster(Path(folder), 3, logs=tables)

        def kill(*nodes: str) -> None:
            for node in nodes:
                cluster.kill(node)

        def kill_and_start() -> None:
            kill(*cluster.ids)
            cluster.start()

        try:
            measure(cluster, "start", options.logs, cluster.start)
            measure(cluster, "kill -9 of one", options.logs, lambda: kill("n1"))
            measure(cluster, "its return", options.logs, lambda: cluster.start("n1"))
            measure(cluster, "kill -9 of all, start", options.logs, kill_and_start)
        finally:
            cluster.close()


if __name__ == "__main__":
    run_program(main)
