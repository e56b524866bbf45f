"""Damage in an end that the group never committed: only that end is removed, and the replica is in doubt."""

import asyncio
from typing import cast

import pytest

from app.log.state import LogState
from app.node.network.repair_messages import FetchAnswer, FetchRequest, PeerCall
from app.node.repair import fetch, peer_replicas
from app.node.repair.interfaces import settled_voters
from app.node.repair.log_repair import LogRepair
from app.node.repair.marker import RepairMarker
from app.node.repair.offline_log import GivenUp
from app.node.replica.driver import LogDriver
from storage.care import patch
from storage.errors import CorruptLog, DiskError, StorageFull
from storage.format.batch import Batch
from storage.format.records import encode_control
from storage.log.checkpoint import Checkpoint, CheckpointFile
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState, HardStateFile
from storage.log.manifest import ManifestFile
from tests.unit.node.repair.damaged_log import BATCHES, FOLDER, SIZES, Peers, Scene, another_end, gives_all
from tests.unit.node.repair.test_fetch import history
from tests.unit.node.repair.test_server import Node
from tests.unit.raft.support import MemoryLog


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "PAUSE_LAST_MS", 1)


def never_had_it(_peer: str, message: PeerCall) -> PeerCall:
    return FetchAnswer(message.id, 0, 39)


def has_another_history(_peer: str, message: PeerCall) -> PeerCall:
    """As a new leader has it, which lacked what this replica had added."""
    assert isinstance(message, FetchRequest)
    others = [each for each in history(41, salt="other") if each.base_index >= message.first_index]
    return FetchAnswer(message.id, 0, 81, False, tuple(others[:1]))


def committed_until(scene: Scene, index: int) -> None:
    CheckpointFile(scene.files, f"{FOLDER}/checkpoint").save(Checkpoint(index))


@pytest.mark.rule("R-02", "R-07")
@pytest.mark.parametrize("votes", [True, False])
@pytest.mark.parametrize("answers", [never_had_it, has_another_history])
def test_records_that_the_group_never_committed_are_removed_from_the_damage_on(
    answers: object, votes: bool
) -> None:
    """The acknowledgements of the removed records count no longer: the copy has no vote and no identity."""
    scene = Scene()
    scene.votes = votes
    committed_until(scene, 39)
    repair = scene.run(Peers(answers), scene.damage(25))  # type: ignore[arg-type]
    assert not repair.result.set_aside
    assert scene.host.sound is False
    marker = RepairMarker(scene.files, "data", "log")
    assert (marker.keeps_promises, marker.lacks_records, marker.held_index) == (False, True, -1)
    assert scene.host.log is not None
    assert [scene.host.log.batch_at(index) for index in range(0, 50, 2)] == BATCHES[:25]
    assert scene.host.log.end_index == 49
    aside = f"{FOLDER}/aside"
    kept = b"".join(scene.files.read(f"{aside}/{name}") for name in scene.files.list(aside))
    assert kept.endswith(b"".join(bytes(batch.data) for batch in BATCHES[26:]))
    assert len(kept) == BATCHES[-1].next_offset - BATCHES[25].offset
    scene.files.crash()
    again = Commitlog.open(scene.files, FOLDER, log_id=7, config=SIZES, committed_index=39)
    assert again.end_index == 49
    again.append(BATCHES[25:27])


@pytest.mark.rule("R-02", "R-07")
def test_the_other_one_of_two_voters_decides_about_an_end_that_it_settles_with_this_one_alone() -> None:
    """It may hold the end, and then it leads: both vote for the longer log. It waited for the vote here."""
    scene = Scene()
    committed_until(scene, 39)
    repair = scene.run(Peers(never_had_it), scene.damage(39), voters=("n1", "n2"))
    assert (repair.result.set_aside, scene.host.sound) == (False, False)
    assert scene.host.log is not None
    assert scene.host.log.end_index == 77


@pytest.mark.rule("C-12", "R-07")
@pytest.mark.parametrize(
    ("votes", "settled"),
    [(True, ()), (True, ("n1",)), (True, ("n1", "n3")), (True, ("n1", "n2", "n3")), (False, ("n1", "n2"))],
)
def test_one_of_two_copies_keeps_its_end_if_the_group_may_have_committed_it_without_the_other(
    votes: bool, settled: tuple[str, ...]
) -> None:
    """While the record that made the group of two is not committed, the group before it may have committed
    the end: this copy alone, or with a third one. None is known: the configuration may name fewer voters than
    the log. In the modes with a master one of two replicas may have acknowledged the end alone."""
    scene = Scene()
    scene.votes, scene.settled_voters = votes, settled
    committed_until(scene, 39)
    peers = Peers(never_had_it)

    async def meanwhile(repair: LogRepair) -> None:
        while len(peers.asked) < 3 * fetch.NOT_SETTLED_ROUNDS:  # noqa: ASYNC110  # bounded
            await asyncio.sleep(0.001)
        repair.give_up()

    scene.run(peers, scene.damage(39), voters=("n1", "n2"), meanwhile=meanwhile)
    assert scene.host.log is None


