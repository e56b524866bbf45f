"""Appends of this project and of other systems, in alternating turns of one run.

    python -m tests.bench.compare [--rows single-64,ndjson-100] [--turns 5] [--seconds 3]
                                  [--etcd BINARY] [--nats BINARY] | [--peers] [--bare]

Prints one JSON line a figure, and at the end one line a row: medians, ranges, and the ratio to each peer.
Three nodes, records of 1 KiB; the client uses the same processors. Needs Go for tests/bench/loadgen.
--peers fetches etcd and NATS (tests/bench/systems/peers.py); --bare measures the barest quorum beside
(tests/bench/systems/bare_node.py), which is what this machine permits in Python. `cpu_us`: processor time of
all servers for one record, less dependent than the rate on what else runs; `leader_us` and `follower_us` are
parts of it. `client_us`: of the load generator.
"""

import argparse
import base64
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.media_types import ARROW_STREAM, BATCHES, JSON, NDJSON
from storage.format.batch import FIRST_CHAIN, stamp
from storage.format.records import RecordColumns, encode_body
from tests.bench.rest_append import BATCH_RECORDS, RECORD_BYTES, arrow_body, build_loadgen
from tests.bench.systems.bare_node import running_bare_quorum
from tests.bench.systems.local_cluster import print_figure
from tests.bench.systems.memory import filled_page_cache
from tests.bench.systems.peers import (
    Peers,
    build_natspub,
    fetch_peers,
    running_etcd,
    running_nats,
    version_of,
)
from tests.bench.systems.setups import Setup, running_nodes
from tests.support.programs import run_program

Figure = dict[str, Any]
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Row:
    """One workload. in_flight: requests; kind: of the body; follower: sent to a node that does not lead;
    peers: whether other systems have it."""

    name: str
    in_flight: int
    kind: str = "single"
    follower: bool = False
    setup: Setup = Setup.FSYNC
    peers: bool = True

    @property
    def records(self) -> int:
        return 1 if self.kind in ("single", "stream") else BATCH_RECORDS


ROWS = (
    Row("single-1", 1),
    Row("single-64", 64),
    Row("single-256", 256),
    Row("follower-64", 64, follower=True, peers=False),
    Row("json-100", 8, "json"),
    Row("ndjson-100", 8, "ndjson"),
    Row("arrow-100", 8, "arrow"),
    Row("packed-100", 8, "packed"),
    Row("stream-4096", 4096, "stream"),
    Row("tls-64", 64, setup=Setup.SECURE, peers=False),
    Row("tls-256", 256, setup=Setup.SECURE, peers=False),
    Row("replicated-256", 256, setup=Setup.REPLICATED, peers=False),
    Row("replicated-arrow-100", 8, "arrow", setup=Setup.REPLICATED, peers=False),
    Row("slow-disk-256", 256, setup=Setup.SLOW_DISK, peers=False),
)
CONTENT_TYPES = {
    "json": JSON,
    "ndjson": NDJSON,
    "arrow": ARROW_STREAM,
    "packed": BATCHES,
}


def bodies(folder: Path) -> dict[str, Path]:
    """Write one request of each kind of batch."""
    record = {"value": "v" * RECORD_BYTES}
    (folder / "json").write_text(json.dumps({"records": [record] * BATCH_RECORDS}))
    (folder / "ndjson").write_text((json.dumps(record) + "\n") * BATCH_RECORDS)
    (folder / "packed").write_bytes(packed_batch([b"v" * RECORD_BYTES] * BATCH_RECORDS))
    return {kind: folder / kind for kind in ("json", "ndjson", "packed")} | {"arrow": arrow_body(folder)}


def packed_batch(values: list[bytes]) -> bytes:
    """Return records as a stored batch, as a client that repeats what it has read sends it."""
    columns = RecordColumns()
    for value in values:
        columns.add(value)
    batch = stamp(
        encode_body(columns),
        log_id=0,
        base_index=0,
        term=0,
        timestamp_ms=0,
        offset=0,
        previous_chain=FIRST_CHAIN,
    )
    return bytes(batch.data)


