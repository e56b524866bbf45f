"""Loss of the leader: killed, with its machine, by a planned stop. The time without appends is measured."""

import asyncio
import time

from tests.chaos.report import percentiles
from tests.chaos.session import Session, World, open_cluster, under_load

APPENDS_BETWEEN = 100
GOAL_P50_MS, GOAL_P99_MS = 1_000, 2_000
GOAL_LOST_P50_MS = 1_500
GOAL_PLANNED_P50_MS = 250


async def kill_leader(world: World) -> None:
    """kill -9 of the leader, 50 times under load."""
    kills = world.count(50, least=2)
    async with open_cluster(world) as cluster, under_load(world, cluster) as session:
        for number in range(kills):
            world.progress(number, kills)
            await lose_leader(session, "kill", cuts=False)
    check_goals(world, "kill", GOAL_P50_MS, GOAL_P99_MS)


async def lose_leader_machine(world: World) -> None:
    """The leader's machine vanishes: no connection is closed, packets go nowhere; 20 times under load."""
    losses = world.count(20)
    async with open_cluster(world) as cluster, under_load(world, cluster) as session:
        for number in range(losses):
            world.progress(number, losses)
            await lose_leader(session, "machine lost", cuts=True)
    check_goals(world, "machine lost", GOAL_LOST_P50_MS, GOAL_P99_MS)


async def lose_leader(session: Session, fault: str, *, cuts: bool) -> None:
    cluster = session.cluster
    leader = await session.leader()
    lost_at = time.monotonic()
    if cuts:
        cluster.isolate(leader)
    cluster.kill(leader)
    await session.progress(APPENDS_BETWEEN)
    session.report.gap(fault, session.workload.longest_gap_s(lost_at))
    session.report.counts[fault] += 1
    cluster.heal()
    await session.restart(leader)
    await session.progress(APPENDS_BETWEEN)


async def stop_leader(world: World) -> None:
    """SIGTERM to the leader, 30 times under load: it hands its lead over before it goes."""
    stops = world.count(30)
    async with open_cluster(world) as cluster, under_load(world, cluster) as session:
        for number in range(stops):
            world.progress(number, stops)
            leader = await session.leader()
            stopped_at = time.monotonic()
            code = await asyncio.to_thread(cluster.stop, leader)
            if code != 0:
                world.report.violations.append(f"a planned stop of {leader} ended with exit code {code}")
            await session.progress(APPENDS_BETWEEN)
            world.report.gap("planned stop", session.workload.longest_gap_s(stopped_at))
            world.report.counts["planned stop"] += 1
            await session.restart(leader)
            await session.progress(APPENDS_BETWEEN)
    check_goals(world, "planned stop", GOAL_PLANNED_P50_MS, GOAL_P50_MS)


def check_goals(world: World, fault: str, p50_ms: float, p99_ms: float) -> None:
    figures = percentiles(world.report.gaps_ms[fault])
    world.report.goal(f"{fault}: p50 in ms", figures["p50"], p50_ms)
    world.report.goal(f"{fault}: p99 in ms", figures["p99"], p99_ms)
