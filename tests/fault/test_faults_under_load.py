"""Real processes under load while nodes are killed, paused and cut off: clients' histories stay faultless."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.fault.cluster import FaultCluster, relayed
from tests.fault.history import find_violations
from tests.fault.workload import Workload, read_log

STEP_APPENDS = 150  # acknowledged between two faults, and while one lasts
STEP_TIMEOUT_S = 30.0
Scenario = Callable[[FaultCluster, Workload], Awaitable[None]]


async def progress(workload: Workload, appends: int = STEP_APPENDS) -> None:
    """Wait until so many more appends are acknowledged, for a bounded time."""
    async with asyncio.timeout(STEP_TIMEOUT_S):
        await workload.progress(appends)


async def under_load(folder: Path, scenario: Scenario) -> None:
    """Run the scenario while clients work; then every node holds the same log, and no promise is broken."""
    async with relayed(folder) as cluster:
        workload = Workload([cluster.url(node) for node in cluster.ids])
        async with asyncio.timeout(120), asyncio.TaskGroup() as tasks:
            tasks.create_task(workload.run())
            try:
                await progress(workload)
                await scenario(cluster, workload)
            finally:
                workload.stop()
        await asyncio.to_thread(cluster.wait_even)
        logs = [await read_log(cluster.url(node), consistency="committed") for node in cluster.ids]
        assert logs[0] == logs[1] == logs[2]
        assert workload.surprises == []
        assert find_violations(workload.operations, workload.reads, logs[0]) == []


@pytest.mark.rule("D-28", "R-08", "R-11", "R-12")
def test_each_node_killed_in_turn(tmp_path: Path) -> None:
    async def scenario(cluster: FaultCluster, workload: Workload) -> None:
        for _ in cluster.ids:
            node = await asyncio.to_thread(cluster.leader)
            cluster.kill(node)
            await progress(workload)
            cluster.start(node)
            await asyncio.to_thread(cluster.wait_ready, node)
            await progress(workload)

    asyncio.run(under_load(tmp_path, scenario))


@pytest.mark.rule("R-08")
def test_all_nodes_killed_at_once(tmp_path: Path) -> None:
    async def scenario(cluster: FaultCluster, workload: Workload) -> None:
        for node in cluster.ids:
            cluster.kill(node)
        cluster.start()
        await asyncio.to_thread(cluster.wait_ready)
        await progress(workload)

    asyncio.run(under_load(tmp_path, scenario))


@pytest.mark.rule("R-03", "R-04", "R-08")
def test_the_leader_is_cut_off_and_comes_back(tmp_path: Path) -> None:
    async def scenario(cluster: FaultCluster, workload: Workload) -> None:
        for cut in (cluster.isolate, cluster.deafen):
            leader = await asyncio.to_thread(cluster.leader)
            term = cluster.status(leader)["term"]
            cut(leader)
            await progress(workload)
            others = [node for node in cluster.ids if node != leader]
            assert all(cluster.status(node)["term"] > term for node in others)
            cluster.heal()
            await progress(workload)

    asyncio.run(under_load(tmp_path, scenario))


@pytest.mark.rule("R-03")
def test_a_follower_that_was_cut_off_does_not_disturb_the_term(tmp_path: Path) -> None:
    async def scenario(cluster: FaultCluster, workload: Workload) -> None:
        leader = await asyncio.to_thread(cluster.leader)
        term = cluster.status(leader)["term"]
        cluster.isolate(cluster.follower())
        await asyncio.sleep(2.5)  # several election timeouts: it would raise its term again and again
        await progress(workload)
        cluster.heal()
        await progress(workload)
        await asyncio.to_thread(cluster.wait_ready)
        assert cluster.status(leader)["term"] == term

    asyncio.run(under_load(tmp_path, scenario))


@pytest.mark.rule("R-04", "R-08", "D-21")
def test_the_leader_freezes_and_wakes_as_a_stale_one(tmp_path: Path) -> None:
    async def scenario(cluster: FaultCluster, workload: Workload) -> None:
        leader = await asyncio.to_thread(cluster.leader)
        cluster.pause(leader)
        await progress(workload)
        cluster.resume(leader)
        await progress(workload)

    asyncio.run(under_load(tmp_path, scenario))
