"""Appends of this project and of other systems, in alternating turns of one run.

    python -m tests.bench.compare [--rows single-64,ndjson-100] [--turns 5] [--seconds 3]
                                  [--etcd BINARY] [--nats BINARY --natspub BINARY]

Prints one JSON line a figure, and at the end one line a row: medians, ranges, and the ratio to each peer.
Three nodes, fsync, records of 1 KiB; the client uses the same processors. Needs Go for tests/bench/loadgen.
`cpu_us`: processor time of all servers for one record, less dependent than the rate on what else runs.
"""

import argparse
import base64
import contextlib
import json
import os
import statistics
import subprocess
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.local_cluster import pid_of, print_figure, running_cluster
from tests.bench.peers import running_etcd, running_nats, version_of
from tests.bench.rest_append import BATCH_RECORDS, RECORD_BYTES, arrow_body, build_loadgen

Figure = dict[str, Any]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    """One workload. in_flight: requests; kind: of the body; follower: sent to a node that does not lead."""

    name: str
    in_flight: int
    kind: str = "single"
    follower: bool = False

    @property
    def records(self) -> int:
        return 1 if self.kind == "single" else BATCH_RECORDS


ROWS = (
    Row("single-1", 1),
    Row("single-64", 64),
    Row("single-256", 256),
    Row("follower-64", 64, follower=True),
    Row("json-100", 8, "json"),
    Row("ndjson-100", 8, "ndjson"),
    Row("arrow-100", 8, "arrow"),
)
CONTENT_TYPES = {
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "arrow": "application/vnd.apache.arrow.stream",
}


def bodies(folder: Path) -> dict[str, Path]:
    """Write one request of each kind of batch."""
    record = {"value": "v" * RECORD_BYTES}
    (folder / "json").write_text(json.dumps({"records": [record] * BATCH_RECORDS}))
    (folder / "ndjson").write_text((json.dumps(record) + "\n") * BATCH_RECORDS)
    return {"json": folder / "json", "ndjson": folder / "ndjson", "arrow": arrow_body(folder)}


