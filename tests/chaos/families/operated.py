"""An operator works on a log while faults happen: an operation and a fault drawn by chance overlap, one
pair after the other."""

import asyncio
import contextlib
import shutil
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import httpx

from tests.chaos.families.classic import LOG as CLASSIC
from tests.chaos.families.classic import MASTER
from tests.chaos.families.classic import SETTINGS as CLASSIC_LOG
from tests.chaos.families.disks import ENTRY
from tests.chaos.families.masters import THREE, in_sync
from tests.chaos.families.members import call, change, wait_for_voters
from tests.chaos.families.mixed import FAULTS, HOLD_S, mend
from tests.chaos.report import CannotRun
from tests.chaos.session import Archive, Session, World, open_cluster, under_load

AFTER_APPENDS = 40
SETTINGS: tuple[dict[str, dict[str, object]], ...] = (
    {"storage": {"segment_max_bytes": 1 << 20}, "disk": {"threads": 2}},
    {"raft": {"push_max_bytes": 4_096}, "storage": {"tail_cache_bytes": 0}},
    {"raft": {"heartbeat_interval_ms": 50}},
)


@dataclass
class Operator:
    """Works on one log of three replicas. changes: what PATCH sets, in turns. master: the permanent one of
    classic mode, whose disk stays."""

    world: World
    session: Session
    log: str
    changes: tuple[dict[str, object], ...]
    master: str | None = None
    changed: int = 0

    async def ask(self, method: str, path: str, body: dict[str, object] | None = None) -> None:
        """Ask any node once; a fault may refuse it, or take the answer."""
        cluster, counts = self.session.cluster, self.session.report.counts
        if not cluster.running:
            return
        node = self.world.chance.choice(cluster.running)
        try:
            status, answer = await call(cluster, method, node, path, body)
        except httpx.TransportError:
            counts["operations without an answer"] += 1
            return
        if status == 200:
            counts["operations done"] += 1
        else:
            counts[f"operations refused: {answer.get('code')}"] += 1

    async def transfer(self) -> None:
        to = self.world.chance.choice(self.session.cluster.ids)
        await self.ask("POST", "/v1/cluster/leader:transfer", {"log": self.log, "to": to})

    async def trim(self) -> None:
        """Trim everything that a node knows to be committed."""
        cluster = self.session.cluster
        node = self.world.chance.choice(cluster.running)
        with contextlib.suppress(httpx.TransportError, aiohttp.ClientError, TimeoutError):
            until = (await asyncio.to_thread(cluster.status, node, self.log))["committed_index"] + 1
            await self.session.archive.keep(cluster.url(node), until)
            await self.ask("POST", f"/v1/logs/{self.log}:trim", {"until_index": until})

    async def remove(self) -> None:
        """Remove a replica, which joins again when the pair is over."""
        node = self.world.chance.choice(self.session.cluster.ids)
        await self.ask("DELETE", f"/v1/cluster/members/{node}?log={self.log}")

    async def replace_disk(self) -> None:
        cluster = self.session.cluster
        node = self.world.chance.choice([node for node in cluster.ids if node != self.master])
        cluster.kill(node)
        shutil.rmtree(cluster.folder / node)

    async def change(self) -> None:
        self.changed += 1
        await self.ask("PATCH", f"/v1/logs/{self.log}", self.changes[self.changed % len(self.changes)])

    async def restart(self) -> None:
        """A planned stop, and a start with other settings."""
        cluster = self.session.cluster
        node = self.world.chance.choice(cluster.running)
        cluster.configure(node, self.world.chance.choice(SETTINGS))
        await asyncio.to_thread(cluster.stop, node)
        cluster.start(node)

    async def mend(self) -> None:
        """End the faults, and let a removed replica join again."""
        cluster = self.session.cluster
        await mend(self.session)
        await asyncio.to_thread(cluster.wait_ready)
        if self.master is not None:
            return
        asked = self.world.chance.choice(cluster.ids)
        await change(cluster, "PATCH", asked, f"/v1/logs/{self.log}", {"replicas": list(cluster.ids)})


