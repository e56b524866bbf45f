"""A log with a note of damage is opened: who may vote at once, and who must hear its leader first."""

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from app.log.contract import Role
from app.node.repair.marker import Note
from app.node.repair.registry import Repairs
from app.node.replica.driver import LogDriver
from app.node.tasks import TaskSupervisor
from storage.files import OsFileSystem
from tests.unit.node.replica.driver_support import Node


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
