"""A rolling upgrade under appends (docs/operations.md, section 3): is an acknowledged record lost or doubled?

    git clone . /tmp/old && git -C /tmp/old checkout COMMIT
    python -m tests.bench.upgrade /tmp/old [--back] [--seconds 2]

Three nodes of the checkout OLD serve logs in Raft mode (both durabilities) and in controller mode. One client
a log appends without a pause, through all nodes. The nodes are restarted with this checkout, followers first
and the leader last, `seconds` apart. At the end each node is read, and the replicas are compared. --back:
afterwards the same in the other direction, which section 3 does not promise. One JSON line for each of them:
the records that were acknowledged, the longest wait for one append, and what each node has of them.

OLD needs no environment of its own if its dependencies are those of this one.
"""

import argparse
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from app.client import ClientError, CommitlogClient
from tests.bench.systems.local_cluster import print_figure
from tests.support.cluster import SERVE, Cluster, eventually, free_ports
from tests.support.programs import run_program

CHECKOUT = Path(__file__).parents[2]
LOGS: tuple[dict[str, object], ...] = (
    {"name": "default"},
    {"name": "in-memory", "durability": "replicated"},
    {"name": "elected", "replication": "controller"},
)
NAMES = [str(log["name"]) for log in LOGS]
READY_S = 60.0


class MixedCluster(Cluster):
    """Nodes that run the programs of two checkouts. checkout: of the nodes that are started from now on."""

    def __init__(self, folder: Path, checkout: Path) -> None:
        super().__init__(folder, logs=LOGS)
        self.checkout = checkout
        lines = []
        for line in self.config.read_text().splitlines():
            lines.append(line)
            if line.startswith("peer_address"):
                lines.append(f'ha_listen = "127.0.0.1:{free_ports(1)[0]}"')
        self.config.write_text("\n".join(lines) + "\n")

    def _spawn(self, command: list[str], log: Path) -> "subprocess.Popen[bytes]":
        assert command[: len(SERVE)] == SERVE
        with log.open("ab") as lines:
            return subprocess.Popen(command, stdout=lines, stderr=lines, cwd=self.checkout)

    def leaders(self) -> set[str]:
        """Return the nodes that lead a log, the one of the controllers included."""
        return {
            str(self.status(node, log)["leader"]) for node in self.running for log in [*NAMES, "__controller"]
        }

    def all_ready(self) -> bool:
        return all(self.get(node, "/readyz").status_code == 200 for node in self.ids)


class Writer(threading.Thread):
    """Appends numbered records to a log until `stop`. acknowledged: index by value."""

    def __init__(self, cluster: Cluster, log: str, prefix: str) -> None:
        super().__init__(daemon=True)
        self.client = CommitlogClient([cluster.url(node) for node in cluster.ids], log=log, give_up_s=READY_S)
        self.log, self.prefix = log, prefix
        self.acknowledged: dict[str, int] = {}
        self.longest_s = 0.0
        self.failures: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.stopping.is_set():
            value, began_s = f"{self.prefix}-{number}", time.monotonic()
            try:
                self.acknowledged[value] = self.client.append([value]).first_index
            except ClientError as error:
                self.failures.append(str(error))
            self.longest_s = max(self.longest_s, time.monotonic() - began_s)
            number += 1

    def stop(self) -> None:
        self.stopping.set()
        self.join()


def held(cluster: Cluster, node: str, log: str) -> list[tuple[int, str]]:
    """Return index and value of each record that a node holds itself."""
    found: list[tuple[int, str]] = []
    params: dict[str, Any] = {"from": "earliest"}
    while True:
        path = f"/v1/logs/{log}/records"
        page = cluster.get(node, path, params={**params, "consistency": "committed", "limit": 10_000}).json()
        found += [(record["index"], record["value"]) for record in page["records"]]
        if not page["has_more"]:
            return found
        params = {"from_index": page["next_index"]}


def roll(cluster: MixedCluster, checkout: Path, name: str, seconds: float) -> None:
    """Restart every node with that checkout under appends, and print what became of the records."""
    writers = [Writer(cluster, log, name) for log in NAMES]
    for writer in writers:
        writer.start()
    cluster.checkout = checkout
    restarted: list[dict[str, Any]] = []
    time.sleep(seconds)
    while len(restarted) < len(cluster.ids):
        done = {each["node"] for each in restarted}
        left = [node for node in cluster.ids if node not in done]
        leading = cluster.leaders()
        node = min(left, key=lambda node: node in leading)
        began_s = time.monotonic()
        code = cluster.stop(node)
        cluster.start(node)
        try:
            eventually(cluster.all_ready, what=f"all nodes are ready after {node}", timeout_s=READY_S)
        except AssertionError as error:
            print_figure(direction=name, node=node, error=str(error), log=cluster.lines(node)[-2_000:])
            break
        took_s = round(time.monotonic() - began_s, 2)
        restarted.append({"node": node, "led": node in leading, "exit_code": code, "ready_after_s": took_s})
        time.sleep(seconds)
    for writer in writers:
        writer.stop()
    for log in NAMES:
        cluster.wait_even(log)
    print_figure(direction=name, restarted=restarted, logs=[judged(cluster, writer) for writer in writers])


def judged(cluster: Cluster, writer: Writer) -> dict[str, Any]:
    nodes = {}
    for node in cluster.running:
        records = held(cluster, node, writer.log)
        places, times = dict(records), Counter(value for _, value in records)
        nodes[node] = {
            "missing": sum(places.get(index) != value for value, index in writer.acknowledged.items()),
            "doubled": sum(count > 1 for count in times.values()),
        }
    verified = cluster.call("POST", cluster.running[0], f"/v1/logs/{writer.log}:verify", json={"deep": True})
    return {
        "log": writer.log,
        "acknowledged": len(writer.acknowledged),
        "longest_append_s": round(writer.longest_s, 2),
        "failures": writer.failures[:3],
        "nodes": nodes,
        "replicas_equal": verified.json().get("equal", verified.text),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("--back", action="store_true")
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="commitlog-upgrade-") as name:
        cluster = MixedCluster(Path(name), options.old.resolve())
        try:
            cluster.start()
            cluster.wait_ready()
            roll(cluster, CHECKOUT, "upgrade", options.seconds)
            if options.back:
                roll(cluster, options.old.resolve(), "back", options.seconds)
        finally:
            cluster.close()


if __name__ == "__main__":
    run_program(main)
