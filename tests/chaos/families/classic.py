"""A log with one permanent master: slaves are killed and cut off; unidentified peers connect."""

import asyncio
import time
from collections.abc import Sequence

import psutil

from tests.chaos.report import CannotRun
from tests.chaos.session import Session, World, open_cluster, under_load
from tests.fault.cluster import FaultCluster

MASTER, SLAVES = "n1", ("n2", "n3")
HA_PORT = 10_101
LOG = "classic"
SETTINGS = {
    "name": LOG,
    "replication": "classic",
    "master": MASTER,
    "sync_slaves": 1,
    "ha_listen": f"0.0.0.0:{HA_PORT}",
    "ha_address": f"198.18.0.1:{HA_PORT}",
}
TIMEOUT_MS = 1_000  # of synchronous appends
APPENDS_BETWEEN = 60
LATE_APPENDS = 16  # answered flush-slave-timeout, before the slaves come back
WAIT_S = 30.0
JUNK = 10_000
WARM_UP = 2_000  # connections before the first measurement: memory that an allocator keeps is not a leak
AT_ONCE = 100
GOAL_GROWTH_BYTES = 2 << 20
NOISE: Sequence[bytes] = (
    b"",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x00\x00\x00",  # a part of a report
    b"\xff" * 8,  # an offset below zero
    (1 << 62).to_bytes(8, "big"),  # far past the end of the log
    bytes(range(256)) * 16,
)


async def classic(world: World) -> None:
    """20 times a slave or both are killed or cut off under load; then 10 000 junk connections."""
    if not world.isolated:
        raise CannotRun("relays carry no slaves: only a switch can cut one off")
    times, junk = world.count(20, least=4), world.count(JUNK)
    async with open_cluster(world, logs=(SETTINGS,)) as cluster:
        async with under_load(world, cluster, log=LOG, timeout_ms=TIMEOUT_MS) as session:
            for number in range(times):
                world.progress(number, times + 1)
                gone = SLAVES if number % 2 else (SLAVES[number // 2 % 2],)
                await lose_slaves(session, gone, cuts=number % 4 >= 2)
        world.progress(times, times + 1)
        await knock(world, cluster, junk)


async def lose_slaves(session: Session, gone: Sequence[str], *, cuts: bool) -> None:
    """The loss of one slave stops no append; without both, the answer is flush-slave-timeout."""
    cluster, workload = session.cluster, session.workload
    fault = f"{'one slave' if len(gone) == 1 else 'both slaves'} {'cut off' if cuts else 'killed'}"
    began, before = time.monotonic(), late(session)
    for node in gone:
        if cuts:
            cluster.isolate(node)
        else:
            cluster.kill(node)
    if len(gone) == 1:
        await session.progress(APPENDS_BETWEEN)
        session.report.gap(fault, workload.longest_gap_s(began))
    else:
        while late(session) < before + LATE_APPENDS:
            assert time.monotonic() < began + WAIT_S, f"{fault}: no flush-slave-timeout"
            await asyncio.sleep(0.05)
    if cuts:
        back_at = time.monotonic()
        cluster.heal()
        await session.progress(APPENDS_BETWEEN)
        session.report.gap("slaves back", workload.longest_gap_s(back_at))
    else:
        await session.restart(*gone)
    await session.progress(APPENDS_BETWEEN)
    session.report.counts[fault] += 1
    session.report.counts["flush-slave-timeout"] += late(session) - before


def late(session: Session) -> int:
    return session.workload.refusals.get("flush-slave-timeout", 0)


async def knock(world: World, cluster: FaultCluster, count: int) -> None:
    """Connections that are no slave's: afterwards the master holds no more memory, and no more sockets."""
    master = psutil.Process(cluster.pid(MASTER))
    host = cluster.url(MASTER).rpartition(":")[0].removeprefix("http://")
    await connect_all(host, min(WARM_UP, count))
    sockets, before = await at_rest(master)
    await connect_all(host, count)
    sockets_after, after = await at_rest(master)
    world.report.counts["junk connections"] += count
    world.report.figures["rss_mib"] = {"before": round(before / 2**20, 2), "after": round(after / 2**20, 2)}
    world.report.goal("memory that junk connections left, in bytes", after - before, GOAL_GROWTH_BYTES)
    if sockets_after > sockets:
        world.report.violations.append(f"{sockets_after - sockets} sockets of junk connections are open")
    answer = await asyncio.to_thread(cluster.append, MASTER, "after the junk", log=LOG)
    if answer.status_code != 200:
        world.report.violations.append(f"an append after the junk: {answer.text}")


async def connect_all(host: str, count: int) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with room:
            _, writer = await asyncio.open_connection(host, HA_PORT)
            writer.write(NOISE[number % len(NOISE)])
            writer.close()

    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(one(number))


async def at_rest(process: psutil.Process) -> tuple[int, int]:
    """(descriptors, resident bytes) once both have stood still for a second."""
    seen: list[tuple[int, int]] = []
    deadline = time.monotonic() + WAIT_S
    while len(seen) < 5 or len({sockets for sockets, _ in seen[-5:]}) > 1:
        assert time.monotonic() < deadline, f"connections come and go: {seen[-5:]}"
        await asyncio.sleep(0.25)
        seen.append((process.num_fds(), process.memory_info().rss))
    return seen[-1]
