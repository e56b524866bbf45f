"""An operator works while appends go on: trims, removed leaders, new disks, closed ports, new settings."""

import asyncio
import shutil
import time

import httpx

from tests.chaos.families.disks import ENTRY, lose_power
from tests.chaos.families.members import call, change, wait_for_voters
from tests.chaos.network.namespaces import PEER_PORT
from tests.chaos.report import CannotRun
from tests.chaos.session import Archive, Session, World, open_cluster, under_load
from tests.fault.links import Link
from tests.support.cluster import eventually

APPENDS_BETWEEN = 60
WORKS_S = 20.0
HOLD_S = 8.0  # longer than a node waits for a peer that acknowledges nothing
NOT_FOUND = 404
LOG = "/v1/logs/default"
SETTINGS: tuple[dict[str, dict[str, object]], ...] = (
    {"raft": {"election_timeout_ms": [1_000, 2_000]}, "storage": {"segment_max_bytes": 1 << 20}},
    {"raft": {"heartbeat_interval_ms": 50, "max_pending": 16}, "disk": {"threads": 2}},
    {"raft": {"push_max_bytes": 4_096}, "storage": {"tail_cache_bytes": 0}},
)
CHANGES: tuple[dict[str, object], ...] = (
    {"durability": "replicated", "retention": {"ms": 3_600_000, "bytes": None}},
    {"durability": "fsync", "retention": None},
)


async def trim_and_cut_power(world: World) -> None:
    """All that is committed is trimmed, then power fails, 24 times: mostly at all nodes, or the leader."""
    times, archive = world.count(24, least=2), Archive()
    async with (
        open_cluster(world, entry=ENTRY) as cluster,
        under_load(world, cluster, archive=archive) as session,
    ):
        for number in range(times):
            world.progress(number, times)
            leader = await session.leader()
            until = cluster.status(leader)["committed_index"] + 1
            await archive.keep(cluster.url(leader), until)
            answer = await call(cluster, "POST", leader, f"{LOG}:trim", {"until_index": until})
            world.report.counts[f"trims answered {answer[0]}"] += 1
            await asyncio.sleep(world.chance.uniform(0, 0.3))
            nodes = [leader] if number % 4 == 3 else list(cluster.ids)
            await lose_power(world, cluster, nodes)
            await session.restart(*nodes)
            await session.progress(APPENDS_BETWEEN)


async def remove_leader(world: World) -> None:
    """The leader is removed 10 times, each second time killed as it is asked; then it joins again."""
    times = world.count(10, least=2)
    async with open_cluster(world) as cluster, under_load(world, cluster) as session:
        for number in range(times):
            world.progress(number, times)
            leader = await session.leader()
            others = [node for node in cluster.ids if node != leader]
            began = time.monotonic()
            if number % 2:
                await _remove_and_kill(session, leader)
                await session.works("leader killed at its removal", APPENDS_BETWEEN, WORKS_S)
                cluster.start(leader)  # it is ready as a member, or knows that it was removed
            await change(cluster, "DELETE", others[0], f"/v1/cluster/members/{leader}", also=NOT_FOUND)
            await asyncio.to_thread(wait_for_voters, cluster, others[0], sorted(others))
            await session.works("leader removed", APPENDS_BETWEEN, WORKS_S)
            world.report.gap("leader removed", session.workload.longest_gap_s(began))
            await asyncio.to_thread(_expect_removed, session, leader)
            await _join_again(session, others[0], leader)
            await session.progress(APPENDS_BETWEEN)
            world.report.counts["leaders removed"] += 1


async def _remove_and_kill(session: Session, leader: str) -> None:
    """Ask the leader to remove itself, and kill it before or after the others know."""
    cluster = session.cluster
    path = f"/v1/cluster/members/{leader}?log=default"
    asked = asyncio.create_task(asyncio.to_thread(cluster.call, "DELETE", leader, path))
    await asyncio.sleep(0.02)
    cluster.kill(leader)
    try:
        await asked
    except httpx.TransportError:
        session.report.counts["leader killed at its removal"] += 1


