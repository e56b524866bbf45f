"""A log with a note of damage is opened: who may vote at once, and who must hear its leader first."""

import asyncio
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from app.log.contract import Role
from app.node.repair import registry
from app.node.repair.marker import Note, RepairMarker
from app.node.repair.registry import Repairs
from app.node.replica.driver import LogDriver
from app.node.tasks import TaskSupervisor
from storage.errors import StorageFull
from storage.files import OsFileSystem
from tests.unit.node.repair.test_scrubber import Lane
from tests.unit.node.replica.driver_support import Node, Seams


def opened(folder: Path, *, lacks_records: bool) -> tuple[Node, LogDriver]:
    """n1, in whose configuration it is the only voter, opens a log whose note promises nothing."""
    node = Node(folder)
    node.append()
    node.driver.log.close()
    hosted: Any = SimpleNamespace(name="default", settings=SimpleNamespace(replicas=("n1",)))
    services: Any = SimpleNamespace(
        node_id="n1",
        data_folder=str(folder),
        files=OsFileSystem(),
        disk=node.seams,
        transport=node.seams,
        clock=node.seams,
        random=Random(1),
        fail=node.seams.fail,
    )
    repairs = Repairs(
        services,
        {},
        lambda _hosted, _event: None,
        disk=services.disk,
        open_log=lambda _hosted, **trust: node.open(**trust),
        predates_folder=lambda _hosted: False,
        serve=lambda _hosted, _driver: None,
        tasks=TaskSupervisor(lambda what, error: None),
    )
    note = Note("noise", "read", 1, keeps_promises=False, lacks_records=lacks_records)
    repairs.marker_of(hosted).save(note)
    return node, repairs.open_marked(hosted, sound=False)


def test_the_only_voter_is_sound_once_its_log_opens(tmp_path: Path) -> None:
    _, driver = opened(tmp_path, lacks_records=False)
    assert driver.sound


@pytest.mark.rule("R-10")
def test_a_replica_that_lost_records_may_not_know_all_voters(tmp_path: Path) -> None:
    """The configuration names n1 alone; the record by which others joined was in what is lost."""
    node, driver = opened(tmp_path, lacks_records=True)
    assert not driver.sound
    driver.start()
    node.seams.run()
    for _ in range(200):
        node.seams.now += 20
        driver.tick()
        node.seams.run()
    assert driver.role is Role.FOLLOWER
    assert driver.term == 1


@pytest.mark.parametrize("is_closed", [False, True])
def test_the_end_of_a_repair_that_found_no_space_is_recorded_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    """Until then the node does not count as ready, although its replica votes."""
    monkeypatch.setattr(registry, "HEAL_RETRY_S", 0.0)
    hosted: Any = SimpleNamespace(name="default", driver="open", repair=None, in_doubt=True)
    attempts: list[int] = []

    def before() -> None:
        attempts.append(1)
        if len(attempts) < 3:
            raise StorageFull("born", "write", "no space left")

    async def heal() -> bool:
        tasks = TaskSupervisor(lambda what, error: None)
        services: Any = SimpleNamespace(
            data_folder=str(tmp_path), files=OsFileSystem(), transport=Seams(), clock=None, random=Random(1)
        )
        disk: Any = SimpleNamespace(lane=lambda _name: Lane())
        unused: Any = None
        repairs = Repairs(
            services,
            {},
            unused,
            disk=disk,
            open_log=unused,
            predates_folder=unused,
            serve=unused,
            tasks=tasks,
        )
        repairs.marker_of(hosted).save(Note("empty", "start", 1, intact=True))
        repairs.healed(hosted, before)
        hosted.driver = None if is_closed else hosted.driver
        while tasks._tasks:
            await asyncio.gather(*tasks._tasks)
        return repairs.marker_of(hosted).exists

    assert asyncio.run(heal()) is is_closed
    assert (len(attempts), hosted.in_doubt) == ((1, True) if is_closed else (3, False))


@pytest.mark.rule("R-01")
def test_the_note_of_a_log_named_as_a_temporary_file_of_another_one_stays(tmp_path: Path) -> None:
    """Without it a replica that has lost its vote would count as sound."""
    files, doubt = OsFileSystem(), Note("its disk was replaced", "start", 1, lost_vote=True)
    kept, other = (RepairMarker(files, str(tmp_path), name) for name in ("a.tmp", "a"))
    kept.save(doubt)
    other.save(Note("damaged", "scrub", 2, held_index=7))
    other.forget_held()
    other.remove()
    assert (kept.exists, kept.lost_vote, other.exists) == (True, True, False)
