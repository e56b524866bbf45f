"""Opening a copy in controller and classic mode: which keeps its identity, and the epoch that it opened."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.controller.replicas_manager import CopyIdentity
from app.ha.frames import ClassicFrame
from app.ha.messages import OUTGOING, Opened
from app.log.contract import NO_INDEX, Durability
from app.node.metadata.replica_identity import IdentityFile
from app.node.opening.open_replica import FoundFolder, LogIdentity
from app.raft.messages import ReadIndexAnswer, ReadIndexRequest
from storage.errors import CorruptLog, DiskError, UnreadableFile, as_damage
from storage.format.records import encode_control
from storage.log.clean_stop import CleanStop
from storage.log.hard_state import HardState, HardStateFile
from tests.support.memory_files import MemoryFiles
from tests.unit.ha.group import LOG_NAME, Group
from tests.unit.node.replica.driver_support import Node, classic_mode
from tests.unit.raft.support import MemoryLog

FOLDER = f"data/logs/{LOG_NAME}"
ME = CopyIdentity("code", 3)


def one_copy() -> Group:
    """A group of one that has stored records, stopped, with an identity beside its copy."""
    group = Group(5, nodes=1, clients=1, faults=False)
    group.run(1)
    node = group.nodes["n1"]
    assert node.log.end_index > 0
    group._faults = False
    node.life.alive = False
    group.network.crashed("n1")
    node.log.close()
    IdentityFile(node.files, "data", LOG_NAME).save(ME)
    return group


def identity_of(group: Group) -> CopyIdentity | None:
    return IdentityFile(group.nodes["n1"].files, "data", LOG_NAME).load()


@pytest.mark.rule("C-03")
@pytest.mark.parametrize("sound", [True, False])
def test_a_copy_that_may_lack_records_forgets_its_identity_before_it_is_used(sound: bool) -> None:
    group = one_copy()
    node = group.nodes["n1"]
    node.sound = sound
    node.start()
    node.files.crash()  # whatever happens next
    assert identity_of(group) == (ME if sound else None)


@pytest.mark.rule("C-03")
def test_a_copied_folder_is_noted_in_its_identity_before_it_is_used() -> None:
    group = one_copy()
    node = group.nodes["n1"]
    copied = node.files.copy_folder(FOLDER)
    for folder_is_copy in (False, True, True):  # noted once, until the controllers have decided
        if folder_is_copy:
            node.files.put_folder(FOLDER, copied)
        node.start()
        node.files.crash()
        node.log.close()
        assert identity_of(group) == replace_copy(ME, folder_is_copy)
        copied = node.files.copy_folder(FOLDER)
    node.start()
    assert identity_of(group) == replace_copy(ME, True)


def replace_copy(identity: CopyIdentity, is_copy: bool) -> CopyIdentity:
    return CopyIdentity(identity.check_code, identity.replica_id, is_copy)


@pytest.mark.rule("C-03")
def test_a_copied_folder_from_before_its_id_was_assigned_is_another_replica() -> None:
    files = MemoryFiles()
    files.make_folders(FOLDER)
    file = IdentityFile(files, "data", LOG_NAME)
    file.note_copy()
    file.save(CopyIdentity("code"))
    file.note_copy()
    assert file.load() is None


@pytest.mark.rule("C-03")
def test_a_folder_without_its_log_is_damage_and_no_empty_log() -> None:
    group = one_copy()
    node = group.nodes["n1"]
    for name in node.files.list(FOLDER):
        if name.endswith((".log", ".index")) or name in ("manifest", "epochs"):
            node.files.remove(f"{FOLDER}/{name}")
    with pytest.raises(AssertionError, match="all of the log is missing") as caught:
        node.start()
    assert isinstance(caught.value.__cause__, CorruptLog)
    node.sound = False  # a repair has found that no node has these records, and set the rest aside
    node.files.remove(f"{FOLDER}/checkpoint")
    node.start()
    assert identity_of(group) is None


@pytest.mark.rule("C-03", "R-11")
def test_an_identity_that_cannot_be_read_is_damage_that_the_opening_finds() -> None:
    """A repair ends it. When the copy was served first, one sector ended every start of the node."""
    group = one_copy()
    node = group.nodes["n1"]

    def unreadable(operation: str, path: str) -> None:
        if operation == "read" and path == f"{FOLDER}/replica":
            raise DiskError(path, "read", "input/output error")

    node.files.refuse = unreadable
    with pytest.raises(AssertionError, match="input/output error") as caught:
        node.start()
    damage = as_damage(caught.value.__cause__ or caught.value)
    assert isinstance(damage, UnreadableFile)
    assert damage.path == f"{FOLDER}/replica"


def test_an_identity_is_forgotten_durably_and_forgetting_none_changes_nothing() -> None:
    files = one_copy().nodes["n1"].files
    file = IdentityFile(files, "data", LOG_NAME)
    file.forget()
    file.forget()
    files.crash()
    assert file.load() is None


@pytest.mark.rule("A-01")
@pytest.mark.parametrize(
    ("master", "acks_unsynced", "power_fails", "sound", "kept"),
    [
        ("n1", True, False, True, "n1"),
        ("n1", False, True, True, "n1"),
        ("n1", True, True, True, None),
        ("n1", False, False, False, None),  # a repair has lost records
        ("n2", False, False, True, "n2"),
        ("n2", True, True, True, None),
        ("n2", False, False, False, None),
    ],
)
def test_a_slave_and_a_master_that_may_lack_acknowledged_records_have_opened_no_epoch(
    master: str, acks_unsynced: bool, power_fails: bool, sound: bool, kept: str | None
) -> None:
    """As the master again, it must hear those that hold what the other master has acknowledged."""
    files = MemoryFiles()
    files.make_folders(FOLDER)
    vote = HardStateFile(files, f"{FOLDER}/vote")
    vote.save(HardState(3, "n1"))
    stop = CleanStop(files, FOLDER)
    stop.opened(acks_unsynced=acks_unsynced)
    if power_fails:
        files.crash()
    judge_classic(files, stop, master=master, is_new=False, sound=sound)
    files.crash()  # whatever happens next
    assert vote.load() == HardState(3, kept)


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("role", ["n2", "n1"])
def test_a_copy_that_may_lack_records_stays_so_until_it_has_caught_up(role: str) -> None:
    """Its power failed, then it was a slave that did not reach its master, and stopped cleanly."""
    files = MemoryFiles()
    files.make_folders(FOLDER)
    vote = HardStateFile(files, f"{FOLDER}/vote")
    vote.save(HardState(3, "n2"))
    stop = CleanStop(files, FOLDER)
    stop.opened(acks_unsynced=True)
    files.crash()
    for master in (role, "n2", "n2", "n1"):
        judge_classic(files, stop, master=master, is_new=False)
        stop.opened(acks_unsynced=True)
        stop.stopped()
    assert vote.load() == HardState(3)


@pytest.mark.rule("A-01", "H-07")
@pytest.mark.parametrize("role", ["n1", "n2"])
@pytest.mark.parametrize("is_restored", [True, False])
def test_a_folder_that_a_backup_has_replaced_may_lack_what_it_acknowledged(
    role: str, is_restored: bool
) -> None:
    """As a master it would continue its epoch before its end, and as a slave it would vouch for a master."""
    files = MemoryFiles()
    files.make_folders(FOLDER)
    vote = HardStateFile(files, f"{FOLDER}/vote")
    vote.save(HardState(3, role))
    stop = CleanStop(files, FOLDER)
    judge_classic(files, stop, master=role, is_new=False)
    backup = files.copy_folder(FOLDER)
    judge_classic(files, stop, master=role, is_new=False)
    if is_restored:
        files.put_folder(FOLDER, backup)
    judge_classic(files, stop, master=role, is_new=False)
    files.crash()  # whatever happens next
    judge_classic(files, stop, master=role, is_new=False)
    assert vote.load() == HardState(3, None if is_restored else role)


@pytest.mark.rule("A-01")
def test_an_empty_copy_that_may_lack_records_does_not_pass_for_a_new_log() -> None:
    """It was a slave, and is made master after a power failure has taken all that it held."""
    files = MemoryFiles()
    files.make_folders(FOLDER)
    vote = HardStateFile(files, f"{FOLDER}/vote")
    vote.save(HardState(0, "n2"))
    stop = CleanStop(files, FOLDER)
    stop.opened(acks_unsynced=True)
    files.crash()
    judge_classic(files, stop, master="n1", is_new=False)
    assert vote.load() == HardState(1)


def judge_classic(
    files: MemoryFiles, stop: CleanStop, *, master: str, is_new: bool, sound: bool = True
) -> None:
    """Open the folder of n1."""
    services: Any = SimpleNamespace(
        node_id="n1", files=files, data_folder="data", log_folder=lambda _name: FOLDER
    )
    found = FoundFolder(
        services=services,
        log=LogIdentity(name=LOG_NAME, log_id=7, durability=Durability.REPLICATED),
        clean_stop=stop,
        has_vote=not is_new,
        has_log=not is_new,
        has_journal=not is_new,
    )
    classic_mode(master, sound=sound).judge(found)


@pytest.mark.rule("H-07")
@pytest.mark.parametrize(("sync_slaves", "confirmed"), [(1, True), (2, True), (2, False)])
def test_a_slave_that_becomes_the_master_knows_what_its_newest_epoch_needs(
    tmp_path: Path, sync_slaves: int, confirmed: bool
) -> None:
    """The file asks for both slaves; with one, this copy may lack what n2 and n3 alone have acknowledged. A
    new copy that has not caught up may lack what the disk before it has acknowledged."""
    mode = replace(classic_mode("n2"), replicas=("n2", "n1", "n3"))
    node = Node(tmp_path, mode=mode)
    node.tick(1)
    node.driver.deliver(f"{OUTGOING}1", Opened())
    opened = {"kind": "term", "leader": "n2", "sync_slaves": sync_slaves, "slaves": 2}
    log = MemoryLog()
    log.write([log.stamp(encode_control(opened), 1, control=True)])
    node.driver.deliver(f"{OUTGOING}1", ClassicFrame(0, bytes(log.batches[0].data)))
    node.seams.run()
    if confirmed:
        node.tick(1)
        asked = next(each for _, each in node.seams.sent if isinstance(each, ReadIndexRequest))
        node.driver.deliver("n2", ReadIndexAnswer(1, asked.id, 0))
        node.tick(1)
    node.options["mode"] = replace(mode, replicas=("n1", "n2", "n3"), master_id="n1", sync_slaves=2)
    node.restart()
    node.tick(60_000)
    assert (node.driver.status().core.waits_for is None) == (sync_slaves == 2 and confirmed)


@pytest.mark.rule("H-07")
@pytest.mark.parametrize(("begins", "sound"), [(True, True), (False, True), (True, False)])
def test_a_classic_master_begins_a_log_alone_only_if_no_disk_was_replaced(
    tmp_path: Path, begins: bool, sound: bool
) -> None:
    node = Node(tmp_path, mode=classic_mode("n1", sound=sound, begins=begins))
    for _ in range(60):
        node.tick(100)
    assert (node.driver.log.end_index == 0) == (begins and sound)


@pytest.mark.rule("A-01", "H-07")
def test_a_classic_master_whose_log_was_set_aside_waits_for_the_replicas_that_may_hold_it(
    tmp_path: Path,
) -> None:
    """Also for one that is not sound the repair ends: it opens the empty log, and no epoch."""
    mode = classic_mode("n1", begins=True)
    node = Node(tmp_path, mode=mode)
    for _ in range(60):
        node.tick(100)
    assert node.driver.log.end_index == 0
    folder = tmp_path / "logs/default"
    for file in (*folder.glob("*.log"), *folder.glob("*.index"), folder / "manifest", folder / "checkpoint"):
        file.unlink(missing_ok=True)
    node.options["mode"] = replace(mode, sound=False)
    node.restart()
    for _ in range(600):
        node.tick(100)
    assert node.driver.log.end_index == NO_INDEX
    assert "n2 may hold records" in (node.driver.status().core.waits_for or "")


@pytest.mark.rule("A-01")
@pytest.mark.parametrize(("master", "kept"), [("n1", None), ("n2", "n2")])
def test_a_new_copy_records_that_it_is_a_slaves(master: str, kept: str | None) -> None:
    """As the master, an empty copy must know that another one may have taken appends."""
    files = MemoryFiles()
    files.make_folders(FOLDER)
    judge_classic(files, CleanStop(files, FOLDER), master=master, is_new=True)
    files.crash()
    assert HardStateFile(files, f"{FOLDER}/vote").load() == HardState(0, kept)
