"""Which group a log has before its records name one (R-10)."""

from pathlib import Path
from random import Random

import pytest

from app.log.commands import ChangeMembers
from app.log.contract import NO_INDEX, ChangeKind, GroupConfig, Role
from app.node.state.group_file import first_group, lose
from app.raft.messages import PushAnswer, PushCode, PushRequest, VoteRequest
from storage.errors import CorruptFile
from storage.file_system import write_durably
from storage.files import OsFileSystem
from tests.support.memory_files import MemoryFiles
from tests.unit.node.replica.driver_support import Node, leading_node

THREE = GroupConfig(voters=("n1", "n2", "n3"))
FIVE = GroupConfig(voters=("n1", "n2", "n3", "n4", "n5"), learners=("n6",))


def opened(files: MemoryFiles, configured: GroupConfig, *, is_bound: bool = True) -> GroupConfig:
    return first_group(files, "d", configured, is_bound=is_bound)


@pytest.mark.rule("R-10")
def test_a_log_keeps_the_group_that_was_configured_at_its_first_opening() -> None:
    files = MemoryFiles(Random(1))
    files.make_folders("d")
    assert opened(files, FIVE) == FIVE
    files.crash()
    assert opened(files, THREE) == FIVE
    assert opened(files, THREE, is_bound=False) == THREE  # nothing was promised to the others
    assert opened(files, FIVE) == THREE
    files.remove("d/group")
    assert opened(files, FIVE) == FIVE


@pytest.mark.rule("R-10")
def test_a_group_that_cannot_be_read_is_recorded_again_unless_the_replica_is_bound_to_it() -> None:
    files = MemoryFiles(Random(1))
    files.make_folders("d")
    opened(files, FIVE)
    write_durably(files, "d/group", files.read("d/group").replace(b"n4", b"n7"))
    with pytest.raises(CorruptFile, match="d/group"):
        opened(files, THREE)
    assert opened(files, THREE, is_bound=False) == THREE
    assert opened(files, FIVE) == THREE


@pytest.mark.rule("R-10")
def test_a_replica_that_has_voted_does_not_open_with_another_group_for_an_unreadable_one(
    tmp_path: Path,
) -> None:
    """Nodes that restart with a changed configuration could form a majority without those of the group."""
    node = Node(tmp_path, *THREE.voters)
    node.open()
    node.driver.deliver("n2", VoteRequest(1, NO_INDEX, 0))
    node.seams.run()
    path = tmp_path / "logs/default/group"
    path.write_bytes(path.read_bytes().replace(b"n3", b"n7"))
    node.voters = ("n1",)
    with pytest.raises(CorruptFile, match="group"):
        node.restart()
    lose(OsFileSystem(), path.parent.as_posix())
    node.voters = ("n1", "n2")
    node.restart()
    node.tick(10_000)
    assert (node.driver.group.voters, node.driver.role, node.driver.term) == (("n1", "n2"), Role.FOLLOWER, 1)


@pytest.mark.rule("R-10")
def test_a_changed_configuration_does_not_change_the_group_of_a_replica_that_has_voted(
    tmp_path: Path,
) -> None:
    node = Node(tmp_path, *THREE.voters)
    node.voters = ("n1",)
    assert node.open().group == GroupConfig(voters=("n1",))  # it has promised nothing yet
    node.voters = THREE.voters
    node.restart()
    node.driver.deliver("n2", VoteRequest(1, NO_INDEX, 0))
    node.seams.run()
    node.voters = ("n1",)
    node.restart()
    assert (node.driver.term, node.driver.group) == (1, THREE)


@pytest.mark.rule("R-10")
def test_a_removed_leader_that_restarts_still_campaigns_until_its_removal_is_committed(
    tmp_path: Path,
) -> None:
    """Which group was there before is part of the state that the log rebuilds."""
    node = leading_node(tmp_path)
    for peer in ("n2", "n3"):
        [push] = [push for to, push in node.seams.sent if to == peer and isinstance(push, PushRequest)]
        same = PushAnswer(push.term, push.type, PushCode.SUCCESS, push.session, 9, push.index, 0, push.index)
        node.driver.deliver(peer, same)
        node.seams.run()
    assert node.driver.committed_index == 0
    node.driver.command(ChangeMembers(ChangeKind.REMOVE, "n1"), lambda _: None)
    node.seams.run()
    assert node.driver.log.end_index == 1
    node.restart()
    assert node.driver.group == GroupConfig(voters=("n2", "n3"))
    assert node.driver.role is Role.LEARNER
    node.tick(2_000)
    assert node.driver.role is Role.CANDIDATE
    assert sorted(to for to, request in node.seams.sent if isinstance(request, VoteRequest)) == ["n2", "n3"]
