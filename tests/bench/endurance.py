"""Minutes of bulk appends through segment rolls and retention: do rate and memory stay the same?

    python -m tests.bench.endurance [--minutes 20] [--retain-mib 1024]

Three nodes, fsync; batches of 100 records of 1 KiB as Arrow, 8 in flight; the log keeps `--retain-mib`.
Prints one JSON line a minute, and one that compares the last minutes with the first, by medians of a tenth of
them each: `rate_ratio` (goal 0.9), `cpu_growth` of all nodes for one record, and `memory_growth`, the largest
of a node's private memory.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

from app.client import CommitlogClient
from app.client.operations import Operations
from storage.units import KIB, MIB
from tests.bench.compare import CONTENT_TYPES, bodies, cpu_s
from tests.bench.rest_append import BATCH_RECORDS, build_loadgen
from tests.bench.service import load
from tests.bench.systems.local_cluster import print_figure
from tests.bench.systems.setups import Nodes, Setup, running_nodes
from tests.support.programs import run_program

Minute = dict[str, Any]
MINUTE_S = 60


def private_mib(pid: int) -> int:
    """Memory of a process without the pages of files that it has mapped."""
    status = Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1]
    return int(status.split()[0]) * KIB // MIB


def minutes(loadgen: Path, batch: Path, nodes: Nodes, count: int, seconds: int) -> Iterator[Minute]:
    """Append for `count` times `seconds`; give the figures of each."""
    body = ["-body-file", str(batch), "-content-type", CONTENT_TYPES["arrow"]]
    with CommitlogClient(nodes.leader) as client:
        for _ in range(count):
            used_s = cpu_s(nodes.pids)
            found = load(
                loadgen, nodes, "-c", "8", *body, "-records", str(BATCH_RECORDS), "-d", f"{seconds}s"
            )
            records = found["records_per_s"] * seconds
            yield {
                "records_per_s": round(found["records_per_s"]),
                "p99_ms": found["p99_ms"],
                "errors": found["errors"],
                "servers_us": round((cpu_s(nodes.pids) - used_s) / records * 1e6, 1),
                "private_mib": [private_mib(pid) for pid in nodes.pids],
                "begin_index": client.tail()["begin_index"],
            }


def compared(found: list[Minute]) -> dict[str, float]:
    """Compare the last tenth of the minutes with the first."""
    tenth = max(len(found) // 10, 1)

    def growth(figure: Callable[[Minute], float]) -> float:
        before, after = (statistics.median(map(figure, part)) for part in (found[:tenth], found[-tenth:]))
        return round(after / before, 2)

    nodes = len(found[0]["private_mib"])
    return {
        "rate_ratio": growth(itemgetter("records_per_s")),
        "cpu_growth": growth(itemgetter("servers_us")),
        "memory_growth": max(
            growth(lambda each, node=node: each["private_mib"][node]) for node in range(nodes)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=int, default=20)
    parser.add_argument("--retain-mib", type=int, default=1024)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder,
        running_nodes(Setup.FSYNC) as nodes,
    ):
        loadgen, batch = build_loadgen(Path(folder)), bodies(Path(folder))["arrow"]
        with CommitlogClient(nodes.leader) as client:
            Operations(client).change_log(
                "default", {"retention": {"bytes": options.retain_mib * MIB, "ms": None}}
            )
        found = []
        for minute in minutes(loadgen, batch, nodes, options.minutes, MINUTE_S):
            found.append(minute)
            print_figure(minute=len(found), **minute)
        print_figure(minutes=len(found), **compared(found))


if __name__ == "__main__":
    run_program(main)
