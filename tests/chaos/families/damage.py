"""A disk that rots: one node of three is damaged again and again, and must come back by itself."""

import asyncio
import time

import httpx

from tests.chaos.session import Session, World, judge, open_cluster, working
from tests.fault.cluster import FaultCluster
from tests.support.damage import IN_PLACE, STOPPED, bytes_of_log, injure, log_folder

STORAGE = {"segment_max_bytes": 400_000, "mark_interval_bytes": 100_000, "tail_cache_bytes": 50_000}
SCRUB = {"start_delay_ms": 500, "interval_ms": 1_000, "bytes_per_s": 100_000_000}
SECTIONS = {"storage": STORAGE, "scrub": SCRUB}
APPENDS_BETWEEN = 60
FIRST_APPENDS = 1_500  # several segments
COMES_BACK_S = 30.0
GOAL_SHARE = 0.95


async def damage(world: World) -> None:
    """100 damages to one node of three, stopped or running: it comes back by itself in 95 of 100."""
    total = world.count(100, least=3)
    done, back = 0, 0
    failed: list[str] = []
    while done < total:
        async with open_cluster(world, sections=SECTIONS) as cluster:
            async with working(world, cluster, pause_s=0.03, padding_bytes=200) as session:
                await session.progress(FIRST_APPENDS)
                whole = True
                while whole and done < total:
                    world.progress(done, total)
                    whole, what = await damage_one(world, session, running=done % 3 == 2)
                    done += 1
                    back += whole
                    if not whole:
                        failed.append(what)
            if whole:
                await judge(session, cluster.running)
    world.report.counts["damages"] += done
    world.report.counts["came back by itself"] += back
    world.report.figures["came_back_share"] = round(back / done, 3)
    world.report.figures["not_back"] = failed
    if back < GOAL_SHARE * done:
        world.report.missed.append(f"{back} of {done} came back, {GOAL_SHARE:.0%} was the goal")


async def damage_one(world: World, session: Session, *, running: bool) -> tuple[bool, str]:
    """Damage a node; whether it holds the same log as before again, and what was done."""
    cluster, chance = session.cluster, world.chance
    node = chance.choice(cluster.ids)
    other = next(name for name in cluster.ids if name != node)
    folder = log_folder(cluster.folder / node)
    began = time.monotonic()
    size_bytes = len(bytes_of_log(log_folder(cluster.folder / other)))
    if running:
        what = f"running {node}: {injure(folder, chance, IN_PLACE)}"
    else:
        if chance.random() < 0.5:
            cluster.kill(node)
        else:
            await asyncio.to_thread(cluster.stop, node)
        what = f"stopped {node}: {injure(folder, chance, STOPPED)}"
        cluster.start(node)
    whole = await comes_back(session, node, other, size_bytes)
    world.report.counts[f"{'running' if running else 'stopped'}: {what.split(': ')[1]}"] += 1
    if whole:
        world.report.gaps_ms.setdefault("until whole again", []).append((time.monotonic() - began) * 1000)
        await session.progress(APPENDS_BETWEEN)
    return whole, what


async def comes_back(session: Session, node: str, other: str, size_bytes: int) -> bool:
    """Return True if within COMES_BACK_S the node is ready and begins with the same bytes as `other`."""
    cluster = session.cluster
    deadline = time.monotonic() + COMES_BACK_S
    while time.monotonic() < deadline:
        if node in cluster.ended():
            return False
        if await asyncio.to_thread(is_whole, cluster, node, other, size_bytes):
            return True
        await asyncio.sleep(0.2)
    return False


def is_whole(cluster: FaultCluster, node: str, other: str, size_bytes: int) -> bool:
    try:
        ready = cluster.get(node, "/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
    folders = [log_folder(cluster.folder / name) for name in (node, other)]
    if not ready or (folders[0] / "repairing").exists():
        return False
    here, there = (bytes_of_log(folder)[:size_bytes] for folder in folders)
    return len(here) == size_bytes and here == there
