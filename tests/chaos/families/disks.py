"""Disks that forget, fail or fill up (faulty_files.py, power_cut.py)."""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.disk.faulty_files import Faults
from tests.chaos.disk.power_cut import cut_power
from tests.chaos.report import CannotRun
from tests.chaos.session import Session, World, open_cluster, under_load, working
from tests.fault.cluster import FaultCluster
from tests.fault.history import Outcome
from tests.fault.workload import Kind, append_barrier, read_log

ENTRY = "tests.chaos.disk.node"
APPENDS_BETWEEN = 100
DISK_BYTES = 48 << 20  # of the small disks of `full_disk`
EXIT_FAILED = 1
RECOVERS_S = 20.0
REPLICATED = ({"name": "default", "durability": "replicated"},)


async def lose_power(world: World, cluster: FaultCluster, nodes: list[str]) -> None:
    """Kill the nodes in one moment and take from their disks what was not synced."""
    for node in nodes:
        os.kill(cluster.pid(node), signal.SIGKILL)
    for node in nodes:
        cluster.kill(node)
        lost = await asyncio.to_thread(cut_power, cluster.folder / node, world.chance)
        world.report.counts["files that lost something"] += lost
    world.report.counts["power cuts"] += 1


async def power_cut(world: World) -> None:
    """Power cuts under load, 40 times: mostly of all nodes at once, else of one or two. Nothing is lost."""
    cuts = world.count(40)
    async with open_cluster(world, entry=ENTRY) as cluster, under_load(world, cluster) as session:
        for number in range(cuts):
            world.progress(number, cuts)
            nodes = (
                cluster.ids
                if number % 4 < 3
                else world.chance.sample(cluster.ids, world.chance.randint(1, 2))
            )
            await asyncio.sleep(world.chance.uniform(0, 0.5))
            await lose_power(world, cluster, list(nodes))
            await session.restart(*nodes)
            await session.progress(APPENDS_BETWEEN)


async def power_cut_replicated(world: World) -> None:
    """The same with `durability = "replicated"`: acknowledged records may go, equal logs may not."""
    cuts, lost = world.count(10), 0
    for number in range(cuts):
        world.progress(number, cuts)
        async with open_cluster(world, entry=ENTRY, logs=REPLICATED) as cluster:
            async with working(world, cluster, kinds=[Kind.PLAIN] * 8) as session:
                await session.progress(APPENDS_BETWEEN)
                await lose_power(world, cluster, cluster.ids)
                await session.restart(*cluster.ids)
                await session.progress(APPENDS_BETWEEN)
            end = await append_barrier(session.workload)
            logs = [await whole_log(cluster, node, end) for node in cluster.ids]
            if any(log != logs[0] for log in logs):
                world.report.violations.append("nodes hold different logs after a power cut")
            held = {value for _, value in logs[0]}
            for operation in session.workload.operations:
                world.report.counts[f"appends {operation.outcome}"] += 1
                lost += operation.outcome is Outcome.ACKNOWLEDGED and operation.value not in held
    world.report.figures["acknowledged_and_lost"] = lost


async def whole_log(cluster: FaultCluster, node: str, end: int) -> list[tuple[int, str]]:
    await asyncio.to_thread(cluster.wait_even)
    return await read_log(cluster.url(node), consistency="committed", until_index=end + 1)


async def disk_errors(world: World) -> None:
    """Failing syncs and writes, 16 times: the node logs the reason, ends, and joins again."""
    times = world.count(16, least=2)
    async with open_cluster(world, entry=ENTRY) as cluster, under_load(world, cluster) as session:
        for number in range(times):
            world.progress(number, times)
            leader = await session.leader()
            node = leader if number // 2 % 2 == 0 else cluster.follower()
            what = "sync" if number % 2 == 0 else "write"
            await fail_disk(world, session, node, what)


async def fail_disk(world: World, session: Session, node: str, what: str) -> None:
    cluster, report = session.cluster, world.report
    data = cluster.folder / node
    lines = len(cluster.lines(node))
    began = time.monotonic()
    Faults(**{what: "logs/default"}).save(data)
    code = await asyncio.to_thread(cluster.wait_exit, node)
    if code != EXIT_FAILED:
        report.violations.append(f"a {what} failed at {node}, and it ended with exit code {code}")
    if "Input/output error" not in cluster.lines(node)[lines:]:
        report.violations.append(f"a {what} failed at {node}, and its last lines do not say so")
    await session.works(f"{what} error at one node", APPENDS_BETWEEN, RECOVERS_S)
    report.gap(f"{what} error", session.workload.longest_gap_s(began))
    report.counts[f"{what} errors"] += 1
    Faults().save(data)
    await asyncio.to_thread(cut_power, data, world.chance)  # what a failed sync left behind is gone
    await session.restart(node)
    await session.progress(APPENDS_BETWEEN)


