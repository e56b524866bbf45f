"""Appends that were on their way to a leader when it froze do not wait for it once another leads."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.fault.cluster import FaultCluster, relayed
from tests.support.cluster import eventually

TIMEOUT_MS = 60_000  # what the appends would wait for
ELECTED_S = 40.0  # on a busy machine
AT_MOST_S = 10.0  # then: grace and a second attempt, on a busy machine


@pytest.mark.rule("R-04", "D-28")
def test_appends_through_followers_continue_while_the_old_leader_is_frozen(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with relayed(tmp_path) as cluster:
            leader = await asyncio.to_thread(cluster.leader)
            follower = next(node for node in cluster.ids if node != leader)
            cluster.pause(leader)
            with ThreadPoolExecutor() as threads:
                keyed = threads.submit(append, cluster, follower, {"Idempotency-Key": "k"})
                plain = threads.submit(append, cluster, follower, {})
                await asyncio.to_thread(await_other_leader, cluster, follower, leader)
                began = time.monotonic()
                assert (await asyncio.wrap_future(keyed)).status_code == 200
                answer = await asyncio.wrap_future(plain)
            assert answer.status_code == 504
            assert answer.json()["outcome"] == "unknown"
            assert answer.json()["first_index"] is None
            assert time.monotonic() - began < AT_MOST_S
            await asyncio.to_thread(await_life, cluster, leader, alive=False)
            cluster.resume(leader)
            await asyncio.to_thread(await_life, cluster, leader, alive=True)

    asyncio.run(scenario())


def await_other_leader(cluster: FaultCluster, asked: str, former: str) -> None:
    eventually(
        lambda: cluster.status(asked)["leader"] not in (None, former),
        what=f"another leader than {former}",
        timeout_s=ELECTED_S,
    )


def await_life(cluster: FaultCluster, node: str, *, alive: bool) -> None:
    """Wait until every other node shows the node as alive, or not: its connections stay open all the time."""

    def shown(asked: str) -> bool:
        members = cluster.get(asked, "/v1/cluster/members").json()["members"]
        return next(bool(member["alive"]) for member in members if member["id"] == node)

    others = [each for each in cluster.ids if each != node]
    eventually(
        lambda: all(shown(each) == alive for each in others),
        what=f"{node} is shown as {alive=}",
        timeout_s=40.0,
    )


def append(cluster: FaultCluster, node: str, headers: dict[str, str]) -> httpx.Response:
    query = {"timeout_ms": TIMEOUT_MS}
    return cluster.append(node, "v", headers=headers, params=query, timeout=90.0)
