"""Time until an acknowledged record is in the Delta table: three nodes and the Spark job.

`python -m tests.bench.spark.visibility [--rate 1000 --seconds 60 --warm-up 45 --append-records 10]`: records
of 1 KiB are appended at an even rate. The time runs from an append's answer until a version of `entries`
whose files hold its last record is in the table's own log, checked every 5 ms. Four JSON lines: the latency,
the micro-batches, the load, and whether the lag that the service displays is true. Exit code 1 when a goal is
missed, or when the table does not hold each record once.
"""

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import psutil

from app.client import CommitlogClient
from app.tables.delta_log import DeltaLog
from tests.bench.systems.local_cluster import pid_of, print_figure, running_cluster
from tests.support.programs import run_program

RECORD_BYTES = 1024
GOALS_MS = {"p50_ms": 1_000.0, "p95_ms": 2_000.0}
LOOK_EACH_S = 0.005
ASK_EACH_S = 0.25
FIRST_ROWS_S, LAST_ROWS_S = 600.0, 120.0
JOB = "job"
LAG_SLACK_S = 0.1  # from a commit until a replica knows of it, on busy processors


class Append(NamedTuple):
    """One that was answered. Times of `time.perf_counter`; last_index: inclusive."""

    sent_at_s: float
    acked_at_s: float
    last_index: int
    records: int


@dataclass
class Versions:
    """The versions of `entries` that brought rows: when each was first seen, and its last index."""

    seen_at_s: list[float] = field(default_factory=list)
    last_index: list[int] = field(default_factory=list)  # rises from version to version

    def visible_at_s(self, index: int) -> float:
        """When a record, which the table holds, was first seen there."""
        return self.seen_at_s[bisect_left(self.last_index, index)]

    def held_at(self, at_s: float) -> int:
        """The last index of the newest version that was seen before a time, -1 for none."""
        place = bisect_left(self.seen_at_s, at_s)
        return self.last_index[place - 1] if place else -1


class LagSeen(NamedTuple):
    """The displayed lag between two times."""

    asked_at_s: float
    answered_at_s: float
    records: int
    ms: int


@dataclass
class Load:
    """A producer that appends evenly: an append that is slow does not hold up the next ones."""

    url: str
    rate: float
    append_records: int
    appends: list[Append] = field(default_factory=list)  # in the order of the answers
    ended: bool = False

    async def run(self) -> None:
        """Until `ended`. Raises AssertionError when an append is refused."""
        value = "x" * RECORD_BYTES
        body = json.dumps({"records": [{"value": value}] * self.append_records}).encode()
        started_s, number = time.perf_counter(), 0
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as tasks:
            while not self.ended:
                due_s = started_s + number * self.append_records / self.rate
                await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
                tasks.create_task(self._append(session, body))
                number += 1

    async def _append(self, session: aiohttp.ClientSession, body: bytes) -> None:
        sent_at_s = time.perf_counter()
        async with session.post(self.url, data=body, headers={"Content-Type": "application/json"}) as answer:
            document = json.loads(await answer.read())
        assert answer.status == 200, document
        last_index = int(document["last_index"])
        self.appends.append(Append(sent_at_s, time.perf_counter(), last_index, self.append_records))


async def watch_table(table: Path, versions: Versions) -> None:
    """Record each version when it appears, until cancelled; its last index is in its statistics."""
    log, version = DeltaLog(str(table)), 0
    while True:
        while (table / "_delta_log" / f"{version:020d}.json").exists():
            now_s = time.perf_counter()
            commit = log.commit(version)
            assert commit is not None
            if indexes := commit.largest("index"):
                versions.seen_at_s.append(now_s)
                versions.last_index.append(max(int(index) for index in indexes))
            version += 1
        await asyncio.sleep(LOOK_EACH_S)


async def watch_lag(url: str, seen: list[LagSeen]) -> None:
    """Read the table's lag, as `commitlog tables` does, until cancelled."""
    async with aiohttp.ClientSession() as session:
        while True:
            asked_at_s = time.perf_counter()
            async with session.get(url) as answer:
                document = await answer.json()
            answered_at_s = time.perf_counter()
            seen.append(LagSeen(asked_at_s, answered_at_s, document["lag_records"], document["lag_ms"]))
            await asyncio.sleep(ASK_EACH_S)


