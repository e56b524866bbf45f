"""Everything at once: faults drawn by chance, two at a time, one round after the other."""

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable

from tests.chaos.families.disks import ENTRY, lose_power
from tests.chaos.families.networks import flaky_link
from tests.chaos.session import Session, World, open_cluster, under_load
from tests.fault.links import Link, both_ways

HOLD_S = 3.0
AFTER_APPENDS = 40
Fault = Callable[[World, Session], Awaitable[None]]


async def kill_some(world: World, session: Session) -> None:
    for node in world.chance.sample(session.cluster.running, world.chance.randint(1, 2)):
        session.cluster.kill(node)


async def power_of_some(world: World, session: Session) -> None:
    nodes = session.cluster.running
    await lose_power(world, session.cluster, world.chance.sample(nodes, world.chance.randint(1, len(nodes))))


async def pause_one(world: World, session: Session) -> None:
    session.cluster.pause(world.chance.choice(session.cluster.running))


async def stutter_one(world: World, session: Session) -> None:
    """Stop and go in the rhythm of an election timeout."""
    pid = session.cluster.pid(world.chance.choice(session.cluster.running))
    for _ in range(3):
        for number in (signal.SIGSTOP, signal.SIGCONT):
            os.kill(pid, number)
            await asyncio.sleep(world.chance.uniform(0.1, 0.9))


async def cut_some(world: World, session: Session) -> None:
    """Any of the six directions may be cut."""
    pairs = both_ways(session.cluster.ids, session.cluster.ids)
    session.cluster.set_links([pair for pair in pairs if world.chance.random() < 0.4], Link(up=False))


async def worsen_all(world: World, session: Session) -> None:
    pairs = both_ways(session.cluster.ids, session.cluster.ids)
    session.cluster.set_links(pairs, flaky_link(world, world.chance.uniform(0, 0.3)))


FAULTS: tuple[Fault, ...] = (kill_some, power_of_some, pause_one, stutter_one, cut_some, worsen_all)


async def mixed(world: World) -> None:
    """60 rounds of two faults that overlap; then all is well again, and work must go on."""
    rounds = world.count(60, least=3)
    async with open_cluster(world, entry=ENTRY) as cluster, under_load(world, cluster) as session:
        for number in range(rounds):
            world.progress(number, rounds)
            began = time.monotonic()
            chosen = world.chance.sample(FAULTS, 2)
            for fault in chosen:
                if cluster.running:
                    await fault(world, session)
                    world.report.counts[fault.__name__.replace("_", " ")] += 1
                    await asyncio.sleep(world.chance.uniform(0, HOLD_S / 2))
            await mend(session)
            await session.progress(AFTER_APPENDS)
            world.report.gap("two faults and their end", session.workload.longest_gap_s(began))


async def mend(session: Session) -> None:
    cluster = session.cluster
    for node in list(cluster.away):
        cluster.resume(node)
    cluster.heal()
    dead = [node for node in cluster.ids if node not in cluster.running]
    if dead:
        await session.restart(*dead)