def cpu_s(pids: list[int]) -> float:
    """Return the processor time that processes have used, in seconds."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


def run(command: list[str], pids: list[int], records: int) -> Figure:
    """Run a load generator; pids: of the servers. records: in one request."""
    before_s = cpu_s(pids)
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    used_us = (cpu_s(pids) - before_s) * 1e6
    figure = {name: found[name] for name in ("records_per_s", "p50_ms", "p99_ms", "errors") if name in found}
    sent = found.get("requests", found.get("records", 0) / records) * records
    return {**figure, "cpu_us": round(used_us / max(1, sent), 1)}


@contextlib.contextmanager
def this_project(
    loadgen: Path, files: dict[str, Path], port: int, seconds: int
) -> Iterator[Callable[[Row], Figure | None]]:
    with running_cluster(3, port) as (folder, urls):
        with urllib.request.urlopen(f"{urls[0]}/v1/logs/default/tail") as answer:
            leader = answer.headers["Commitlog-Leader"]
        pids = [pid_of(folder, f"n{number}") for number in (1, 2, 3)]

        def measure(row: Row) -> dict[str, Any]:
            target = next(url for url in urls if url != leader) if row.follower else leader
            command = [
                str(loadgen),
                "-warmup",
                "0s",
                "-url",
                f"{target}/v1/logs/default/records",
                "-c",
                str(row.in_flight),
            ]
            if row.kind == "single":
                command += ["-size", str(RECORD_BYTES)]
            else:
                command += ["-body-file", str(files[row.kind]), "-content-type", CONTENT_TYPES[row.kind]]
                command += ["-records", str(row.records)]
            return run([*command, "-d", f"{seconds}s"], pids, row.records)

        yield measure


@contextlib.contextmanager
def etcd_gateway(
    binary: Path, loadgen: Path, scratch: Path, port: int, seconds: int
) -> Iterator[Callable[[Row], Figure | None]]:
    """Puts over HTTP; no batches."""
    body = scratch / "put.json"
    value = base64.b64encode(os.urandom(RECORD_BYTES)).decode()
    body.write_text(json.dumps({"key": "log/@@SEQ@@", "value": value}))
    with running_etcd(binary, port) as (urls, pids):
        target = _etcd_leader(urls)

        def measure(row: Row) -> Figure | None:
            if row.kind != "single" or row.follower:
                return None
            command = [
                str(loadgen),
                "-warmup",
                "0s",
                "-url",
                f"{target}/v3/kv/put",
                "-content-type",
                "application/json",
            ]
            command += ["-body-file", str(body), "-c", str(row.in_flight), "-d", f"{seconds}s"]
            return run(command, pids, 1)

        yield measure


def _etcd_leader(urls: list[str]) -> str:
    for url in urls:
        request = urllib.request.Request(f"{url}/v3/maintenance/status", data=b"{}")
        with urllib.request.urlopen(request) as answer:
            status = json.loads(answer.read())
        if status["header"]["member_id"] == status.get("leader"):
            return url
    return urls[0]


@contextlib.contextmanager
def nats_jetstream(
    binary: Path, natspub: Path, port: int, seconds: int
) -> Iterator[Callable[[Row], Figure | None]]:
    """Synchronous publishes for single records; batches are compared with 4 096 asynchronous ones."""
    with running_nats(binary, port) as (urls, pids):

        def measure(row: Row) -> Figure | None:
            if row.follower:
                return None
            how = ["sync", str(row.in_flight)] if row.kind == "single" else ["async", "4096"]
            command = [str(natspub), "-urls", urls[0], "-size", str(RECORD_BYTES), "-d", f"{seconds}s"]
            return run([*command, "-warmup", "0s", "-mode", how[0], "-c", how[1]], pids, 1)

        yield measure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", default=",".join(row.name for row in ROWS))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--port", type=int, default=28101)
    parser.add_argument("--etcd", type=Path)
    parser.add_argument("--nats", type=Path)
    parser.add_argument("--natspub", type=Path, help="client: -urls -mode -c -size -d, one JSON line")
    options = parser.parse_args()
    rows = [row for row in ROWS if row.name in options.rows.split(",")]
    figures: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        scratch = Path(folder)
        loadgen, files = build_loadgen(scratch), bodies(scratch)
        port, seconds = options.port, options.seconds
        for turn in range(options.turns):
            systems: list[tuple[str, Any]] = [("commitlog", this_project(loadgen, files, port, seconds))]
            if options.etcd is not None:
                name = f"etcd {version_of(options.etcd)}"
                systems.append((name, etcd_gateway(options.etcd, loadgen, scratch, port + 200, seconds)))
            if options.nats is not None:
                name = f"nats {version_of(options.nats)}"
                systems.append((name, nats_jetstream(options.nats, options.natspub, port + 300, seconds)))
            for system, running in systems:
                with running as measure:
                    for row in rows:
                        found = measure(row)
                        if found is not None:
                            figures[row.name, system].append(found)
                            print_figure(row=row.name, system=system, turn=turn, **found)
    for name, summary in summaries(figures).items():
        print_figure(row=name, **summary)


def summaries(figures: dict[tuple[str, str], list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return medians and ranges of every system by row, and the ratios of this project to the others."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for (row, system), turns in figures.items():
        rates = [turn["records_per_s"] for turn in turns]
        found[row][system] = {
            "records_per_s": round(statistics.median(rates)),
            "range": [round(min(rates)), round(max(rates))],
            "p50_ms": statistics.median(turn["p50_ms"] for turn in turns),
            "cpu_us": statistics.median(turn["cpu_us"] for turn in turns),
        }
    for systems in found.values():
        ours = systems["commitlog"]["records_per_s"]
        systems["ratio"] = {
            system: round(ours / told["records_per_s"], 2)
            for system, told in systems.items()
            if system != "commitlog" and told["records_per_s"]
        }
    return found


if __name__ == "__main__":
    main()