def _expect_removed(session: Session, node: str) -> None:
    """A removed node reports that, and forwards an append to the members."""
    cluster = session.cluster
    eventually(lambda: cluster.status(node)["role"] == "removed", what=f"{node} knows that it was removed")
    answer = cluster.get(node, f"{LOG}/tail")
    if answer.status_code != 200:
        session.report.violations.append(f"{node} was removed and does not forward: {answer.text}")


async def _join_again(session: Session, asked: str, node: str) -> None:
    cluster = session.cluster
    seen = cluster.network.addresses(asked, node)
    member: dict[str, object] = {"id": node, "url": seen.url, "peer_address": seen.peer_address}
    await change(cluster, "POST", asked, "/v1/cluster/members", member)
    await change(cluster, "POST", asked, f"/v1/cluster/members/{node}:promote")
    await asyncio.to_thread(wait_for_voters, cluster, asked, sorted(cluster.ids))
    await asyncio.to_thread(cluster.wait_ready, node)


async def replace_disk(world: World) -> None:
    """A node, mostly the leader, starts with an empty folder 12 times; then another node is killed."""
    times = world.count(12, least=2)
    async with open_cluster(world) as cluster, under_load(world, cluster) as session:
        for number in range(times):
            world.progress(number, times)
            leader = await session.leader()
            node = leader if number % 3 < 2 else cluster.follower()
            began = time.monotonic()
            cluster.kill(node)
            shutil.rmtree(cluster.folder / node)
            await session.works("disk replaced", APPENDS_BETWEEN, WORKS_S)
            await session.restart(node)
            world.report.gap("disk replaced", session.workload.longest_gap_s(began))
            other = world.chance.choice([each for each in cluster.ids if each != node])
            cluster.kill(other)
            await session.works("another node killed", APPENDS_BETWEEN, WORKS_S)
            await session.restart(other)
            await session.progress(APPENDS_BETWEEN)
            world.report.counts["disks replaced"] += 1


async def one_way_port(world: World) -> None:
    """A node's peer port is closed to another node, 12 times; its own connections to that node are open."""
    if not world.isolated:
        raise CannotRun("a port that is closed to one node needs network namespaces")
    times = world.count(12, least=2)
    async with open_cluster(world) as cluster, under_load(world, cluster) as session:
        for number in range(times):
            world.progress(number, times)
            leader = await session.leader()
            follower = world.chance.choice([node for node in cluster.ids if node != leader])
            source, target = (leader, follower) if number % 2 else (follower, leader)
            began = time.monotonic()
            cluster.set_links([(source, target)], Link(closed_port=PEER_PORT))
            name = "follower's port closed" if number % 2 else "leader's port closed"
            await session.works(name, APPENDS_BETWEEN, WORKS_S)
            await asyncio.sleep(max(0.0, HOLD_S - (time.monotonic() - began)))
            world.report.gap(name, session.workload.longest_gap_s(began))
            if f'commitlog_peer_connected{{peer="{target}"}} 0' not in cluster.get(source, "/metrics").text:
                world.report.missed.append(f"{name}: {source} still has a connection to {target}")
            cluster.heal()
            await session.progress(APPENDS_BETWEEN)
            world.report.counts[name] += 1


async def roll_settings(world: World) -> None:
    """In 6 rounds every node restarts with other settings, and the log's own settings change by PATCH."""
    rounds = world.count(6)
    async with open_cluster(world) as cluster, under_load(world, cluster) as session:
        for number in range(rounds):
            world.progress(number, rounds)
            settings = SETTINGS[number % len(SETTINGS)]
            for node in cluster.ids:
                began = time.monotonic()
                cluster.configure(node, settings)
                code = await asyncio.to_thread(cluster.stop, node)
                if code != 0:
                    world.report.violations.append(f"a planned stop of {node} ended with exit code {code}")
                await session.restart(node)
                await session.progress(APPENDS_BETWEEN)
                world.report.gap("restart with other settings", session.workload.longest_gap_s(began))
            answer = await call(cluster, "PATCH", cluster.ids[0], LOG, CHANGES[number % len(CHANGES)])
            if answer[0] != 200:
                world.report.violations.append(f"PATCH {CHANGES[number % len(CHANGES)]}: {answer}")
            await session.progress(APPENDS_BETWEEN)
            world.report.counts["rounds of settings"] += 1
