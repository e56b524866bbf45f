"""A backlog worked off by the job with its own defaults: is the rate constant, is the memory bounded?

`python -m tests.bench.spark.backlog [--records 10000000] [--record-bytes 100]` fills a log of three nodes,
then runs the job until the log is in the table. Prints one JSON line a micro-batch, some of the memory over
time (resident MiB of the driver's JVM, of its Python workers and of the driver; pages that processes share
count in each), and a verdict: rows a second in the last third of the micro-batches against the first third.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil

from spark_jobs.session.jars import DEFAULT_JARS_FOLDER, ensure_jars
from spark_jobs.tables.table import ENTRIES, table_path
from tests.bench.spark.log_to_delta import fill
from tests.bench.systems.local_cluster import print_figure
from tests.support.cluster import running
from tests.support.programs import run_program

LOOK_EACH_S = 0.5
MIB = 1024 * 1024
MEMORY_LINES = 20  # of the time that the job takes


@dataclass(frozen=True)
class MicroBatch:
    """One commit of `entries`. seconds: since the commit before it, the table's making for the first."""

    rows: int
    seconds: float

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds


@dataclass(frozen=True)
class Memory:
    """Resident bytes of the job's processes. at_s: since its start."""

    at_s: float
    jvm: int
    workers: int
    driver: int

    @property
    def total(self) -> int:
        return self.jvm + self.workers + self.driver


def memory_of(process: psutil.Process, at_s: float) -> Memory:
    """Usage of a job and of its children: its JVM, and the Python processes below that."""
    jvm = workers = 0
    for child in process.children(recursive=True):
        try:
            resident, name = child.memory_info().rss, child.name()
        except psutil.NoSuchProcess:
            continue
        if name == "java":
            jvm += resident
        else:
            workers += resident
    return Memory(at_s, jvm, workers, process.memory_info().rss)


def watch(job: subprocess.Popen[bytes]) -> list[Memory]:
    """Look at a job's memory until it has ended."""
    seen: list[Memory] = []
    process = psutil.Process(job.pid)
    started = time.monotonic()
    while job.poll() is None:
        try:
            seen.append(memory_of(process, time.monotonic() - started))
        except psutil.NoSuchProcess:
            break
        time.sleep(LOOK_EACH_S)
    return seen


def commits(table: Path) -> list[tuple[float, int]]:
    """When each version of a table was committed, in seconds since 1970, and the rows that it brought."""
    found = []
    for path in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        found.append(
            (info["timestamp"] / 1000, int(info.get("operationMetrics", {}).get("numOutputRows", 0)))
        )
    return found


def micro_batches(table: Path) -> list[MicroBatch]:
    """Timings of micro-batches from the commits of a table, without the commit that created it."""
    return [
        MicroBatch(rows, at_s - before_s) for (before_s, _), (at_s, rows) in pairwise(commits(table)) if rows
    ]


def verdict(batches: Sequence[MicroBatch], memory: Sequence[Memory]) -> dict[str, object]:
    """The thirds of the micro-batches and of the time against one another.

    Only full micro-batches count, after the first: that one is cold, and the last brings what is left.
    """
    most = max(batch.rows for batch in batches)
    full = [batch for batch in batches[1:] if 2 * batch.rows > most] or list(batches)
    third = max(1, len(full) // 3)
    rates = [
        sum(batch.rows for batch in part) / sum(batch.seconds for batch in part)
        for part in (full[:third], full[third:-third] or full, full[-third:])
    ]
    peaks = [
        max(look.total for look in memory[len(memory) * part // 3 : len(memory) * (part + 1) // 3] or memory)
        for part in range(3)
    ]
    return {
        "micro_batches": len(batches),
        "rows_per_s": round(sum(batch.rows for batch in batches) / sum(batch.seconds for batch in batches)),
        "median_rows_per_s": round(statistics.median(batch.rows_per_s for batch in full)),
        "thirds_rows_per_s": [round(rate) for rate in rates],
        "last_third_to_first": round(rates[-1] / rates[0], 2),
        "peak_mib": round(max(peaks) / MIB),
        "peak_jvm_mib": round(max(look.jvm for look in memory) / MIB),
        "peak_workers_mib": round(max(look.workers for look in memory) / MIB),
        "thirds_peak_mib": [round(peak / MIB) for peak in peaks],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--max-records", type=int, help="of one micro-batch (default: the job's own)")
    parser.add_argument("--in-place", action="store_true", help="read the files, not over HTTP")
    given = parser.parse_args()
    ensure_jars(DEFAULT_JARS_FOLDER)
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder, running(Path(folder)) as cluster:
        seconds = fill(cluster, given.records, given.record_bytes)
        cluster.wait_even()
        print_figure(figure="log", records=given.records, records_per_s=round(given.records / seconds))
        tables = Path(folder) / "tables"
        command = [sys.executable, "-m", "spark_jobs.run", "--available-now", "--tables", str(tables)]
        command += ["--endpoint", ",".join(cluster.url(node) for node in cluster.ids)]
        if given.max_records:
            command += ["--max-records", str(given.max_records)]
        if given.in_place:
            command += [f"--data-folder={cluster.folder / node}" for node in cluster.ids]
        started = time.monotonic()
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as job:
            try:
                memory = watch(job)
            finally:
                job.terminate()
        if job.wait() != 0:
            raise subprocess.CalledProcessError(job.returncode, command)
        seconds = time.monotonic() - started
        batches = micro_batches(Path(table_path(tables, "default", ENTRIES)))
        rows = sum(batch.rows for batch in batches)
        assert rows == given.records, f"{rows} rows in the table of {given.records} records"
        for number, batch in enumerate(batches, 1):
            print_figure(
                figure="micro-batch",
                number=number,
                rows=batch.rows,
                seconds=round(batch.seconds, 2),
                rows_per_s=round(batch.rows_per_s),
            )
        for look in memory[:: max(1, len(memory) // MEMORY_LINES)]:
            print_figure(
                figure="memory",
                at_s=round(look.at_s, 1),
                jvm_mib=round(look.jvm / MIB),
                workers_mib=round(look.workers / MIB),
                driver_mib=round(look.driver / MIB),
            )
        print_figure(
            figure="backlog",
            records=given.records,
            record_bytes=given.record_bytes,
            in_place=given.in_place,
            job_seconds=round(seconds, 1),
            **verdict(batches, memory),
        )


if __name__ == "__main__":
    run_program(main)
