"""Appends that were on their way to a leader when it froze do not wait for it once another leads."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.fault.cluster import FaultCluster, relayed

TIMEOUT_MS = 25_000  # what the appends would wait for
AT_MOST_S = 12.0  # election, grace, a second attempt, on a busy machine


@pytest.mark.rule("R-04", "D-28")
def test_appends_through_followers_go_on_while_the_old_leader_is_frozen(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with relayed(tmp_path) as cluster:
            leader = await asyncio.to_thread(cluster.leader)
            follower = next(node for node in cluster.ids if node != leader)
            cluster.pause(leader)
            began = time.monotonic()
            with ThreadPoolExecutor() as threads:
                keyed = threads.submit(append, cluster, follower, {"Idempotency-Key": "k"})
                plain = threads.submit(append, cluster, follower, {})
                assert (await asyncio.wrap_future(keyed)).status_code == 200
                answer = await asyncio.wrap_future(plain)
            assert answer.status_code == 504
            assert answer.json()["outcome"] == "unknown"
            assert answer.json()["first_index"] is None
            assert time.monotonic() - began < AT_MOST_S
            cluster.resume(leader)

    asyncio.run(scenario())


def append(cluster: FaultCluster, node: str, headers: dict[str, str]) -> httpx.Response:
    query = {"timeout_ms": TIMEOUT_MS}
    return cluster.append(node, "v", headers=headers, params=query, timeout=60.0)