Operation = Callable[[Operator], Awaitable[None]]
ANYWHERE: tuple[Operation, ...] = (
    Operator.trim,
    Operator.replace_disk,
    Operator.change,
    Operator.restart,
)
WITH_ELECTIONS: tuple[Operation, ...] = (*ANYWHERE, Operator.transfer, Operator.remove)


async def operate_raft(world: World) -> None:
    """60 pairs of an operation and a fault on a log that Raft replicates."""
    changes: tuple[dict[str, object], ...] = (
        {"retention": {"ms": 3_600_000, "bytes": None}, "preferred": "n2"},
        {"retention": None, "preferred": None},
    )

    async def whole(session: Session) -> None:
        await asyncio.to_thread(wait_for_voters, session.cluster, "n1", list(session.cluster.ids))

    await operate(world, "default", (), changes, whole)


async def operate_masters(world: World) -> None:
    """60 pairs of an operation and a fault on a log with an elected master."""
    if not world.isolated:
        raise CannotRun("relays carry no slaves: only a switch can cut a master off")
    changes: tuple[dict[str, object], ...] = (
        {"min_in_sync_replicas": 2, "priorities": {"n1": 1}},
        {"in_sync_replicas": 2, "min_in_sync_replicas": 1},
        {"in_sync_replicas": None, "priorities": {"n3": 1}},
    )

    async def whole(session: Session) -> None:
        await in_sync(session.cluster, "three", session.cluster.ids)

    await operate(world, "three", (THREE,), changes, whole)


async def operate_classic(world: World) -> None:
    """60 pairs of an operation and a fault on a log with a permanent master, n1."""
    if not world.isolated:
        raise CannotRun("relays carry no slaves: only a switch can cut one off")
    changes: tuple[dict[str, object], ...] = (
        {"min_in_sync_replicas": 2, "retention": {"ms": 3_600_000, "bytes": None}},
        {"min_in_sync_replicas": 1, "retention": None},
    )

    async def whole(session: Session) -> None:
        await asyncio.to_thread(session.cluster.wait_even, CLASSIC)

    await operate(world, CLASSIC, (CLASSIC_LOG,), changes, whole, master=MASTER)


async def operate(
    world: World,
    log: str,
    logs: tuple[dict[str, Any], ...],
    changes: tuple[dict[str, object], ...],
    whole: Callable[[Session], Awaitable[None]],
    master: str | None = None,
) -> None:
    """whole: waits until all replicas are members of the log again."""
    pairs, archive = world.count(60, least=3), Archive(log)
    async with (
        open_cluster(world, entry=ENTRY, logs=logs) as cluster,
        under_load(world, cluster, archive=archive, log=log) as session,
    ):
        operator = Operator(world, session, log, changes, master)
        await whole(session)
        for number in range(pairs):
            world.progress(number, pairs)
            await overlap(operator)
            await operator.mend()
            mended = time.monotonic()
            await session.progress(AFTER_APPENDS)
            world.report.gap("after an operation and a fault", session.workload.longest_gap_s(mended))
            await whole(session)


async def overlap(operator: Operator) -> None:
    """One operation and one fault. A disk is replaced before the fault: later, it might be the last copy."""
    world, session = operator.world, operator.session
    operations = WITH_ELECTIONS if operator.master is None else ANYWHERE
    operation, fault = world.chance.choice(operations), world.chance.choice(FAULTS)
    pause_s = world.chance.uniform(0, HOLD_S / 2)
    if operation is Operator.replace_disk or world.chance.random() < 0.5:
        await operation(operator)
        await asyncio.sleep(pause_s / 10)
        await fault(world, session)
    else:
        await fault(world, session)
        await asyncio.sleep(pause_s / 2)
        if session.cluster.running:
            await operation(operator)
    for each in (operation, fault):
        world.report.counts[each.__name__.replace("_", " ")] += 1
    await asyncio.sleep(pause_s)
