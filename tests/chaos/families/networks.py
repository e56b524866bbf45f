"""Nodes that freeze, and networks that part, lose, delay or crawl."""

import asyncio
import itertools
import time
from collections.abc import Callable

from tests.chaos.session import Session, World, open_cluster, under_load
from tests.fault.links import DOWN, Link, both_ways

HOLD_S = 4.0  # a fault lasts so long
WORKS_S = 15.0  # within which a group with a majority must acknowledge, whatever else is broken
AFTER_APPENDS = 50
SLOW_SHARE = 0.7  # of the healthy rate: what a slow follower may not take away
Fault = Callable[[Session, str], None]  # what it does to a cluster, given its leader


async def pause(world: World) -> None:
    """SIGSTOP and SIGCONT of leaders and of followers, 20 times."""
    times = world.count(20, least=2)
    async with open_cluster(world) as cluster, under_load(world, cluster) as session:
        for number in range(times):
            world.progress(number, times)
            leader = await session.leader()
            whom = "leader" if number % 2 == 0 else "follower"
            node = leader if whom == "leader" else cluster.follower()
            began = time.monotonic()
            cluster.pause(node)
            await session.works(f"{whom} paused", AFTER_APPENDS, WORKS_S)
            await asyncio.sleep(world.chance.uniform(0, HOLD_S / 2))
            cluster.resume(node)
            await session.progress(AFTER_APPENDS)
            world.report.gap(f"{whom} paused", session.workload.longest_gap_s(began))
            world.report.counts["pauses"] += 1


def follower_of(session: Session, leader: str) -> str:
    return next(node for node in session.cluster.ids if node != leader)


def cut_leader_from_one(session: Session, leader: str) -> None:
    session.cluster.set_links(both_ways([leader], [follower_of(session, leader)]), DOWN)


def cut_one_way(session: Session, leader: str) -> None:
    session.cluster.set_links([(leader, follower_of(session, leader))], DOWN)


def cut_ring_one_way(session: Session, leader: str) -> None:
    """n1 reaches n2, n2 reaches n3, n3 reaches n1, none in return: no majority is connected."""
    ids = session.cluster.ids
    session.cluster.set_links([(b, a) for a, b in zip(ids, ids[1:] + ids[:1], strict=True)], DOWN)


THREE_NODES: dict[str, Fault] = {
    "leader cut off": lambda session, leader: session.cluster.isolate(leader),
    "follower cut off": lambda session, leader: session.cluster.isolate(follower_of(session, leader)),
    "leader deaf": lambda session, leader: session.cluster.deafen(leader),
    "leader mute": lambda session, leader: session.cluster.mute(leader),
    "follower deaf": lambda session, leader: session.cluster.deafen(follower_of(session, leader)),
    "follower mute": lambda session, leader: session.cluster.mute(follower_of(session, leader)),
    "leader cut from one": cut_leader_from_one,
    "leader to one follower one way": cut_one_way,
    "one-way ring": cut_ring_one_way,
}
HOPELESS = ("one-way ring",)  # no node is connected to a majority in both directions: only safety is required


def ring(session: Session, leader: str) -> None:
    """Each of five nodes reaches its two neighbours only."""
    ids = session.cluster.ids
    near = {frozenset(pair) for pair in zip(ids, ids[1:] + ids[:1], strict=True)}
    far = [pair for pair in itertools.permutations(ids, 2) if frozenset(pair) not in near]
    session.cluster.set_links(far, DOWN)


def bridge(session: Session, leader: str) -> None:
    """Two halves of two, and one node that reaches all."""
    others = [node for node in session.cluster.ids if node != leader]
    session.cluster.split(others[:2], [leader, others[2]])


def leader_in_minority(session: Session, leader: str) -> None:
    others = [node for node in session.cluster.ids if node != leader]
    session.cluster.split([leader, others[0]], others[1:])


def leader_in_majority(session: Session, leader: str) -> None:
    others = [node for node in session.cluster.ids if node != leader]
    session.cluster.split([leader, *others[:2]], others[2:])


FIVE_NODES: dict[str, Fault] = {
    "ring of five": ring,
    "bridged": bridge,
    "leader in the minority": leader_in_minority,
    "leader in the majority": leader_in_majority,
}


