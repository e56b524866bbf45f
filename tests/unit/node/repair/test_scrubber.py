"""The background scrub of a node: which findings begin a repair."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.node.repair.scrub import Scrubber
from app.settings.model import ScrubConfig
from storage.errors import DiskRefused
from storage.log.checkpoint import SnapshotFile
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState, HardStateFile
from tests.support.memory_files import MemoryFiles
from tests.unit.node.opening.test_newer_formats import newer_batch
from tests.unit.node.repair.test_fetch import history

FOLDER = "data/logs/log"


class Lane:
    """Runs the work of a disk lane at once."""

    def submit(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        try:
            result = work()
        except Exception as error:
            then(None, error)
        else:
            then(result, None)


class Scene:
    """An open log of 10 batches."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.log = Commitlog.open(self.files, FOLDER, log_id=7)
        self.log.append(history(10))
        self.log.close()
        self.log.settle(self.log.end_index)
        self.hosted = self.host()
        self.repairs: list[str] = []
        lanes: Any = SimpleNamespace(lane=lambda _name: Lane())
        self.scrubber = Scrubber(
            ScrubConfig(), self.files, lanes, lambda _hosted, error, _by: self.repairs.append(str(error))
        )

    def host(self) -> Any:
        """Return the log as the node knows it since its creation."""
        return SimpleNamespace(
            name="log", driver=SimpleNamespace(log=self.log), scrub_rounds=0, scrubbed_bytes=0
        )

    def scrub(self) -> int:
        """Run one round; return how many have reached their end."""
        asyncio.run(self.scrubber.scrub(cast(Any, self.hosted)))
        return int(self.hosted.scrub_rounds)


@pytest.mark.parametrize("space_bytes", [None, 0])
def test_a_small_file_that_waits_for_space_is_repaired_later_and_the_log_stays_online(
    space_bytes: int | None,
) -> None:
    scene = Scene()
    intact = scene.files.read(f"{FOLDER}/epochs")
    scene.files.open(f"{FOLDER}/epochs").pwrite(b"noise", 4)
    scene.files.space_bytes = space_bytes
    assert scene.scrub() == (1 if space_bytes is None else 0)
    assert scene.repairs == []
    scene.files.space_bytes = None
    ticket = scene.log.start_sync()
    if ticket is not None:
        ticket.run()
    assert scene.files.read(f"{FOLDER}/epochs") == intact


def test_the_counts_of_a_log_end_with_it() -> None:
    """A node whose logs come and go keeps nothing of each, and the next log of a name begins at 0."""
    scene = Scene()
    assert [scene.scrub(), scene.scrub()] == [1, 2]
    scene.hosted = scene.host()
    assert scene.scrub() == 1
    assert scene.hosted.scrubbed_bytes > 0
    assert not [each for each in vars(scene.scrubber).values() if isinstance(each, dict)]


def test_a_damaged_batch_begins_a_repair() -> None:
    scene = Scene()
    scene.files.open(f"{FOLDER}/{0:020d}.log").pwrite(b"noise" * 40, history(10)[3].offset)
    assert scene.scrub() == 0
    assert len(scene.repairs) == 1


def test_a_batch_of_a_later_version_ends_the_round_of_its_log_alone() -> None:
    """The logs after it are scrubbed, and nothing is repaired."""
    scene = Scene()
    batch = history(10)[3]
    scene.files.open(f"{FOLDER}/{0:020d}.log").pwrite(newer_batch(batch), batch.offset)
    assert scene.scrub() == 0
    assert scene.repairs == []


@pytest.mark.rule("R-01")
@pytest.mark.parametrize("name", ["vote", "manifest", "epochs", "state", f"{0:020d}.log"])
@pytest.mark.parametrize("operation", ["open", "read"])
def test_a_file_without_a_descriptor_is_read_in_the_next_round_and_the_log_stays_online(
    name: str, operation: str
) -> None:
    scene = Scene()
    HardStateFile(scene.files, f"{FOLDER}/vote").save(HardState(3, "n1"))
    SnapshotFile(scene.files, f"{FOLDER}/state").save(b"state")

    def refuse(met: str, path: str) -> None:
        if (met, path) == (operation, f"{FOLDER}/{name}"):
            raise DiskRefused(path, met, "too many open files")

    scene.files.refuse = refuse
    rounds = scene.scrub()
    scene.files.refuse = None
    assert scene.repairs == []
    scene.log.append(history(11)[10:])
    ticket = scene.log.start_sync()
    assert ticket is not None
    ticket.run()  # the refused read has not ended the syncs of the log
    assert scene.scrub() == rounds + 1
