"""The real job that fills a log's tables, in a process of its own: to be killed, paused and robbed.

A driver is its Python process, the JVM and Spark's Python workers; whatever befalls it, befalls them all.
"""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from app.tables.delta_log import DeltaLog
from spark_jobs.session.jars import JarsUnavailable, ensure_jars
from spark_jobs.session.java import JavaNotFound, find_java
from tests.chaos.report import CannotRun
from tests.chaos.session import World
from tests.chaos.spark.table_judge import LogCopy, TableFiles, differences

LOG = "default"
JOB = "spark_jobs.run"
MORTAL_JOB = "tests.spark.drivers.driver_to_kill"
WAIT_S = 240.0  # a JVM starts in 5 to 10 s on two cores that do nothing else
LOOK_S = 0.05
STARTING, BETWEEN = "while it started", "between two commits"
WRITING = "with files that no commit named"


class Driver:
    """One process of the job."""

    def __init__(self, tables: Path, process: subprocess.Popen[bytes]) -> None:
        self.tables = tables
        self.process = process
        self.first_version = DeltaLog(str(tables / LOG / "entries")).versions().stop

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """To the whole driver at once: the process stops being able to start more of itself first."""
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            for each in [own, *own.children(recursive=True)]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.send_signal(number)

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.process.wait(10)

    async def ended(self) -> int | None:
        """Its exit code, once it has ended by itself; None if it does not."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return await asyncio.to_thread(self.process.wait, WAIT_S)
        return None

    def batches(self) -> int:
        """How many commits `entries` has had since this driver was started."""
        return DeltaLog(str(self.tables / LOG / "entries")).versions().stop - self.first_version

    def where(self) -> str:
        """The current phase of the driver; of a driver that is dead or stopped, the last one."""
        if TableFiles(self.tables / LOG / "entries").unnamed():
            return WRITING
        return BETWEEN if self.batches() else STARTING


class Materializer:
    """The tables of one cluster's log, the drivers that fill them, and what they should hold.

    log: a copy of the log that the tables are compared with, from a node that is never killed meanwhile, or
    that is back.
    """

    def __init__(self, world: World, tables: Path, urls: Sequence[str]) -> None:
        self.world = world
        self.tables = tables
        self.urls = urls
        self.files = TableFiles(tables / LOG / "entries")
        self.log = LogCopy(urls[0], LOG)
        self.drivers: list[Driver] = []
        tables.mkdir(parents=True, exist_ok=True)

    async def start(self, point: str | None = None, *more: str) -> Driver:
        """A new driver, beside those that run. point: where it is to kill itself (kill_points.py)."""
        job = [JOB] if point is None else [MORTAL_JOB, point]
        command = [
            sys.executable,
            "-m",
            *job,
            "--endpoint",
            ",".join(self.urls),
            "--tables",
            str(self.tables),
        ]
        command += ["--trigger", "200 milliseconds", *more]
        with (self.tables / "drivers.log").open("ab") as lines:
            process = await asyncio.to_thread(
                subprocess.Popen, command, stdout=lines, stderr=lines, start_new_session=True
            )
        driver = Driver(self.tables, process)
        self.drivers.append(driver)
        return driver

    async def working(self, driver: Driver, batches: int = 1) -> None:
        """Until a driver has made so many commits."""
        await until(lambda: driver.batches() >= batches, "a driver's commit", driver, self.tables)

    async def holds(self, index: int, driver: Driver) -> None:
        """Wait until the table's rows and the job's reports of control records reach `index`."""

        def reached() -> bool:
            return self.materialized_index() >= index

        await until(reached, f"`entries` through index {index}", driver, self.tables)

    def reported(self) -> dict[str, Any]:
        """The job's last report of the log; empty before the first one."""
        try:
            reported = json.loads((self.tables / "progress.json").read_text())
        except FileNotFoundError:
            return {}
        return dict(reported["logs"].get(LOG, {}))

    def forget(self) -> None:
        """Reports of an earlier driver."""
        (self.tables / "progress.json").unlink(missing_ok=True)

    def materialized_index(self) -> int:
        return int(self.reported().get("materialized_index", -1))

    async def stop(self, driver: Driver) -> None:
        """As an operator would: it ends its micro-batch, and exits with 0."""
        driver.process.send_signal(signal.SIGTERM)
        code = await driver.ended()
        if code != 0:
            self.world.report.violations.append(
                f"a driver that was asked to stop ended with exit code {code}"
            )

    async def compare(self, what: str) -> None:
        """The table as it stands now, against the log."""
        wrong = await asyncio.to_thread(self._compare)
        self.world.report.violations += [f"after {what}: {each}" for each in wrong]
        self.world.report.counts["tables compared"] += 1

    def _compare(self) -> list[str]:
        table = self.files.rows()
        end_index = table["index"][-1].as_py() if table.num_rows else -1
        return differences(self.log.until(end_index), table)

    def close(self) -> None:
        for driver in self.drivers:
            if driver.alive:
                driver.signal(signal.SIGCONT)
                driver.kill()


def require_spark() -> None:
    """Raises CannotRun without Java or Delta's jars."""
    try:
        ensure_jars()
        find_java()
    except (JarsUnavailable, JavaNotFound) as error:
        raise CannotRun(str(error)) from error


@asynccontextmanager
async def materializer(world: World, tables: Path, urls: Sequence[str]) -> AsyncIterator[Materializer]:
    """Drivers that all end with the `with`."""
    job = Materializer(world, tables, urls)
    try:
        yield job
    finally:
        await asyncio.to_thread(job.close)


async def until(condition: Callable[[], bool], what: str, driver: Driver, tables: Path) -> None:
    """Wait for a condition as long as the driver lives. Raises AssertionError with its last lines."""
    give_up_at = time.monotonic() + WAIT_S
    while not await asyncio.to_thread(condition):
        if not driver.alive or time.monotonic() > give_up_at:
            lines = await asyncio.to_thread((tables / "drivers.log").read_text, errors="replace")
            ended = "it goes on" if driver.alive else f"it ended with {driver.process.poll()}"
            raise AssertionError(f"waited for {what} by a driver: {ended}\n{lines[-2_000:]}")
        await asyncio.sleep(LOOK_S)


async def verified(world: World, urls: Sequence[str]) -> None:
    """`commitlog verify --tables`: log and tables are the same by the digests of their blocks."""
    command = [sys.executable, "-m", "spark_jobs.verify", "--endpoint", ",".join(urls), "--json"]
    done = await asyncio.to_thread(
        subprocess.run, command, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    if done.returncode != 0:
        reported = f"{done.stdout[-500:]}{done.stderr[-500:]}"
        world.report.violations.append(f"verify ended with exit code {done.returncode}: {reported}")
        return
    reported = json.loads(done.stdout)
    world.report.counts["records verified"] += reported["records"]
