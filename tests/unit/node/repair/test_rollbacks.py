"""A rollback of records that an election has lost has the files of its log for itself."""

import asyncio
from collections.abc import Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.controller.metadata import LogSpec
from app.ha.auto_switch.slave_side import Rollback
from app.node.hosted_log import HostedLog
from app.node.repair.registry import Repairs
from app.node.repair.rollbacks import Rollbacks
from app.settings.model import LogSettings
from storage.errors import CorruptLog, DiskError, StorageFull
from storage.log.commitlog import Commitlog, CommitlogConfig
from tests.support.memory_files import MemoryFiles
from tests.unit.node.repair.test_fetch import history
from tests.unit.node.repair.test_server import Clock

FOLDER = "data/logs/log"
SPEC = LogSpec(replication="controller", replicas=("n1", "n2"))


class Scene:
    """A copy with 10 batches, of which its core wants to keep the first."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        log = Commitlog.open(self.files, FOLDER, log_id=7)
        log.append(history(10))
        log.close()
        self.hosted: Any = HostedLog(LogSettings.of_spec("log", SPEC), 7)
        self.hosted.driver, self.hosted.journal = SimpleNamespace(), "open"
        self.hosted.ha = SimpleNamespace(wanted_rollback=Rollback(1, 2))
        self.reopened = 0
        self.refusals: list[Exception] = []  # of the next attempts to open the log again
        self.failures: list[Any] = []
        self.repairs: list[str] = []
        self.running: list[Coroutine[Any, Any, Any]] = []
        self.services: Any = SimpleNamespace(
            files=self.files,
            data_folder="data",
            storage=CommitlogConfig(),
            fail=lambda *given: self.failures.append(given),
            clock=Clock(),
            transport=SimpleNamespace(send=None),
            random=Random(1),
        )
        self.tasks: Any = SimpleNamespace(critical=lambda _name, work: self.running.append(work))
        self.rollbacks = Rollbacks(cast(Any, self), self.services, lambda *_: None, self.tasks)

    async def end_driver(self, hosted: Any) -> None:
        hosted.driver = None

    async def reopen(self, _hosted: HostedLog) -> None:
        if self.refusals:
            raise self.refusals.pop()
        self.reopened += 1

    def damaged(self, _hosted: HostedLog, cause: Exception) -> None:
        self.repairs.append(str(cause))

    async def begin(self) -> asyncio.Task[None]:
        self.rollbacks.begin_wanted(self.hosted)
        [work] = self.running
        return asyncio.create_task(cast(Any, work))


@pytest.mark.rule("A-04")
def test_a_rollback_that_waits_for_space_ends_when_its_log_is_to_be_removed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The removal would give it the space; until it has ended, nothing is removed."""
    scene = Scene()
    scene.files.space_bytes = 0

    async def run() -> None:
        async with asyncio.timeout(20):
            task = await scene.begin()
            while scene.hosted.driver is not None or "a rollback waits" not in caplog.text:  # noqa: ASYNC110  # bounded
                await asyncio.sleep(0.01)
            assert not scene.hosted.release_files()
            await task

    asyncio.run(run())
    assert scene.hosted.release_files()
    assert (scene.reopened, scene.failures) == (0, [])


@pytest.mark.rule("A-04")
def test_no_repair_begins_while_a_rollback_uses_the_files() -> None:
    scene = Scene()
    repairs = Repairs(
        scene.services,
        {7: scene.hosted},
        cast(Any, None),
        disk=cast(Any, None),
        open_log=cast(Any, None),
        predates_folder=cast(Any, None),
        serve=cast(Any, None),
        tasks=scene.tasks,
    )

    async def run() -> None:
        task = await scene.begin()
        repairs.begin(scene.hosted, CorruptLog(FOLDER, 0, "read before"), "read")
        assert scene.hosted.repair is None
        await task

    asyncio.run(run())
    assert (scene.reopened, scene.hosted.rollback, scene.failures) == (1, None, [])
    assert Commitlog.open(scene.files, FOLDER, log_id=7).end_index == 1


@pytest.mark.rule("A-04")
def test_a_log_that_cannot_be_opened_again_on_a_full_disk_waits_for_space(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.node.repair.rollbacks._RETRY_S", 0.01)
    scene = Scene()
    scene.refusals = [StorageFull(f"{FOLDER}/opened", "write", "no space left")] * 2

    async def run() -> None:
        await (await scene.begin())

    asyncio.run(run())
    assert (scene.reopened, scene.failures) == (1, [])


@pytest.mark.rule("A-04")
@pytest.mark.parametrize("is_damaged", [True, False])
def test_damage_that_a_rollback_meets_is_repaired_and_does_not_end_the_node(is_damaged: bool) -> None:
    """The node would meet it again after each start, and serve no other log."""
    scene = Scene()
    path = f"{FOLDER}/{0:020d}.log"
    if is_damaged:
        scene.files.open(path).pwrite(b"noise" * 40, history(10)[5].offset)
    else:

        def unreadable(operation: str, name: str) -> None:
            if operation == "read" and name == path:
                raise DiskError(name, "read", "input/output error")

        scene.files.refuse = unreadable

    async def run() -> None:
        await (await scene.begin())

    asyncio.run(run())
    assert (scene.reopened, scene.failures, scene.hosted.rollback) == (0, [], None)
    assert len(scene.repairs) == 1
