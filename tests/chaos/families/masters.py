"""Logs with an elected master: the master is killed or cut off, the active controller is killed.

Times are the defaults of [controller]: heartbeats 500 ms apart, dead after 2 s, leases of 1.5 s.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from app.controller.config import ControllerConfig
from tests.chaos.report import CannotRun, percentiles
from tests.chaos.session import PACE_S, Session, World, open_cluster, under_load
from tests.fault.cluster import FaultCluster
from tests.fault.workload import Kind, Workload
from tests.support.cluster import eventually

APPENDS_BETWEEN = 60
GOAL_KILLED_MS = 3_000
GOAL_CUT_MS = 4_500  # the dead are taken for dead by silence alone, and their lease must have run out
GOAL_CONTROLLER_P99_MS = 1_500
LEASE_S = ControllerConfig().lease_ms / 1_000
CUT_S = 5.0  # longer than lease, time-out and election
SYNC_S = 45.0  # for a node that is back to be in the set again
METADATA = "__controller"
THREE = {"name": "three", "replication": "controller", "durability": "fsync"}
TWO = {"name": "two", "replication": "controller", "durability": "fsync", "replicas": ["n1", "n2"]}


async def kill_master(world: World) -> None:
    """kill -9 of the master, 20 times with two replicas and 20 times with three."""
    kills = world.count(20, least=2)
    async with open_cluster(world, logs=(TWO, THREE)) as cluster:
        for start, name, replicas in ((0, "two", ["n1", "n2"]), (kills, "three", ["n1", "n2", "n3"])):
            await in_sync(cluster, name, replicas)
            async with under_load(world, cluster, replicas=replicas, log=name) as session:
                for number in range(kills):
                    world.progress(start + number, 2 * kills)
                    await lose_master(session, name, replicas)
    for name in ("two", "three"):
        fault = f"kill, {name} replicas"
        largest = percentiles(world.report.gaps_ms[fault])["max"]
        world.report.goal(f"{fault}: largest gap in ms", largest, GOAL_KILLED_MS)


async def lose_master(session: Session, name: str, replicas: Sequence[str]) -> None:
    cluster, before = session.cluster, await in_sync(session.cluster, name, replicas)
    fault = f"kill, {name} replicas"
    killed_at = time.monotonic()
    cluster.kill(before["master"])
    await session.progress(APPENDS_BETWEEN)
    session.report.gap(fault, session.workload.longest_gap_s(killed_at))
    session.report.counts[fault] += 1
    await session.restart(before["master"])
    after = await in_sync(cluster, name, replicas)
    if after["epoch"] <= before["epoch"]:
        session.report.violations.append(
            f"{name}: epoch {after['epoch']} after {before['epoch']} and a kill of its master"
        )
    await session.progress(APPENDS_BETWEEN)


async def kill_controller(world: World) -> None:
    """kill -9 of the active controller, 20 times; controllers are processes of their own, as in
    conf/controller.toml, so nothing else dies with them. The master must stay, and its producers go on.
    """
    kills = world.count(20, least=2)
    brokers = ["n4", "n5"]
    sections = {"controller": {"nodes": ["n1", "n2", "n3"]}}
    log = {"name": "two", "replication": "controller", "replicas": brokers}
    async with open_cluster(world, nodes=5, sections=sections, logs=(log,)) as cluster:
        before = await in_sync(cluster, "two", brokers)
        urls = [cluster.url(node) for node in brokers]
        async with under_load(world, cluster, replicas=brokers, log="two", urls=urls) as session:
            for number in range(kills):
                world.progress(number, kills)
                await quiet(session)
                active = await asyncio.to_thread(cluster.leader, METADATA)
                killed_at = time.monotonic()
                cluster.kill(active)
                await asyncio.to_thread(cluster.leader, METADATA)
                world.report.gap("until another is active", time.monotonic() - killed_at)
                await asyncio.sleep(max(0.0, killed_at + 2 * LEASE_S - time.monotonic()))
                await session.progress(APPENDS_BETWEEN)
                world.report.gap("controller killed", session.workload.longest_gap_s(killed_at))
                world.report.counts["controllers killed"] += 1
                await session.restart(active)
                after = await in_sync(cluster, "two", brokers)
                if (after["master"], after["epoch"]) != (before["master"], before["epoch"]):
                    world.report.violations.append(
                        f"{after['master']} in epoch {after['epoch']} after {before['master']} in "
                        f"{before['epoch']}, though the master lived"
                    )
                    before = after
    p99 = percentiles(world.report.gaps_ms["controller killed"])["p99"]
    world.report.goal("controller killed: p99 in ms", p99, GOAL_CONTROLLER_P99_MS)


async def quiet(session: Session) -> None:
    """As long as a kill is looked at, without one: what the machine alone makes of the gaps."""
    began = time.monotonic()
    await asyncio.sleep(2 * LEASE_S)
    session.report.gap("nothing killed", session.workload.longest_gap_s(began))


async def cut_master(world: World) -> None:
    """The master hears neither controllers nor slaves, while clients reach it, 12 times."""
    if not world.isolated:
        raise CannotRun("relays carry no slaves: only a switch can cut a master off")
    cuts, replicas = world.count(12), ["n1", "n2", "n3"]
    async with open_cluster(world, logs=(THREE,)) as cluster:
        await in_sync(cluster, "three", replicas)
        async with under_load(world, cluster, replicas=replicas, log="three") as session:
            for number in range(cuts):
                world.progress(number, cuts)
                await cut(session, number, replicas)
    if not world.report.counts["truncated on return"]:
        world.report.missed.append("no master that came back had anything to truncate")
    largest = percentiles(world.report.gaps_ms["master cut off"])["max"]
    world.report.goal("master cut off: largest gap in ms", largest, GOAL_CUT_MS)


async def cut(session: Session, number: int, replicas: Sequence[str]) -> None:
    cluster, report = session.cluster, session.report
    before = await in_sync(cluster, "three", replicas)
    old = before["master"]
    others = [node for node in replicas if node != old]
    truncations = await asyncio.to_thread(count_truncations, cluster, old, "three")
    async with appending_at(session, old, f"cut{number}-") as inside:
        cut_at = time.monotonic()
        cluster.isolate(old)
        await elected(cluster, others, "three", before["epoch"])
        await asyncio.sleep(max(0.0, cut_at + CUT_S - time.monotonic()))
        report.gap("master cut off", session.workload.longest_gap_s(cut_at))
        healed_at = time.monotonic()
        cluster.heal()
    late = [at - cut_at for at in inside.acknowledged_at if cut_at + LEASE_S < at < healed_at]
    if late:
        report.violations.append(
            f"{old} was cut off and acknowledged {len(late)}, up to {max(late):.1f} s later"
        )
    await session.progress(APPENDS_BETWEEN)
    await in_sync(cluster, "three", replicas)
    report.counts["masters cut off"] += 1
    if await asyncio.to_thread(count_truncations, cluster, old, "three") > truncations:
        report.counts["truncated on return"] += 1


@asynccontextmanager
async def appending_at(session: Session, node: str, name: str) -> AsyncIterator[Workload]:
    """Clients of one node alone, whatever becomes of it; what they saw joins the session's history."""
    kinds = [Kind.PLAIN, Kind.KEYED, Kind.PLAIN]
    url = session.cluster.url(node)
    inside = Workload([url], session.workload.log, kinds=kinds, readers=2, name=name, pause_s=PACE_S)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(inside.run())
        await inside.progress(len(kinds))
        try:
            yield inside
        finally:
            inside.stop()
    session.workload.operations += inside.operations
    session.workload.reads += inside.reads
    session.workload.surprises += inside.surprises