async def partition(world: World) -> None:
    """Three nodes: nine cuts, four times each; five nodes: four cuts, twice each."""
    plans = [(3, THREE_NODES, world.count(36)), (5, FIVE_NODES, world.count(8, least=0))]
    total, done = sum(count for _, _, count in plans), 0
    for nodes, faults, count in plans:
        if count == 0:
            continue
        names = list(itertools.islice(itertools.cycle(faults), count))
        async with open_cluster(world, nodes=nodes) as cluster, under_load(world, cluster) as session:
            for name in names:
                world.progress(done, total)
                await cut(session, name, faults[name])
                done += 1


async def cut(session: Session, name: str, fault: Fault) -> None:
    leader = await session.leader()
    began = time.monotonic()
    fault(session, leader)
    if name in HOPELESS:
        await asyncio.sleep(HOLD_S)
    else:
        await session.works(name, AFTER_APPENDS, WORKS_S)
        await asyncio.sleep(max(0.0, HOLD_S - (time.monotonic() - began)))
        session.report.gap(name, session.workload.longest_gap_s(began))
    session.cluster.heal()
    await session.progress(AFTER_APPENDS)
    session.report.counts[name] += 1


def flaky_link(world: World, loss: float) -> Link:
    chance = world.chance
    return Link(
        loss=loss,
        duplicate=chance.uniform(0, 0.1),
        reorder=chance.uniform(0, 0.2),
        delay_ms=chance.uniform(0, 5),
        jitter_ms=chance.uniform(0, 20),
    )


async def flaky(world: World) -> None:
    """Loss of 5 to 30 %, duplicates, reordering and jitter between all nodes, 12 times for 8 seconds."""
    times = world.count(12)
    async with open_cluster(world) as cluster, under_load(world, cluster) as session:
        for number in range(times):
            world.progress(number, times)
            loss = 0.05 + 0.25 * (number % 6) / 5
            began, before = time.monotonic(), len(session.workload.acknowledged_at)
            cluster.set_links(both_ways(cluster.ids, cluster.ids), flaky_link(world, loss))
            await asyncio.sleep(2 * HOLD_S)
            name = f"loss {round(loss * 100)} %"
            world.report.gap(name, session.workload.longest_gap_s(began))
            world.report.counts[f"acknowledged at {name}"] += len(session.workload.acknowledged_at) - before
            cluster.heal()
            await session.progress(AFTER_APPENDS)


async def slow_links(world: World) -> None:
    """All links at 100 to 300 ms; then 1 Mbit/s to one follower, which must not slow the others down."""
    delays, rounds = world.count(3), world.count(6)
    async with open_cluster(world) as cluster, under_load(world, cluster) as session:
        for number in range(delays):
            world.progress(number, delays + rounds)
            delay_ms = (100.0, 200.0, 300.0)[number % 3]
            cluster.set_links(both_ways(cluster.ids, cluster.ids), Link(delay_ms=delay_ms, jitter_ms=20))
            began = time.monotonic()
            await session.works(f"{delay_ms:.0f} ms a link", AFTER_APPENDS, 2 * WORKS_S)
            world.report.gap(f"{delay_ms:.0f} ms a link", session.workload.longest_gap_s(began))
            cluster.heal()
            await session.progress(AFTER_APPENDS)
    async with open_cluster(world) as cluster:
        leader = await asyncio.to_thread(cluster.leader)
        slow = next(node for node in cluster.ids if node != leader)
        fast = [cluster.url(node) for node in cluster.ids if node != slow]
        load = under_load(world, cluster, urls=fast, padding_bytes=8_000, pause_s=0.02)
        rates: dict[str, list[float]] = {"healthy": [], "one follower slow": []}
        async with load as session:
            for number in range(2 * rounds):
                world.progress(delays + number // 2, delays + rounds)
                if number % 2:
                    others = [node for node in cluster.ids if node != slow]
                    cluster.set_links(both_ways([slow], others), Link(bytes_per_s=125_000))
                before = len(session.workload.acknowledged_at)
                await asyncio.sleep(HOLD_S)
                rate = (len(session.workload.acknowledged_at) - before) / HOLD_S
                rates["one follower slow" if number % 2 else "healthy"].append(rate)
                cluster.heal()
                await asyncio.sleep(HOLD_S / 2)
    means = {name: sum(values) / len(values) for name, values in rates.items()}
    ratio = means["one follower slow"] / means["healthy"]
    world.report.figures["appends_per_s"] = {name: round(mean, 1) for name, mean in means.items()}
    world.report.figures["slow_to_healthy"] = round(ratio, 3)
    if ratio < SLOW_SHARE:
        world.report.missed.append(
            f"one slow follower left {ratio:.0%} of the rate, {SLOW_SHARE:.0%} is asked"
        )
