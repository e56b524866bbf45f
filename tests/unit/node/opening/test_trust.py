"""Trust of a Raft replica in its own files at an opening: empty folders, copies, power failures."""

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from app.log.contract import Durability, Reset, Role
from app.node.opening.folder_birth import FolderBirth
from app.node.repair.marker import Note, RepairMarker
from app.raft.messages import Heartbeat, PushRequest, PushType, TimeoutNow, VoteAnswer, VoteRequest
from storage.errors import DiskError, DiskRefused
from storage.files import OsFileSystem
from storage.log.clean_stop import CleanStop
from storage.log.origin import ORIGIN_NAME, FolderOrigin
from tests.support.memory_files import MemoryFiles, PowerCut
from tests.unit.node.replica.driver_support import Node, Seams
from tests.unit.raft.support import MemoryLog


def marker_in(folder: Path) -> RepairMarker:
    return RepairMarker(OsFileSystem(), str(folder), "default")


def reopen(node: Node) -> None:
    """kill -9, and open again without a start."""
    node.seams.work.clear()
    node.seams = Seams(now=node.seams.now + 1_000)
    node.driver = node.open()


def boot_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The power fails; here everything that was written happens to be on the disk."""
    monkeypatch.setattr(OsFileSystem, "boot_id", lambda _self: "another")


@pytest.mark.rule("R-02")
def test_an_empty_folder_of_a_voter_opens_without_a_vote_and_stays_so(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", "n2", "n3", begins=False)
    assert not node.driver.sound
    assert not node.driver.knows_vote
    assert marker_in(tmp_path).intact
    reopen(node)  # by now there is a vote file
    assert not node.driver.sound
    assert not node.driver.knows_vote
    node.driver.start()
    node.driver.deliver("n2", VoteRequest(5, 9, 4))
    node.driver.deliver("n2", TimeoutNow(5))
    node.seams.run()
    assert [m.granted for _, m in node.seams.sent if isinstance(m, VoteAnswer)] == [False]
    assert node.driver.term == 5


@pytest.mark.rule("R-02")
def test_a_crash_right_after_the_note_changes_nothing(tmp_path: Path) -> None:
    marker_in(tmp_path).save(Note("empty", "start", 1, intact=True, lost_vote=True))
    node = Node(tmp_path, "n1", "n2", "n3", begins=False)
    assert not node.driver.sound
    assert not node.driver.knows_vote


def test_a_new_log_and_the_only_voter_begin_sound(tmp_path: Path) -> None:
    assert Node(tmp_path / "new", "n1", "n2", "n3", begins=True).driver.sound
    alone = Node(tmp_path / "alone", "n1", begins=False)
    assert alone.driver.sound
    assert alone.driver.role is Role.LEADER
    assert not marker_in(tmp_path / "alone").exists


@pytest.mark.rule("R-02", "R-10")
def test_the_only_voter_of_the_settings_does_not_begin_a_log_that_is_older_than_its_folder(
    tmp_path: Path,
) -> None:
    """Others may have joined it before its disk was replaced: their log goes on."""
    node = Node(tmp_path, "n1", begins=False, predates_folder=True)
    node.tick(5_000)
    assert not node.driver.sound
    assert (node.driver.role, node.driver.term, node.driver.log.end_index) == (Role.FOLLOWER, 0, -1)


@pytest.mark.rule("R-02")
def test_an_empty_folder_is_sound_once_all_voters_have_elected_it(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", "n2", "n3", begins=False)
    node.tick(2_000)
    for pre_vote in (True, False):
        node.driver.deliver("n2", VoteAnswer(1, True, pre_vote, sound=False))
        node.seams.run()
        assert node.driver.role is not Role.LEADER
        node.driver.deliver("n3", VoteAnswer(1, True, pre_vote, sound=False))
        node.seams.run()
    assert node.driver.role is Role.LEADER
    assert node.driver.sound
    assert not marker_in(tmp_path).exists
    node.restart()
    assert node.driver.sound


@pytest.mark.rule("R-11")
def test_a_power_failure_takes_the_vote_of_a_log_that_acknowledges_before_it_syncs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, "n1", "n2", "n3", durability=Durability.REPLICATED)
    reopen(node)
    assert node.driver.sound  # the operating system has kept everything
    boot_again(monkeypatch)
    reopen(node)
    assert not node.driver.sound
    assert node.driver.knows_vote  # term and vote are always synced
    reopen(node)  # in the same boot: the doubt stays
    assert not node.driver.sound
    assert marker_in(tmp_path).intact


@pytest.mark.rule("R-11")
def test_a_clean_stop_outlives_a_power_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, "n1", "n2", "n3", durability=Durability.REPLICATED)
    stopped: list[bool] = []
    node.driver.stop(lambda: stopped.append(True))
    node.seams.run()
    assert stopped == [True]
    boot_again(monkeypatch)
    reopen(node)
    assert node.driver.sound


@pytest.mark.rule("R-11")
@pytest.mark.parametrize(
    ("voters", "durability"),
    [(("n1", "n2", "n3"), Durability.FSYNC), (("n1",), Durability.REPLICATED)],
)
def test_a_power_failure_that_no_other_voter_could_notice_takes_no_vote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, voters: tuple[str, ...], durability: Durability
) -> None:
    node = Node(tmp_path, *voters, durability=durability)
    boot_again(monkeypatch)
    node.restart()
    assert node.driver.sound
    assert not CleanStop(OsFileSystem(), str(tmp_path)).may_have_lost()


def birth_of(files: MemoryFiles) -> tuple[FolderBirth, RepairMarker]:
    marker = RepairMarker(files, "data", "__controller")
    return FolderBirth(files, "data", marker), marker


@pytest.mark.parametrize("spoil", [lambda data: b"x" + data[1:], lambda data: b""])
def test_logs_that_are_older_than_the_folder_may_have_been_here_before(
    spoil: Callable[[bytes], bytes],
) -> None:
    files = MemoryFiles()
    birth, marker = birth_of(files)
    assert birth.index == -1  # a folder of an earlier version
    marker.save(Note("empty", "start", 1, intact=True, lost_vote=True))
    assert birth.index > 10**9  # nothing is known of the metadata yet
    birth.save(41)
    marker.remove()
    birth.save(99)
    assert birth.index == 41
    path = "data/born"
    spoiled = spoil(files.read(path))
    file = files.open(path)
    file.truncate(0)
    file.pwrite(spoiled, 0)
    assert birth.index > 10**9


def killed_before_the_last_sync(files: MemoryFiles, work: Callable[[], object]) -> None:
    """End the process within `work`, which has renamed its file but not synced the folder."""

    def refuse(operation: str, path: str) -> None:
        if operation == "sync" and files.exists(path) is False:  # a folder
            raise PowerCut

    files.refuse = refuse
    with pytest.raises(PowerCut):
        work()
    files.refuse = None


@pytest.mark.rule("R-01", "R-02")
@pytest.mark.parametrize("seed", range(6))
def test_a_doubt_that_an_opening_has_found_outlives_a_power_failure(seed: int) -> None:
    """Whatever the opening does next, a later one must not find the folder without the doubt."""
    note = Note("empty", "start", 1, intact=True, lost_vote=True)
    for find in (RepairMarker.find, lambda marker: marker.save(note)):
        files = MemoryFiles(Random(seed))
        killed_before_the_last_sync(files, lambda files=files: birth_of(files)[1].save(note))
        marker = birth_of(files)[1]
        find(marker)
        files.crash()
        assert marker.lost_vote
        assert marker.exists


@pytest.mark.rule("R-02")
@pytest.mark.parametrize("seed", range(6))
def test_the_age_of_a_folder_outlives_a_power_failure_once_it_counts(seed: int) -> None:
    files = MemoryFiles(Random(seed))
    killed_before_the_last_sync(files, lambda: birth_of(files)[0].save(41))
    birth_of(files)[0].save(99)
    files.crash()
    assert birth_of(files)[0].index == 41


@pytest.mark.rule("R-02")
def test_logs_that_are_created_after_the_first_confirmed_read_are_newer_than_the_folder() -> None:
    """The replica of the metadata may still be in doubt then, although the node is ready."""
    files = MemoryFiles()
    birth, marker = birth_of(files)
    marker.save(Note("empty", "start", 1, intact=True, lost_vote=True))
    birth.read(41)
    birth.read(60)
    assert (birth.index, birth.folder_index) == (41, 41)
    birth.save(70)
    marker.remove()
    assert birth.folder_index == 41
    again, _ = birth_of(files)
    assert again.folder_index == 41


@pytest.mark.rule("R-01", "R-02")
def test_a_note_of_the_folder_that_cannot_be_read_leaves_every_log_in_doubt() -> None:
    files = MemoryFiles()
    birth, _ = birth_of(files)
    birth.save(41)

    def unreadable(operation: str, path: str) -> None:
        if operation == "read":
            raise DiskError(path, operation, "input/output error")

    files.refuse = unreadable
    assert birth.index > 10**9


@pytest.mark.rule("R-01", "R-02")
def test_a_note_of_the_folder_without_a_descriptor_leaves_no_log_in_doubt() -> None:
    """A doubt is durable: a new log of a single node would never serve."""
    files = MemoryFiles()
    birth, _ = birth_of(files)
    birth.save(41)

    def refuse(operation: str, path: str) -> None:
        if operation == "read":
            raise DiskRefused(path, operation, "too many open files")

    files.refuse = refuse
    with pytest.raises(DiskRefused):
        _ = birth.index
    files.refuse = None
    assert birth.index == 41


@pytest.mark.rule("R-01", "R-02")
def test_logs_that_an_earlier_incarnation_knew_have_been_here_before() -> None:
    """It has opened them: an empty folder of one was emptied since."""
    files = MemoryFiles()
    birth, marker = birth_of(files)
    birth.know(60)
    assert birth.index == 60
    birth.save(41)
    assert birth.index == 60
    birth, _ = birth_of(files)
    birth.know(30)
    assert birth.index == 41
    marker.save(Note("empty", "start", 1, intact=True, lost_vote=True))
    assert birth.index > 10**9


@pytest.mark.rule("R-01", "R-02")
def test_logs_that_are_newer_than_a_restored_copy_have_been_here_before_it() -> None:
    """The folder that the copy replaces may have held them, and they are not in the copy."""
    files = MemoryFiles()
    birth, marker = birth_of(files)
    birth.save(41)
    birth, marker = birth_of(files)  # put back by a copy from then
    birth.know(60)
    marker.save(Note("copy", "start", 1, intact=True, lost_vote=True))
    birth.read(90)
    birth.save(95)
    marker.remove()
    assert birth.index == 90
    birth.save(99)
    assert birth.index == 90
    marker.save(Note("power", "start", 1, intact=True))  # the same folder
    birth, _ = birth_of(files)
    birth.save(99)
    marker.remove()
    assert birth.index == 90


def put_back(copy: Path, folder: Path, *, over: bool = False) -> None:
    """Restore a folder from a copy; over: its files are overwritten, others stay."""
    if not over:
        shutil.rmtree(folder)
    shutil.copytree(copy, folder, dirs_exist_ok=True)


@pytest.mark.rule("R-01", "R-02")
@pytest.mark.parametrize("over", [False, True])
def test_a_restored_copy_of_a_folder_opens_without_a_vote_and_stays_so(tmp_path: Path, over: bool) -> None:
    node = Node(tmp_path / "data", "n1", "n2", "n3")
    node.restart()
    assert node.driver.sound
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    node.restart()  # it goes on, and promises more
    node.seams.work.clear()
    put_back(tmp_path / "copy", tmp_path / "data", over=over)
    reopen(node)
    assert not node.driver.sound
    assert not node.driver.knows_vote
    assert marker_in(tmp_path / "data").intact
    reopen(node)  # no copy any more: the note stays
    assert not node.driver.sound
    node.driver.start()
    node.driver.deliver("n2", VoteRequest(5, 9, 4))
    node.seams.run()
    assert [m.granted for _, m in node.seams.sent if isinstance(m, VoteAnswer)] == [False]


@pytest.mark.rule("R-01", "R-02")
def test_a_copy_of_a_running_node_written_over_it_after_its_stop_opens_without_a_vote(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "n1", "n2", "n3")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    stopped: list[bool] = []
    node.driver.stop(lambda: stopped.append(True))
    node.seams.run()
    assert stopped == [True]
    put_back(tmp_path / "copy", tmp_path / "data", over=True)
    reopen(node)
    assert not node.driver.sound
    assert not node.driver.knows_vote


def test_a_stopped_node_opens_with_its_vote(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", "n2", "n3")
    node.driver.stop()
    node.seams.run()
    reopen(node)
    assert node.driver.sound


def test_a_copy_of_the_only_voter_is_as_good_as_the_folder(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "n1")
    node.append(b"v")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    put_back(tmp_path / "copy", tmp_path / "data")
    node.restart()
    assert node.driver.role is Role.LEADER
    assert node.driver.sound


def test_restored_copies_of_all_voters_elect_a_leader_together(tmp_path: Path) -> None:
    node = Node(tmp_path / "data", "n1", "n2", "n3")
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    put_back(tmp_path / "copy", tmp_path / "data")
    node.restart()
    node.tick(2_000)
    for pre_vote in (True, False):
        for voter in ("n2", "n3"):
            node.driver.deliver(voter, VoteAnswer(1, True, pre_vote, sound=False))
            node.seams.run()
            assert (node.driver.role is Role.LEADER) is (not pre_vote and voter == "n3")
    assert node.driver.sound
    assert not marker_in(tmp_path / "data").exists


def test_a_destroyed_note_of_the_origin_means_a_copy_and_a_missing_one_does_not(tmp_path: Path) -> None:
    node = Node(tmp_path, "n1", "n2", "n3")
    (tmp_path / "logs" / "default" / ORIGIN_NAME).unlink()
    reopen(node)
    assert node.driver.sound
    (tmp_path / "logs" / "default" / ORIGIN_NAME).write_bytes(b"?")
    reopen(node)
    assert not node.driver.sound


@pytest.mark.rule("R-01", "R-02")
def test_a_flipped_bit_in_the_note_of_the_origin_hides_no_copy_and_makes_none(tmp_path: Path) -> None:
    files = OsFileSystem()
    folder, copy = tmp_path / "log", tmp_path / "copy"
    folder.mkdir()
    FolderOrigin(files, str(folder)).renew()
    shutil.copytree(folder, copy)
    note = (folder / ORIGIN_NAME).read_bytes()
    for bit in range(len(note) * 8):
        flipped = bytearray(note)
        flipped[bit // 8] ^= 1 << bit % 8
        for path in (folder, copy):
            with (path / ORIGIN_NAME).open("r+b") as file:
                file.write(flipped)
        assert not FolderOrigin(files, str(folder)).is_copy()
        assert FolderOrigin(files, str(copy)).is_copy()


def test_a_note_of_an_older_version_has_one_line(tmp_path: Path) -> None:
    files = OsFileSystem()
    FolderOrigin(files, str(tmp_path)).renew()
    note = (tmp_path / ORIGIN_NAME).read_bytes()
    with (tmp_path / ORIGIN_NAME).open("r+b") as file:
        file.truncate(len(note) // 2)
    assert not FolderOrigin(files, str(tmp_path)).is_copy()
    shutil.copy(tmp_path / ORIGIN_NAME, tmp_path / "copied")
    (tmp_path / "copied").replace(tmp_path / ORIGIN_NAME)
    assert FolderOrigin(files, str(tmp_path)).is_copy()


def test_where_the_creation_of_files_is_not_recorded_every_folder_passes_for_the_original(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, "n1", "n2", "n3")
    monkeypatch.setattr(OsFileSystem, "created_at", lambda _self, _path: "")
    reopen(node)
    assert node.driver.sound
    monkeypatch.undo()
    reopen(node)
    assert node.driver.sound


def test_a_full_disk_keeps_the_note_of_the_origin() -> None:
    files = MemoryFiles()
    origin = FolderOrigin(files, "log")
    origin.renew()
    files.space_bytes = 0
    origin.renew()
    assert not origin.is_copy()


def grown_and_reset(folder: Path, *, durability: Durability = Durability.FSYNC) -> Node:
    """n1 was alone; others have joined since, and trimmed what they had. n2 gives it their log from 10 on."""
    node = Node(folder, durability=durability)
    node.append()
    log = MemoryLog()
    log.cut(Reset(10, 4_096, 5))
    first = log.add(5)
    incarnation = node.driver._core._handler._incarnation  # type: ignore[attr-defined]
    node.driver.deliver("n2", Heartbeat(5, "n2", 10, 1))
    node.driver.deliver(
        "n2",
        PushRequest(5, PushType.TRUNCATE, "n2", 10, 1, incarnation, 9, 0, 10, reset=True, batches=(first,)),
    )
    node.seams.run()
    assert node.driver.log.begin_index == 10
    assert not node.driver._state.transfer.is_whole
    return node


@pytest.mark.rule("R-10", "R-11")
def test_a_power_failure_takes_the_vote_of_a_replica_that_does_not_know_yet_who_votes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own records name no other voter, but it lacks those before the log's beginning."""
    node = grown_and_reset(tmp_path, durability=Durability.REPLICATED)
    boot_again(monkeypatch)
    reopen(node)
    assert not node.driver.sound


@pytest.mark.rule("R-10")
def test_a_replica_that_lacks_the_state_of_other_members_opens_again(tmp_path: Path) -> None:
    """The configuration names n1 alone, and so does the state that it has saved: n2 will send the state."""
    node = grown_and_reset(tmp_path)
    reopen(node)
    assert not node.driver._state.transfer.is_whole