async def read_errors(world: World) -> None:
    """Reads that fail with EIO on one node are answered with a problem, and work again afterwards."""
    times = world.count(6)
    async with open_cluster(world, entry=ENTRY) as cluster, under_load(world, cluster) as session:
        for number in range(times):
            world.progress(number, times)
            node = cluster.ids[number % len(cluster.ids)]
            cluster.kill(node)
            await session.restart(node)  # nothing is in memory any more
            Faults(read=".log").save(cluster.folder / node)
            query = {"from_index": 0, "limit": 5, "consistency": "committed"}
            answer = await asyncio.to_thread(cluster.get, node, "/v1/logs/default/records", params=query)
            if answer.status_code < 500 or "code" not in answer.json():
                world.report.violations.append(f"a failed read was answered with {answer.status_code}")
            Faults().save(cluster.folder / node)
            if node in cluster.ended():
                cluster.wait_exit(node)
                await session.restart(node)
                world.report.counts["nodes that ended"] += 1
            await asyncio.to_thread(readable, cluster, node)
            world.report.counts["read errors"] += 1
            await session.progress(APPENDS_BETWEEN)


def readable(cluster: FaultCluster, node: str) -> None:
    deadline = time.monotonic() + RECOVERS_S
    query = {"from_index": 0, "limit": 5, "consistency": "committed"}
    while cluster.get(node, "/v1/logs/default/records", params=query).status_code != 200:
        assert time.monotonic() < deadline, f"{node} does not read its log again"
        time.sleep(0.1)


@contextmanager
def small_disks(folder: Path, nodes: list[str]) -> Iterator[None]:
    """A file system of DISK_BYTES in memory for each node's data."""
    mounted = []
    try:
        for node in nodes:
            (folder / node).mkdir()
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(folder / node)]
            subprocess.run(command, check=True, capture_output=True)
            mounted.append(folder / node)
        yield
    finally:
        for place in mounted:
            subprocess.run(["umount", "--lazy", str(place)], check=True, capture_output=True)


def fill(data: Path) -> None:
    """Take all the space that is left."""
    with (data / "ballast").open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"\1" * 4096)


async def full_disk(world: World) -> None:
    """Full disks of one follower, the leader, all, 9 times: 507, not applied; reads go on; space heals."""
    if not world.isolated:
        raise CannotRun("small file systems need a mount namespace")
    times = world.count(9, least=3)
    folder = world.new_folder()
    ids = ["n1", "n2", "n3"]
    with small_disks(folder, ids):
        async with (
            open_cluster(world, folder=folder) as cluster,
            under_load(world, cluster, pause_s=0.05) as session,
        ):
            for number in range(times):
                world.progress(number, times)
                leader = await session.leader()
                follower = cluster.follower()
                nodes, whose = (([follower], "follower"), ([leader], "leader"), (ids, "all"))[number % 3]
                await fill_disks(world, session, nodes, whose)


async def fill_disks(world: World, session: Session, nodes: list[str], whose: str) -> None:
    cluster, report = session.cluster, world.report
    refused = session.workload.refusals.get("storage-full", 0)
    began = time.monotonic()
    for node in nodes:
        fill(cluster.folder / node)
    if whose == "follower":
        await session.works("a follower's disk full", APPENDS_BETWEEN, RECOVERS_S)
    else:
        while session.workload.refusals.get("storage-full", 0) == refused:
            assert time.monotonic() - began < RECOVERS_S, (
                f"disk of {whose} full: no 507 within {RECOVERS_S} s"
            )
            await asyncio.sleep(0.05)
    for node in cluster.ids:
        assert node not in cluster.ended(), f"{node} ended when the disk of {whose} was full"
        query = {"last": 10, "consistency": "committed"}
        answer = await asyncio.to_thread(cluster.get, node, "/v1/logs/default/records", params=query)
        if answer.status_code != 200:
            report.violations.append(f"disk of {whose} full: a read at {node} got {answer.text}")
    for node in nodes:
        (cluster.folder / node / "ballast").unlink()
    await session.works(f"space again, {whose}", APPENDS_BETWEEN, RECOVERS_S)
    report.gap(f"disk of {whose} full", session.workload.longest_gap_s(began))
    report.counts[f"full disks, {whose}"] += 1
