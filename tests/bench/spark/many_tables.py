"""One Spark job that keeps the tables of many logs: its processes, memory, commits, start and stop.

`python -m tests.bench.spark.many_tables [--logs 50 --busy 50 --rate 20 --seconds 60]`: one node on this
machine, the real job as a process of its own. Each busy log gets `rate` records of 200 bytes a second. One
JSON line: seconds until every busy log has rows, the time between two commits of a log, from an append's
answer to the commit that has it, processes and memory of the job, the share of a processor that it uses, the
number of logs that it reports at the end, and the seconds from SIGTERM to its end.

An idle job: `--logs 1 --busy 0 --settle 60`.
"""

import argparse
import itertools
import json
import signal
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from app.client import CommitlogClient
from app.tables.delta_log import DeltaLog
from spark_jobs.materialize.config import MAX_DELAY
from tests.bench.spark.job import report, running_job
from tests.bench.systems.local_cluster import print_figure
from tests.support.cluster import Cluster, running
from tests.support.programs import run_program

VALUE = b"x" * 200
LIMIT_S = 300.0
MIB = 1024 * 1024


class Producer(threading.Thread):
    """Appends to all logs once a second. acked: time of the answer and last index, by log."""

    def __init__(self, url: str, logs: Sequence[str], rate: int) -> None:
        super().__init__(daemon=True)
        self.ending = threading.Event()
        self.acked: dict[str, list[tuple[float, int]]] = {log: [] for log in logs}
        self._clients = {log: CommitlogClient([url], log=log) for log in logs}
        self._rate = rate

    def run(self) -> None:
        due_s = time.monotonic()
        while not self.ending.wait(max(0.0, due_s - time.monotonic())):
            due_s += 1.0
            for log, client in self._clients.items():
                last_index = client.append([VALUE] * self._rate).last_index
                self.acked[log].append((time.time(), last_index))


def tree(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def memory_mib(members: Sequence[psutil.Process]) -> float:
    """Proportional set size: pages that several processes share count once."""
    return round(sum(member.memory_full_info().pss for member in members if member.is_running()) / MIB)


def processor_s(members: Sequence[psutil.Process]) -> dict[int, float]:
    """Return the seconds used so far, by process."""
    return {member.pid: sum(member.cpu_times()[:2]) for member in members if member.is_running()}


def used_since(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """Return the seconds used between two looks, by the processes that live at the second one."""
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def reported(tables: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((tables / "progress.json").read_text())["logs"])
    except FileNotFoundError:
        return {}


def lacking(tables: Path, busy: Iterable[str]) -> set[str]:
    """Return the logs without rows, as the job reports; a log may have joined after its last report."""
    found = reported(tables)
    return {log for log in busy if log not in found or found[log]["entries_rows"] == 0}


def percentiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values) or [0.0]
    places = {"p50": len(ordered) // 2, "p95": int(0.95 * len(ordered)), "max": len(ordered) - 1}
    return {name: round(ordered[min(place, len(ordered) - 1)], 2) for name, place in places.items()}


def judge(tables: Path, producer: Producer, from_s: float) -> tuple[list[float], list[float]]:
    """Seconds between two commits of a log, and from an answer to the commit with its records."""
    gaps, waits = [], []
    for log, acked in producer.acked.items():
        delta = DeltaLog(str(tables / log / "entries"))
        commits = [commit for version in delta.versions() if (commit := delta.commit(version)) is not None]
        seen = [
            (commit.timestamp_ms / 1_000, max(commit.largest("index"))) for commit in commits if commit.added
        ]
        times = [at_s for at_s, _ in seen if at_s >= from_s]
        gaps += [later - sooner for sooner, later in itertools.pairwise(times)]
        for at_s, index in acked:
            if at_s >= from_s and (found := next((s for s, last in seen if last >= index), None)) is not None:
                waits.append(found - at_s)
    return gaps, waits


def measure(cluster: Cluster, folder: Path, names: Sequence[str], options: argparse.Namespace) -> None:
    url, tables = cluster.url("n1"), folder / "tables"
    producer = Producer(url, names[: options.busy], options.rate)
    producer.start()
    began_s = time.monotonic()
    given = ["--log", "orders-*", "--max-delay", options.max_delay]
    with running_job(folder, url, tables, given) as job:
        process = psutil.Process(job.pid)
        busy = set(producer.acked)
        while waiting := lacking(tables, busy):
            if time.monotonic() > began_s + LIMIT_S or job.poll() is not None:
                raise TimeoutError(f"no rows of {sorted(waiting)}: {report(folder)}")
            time.sleep(0.1)
        start_s = time.monotonic() - began_s
        time.sleep(options.settle)
        from_s = time.time()
        before = processor_s(tree(process))
        time.sleep(options.seconds)
        members = tree(process)
        used_s = used_since(before, processor_s(members))
        figures = {"processes": len(members), "memory_mib": memory_mib(members)}
        figures["reported_logs"] = len(reported(tables))
        producer.ending.set()
        producer.join()
        stop_s = time.monotonic()
        job.send_signal(signal.SIGTERM)
        code = job.wait(LIMIT_S)
    gaps, waits = judge(tables, producer, from_s)
    print_figure(
        logs=len(names),
        busy=len(busy),
        rate=options.rate,
        max_delay=options.max_delay,
        start_s=round(start_s, 1),
        stop_s=round(time.monotonic() - stop_s, 1),
        exit_code=code,
        **figures,
        processors=round(used_s / options.seconds, 3),
        commit_each_s=percentiles(gaps),
        visible_after_s=percentiles(waits),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=int, default=50)
    parser.add_argument("--busy", type=int, help="logs that get records; default: all")
    parser.add_argument("--rate", type=int, default=20, help="records a second of each busy log")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--settle", type=float, default=0.0, help="seconds before the measurement begins")
    parser.add_argument("--max-delay", default=MAX_DELAY, help="of the job: of a trickle of few records")
    options = parser.parse_args()
    options.busy = options.logs if options.busy is None else options.busy
    names = [f"orders-{number:04d}" for number in range(options.logs)]
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder:
        logs = tuple({"name": name, "replicas": ["n1"]} for name in names)
        with running(Path(folder), 1, logs=logs) as cluster:
            for name in names:
                cluster.leader(name)
            measure(cluster, Path(folder), names, options)


if __name__ == "__main__":
    run_program(main)
