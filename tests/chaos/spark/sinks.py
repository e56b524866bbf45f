"""The driver of a stream into the log is killed between any two of its appends: each row is one record."""

import asyncio
import contextlib
import json
import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.chaos.session import Session, World, open_cluster, under_load
from tests.chaos.spark.materialized import IN_START, LIGHT, SOON_S, START_S
from tests.chaos.spark.materializer import LOG, WAIT_S, Driver, require_spark
from tests.chaos.spark.table_judge import LogCopy, records_of
from tests.fault.history import Operation, Outcome
from tests.support.cluster import eventually

ROWS_A_CHUNK = 10  # a file of the source, hence a task, hence an append (sink_to_kill.py)
CHUNKS = 30  # of a batch that is killed at random
LIVES = "staged", "listed"  # before the first append


async def kill_sink(world: World) -> None:
    """kill -9 of the whole driver before a batch's first append, after each of its 12, and when Spark does
    not know of the last; then 16 times at random. Other clients append to the same log meanwhile.
    """
    require_spark()
    appends, kills = world.count(12, least=2), world.count(16)
    points = [*LIVES, *["stored-1"] * appends, "committed"]
    async with open_cluster(world) as cluster, under_load(world, cluster, **LIGHT) as session:
        sink = Sink(session, world.new_folder())
        sink.chunks = appends
        for number, point in enumerate(points):
            world.progress(number, len(points) + kills)
            code = await sink.start(point).ended()
            if code != -9:
                world.report.missed.append(f"the sink did not reach {point} ({number}), it ended with {code}")
            world.report.counts[f"killed at the point {point}"] += 1
            stored = min(appends, max(0, number - len(LIVES) + 1))
            await sink.check(f"the kill at {point} ({number})", least=stored)
        for number in range(kills):
            world.progress(len(points) + number, len(points) + kills)
            sink.chunks += CHUNKS
            await kill_at_random(world, sink)
            await sink.check(f"kill {number + 1}")
        code = await sink.start("none").ended()
        if code != 0:
            world.report.violations.append(f"a sink that nobody killed ended with exit code {code}")
        await sink.check("everything", least=sink.chunks)
        session.workload.operations += [
            Operation(value, 0.0, math.inf, Outcome.UNKNOWN) for value in sink.values()
        ]
        world.report.counts["rows"] += len(sink.values())


async def kill_at_random(world: World, sink: "Sink") -> None:
    """Within its start, or a moment after it has begun to append."""
    driver = sink.start("none")
    if world.chance.random() < IN_START:
        await asyncio.sleep(world.chance.uniform(0, START_S))
    else:
        begun = lambda: sink.appends() or not driver.alive  # noqa: E731
        await asyncio.to_thread(eventually, begun, what="a list of files", timeout_s=WAIT_S)
        await asyncio.sleep(world.chance.uniform(0, SOON_S / 2))
    where = "while it appended" if sink.appends() else "before or after its appends"
    driver.kill()
    world.report.counts[f"killed {where}"] += 1


class Sink:
    """The drivers of one stream, one after the other, and what they should have brought into the log."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.session = session
        self.folder = folder
        self.chunks = 0  # of the source so far
        self._log = LogCopy(session.cluster.url("n1"), LOG)

    def start(self, point: str) -> Driver:
        urls = ",".join(self.session.cluster.url(node) for node in self.session.cluster.ids)
        rows = str(self.chunks * ROWS_A_CHUNK)
        command = [
            sys.executable,
            "-m",
            "tests.spark.sink.sink_to_kill",
            urls,
            str(self.folder),
            point,
            rows,
            LOG,
        ]
        with (self.folder / "drivers.log").open("ab") as lines:
            process = subprocess.Popen(command, stdout=lines, stderr=lines, start_new_session=True)
        return Driver(self.folder, process)

    def appends(self) -> bool:
        """Return True if a batch's list exists that is not in the log yet."""
        staging = self.folder / "checkpoint" / "commitlog-staging"
        for path in staging.glob("*/batch-*.json"):
            with contextlib.suppress(FileNotFoundError):  # lists go when their batch is long in the log
                if not json.loads(path.read_text())["done"]:
                    return True
        return False

    def values(self) -> list[str]:
        return [f"number-{number}" for number in range(self.chunks * ROWS_A_CHUNK)]

    async def check(self, what: str, least: int = 0) -> None:
        """Check that chunks are in the log whole, in order, once. least: their smallest number."""
        end_index = self.session.cluster.status("n1", LOG)["committed_index"]
        records = records_of(await asyncio.to_thread(self._log.until, end_index))
        places = {value: index for index, value in records if value.startswith("number-")}
        stored = Counter(value for _, value in records if value.startswith("number-"))
        report = self.session.report
        doubled = [value for value, count in stored.items() if count > 1]
        if doubled:
            report.violations.append(f"after {what}: {len(doubled)} rows are doubled: {doubled[:5]}")
        torn = [number for number in range(self.chunks) if not self._is_whole(places, number)]
        if torn:
            report.violations.append(f"after {what}: appends are torn: {torn[:5]}")
        if len(places) < least * ROWS_A_CHUNK or len(places) % ROWS_A_CHUNK:
            report.violations.append(
                f"after {what}: {len(places)} rows, not {least} appends of {ROWS_A_CHUNK}"
            )
        report.counts["logs checked"] += 1

    def _is_whole(self, places: dict[str, int], number: int) -> bool:
        """None of a chunk's rows are there, or all, side by side."""
        first = number * ROWS_A_CHUNK
        found = [places.get(f"number-{row}") for row in range(first, first + ROWS_A_CHUNK)]
        start = found[0]
        return set(found) == {None} or (
            start is not None and found == list(range(start, start + ROWS_A_CHUNK))
        )
