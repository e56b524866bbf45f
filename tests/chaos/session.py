"""A real cluster under load, for the length of a `with`; at its end, every promise is judged."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.chaos.network.namespaces import SwitchedNetwork
from tests.chaos.report import Report
from tests.fault.cluster import FaultCluster, started
from tests.fault.history import find_violations
from tests.fault.links import Network
from tests.fault.proxy import RelayNetwork
from tests.fault.workload import Workload, append_barrier, read_log

PACE_S = 0.01  # of each client between two appends: the machine has to do more than this
PROGRESS_S = 30.0  # within which a healthy cluster must acknowledge
EVEN_S = 60.0
Progress = Callable[[int, int], None]


@dataclass
class World:
    """Settings of a family's run. `isolated`: the process controls its own namespaces (namespaces.py)."""

    folder: Path
    report: Report
    isolated: bool
    progress: Progress = lambda done, of: None
    chance: Random = field(init=False)
    sessions: int = 0

    def __post_init__(self) -> None:
        self.chance = Random(f"{self.report.family} {self.report.seed}")

    def count(self, full: int, least: int = 1) -> int:
        """How often to do what is done `full` times at full scale."""
        return max(least, round(full * self.report.scale))

    def new_folder(self) -> Path:
        self.sessions += 1
        folder = self.folder / f"session-{self.sessions}"
        folder.mkdir(parents=True)
        return folder

    def new_network(self, nodes: int) -> Network:
        ids = [f"n{number}" for number in range(1, nodes + 1)]
        network: Network = (
            SwitchedNetwork(ids, self.chance.randrange(1 << 31)) if self.isolated else RelayNetwork(ids)
        )
        self.report.network = network.name
        return network


@dataclass
class Session:
    """The cluster and its clients."""

    cluster: FaultCluster
    workload: Workload
    report: Report
    archive: "Archive" = field(default_factory=lambda: Archive())

    async def progress(self, appends: int, within_s: float = PROGRESS_S) -> None:
        """Wait until so many more appends are acknowledged."""
        try:
            async with asyncio.timeout(within_s):
                await self.workload.progress(appends)
        except TimeoutError:
            raise AssertionError(f"no {appends} acknowledgements within {within_s:.0f} s") from None

    async def works(self, fault: str, appends: int, within_s: float) -> bool:
        """Return True if so many appends are acknowledged during a fault; if not, add it to the report."""
        try:
            async with asyncio.timeout(within_s):
                await self.workload.progress(appends)
        except TimeoutError:
            self.report.missed.append(f"{fault}: no {appends} acknowledgements within {within_s:.0f} s")
            return False
        return True

    async def leader(self) -> str:
        return await asyncio.to_thread(self.cluster.leader, timeout_s=PROGRESS_S)

    async def restart(self, *nodes: str) -> None:
        self.cluster.start(*nodes)
        await asyncio.to_thread(self.cluster.wait_ready, *nodes)


@asynccontextmanager
async def open_cluster(
    world: World,
    *,
    nodes: int = 3,
    entry: str = "app.serve",
    sections: Mapping[str, Mapping[str, object]] | None = None,
    logs: tuple[Mapping[str, object], ...] = (),
    folder: Path | None = None,
    joining: int = 0,
) -> AsyncIterator[FaultCluster]:
    """A cluster that is ready; ended, with its network, at the end."""
    network = world.new_network(nodes)
    try:
        await network.open()
        cluster = FaultCluster(
            folder or world.new_folder(), network, entry=entry, sections=sections, logs=logs, joining=joining
        )
        async with started(cluster):
            yield cluster
    finally:
        await network.close()


@dataclass
class Archive:
    """Records of a log that were read as committed before a trim let them go: they count as held."""

    log: str = "default"
    records: list[tuple[int, str]] = field(default_factory=list)
    end: int = 0  # exclusive

    async def keep(self, url: str, until_index: int) -> None:
        """Read what the node at `url` holds before `until_index` and is not kept yet."""
        if until_index > self.end:
            self.records += await read_log(url, self.log, "committed", until_index, self.end)
            self.end = until_index

    def before(self, begin_index: int, held: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        """Return the records before `begin_index`. AssertionError when the log differs."""
        assert begin_index <= self.end, f"the log begins at {begin_index}, trims went to {self.end}"
        kept = [record for record in self.records if record[0] >= begin_index]
        assert list(held[: len(kept)]) == kept, "the log holds other records than were read before the trim"
        return [record for record in self.records if record[0] < begin_index]


@asynccontextmanager
async def under_load(
    world: World,
    cluster: FaultCluster,
    *,
    replicas: Sequence[str] | None = None,
    archive: Archive | None = None,
    **options: object,
) -> AsyncIterator[Session]:
    """As `working`; then the history is judged, at all nodes that run when the `with` ends.

    replicas: who keeps the log; None: all nodes. archive: what trims have let go.
    """
    async with working(world, cluster, **options) as session:
        session.archive = archive or session.archive
        yield session
    await judge(session, [node for node in cluster.running if replicas is None or node in replicas])


@asynccontextmanager
async def working(world: World, cluster: FaultCluster, **options: object) -> AsyncIterator[Session]:
    """Clients that work until the end of the `with`, when the links are healed. options: of the Workload."""
    everywhere = [cluster.url(node) for node in cluster.first_ids]
    workload = Workload(**{"urls": everywhere, "pause_s": PACE_S, **options})  # type: ignore[arg-type]
    session = Session(cluster, workload, world.report)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(workload.run())
        try:
            await session.progress(50)
            yield session
        finally:
            with contextlib.suppress(BrokenPipeError):
                cluster.heal()
            workload.stop()


async def judge(session: Session, nodes: Sequence[str]) -> None:
    """Compare what clients saw with what each of `nodes` holds once the work has ended."""
    cluster, workload, report = session.cluster, session.workload, session.report
    end = await append_barrier(workload)
    deadline = time.monotonic() + EVEN_S
    logs = []
    for node in nodes:
        while cluster.status(node, workload.log)["committed_index"] < end:
            assert time.monotonic() < deadline, f"{node} has not got index {end} within {EVEN_S:.0f} s"
            await asyncio.sleep(0.05)
        begin = max(0, cluster.status(node, workload.log)["begin_index"])
        held = await read_log(cluster.url(node), workload.log, "committed", end + 1, begin)
        logs.append([*session.archive.before(begin, held), *held])
    report.violations += [
        f"{node} holds another log than {nodes[0]}"
        for node, log in zip(nodes, logs, strict=True)
        if log != logs[0]
    ]
    report.violations += await asyncio.to_thread(
        find_violations, workload.operations, workload.reads, logs[0]
    )
    report.violations += workload.surprises
    for operation in workload.operations:
        report.counts[f"appends {operation.outcome}"] += 1
    report.counts["reads"] += len(workload.reads)
    report.counts["records"] += len(logs[0])
