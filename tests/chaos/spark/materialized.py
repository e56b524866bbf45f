"""The real Spark job dies, meets a second driver, and loses the replicas that it reads.

Whatever happens, each committed record is in the table `entries` once, in place and with its values.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pyarrow as pa

from app.client import CommitlogClient
from tests.chaos.session import Session, World, open_cluster, under_load
from tests.chaos.spark.materializer import (
    Driver,
    Materializer,
    materializer,
    require_spark,
    until,
    verified,
)
from tests.chaos.spark.table_judge import records_of
from tests.fault.cluster import FaultCluster
from tests.fault.history import Operation, Outcome, find_violations
from tests.spark.drivers.kill_points import POINTS

LIGHT: dict[str, Any] = {"pause_s": 0.1, "readers": 1}  # a load that leaves the processor to the JVM
IN_START = 0.2  # share of the random kills that come before the first micro-batch
SOON_S = 1.0  # a micro-batch takes less
START_S = 10.0  # of a JVM
BURST, BURSTS, PADDING = 10_000, 3, "x" * 1_000  # records of an append, appends, what makes a record long
TRIGGER_S = 2
HIT_WITHIN_S = 10.0


async def kill_driver(world: World) -> None:
    """kill -9 of the whole driver at 40 random moments, then at each named point (kill_points.py)."""
    kills, named = world.count(40, least=2), POINTS[: world.count(len(POINTS))]
    async with filled(world) as (session, job):
        for number in range(kills):
            world.progress(number, kills + len(named))
            driver = await job.start()
            if world.chance.random() < IN_START:
                await asyncio.sleep(world.chance.uniform(0, START_S))
            else:
                await job.working(driver, world.chance.randint(1, 3))
                await asyncio.sleep(world.chance.uniform(0, SOON_S))
            driver.kill()
            world.report.counts[f"killed {driver.where()}"] += 1
            await job.compare(f"kill {number + 1}, {driver.where()}")
        for number, point in enumerate(named, kills):
            world.progress(number, kills + len(named))
            driver = await job.start(point)
            code = await driver.ended()
            if code != -signal.SIGKILL:
                world.report.missed.append(f"the driver did not reach {point}, it ended with {code}")
            world.report.counts[f"killed at the point {point}"] += 1
            await job.compare(f"the kill at {point}")
        await session.progress(50)


async def two_drivers(world: World) -> None:
    """10 times a driver is paused in mid-stream, another takes over, and the woken one has to end."""
    times = world.count(10)
    async with filled(world) as (session, job):
        driver = await job.start()
        for number in range(times):
            world.progress(number, times)
            await job.working(driver)
            await asyncio.sleep(world.chance.uniform(0, SOON_S))
            driver.signal(signal.SIGSTOP)
            where = driver.where()
            other = await job.start()
            await job.working(other)
            await session.progress(20)
            await job.holds(session.workload.known_end, other)
            driver.signal(signal.SIGCONT)
            await ended_by_the_other(world, driver)
            world.report.counts[f"paused {where}"] += 1
            await job.holds(session.workload.known_end, other)
            await job.compare(f"pause {number + 1}, {where}")
            driver = other
        await job.stop(driver)


async def ended_by_the_other(world: World, woken: Driver) -> None:
    """A driver ends with exit code 1 when it finds that another job has the table."""
    woken_at = time.monotonic()
    code = await woken.ended()
    if code != 1:
        world.report.violations.append(f"a driver that was woken beside another one: exit code {code}, not 1")
    ends = world.report.figures.setdefault("woken_drivers_ended_after_s", [])
    assert isinstance(ends, list)
    ends.append(round(time.monotonic() - woken_at, 1))


async def kill_read_replica(world: World) -> None:
    """kill -9 of the leader, and each third time of a follower, while a task reads from it, 12 times."""
    times = world.count(12, least=2)
    async with filled(world) as (session, job):
        options = ("--max-records-per-partition", str(BURST), "--trigger", f"{TRIGGER_S} seconds")
        driver = await job.start(None, *options)
        await job.working(driver)
        for number in range(times):
            world.progress(number, times)
            leader = await session.leader()
            others = [node for node in session.cluster.ids if node != leader]
            victim = world.chance.choice(others) if number % 3 == 2 else leader
            await lose_in_read(session, job, driver, victim, "leader" if victim == leader else "follower")
            await job.compare(f"the loss of {victim} in mid-read")
        world.report.goal("queries that a lost replica ended", job.reported()["restarts"], 0)
        await job.stop(driver)


async def lose_in_read(session: Session, job: Materializer, driver: Driver, victim: str, role: str) -> None:
    cluster, report = session.cluster, session.report
    burst = report.counts["bursts"]
    feeding = asyncio.create_task(asyncio.to_thread(feed, session, burst))
    report.counts["bursts"] += 1
    hit = False
    give_up_at = time.monotonic() + HIT_WITHIN_S
    while not hit and time.monotonic() < give_up_at:
        hit = (job.reported().get("lag_records") or 0) > 0
        await asyncio.sleep(0)
    lost_at = time.monotonic()
    cluster.kill(victim)
    await feeding
    await session.progress(20)
    report.gap(f"{role} lost in mid-read", session.workload.longest_gap_s(lost_at))
    report.counts[f"{role} killed {'while the job lagged' if hit else 'between reads'}"] += 1
    await job.holds(session.workload.known_end, driver)
    await session.restart(victim)


def feed(session: Session, burst: int) -> None:
    """Long records, which take a while to be read; they join the history of the clients."""
    urls = [session.cluster.url(node) for node in session.cluster.running]
    with CommitlogClient(urls) as client:
        for number in range(BURSTS):
            value = f"burst{burst}-{number}"
            operation = Operation(value, time.monotonic(), 0.0, Outcome.ACKNOWLEDGED, count=BURST)
            rows = pa.table({"value": operation.values, "key": [PADDING] * BURST})
            index = client.append_arrow(rows).first_index
            session.workload.operations.append(
                Operation(
                    value, operation.started, time.monotonic(), Outcome.ACKNOWLEDGED, index, count=BURST
                )
            )
            session.workload.known_end = max(session.workload.known_end, index + BURST - 1)


@asynccontextmanager
async def filled(world: World) -> AsyncIterator[tuple[Session, Materializer]]:
    """Three nodes under a light load and the drivers of their tables, for the length of the `with`.

    At its end the history of the clients is judged twice, by the log of all nodes and by the table, which
    is compared with the log record by record, and by `commitlog verify --tables`.
    """
    require_spark()
    tables = world.folder / "tables"
    sections = {"tables": {"path": str(tables)}}
    async with open_cluster(world, sections=sections) as cluster:
        urls = [cluster.url(node) for node in cluster.ids]
        async with materializer(world, tables, urls) as job:
            async with under_load(world, cluster, **LIGHT) as session:
                yield session, job
            await judge_table(world, cluster, session, job)


async def judge_table(world: World, cluster: FaultCluster, session: Session, job: Materializer) -> None:
    job.forget()
    driver = await job.start()
    await until(lambda: bool(job.reported()), "what the job reports", driver, job.tables)
    end = max(each.index + each.count - 1 for each in session.workload.operations if each.index is not None)
    await job.holds(end, driver)
    await job.stop(driver)
    await job.compare("everything")
    rows = await asyncio.to_thread(job.files.rows)
    wrong = await asyncio.to_thread(find_violations, session.workload.operations, [], records_of(rows))
    world.report.violations += [f"in the table: {each}" for each in wrong]
    world.report.counts["rows"] += rows.num_rows
    await verified(world, [cluster.url(node) for node in cluster.running])