def cpu_s(pids: list[int]) -> float:
    """Return the processor time that processes have used, in seconds."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS_PER_S


def ended_children_s() -> float:
    """Return the processor time of the child processes that have ended, in seconds."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(
    command: list[str], pids: Sequence[int], records: int, environment: dict[str, str] | None = None
) -> Figure:
    """Run a load generator; records: in one request. environment: for this project, whose leader is the first
    of pids; None: for another system."""
    before_s, client_before_s = [cpu_s([pid]) for pid in pids], ended_children_s()
    done = subprocess.run(command, capture_output=True, env=os.environ | (environment or {}))
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.stderr.decode()[-500:]}{done.stdout.decode()[-500:]}")
    found = json.loads(done.stdout)
    used_us = [(cpu_s([pid]) - before) * 1e6 for pid, before in zip(pids, before_s, strict=True)]
    figure = {name: found[name] for name in ("records_per_s", "p50_ms", "p99_ms", "errors") if name in found}
    sent = found.get("requests", found.get("records", 0) / records) * records
    costs = {"cpu_us": sum(used_us), "client_us": (ended_children_s() - client_before_s) * 1e6}
    if environment is not None:
        costs = {"leader_us": used_us[0], "follower_us": max(used_us[1:], default=0.0), **costs}
    return {**figure, **{name: round(us / max(1, sent), 1) for name, us in costs.items()}}


def clusters(rows: Sequence[Row]) -> list[list[Row]]:
    """Return the rows that share a cluster: those of one setup."""
    shared = [[row for row in rows if row.setup is setup] for setup in Setup]
    return [group for group in shared if group]


@contextlib.contextmanager
def this_project(
    rows: Sequence[Row], loadgen: Path, files: dict[str, Path], seconds: int
) -> Iterator[Callable[[Row], Figure | None]]:
    """rows: measured by this cluster (`clusters`)."""
    with running_nodes(rows[0].setup) as nodes:

        def load(row: Row, seconds: int) -> Figure:
            target = nodes.follower if row.follower else nodes.leader
            if row.kind == "stream":
                command = [sys.executable, "-m", "tests.bench.stream_load", "--url", target]
                command += ["--window", str(row.in_flight), "--seconds", str(seconds)]
                return run(command, nodes.pids, 1, nodes.environment)
            command = [str(loadgen), "-warmup", "0s", "-url", f"{target}/v1/logs/default/records"]
            command += ["-c", str(row.in_flight)]
            for header in nodes.headers:
                command += ["-H", header]
            if row.kind == "single":
                command += ["-size", str(RECORD_BYTES)]
            else:
                command += ["-body-file", str(files[row.kind]), "-content-type", CONTENT_TYPES[row.kind]]
                command += ["-records", str(row.records)]
            return run([*command, "-d", f"{seconds}s"], nodes.pids, row.records, nodes.environment)

        load(rows[0], 1)  # the first second of a cluster costs more

        def measure(row: Row) -> Figure | None:
            return load(row, seconds) if row in rows else None

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
            if row.kind != "single" or not row.peers:
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
        asynchronous: list[Figure] = []  # of this turn: all batches are compared with it

        def measure(row: Row) -> Figure | None:
            if not row.peers:
                return None
            if row.kind != "single" and asynchronous:
                return asynchronous[0]
            how = ["sync", str(row.in_flight)] if row.kind == "single" else ["async", "4096"]
            command = [str(natspub), "-urls", ",".join(urls), "-size", str(RECORD_BYTES), "-d", f"{seconds}s"]
            found = run([*command, "-mode", how[0], "-c", how[1]], pids, 1)
            if row.kind != "single":
                asynchronous.append(found)
            return found

        yield measure


