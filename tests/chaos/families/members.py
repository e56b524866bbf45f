"""The lead is handed over, and nodes are replaced, while appends go on (R-09, R-10)."""

import asyncio
import time
from typing import Any

from tests.chaos.families.leaders import GOAL_P50_MS, GOAL_PLANNED_P50_MS, check_goals
from tests.chaos.session import Session, World, open_cluster, under_load
from tests.fault.cluster import FaultCluster
from tests.support.cluster import eventually

APPENDS_BETWEEN = 60
STEP_S = 30.0


async def transfer(world: World) -> None:
    """The lead is handed over 50 times."""
    times = world.count(50, least=2)
    async with open_cluster(world) as cluster, under_load(world, cluster) as session:
        for number in range(times):
            world.progress(number, times)
            leader = await session.leader()
            target = world.chance.choice([node for node in cluster.ids if node != leader])
            asked = world.chance.choice(cluster.ids)
            began = time.monotonic()
            answer = await call(cluster, "POST", asked, "/v1/cluster/leader:transfer", {"to": target})
            if answer[0] != 200:
                world.report.missed.append(f"transfer {leader} -> {target} by {asked}: {answer}")
            elif answer[1]["leader"] != target:
                world.report.violations.append(
                    f"transfer to {target} reports that {answer[1]['leader']} leads"
                )
            await session.progress(APPENDS_BETWEEN)
            world.report.gap("transfer", session.workload.longest_gap_s(began))
            world.report.counts["transfers"] += 1
    check_goals(world, "transfer", GOAL_PLANNED_P50_MS, GOAL_P50_MS)


async def replace_members(world: World) -> None:
    """8 times a new node joins as a learner and is promoted, and another, mostly the leader, is removed."""
    times = world.count(8)
    async with (
        open_cluster(world, nodes=3 + times, joining=times) as cluster,
        under_load(world, cluster) as session,
    ):
        members = list(cluster.first_ids)
        for number, new in enumerate(cluster.ids[3:]):
            world.progress(number, times)
            began = time.monotonic()
            await join(session, members[0], new)
            leader = await session.leader()
            old = leader if number % 3 < 2 else members[-1]
            members = [*(node for node in members if node != old), new]
            await change(cluster, "DELETE", members[0], f"/v1/cluster/members/{old}")
            session.workload.urls = [cluster.url(node) for node in members]
            await asyncio.to_thread(wait_for_voters, cluster, new, sorted(members))
            cluster.kill(old)
            await session.progress(APPENDS_BETWEEN)
            world.report.gap("member replaced", session.workload.longest_gap_s(began))
            world.report.counts["members replaced"] += 1


async def join(session: Session, asked: str, new: str) -> None:
    """Start a node, add it as a learner, and promote it once it has caught up."""
    cluster = session.cluster
    cluster.start(new)
    seen = cluster.network.addresses(asked, new)
    member: dict[str, object] = {"id": new, "url": seen.url, "peer_address": seen.peer_address}
    await change(cluster, "POST", asked, "/v1/cluster/members", member)
    await change(cluster, "POST", asked, f"/v1/cluster/members/{new}:promote")
    try:
        await asyncio.to_thread(cluster.wait_ready, new)
    except AssertionError as error:
        session.report.missed.append(str(error))


async def change(
    cluster: FaultCluster,
    method: str,
    node: str,
    path: str,
    body: dict[str, object] | None = None,
    also: int = 200,
) -> None:
    """Repeat until it is done: a change under way or a learner that lags is refused, but only for a while.

    also: another status that means that it is done.
    """
    deadline = time.monotonic() + STEP_S
    while (answer := await call(cluster, method, node, path, body))[0] not in (200, also):
        assert answer[1].get("retryable") or answer[0] == 409, f"{method} {path}: {answer}"
        assert time.monotonic() < deadline, f"{method} {path} within {STEP_S:.0f} s: {answer}"
        await asyncio.sleep(0.1)


async def call(
    cluster: FaultCluster, method: str, node: str, path: str, body: dict[str, object] | None = None
) -> tuple[int, dict[str, Any]]:
    answer = await asyncio.to_thread(cluster.call, method, node, path, json=body)
    return answer.status_code, answer.json()


def wait_for_voters(cluster: FaultCluster, node: str, expected: list[str]) -> None:
    def known() -> bool:
        members = cluster.get(node, "/v1/cluster/members").json()["members"]
        return sorted(member["id"] for member in members if member["voter"]) == expected

    eventually(known, what=f"{node} knows the voters {expected}")