async def watch_batches(path: Path, batches: dict[int, Mapping[str, Any]]) -> None:
    """Collect the job's reports of its micro-batches, by their ids, until cancelled."""
    while True:
        document = json.loads(await asyncio.to_thread(path.read_text))
        batch = document["logs"]["default"]["last_batch"]
        if batch is not None:
            batches[batch["id"]] = batch
        await asyncio.sleep(ASK_EACH_S)


def processor_s(pids: Mapping[str, int]) -> dict[str, float]:
    """Seconds of processor used so far: by name, of the job with its children; and by the whole machine."""
    used: dict[str, float] = {}
    for name, pid in pids.items():
        process = psutil.Process(pid)
        for member in [process, *(process.children(recursive=True) if name == JOB else [])]:
            with contextlib.suppress(psutil.NoSuchProcess):  # a worker of Spark's that has just ended
                times, program = member.cpu_times(), member.name()
                key = f"{JOB}: {'java' if program == 'java' else 'python'}" if name == JOB else name
                used[key] = used.get(key, 0.0) + times.user + times.system
    machine = psutil.cpu_times()
    return {**used, "machine": sum(machine) - machine.idle - machine.iowait}


def shares(before: Mapping[str, float], after: Mapping[str, float], seconds: float) -> dict[str, float]:
    """Processors in use, on average: 1.0 is one of them, busy all the time."""
    used = {name: (after[name] - before.get(name, 0.0)) / seconds for name in after}
    others = used.pop("machine") - sum(used.values())
    return {name: round(share, 2) for name, share in {**used, "all others": others}.items()}


def percentiles_ms(values_s: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values_s)
    at = {"p50_ms": 0.50, "p95_ms": 0.95, "p99_ms": 0.99, "max_ms": 1.0}
    places = {name: min(len(ordered) - 1, int(share * len(ordered))) for name, share in at.items()}
    return {name: round(1_000 * ordered[place], 1) for name, place in places.items()}


def judge_lag(seen: Sequence[LagSeen], appends: Sequence[Append], versions: Versions) -> dict[str, object]:
    """The displayed lag against what producer and table tell: each look has a least and a most true one."""
    wrong = []
    for look in seen:
        early, late = look.asked_at_s - LAG_SLACK_S, look.answered_at_s + LAG_SLACK_S
        held_late, held_early = versions.held_at(late), versions.held_at(early)
        surely = [a for a in appends if a.acked_at_s <= early and a.last_index > held_late]
        perhaps = [a for a in appends if a.sent_at_s <= late and a.last_index > held_early]
        records = (sum(a.records for a in surely), sum(a.records for a in perhaps))
        ms = (
            round(1_000 * (early - min((a.acked_at_s for a in surely), default=early))),
            round(1_000 * (late - min((a.sent_at_s for a in perhaps), default=late))),
        )
        if not (records[0] <= look.records <= records[1] and ms[0] <= look.ms <= ms[1]):
            wrong.append({"records": look.records, "true": records, "ms": look.ms, "true_ms": ms})
    return {
        "looks": len(seen),
        "true": len(seen) - len(wrong),
        "records_p50": statistics.median(look.records for look in seen),
        "ms_p50": statistics.median(look.ms for look in seen),
        "first_wrong": wrong[:3],
    }