@contextlib.contextmanager
def bare_quorum(
    loadgen: Path, files: dict[str, Path], port: int, seconds: int
) -> Iterator[Callable[[Row], Figure | None]]:
    """Bodies of any kind, which it does not read."""
    with running_bare_quorum(port) as (url, pids):

        def measure(row: Row) -> Figure | None:
            if row.setup is not Setup.FSYNC or row.follower or row.kind == "stream":
                return None
            body = ["-size", str(RECORD_BYTES)]
            if row.kind != "single":
                body = ["-body-file", str(files[row.kind]), "-records", str(row.records)]
            command = [str(loadgen), "-warmup", "0s", "-url", url, "-c", str(row.in_flight), *body]
            return run([*command, "-d", f"{seconds}s"], pids, row.records, {})

        yield measure


def turns(
    rows: Sequence[Row], count: int, seconds: int, port: int, peers: Peers, *, bare: bool = False
) -> dict[str, dict[str, Any]]:
    """Measure the rows by turns, print each figure, and return the summaries. port: of the peers. bare: the
    barest quorum too."""
    figures: dict[tuple[str, str], list[Figure]] = defaultdict(list)
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="commitlog-bench-")))
        loadgen, files = build_loadgen(scratch), bodies(scratch)
        natspub = build_natspub(scratch) if peers.nats is not None else None
        cache = stack.enter_context(filled_page_cache())
        for turn in range(count):
            systems: list[tuple[str, Any]] = [
                ("commitlog", this_project(group, loadgen, files, seconds)) for group in clusters(rows)
            ]
            compared = any(row.peers for row in rows)
            if peers.etcd is not None and compared:
                name = f"etcd {version_of(peers.etcd)}"
                systems.insert(1, (name, etcd_gateway(peers.etcd, loadgen, scratch, port, seconds)))
            if peers.nats is not None and natspub is not None and compared:
                name = f"nats {version_of(peers.nats)}"
                systems.insert(1, (name, nats_jetstream(peers.nats, natspub, port + 100, seconds)))
            if bare:
                systems.insert(1, ("bare quorum", bare_quorum(loadgen, files, port + 200, seconds)))
            for system, running in systems:
                with running as measure:
                    for row in rows:
                        cache.fill()
                        try:
                            found = measure(row)
                        except RuntimeError as error:  # the other rows go on
                            print_figure(row=row.name, system=system, turn=turn, failed=str(error))
                            continue
                        if found is not None:
                            figures[row.name, system].append(found)
                            print_figure(row=row.name, system=system, turn=turn, **found)
    return summaries(figures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", default=",".join(row.name for row in ROWS))
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--port", type=int, default=28101, help="first port of the peers")
    parser.add_argument("--peers", action="store_true", help="fetch etcd and NATS, and compare with them")
    parser.add_argument("--bare", action="store_true", help="compare with the barest quorum")
    parser.add_argument("--etcd", type=Path)
    parser.add_argument("--nats", type=Path)
    options = parser.parse_args()
    rows = [row for row in ROWS if row.name in options.rows.split(",")]
    peers = fetch_peers() if options.peers else Peers(options.etcd, options.nats)
    measured = turns(rows, options.turns, options.seconds, options.port, peers, bare=options.bare)
    for name, summary in measured.items():
        print_figure(row=name, **summary)


def summaries(figures: dict[tuple[str, str], list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return medians and ranges of every system by row, and the ratios of this project to the others."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for (row, system), turns in figures.items():
        rates = [turn["records_per_s"] for turn in turns]
        found[row][system] = {
            "records_per_s": round(statistics.median(rates)),
            "range": [round(min(rates)), round(max(rates))],
            **{
                name: round(statistics.median(turn[name] for turn in turns), 3)
                for name in ("p50_ms", "leader_us", "follower_us", "cpu_us", "client_us")
                if name in turns[0]
            },
        }
    for systems in found.values():
        if "commitlog" not in systems:
            continue
        ours = systems["commitlog"]["records_per_s"]
        systems["ratio"] = {
            system: round(ours / theirs["records_per_s"], 2)
            for system, theirs in systems.items()
            if system != "commitlog" and theirs["records_per_s"]
        }
    return found


if __name__ == "__main__":
    run_program(main)
