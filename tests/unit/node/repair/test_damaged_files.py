"""Repairs of the small files of a log: checkpoint, state, manifest."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from app.node.network.repair_messages import FetchAnswer, PeerCall
from app.node.repair import fetch, peer_replicas
from app.node.repair.interfaces import RepairState
from app.node.repair.log_repair import LogRepair
from app.node.repair.marker import Note, RepairMarker
from app.node.state.group_file import LOST
from storage.errors import CorruptFile, CorruptLog, DiskError, DiskRefused
from storage.format.segment_format import segment_name
from storage.log.commitlog import Commitlog
from storage.log.manifest import ManifestFile
from tests.support.memory_files import MemoryFiles
from tests.unit.node.repair.damaged_log import BATCHES, FOLDER, SIZES, Peers, Scene, gives_all, saved_state


@pytest.mark.parametrize("name", ["checkpoint", "state"])
def test_a_damaged_small_file_takes_nothing_that_was_promised(name: str) -> None:
    scene = Scene()
    scene.files.open(f"{FOLDER}/{name}", create=True).pwrite(b"noise", 0)
    repair = scene.run(Peers(gives_all), CorruptFile(f"{FOLDER}/{name}", "checksum"))
    assert list(repair.result.small_files) == [name]
    assert not scene.files.exists(f"{FOLDER}/{name}")
    assert scene.host.sound


@pytest.mark.rule("R-02")
@pytest.mark.parametrize("votes", [True, False])
@pytest.mark.parametrize("vote_is_lost", [False, True])
def test_a_torn_tail_without_its_checkpoint_may_have_been_committed(votes: bool, vote_is_lost: bool) -> None:
    """The checkpoint alone distinguishes damage beyond the durable point from records without a sync."""
    scene = Scene()
    scene.votes = votes
    log = Commitlog.open(scene.files, FOLDER, log_id=7, config=SIZES)
    offset = log.end_offset
    scene.files.open(f"{FOLDER}/{segment_name(log._segments[-1].base_offset)}").pwrite(
        b"noise", offset - log._segments[-1].base_offset
    )
    scene.files.open(f"{FOLDER}/checkpoint", create=True).pwrite(b"noise", 0)
    if vote_is_lost:  # its repair reads the log first
        scene.files.remove(f"{FOLDER}/vote")
    scene.run(
        Peers(gives_all), CorruptFile(f"{FOLDER}/{'vote' if vote_is_lost else 'checkpoint'}", "checksum")
    )
    assert scene.host.sound is False
    assert RepairMarker(scene.files, "data", "log").lacks_records


@pytest.mark.rule("R-02")
def test_a_log_of_which_only_the_vote_is_left_may_lack_everything() -> None:
    scene = Scene()
    for name in scene.files.list(FOLDER):
        if name != "vote":
            scene.files.remove(f"{FOLDER}/{name}")
    scene.run(Peers(gives_all), CorruptLog(FOLDER, 0, "all of the log is missing but its vote"))
    assert scene.host.sound is False


@pytest.mark.rule("R-02")
def test_records_that_were_durable_while_the_log_ran_are_repaired_not_truncated() -> None:
    """The process found the damage and was killed before it could move the durable point up."""
    scene = Scene()
    manifest_file = ManifestFile(scene.files, f"{FOLDER}/manifest")
    manifest = manifest_file.load()
    assert manifest is not None
    manifest_file.save(replace(manifest, durable_index=9, durable_offset=BATCHES[5].offset))
    cause = scene.damage(20)
    marker = RepairMarker(scene.files, "data", "log")
    marker.save(Note("noise", "read", 1, keeps_promises=True, lacks_records=False, held_index=79))
    scene.run(Peers(gives_all), cause)
    assert scene.host.log is not None
    assert [scene.host.log.batch_at(index) for index in range(0, 80, 2)] == BATCHES
    assert scene.host.sound
    assert marker.held_index == -1  # the leader may cut from here on


@pytest.mark.parametrize(("trimmed", "learners"), [(False, ()), (True, ()), (True, ("n2",))])
def test_a_state_that_no_record_and_no_peer_can_restore_is_left_for_the_operator(
    trimmed: bool, learners: tuple[str, ...]
) -> None:
    """Without it the only copy could never lead again, and would not report why."""
    scene = Scene()
    if trimmed:
        log = Commitlog.open(scene.files, FOLDER, log_id=7, config=SIZES, committed_index=79)
        ticket = log.start_trim(40)
        assert ticket is not None
        ticket.run()
        log.close()
    scene.files.open(f"{FOLDER}/state", create=True).pwrite(b"noise", 0)

    async def meanwhile(repair: LogRepair) -> None:
        while scene.host.log is None and repair.state is not RepairState.WAITING:  # noqa: ASYNC110  # bounded
            await asyncio.sleep(0.01)
        repair.give_up()

    cause = CorruptFile(f"{FOLDER}/state", "checksum")
    scene.learners = learners
    scene.run(Peers(gives_all), cause, voters=("n1",), meanwhile=meanwhile)
    is_left = trimmed and not learners
    assert (scene.host.log is None, scene.files.exists(f"{FOLDER}/state")) == (is_left, is_left)


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("configured", [("n1",), ("n1", "n8", "n9")])
def test_damage_found_at_the_start_is_repaired_by_the_members_that_the_log_names(
    configured: tuple[str, ...],
) -> None:
    """They joined later, and those of the configuration may be gone."""
    scene = Scene()
    scene.is_configured = True
    saved_state(scene, "n1", "n2", "n3")
    peers = Peers(gives_all)
    repair = scene.run(peers, scene.damage(20), voters=configured)
    assert {peer for peer, _ in peers.asked} <= {"n2", "n3"}
    assert not repair.result.set_aside
    assert scene.host.sound


@pytest.mark.rule("R-10")
def test_a_repair_does_not_wait_for_configured_members_that_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The members of the log never committed what is damaged."""
    monkeypatch.setattr(peer_replicas, "ANSWER_TIMEOUT_S", 0.01)
    monkeypatch.setattr(fetch, "PAUSE_LAST_MS", 1)

    def answers(peer: str, message: PeerCall) -> PeerCall | None:
        return None if peer in ("n8", "n9") else FetchAnswer(message.id, 0, 9)

    scene = Scene()
    scene.is_configured = True
    saved_state(scene, "n1", "n2", "n3")
    repair = scene.run(Peers(answers), scene.damage(20), voters=("n1", "n8", "n9"))
    assert not repair.result.set_aside
    assert scene.host.log is not None
    assert (scene.host.log.end_index, scene.host.sound) == (39, False)