@pytest.mark.rule("R-07", "R-10")
def test_a_group_of_two_is_settled_only_by_its_newest_record() -> None:
    """A group of three between two groups of the same two may have committed records without one of them."""
    log, state = MemoryLog(), LogState()
    for voters in (["n1", "n2"], ["n1", "n2", "n3"], ["n1", "n2"]):
        value = {"kind": "membership", "voters": voters, "learners": [], "nodes": {}}
        log.write([log.stamp(encode_control(value), 1, control=True)])
        state.apply(log.batches[-1])
    settled = []
    for committed_index in range(3):
        state.committed(committed_index)
        settled.append(settled_voters(state))
    assert settled == [(), (), ("n1", "n2")]


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("configured", [("n1", "n2"), ("n1", "n2", "n3")])
def test_a_repair_of_one_of_two_copies_continues_after_a_restart(
    configured: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the note shows then that the group of two was committed: the log is not open."""
    monkeypatch.setattr(peer_replicas, "ANSWER_TIMEOUT_S", 0.01)
    scene, peers = Scene(), Peers(lambda _peer, _message: None)
    committed_until(scene, 39)
    damage = scene.damage(39)

    async def meanwhile(repair: LogRepair) -> None:
        while not peers.asked:  # noqa: ASYNC110  # bounded
            await asyncio.sleep(0.001)
        repair.give_up()

    scene.run(peers, damage, voters=("n1", "n2"), meanwhile=meanwhile)
    assert scene.host.log is None
    scene.files.crash()
    scene.is_configured, scene.settled_voters = True, ()
    peers = Peers(never_had_it)
    scene.run(peers, damage, voters=configured)
    assert scene.host.log is not None
    assert (scene.host.sound, scene.host.log.end_index) == (False, 77)
    assert {peer for peer, _ in peers.asked} == {"n2"}
    assert RepairMarker(scene.files, "data", "log").pair == ()  # the group may change from now on


@pytest.mark.parametrize("error", [StorageFull, DiskError])
def test_a_removed_end_that_cannot_be_kept_does_not_stop_the_repair(
    error: type[DiskError], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused(_files: object, _folder: str, _offset: int) -> None:
        raise error("a file", "write", "refused")

    monkeypatch.setattr("storage.care.end.copy_end", refused)
    scene = Scene()
    committed_until(scene, 39)
    scene.run(Peers(never_had_it), scene.damage(25))
    assert scene.host.log is not None
    assert scene.host.log.end_index == 49
    assert "no copy is kept of its removed end" in caplog.text


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("committed_index", [50, 79])
def test_a_committed_record_is_no_end_that_may_be_removed(committed_index: int) -> None:
    scene = Scene()
    committed_until(scene, committed_index)
    repair = scene.run(Peers(never_had_it), scene.damage(25))
    assert repair.result.set_aside
    assert any(name.endswith(".log") for name in scene.files.list(f"{FOLDER}/aside"))


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("committed_index", [39, 79])
def test_the_last_copy_is_kept_while_a_peer_that_held_it_is_in_doubt(committed_index: int) -> None:
    """n1 and n2 have committed all. n2 got another disk, n3 lags: what is intact here is the last copy."""
    nodes = {"n2": Node(committed=9), "n3": Node(committed=19)}
    nodes["n2"].replica.sound = False
    scene, rounds = Scene(), 3 * fetch.NOT_SETTLED_ROUNDS
    committed_until(scene, committed_index)

    def answers(peer: str, message: PeerCall) -> PeerCall:
        assert isinstance(message, FetchRequest)
        return nodes[peer].server._fetched(cast(LogDriver, nodes[peer].replica), message)

    peers = Peers(answers)

    async def meanwhile(repair: LogRepair) -> None:
        while len(peers.asked) < 2 * rounds and not scene.host.log:  # noqa: ASYNC110  # bounded
            await asyncio.sleep(0.001)
        repair.give_up()

    before = {name: scene.files.read(f"{FOLDER}/{name}") for name in scene.segments}
    damage = scene.damage(25)
    changed = damage.path.removeprefix(f"{FOLDER}/")
    repair = scene.run(peers, damage, meanwhile=meanwhile)
    assert not repair.result.set_aside
    assert scene.host.log is None
    assert [name for name in scene.segments if scene.files.read(f"{FOLDER}/{name}") != before[name]] == [
        changed
    ]


def test_a_log_that_is_damaged_from_its_begin_on_is_set_aside() -> None:
    scene = Scene()
    repair = scene.run(Peers(lambda _peer, message: FetchAnswer(message.id, 0, 0)), scene.damage(0))
    assert repair.result.set_aside


def test_the_doubt_is_saved_before_the_end_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash in between must leave no copy that seems to hold all that it acknowledged."""
    scene = Scene()
    committed_until(scene, 39)
    marker = RepairMarker(scene.files, "data", "log")
    found: list[tuple[bool, bool]] = []
    save = ManifestFile.save

    def noted(self: ManifestFile, manifest: object) -> None:
        if not scene.host.log:
            found.append((marker.keeps_promises, marker.lacks_records))
        save(self, manifest)  # type: ignore[arg-type]

    monkeypatch.setattr(ManifestFile, "save", noted)
    scene.run(Peers(never_had_it), scene.damage(25))
    assert found
    assert set(found) == {(False, True)}


def lacks_from(scene: Scene, position: int) -> CorruptLog:
    """Damage every batch from one on, after the checkpoint and in the term of the vote."""
    HardStateFile(scene.files, f"{FOLDER}/vote").save(HardState(1, "n2"))
    committed_until(scene, 39)
    damages = [scene.damage(each, b"noise") for each in range(position, len(BATCHES))]
    return damages[0]


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("is_settled", [True, False])
@pytest.mark.parametrize("value", [b"", bytes(500)], ids=["shorter", "longer"])
def test_an_end_is_repaired_with_batches_that_end_at_other_offsets(value: bytes, is_settled: bool) -> None:
    """The old durable point is within one of them, or after all of them."""
    scene, held = Scene(), another_end(25, value)

    def answers(_peer: str, message: PeerCall) -> PeerCall:
        assert isinstance(message, FetchRequest)
        found = [each for each in held if message.first_index <= each.base_index <= message.last_index]
        is_sent = is_settled or message.held
        return FetchAnswer(message.id, 0, 79 if is_settled else 39, False, tuple(found) if is_sent else ())

    repair = scene.run(Peers(answers), lacks_from(scene, 25))
    assert (repair.result.set_aside, scene.host.sound) == (False, False)
    assert scene.host.log is not None
    assert [scene.host.log.batch_at(2 * position) for position in range(40)] == held
    assert RepairMarker(scene.files, "data", "log").held_index == -1


def sends(held: list[Batch]) -> Peers:
    """n2 alone answers: it has settled these batches."""

    def answers(peer: str, message: PeerCall) -> PeerCall | None:
        assert isinstance(message, FetchRequest)
        found = [each for each in held if message.first_index <= each.base_index <= message.last_index]
        return FetchAnswer(message.id, 0, 79, False, tuple(found)) if peer == "n2" else None

    return Peers(answers)


@pytest.mark.rule("R-01", "R-07")
def test_an_end_of_a_later_term_than_the_vote_is_no_lost_vote() -> None:
    """The vote file is intact: this replica never voted in that term. It waits for no terms of the others."""
    scene = Scene()
    scene.run(sends(another_end(25, b"", term=6)), lacks_from(scene, 25))
    assert scene.host.log is not None
    assert scene.host.log.last_term == 6
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(6, "n1")
    assert not RepairMarker(scene.files, "data", "log").lost_vote


@pytest.mark.rule("R-01")
@pytest.mark.parametrize("is_end", [True, False])
def test_a_repair_does_not_hide_a_vote_that_is_older_than_the_log(is_end: bool) -> None:
    """The vote file is of a term before that of intact records, so it is not the last one. The opening finds
    that by the term of the last record."""
    scene, older = Scene(), HardState(0)
    cause = lacks_from(scene, 25) if is_end else scene.damage(25)
    HardStateFile(scene.files, f"{FOLDER}/vote").save(older)
    scene.run(sends(another_end(25, b"", term=6) if is_end else BATCHES), cause)
    assert scene.host.log is not None
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == older


@pytest.mark.rule("R-07")
def test_a_repair_of_an_end_that_a_crash_interrupts_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    """The durable point is before the damage then: the note shows where the log ended."""

    def killed(*_args: object) -> None:
        raise GivenUp

    scene, write = Scene(), patch._write
    cause = lacks_from(scene, 25)
    monkeypatch.setattr(patch, "_write", killed)
    scene.run(Peers(gives_all), cause)
    assert scene.host.log is None
    scene.files.crash()
    monkeypatch.setattr(patch, "_write", write)
    scene.run(Peers(gives_all), cause)
    assert scene.host.log is not None
    assert scene.host.log.end_index == 79