@contextlib.contextmanager
def beside(*work: Coroutine[Any, Any, None]) -> Iterator[None]:
    """Let endless work run beside the body. Raises what ended it."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        yield
    finally:
        for task in tasks:
            if task.done():
                task.result()
            task.cancel()


async def until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    give_up_at_s = time.perf_counter() + timeout_s
    while not condition():
        if time.perf_counter() > give_up_at_s:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        await asyncio.sleep(LOOK_EACH_S)


async def measure(folder: Path, urls: Sequence[str], options: argparse.Namespace) -> bool:
    """Run the load and print the figures; whether the goals are met."""
    with CommitlogClient(urls) as client:
        status, nodes = client.status(), client.cluster()["nodes"]
    leader = next(node["url"] for node in nodes if node["id"] == status["leader"])
    pids = {node["id"]: pid_of(folder, node["id"]) for node in nodes}
    pids |= {JOB: pid_of(folder, "spark"), "bench": psutil.Process().pid}
    table, reported = folder / "tables" / "default" / "entries", folder / "tables" / "progress.json"
    load = Load(f"{leader}/v1/logs/default/records", options.rate, options.append_records)
    versions, lag, batches = Versions(), list[LagSeen](), dict[int, Mapping[str, Any]]()
    producer = asyncio.create_task(load.run())
    with beside(watch_table(table, versions)):
        await until(lambda: versions.last_index and reported.exists(), FIRST_ROWS_S, "the first rows")
        await asyncio.sleep(options.warm_up)
        used, began_s = processor_s(pids), time.perf_counter()
        lag_watcher = watch_lag(f"{urls[0]}/v1/logs/default/tables/entries", lag)
        with beside(lag_watcher, watch_batches(reported, batches)):
            await asyncio.sleep(options.seconds)
            used, ended_s = shares(used, processor_s(pids), options.seconds), time.perf_counter()
        load.ended = True
        await producer
        newest = max(append.last_index for append in load.appends)
        await until(lambda: versions.last_index[-1] >= newest, LAST_ROWS_S, f"index {newest}")
    latency = print_latency(load, versions, began_s, ended_s)
    seen = [at for at in versions.seen_at_s if began_s <= at < ended_s]
    print_figure(
        figure="micro-batches",
        versions=len(seen),
        interval_ms=round(1_000 * (seen[-1] - seen[0]) / (len(seen) - 1)),
        reported_of=len(batches),
        records=statistics.mean(batch["records"] for batch in batches.values()),
        duration_ms=mean_parts([batch["duration_ms"] for batch in batches.values()]),
    )
    print_figure(figure="processors in use", **used)
    print_figure(figure="displayed lag", **judge_lag(lag, load.appends, versions))
    snapshot = DeltaLog(str(table)).snapshot()
    held, acked = snapshot and snapshot.rows, sum(append.records for append in load.appends)
    if held != acked:
        sys.stderr.write(f"{acked} records were acknowledged, the table holds {held}\n")
    return held == acked and all(latency[name] <= goal for name, goal in GOALS_MS.items())


def print_latency(load: Load, versions: Versions, began_s: float, ended_s: float) -> dict[str, float]:
    """The latency of each record that was acknowledged in [began_s, ended_s)."""
    measured = [append for append in load.appends if began_s <= append.acked_at_s < ended_s]
    waits = [
        versions.visible_at_s(append.last_index) - append.acked_at_s
        for append in measured
        for _ in range(append.records)
    ]
    latency = percentiles_ms(waits)
    print_figure(
        figure="append to visible",
        seconds=round(ended_s - began_s, 1),
        records_per_s=round(len(waits) / (ended_s - began_s), 1),
        append_records=load.append_records,
        **latency,
        goals_met=all(latency[name] <= goal for name, goal in GOALS_MS.items()),
        append=percentiles_ms([append.acked_at_s - append.sent_at_s for append in measured]),
    )
    return latency


def mean_parts(durations: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Durations of micro-batches by phase; triggerExecution is the total."""
    names = sorted({name for duration in durations for name in duration})
    return {name: round(statistics.mean(each.get(name, 0) for each in durations)) for name in names}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=1_000, help="records a second")
    parser.add_argument("--append-records", type=int, default=10, help="records of one append")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm-up", type=float, default=45, help="seconds, from the first rows on")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--port", type=int, default=28401)
    options = parser.parse_args()
    with running_cluster(options.nodes, options.port, spark=True) as (folder, urls):
        return 0 if asyncio.run(measure(folder, urls, options)) else 1


if __name__ == "__main__":
    run_program(main)