@pytest.mark.rule("R-10")
def test_a_repair_without_a_readable_state_asks_the_configured_members() -> None:
    scene = Scene()
    scene.is_configured = True
    scene.files.open(f"{FOLDER}/state", create=True).pwrite(b"noise", 0)
    peers = Peers(gives_all)
    scene.run(peers, scene.damage(20))
    assert {peer for peer, _ in peers.asked} <= {"n2", "n3"}
    assert scene.host.sound


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("is_named", [False, True])
def test_a_replica_without_a_readable_group_may_lack_voters_unless_its_log_names_them(is_named: bool) -> None:
    """The only voter of the configuration would lead alone otherwise."""
    scene = Scene()
    scene.files.open(f"{FOLDER}/group", create=True)
    if is_named:
        saved_state(scene, "n1")
    scene.run(Peers(gives_all), CorruptFile(f"{FOLDER}/group", "not readable"), voters=("n1",))
    assert scene.host.sound is False
    assert RepairMarker(scene.files, "data", "log").lacks_records is not is_named
    assert scene.files.read(f"{FOLDER}/group") == LOST


@pytest.mark.rule("R-02", "R-10")
def test_a_torn_tail_without_group_and_checkpoint_may_have_been_committed() -> None:
    """The tail is removed when the log is opened to find whether it names voters."""
    scene = Scene()
    saved_state(scene, "n1")
    for name in ("group", "checkpoint"):
        scene.files.open(f"{FOLDER}/{name}", create=True)
    last = scene.segments[-1]
    file = scene.files.open(f"{FOLDER}/{last}")
    file.pwrite(b"torn", file.size())
    scene.run(Peers(gives_all), CorruptFile(f"{FOLDER}/group", "not readable"), voters=("n1",))
    assert RepairMarker(scene.files, "data", "log").lacks_records


def unreadable_once(files: MemoryFiles, error: DiskError) -> Callable[[str, str], None]:
    """Refuse the first read of the note."""

    def refuse(operation: str, path: str) -> None:
        if operation == "read" and path == error.path:
            files.refuse = None
            raise error

    return refuse


@pytest.mark.rule("R-01")
def test_a_doubt_is_noted_although_the_disk_refuses_to_read_the_note_before_it() -> None:
    files, path = MemoryFiles(), "data/repairing/log"
    marker = RepairMarker(files, "data", "log")
    marker.save(Note("damage", "read", 1, keeps_promises=True, lacks_records=False, intact=True))
    files.refuse = unreadable_once(files, DiskError(path, "read", "input/output error"))
    marker.save(Note("the folder is a copy", "start", 2, keeps_promises=False, lost_vote=True))
    assert (marker.keeps_promises, marker.lost_vote, marker.intact) == (False, True, False)


def test_a_note_that_cannot_be_read_for_want_of_a_descriptor_counts_as_it_was_written() -> None:
    files, path = MemoryFiles(), "data/repairing/log"
    marker = RepairMarker(files, "data", "log")
    marker.save(Note("power", "start", 1, keeps_promises=True, lacks_records=False, intact=True))
    files.refuse = unreadable_once(files, DiskRefused(path, "read", "too many open files"))
    with pytest.raises(DiskRefused):
        _ = marker.intact
    assert marker.intact