async def in_sync(cluster: FaultCluster, name: str, replicas: Sequence[str]) -> dict[str, Any]:
    """Return the log, once a running replica reports a master and all replicas in its set."""

    def seen() -> dict[str, Any] | None:
        for node in replicas:
            log: dict[str, Any] = cluster.get(node, f"/v1/logs/{name}").json()
            if log.get("master") not in replicas or sorted(log["sync_state_set"]) != sorted(replicas):
                return None
        return log

    return await asyncio.to_thread(eventually, seen, what=f"{name}: all in sync", timeout_s=SYNC_S)


async def elected(cluster: FaultCluster, nodes: Sequence[str], name: str, epoch: int) -> str:
    """The master of a later epoch, once all of `nodes` know it."""

    def seen() -> str | None:
        logs = [cluster.get(node, f"/v1/logs/{name}").json() for node in nodes]
        masters = {log.get("master") if log.get("epoch", 0) > epoch else None for log in logs}
        master = masters.pop()
        return master if not masters else None

    return await asyncio.to_thread(eventually, seen, what=f"{name}: a new master", timeout_s=SYNC_S)


def count_truncations(cluster: FaultCluster, node: str, name: str) -> int:
    """Events `truncate` in a node's journal."""
    found, start = 0, 0
    while True:
        page = cluster.get(
            node, f"/v1/logs/{name}/events", params={"from_seq": start, "limit": 10_000}
        ).json()
        found += sum(event["kind"] == "truncate" for event in page["events"])
        start = page["next_seq"]
        if not page["has_more"]:
            return found
