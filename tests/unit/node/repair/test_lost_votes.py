"""Repairs of a lost vote, and the nodes that are asked for it."""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from app.controller.log_state import MetadataLogState
from app.log.terms import TERM_UNKNOWN, is_plausible_term
from app.node.network.repair_messages import FetchAnswer, PeerCall, TermAnswer, TermRequest
from app.node.repair import log_repair as repair_module
from app.node.repair import peer_replicas
from app.node.repair.log_repair import LogRepair
from app.node.repair.lost_vote import VOTE_GAP, LostVote
from app.node.repair.marker import Note, RepairMarker
from storage.errors import CorruptFile
from storage.format.batch import Batch, stamp
from storage.format.records import encode_control
from storage.log.checkpoint import Checkpoint, CheckpointFile, SnapshotFile
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState, HardStateFile
from storage.log.origin import ORIGIN_NAME, FolderOrigin
from tests.support.memory_files import MemoryFiles
from tests.unit.node.repair.damaged_log import (
    BATCHES,
    FOLDER,
    SIZES,
    Host,
    Peers,
    Scene,
    gives_all,
    saved_state,
)


@pytest.mark.rule("R-01")
def test_a_lost_vote_is_made_safe_by_the_terms_of_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_replicas, "ANSWER_TIMEOUT_S", 0.01)
    silent = ["n3"]

    def answers(peer: str, message: PeerCall) -> PeerCall | None:
        if peer in silent:
            silent.remove(peer)  # the first time
            return None
        return term_of(message, 9 if peer == "n2" else 12)

    scene = Scene()
    scene.files.remove(f"{FOLDER}/vote")
    peers = Peers(answers)
    repair = scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"))
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(12, "n1")
    assert [peer for peer, _ in peers.asked] == ["n2", "n3", "n3"]  # who has answered is not asked again
    assert list(repair.result.small_files) == ["vote"]
    assert scene.host.sound  # every record is there, and the vote forbids what it may have promised
    assert ("repair", "waiting") in [(kind, data.get("state")) for kind, data in scene.host.events]


@pytest.mark.rule("R-01")
def test_a_lost_vote_does_not_wait_for_a_voter_that_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """This node may have elected it in a later term, but not in one that is days of elections away."""
    monkeypatch.setattr(repair_module, "PATIENCE_S", 0)
    monkeypatch.setattr(peer_replicas, "ANSWER_TIMEOUT_S", 0.01)
    scene = Scene()
    scene.files.remove(f"{FOLDER}/vote")
    scene.run(
        Peers(lambda peer, message: TermAnswer(message.id, 9) if peer == "n2" else None),
        CorruptFile(f"{FOLDER}/vote", "checksum"),
    )
    promise = HardStateFile(scene.files, f"{FOLDER}/vote").load()
    assert promise == HardState(9 + VOTE_GAP, "n1")
    assert scene.host.sound


@pytest.mark.rule("R-01")
def test_a_lost_vote_waits_for_a_majority_without_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other voters may have reached any term meanwhile."""
    for name in ("PATIENCE_S", "_RETRY_FIRST_S", "_RETRY_LAST_S"):
        monkeypatch.setattr(repair_module, name, 0)
    monkeypatch.setattr(peer_replicas, "ANSWER_TIMEOUT_S", 0.01)
    down = ["n2"] * 3

    def answers(peer: str, message: PeerCall) -> PeerCall | None:
        if peer in down:
            down.remove(peer)
            return None
        return TermAnswer(message.id, 2 * VOTE_GAP) if peer == "n2" else None

    scene = Scene()
    scene.files.remove(f"{FOLDER}/vote")
    scene.run(Peers(answers), CorruptFile(f"{FOLDER}/vote", "missing"))
    assert down == []
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(3 * VOTE_GAP, "n1")


def term_of(message: PeerCall, term: int) -> TermAnswer:
    """The answer of a peer that knows no other candidates than this node does."""
    return TermAnswer(message.id, term, 0, ("n1",))


def changed(scene: Scene, voters: Sequence[str], learners: Sequence[str] = ()) -> Batch:
    """Append the record of a group."""
    log = Commitlog.open(scene.files, FOLDER, log_id=7, config=SIZES)
    value = {"kind": "membership", "voters": list(voters), "learners": list(learners), "nodes": {}}
    batch = stamp(
        encode_control(value),
        log_id=7,
        base_index=log.next_index,
        term=4,
        timestamp_ms=1,
        offset=log.end_offset,
        previous_chain=log.last_chain,
        control=True,
    )
    log.append([batch])
    log.close()
    return batch


def grown(scene: Scene) -> Batch:
    """Append the record of a fourth voter, which the configuration does not name."""
    return changed(scene, ["n1", "n2", "n3", "n4"])


@pytest.mark.rule("R-01")
@pytest.mark.parametrize("damaged", [False, True])
def test_a_lost_vote_also_asks_voters_that_only_the_log_knows(damaged: bool) -> None:
    """The group has grown since the configuration was written: they too may have been voted for."""
    scene = Scene()
    batch = grown(scene)
    scene.files.remove(f"{FOLDER}/vote")
    if damaged:
        base_offset = int(scene.segments[-1][:20])
        scene.files.open(f"{FOLDER}/{scene.segments[-1]}").pwrite(b"noise", batch.offset - base_offset)
    terms = {"n2": 5, "n3": 6, "n4": 9}

    def answers(peer: str, message: PeerCall) -> PeerCall | None:
        if isinstance(message, TermRequest):
            return term_of(message, terms[peer])
        return FetchAnswer(message.id, 0, batch.last_index, False, (batch,))

    peers = Peers(answers)
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"))
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(9, "n1")
    assert scene.host.log is not None
    assert scene.host.log.batch_at(batch.base_index) == batch


@pytest.mark.rule("R-01", "R-10")
def test_a_lost_vote_in_the_log_of_the_metadata_also_asks_voters_that_only_its_state_knows() -> None:
    """The record that names them may be trimmed."""
    scene = Scene()
    scene.files = MemoryFiles()
    scene.host = Host(scene.files)
    scene.state_type = MetadataLogState
    log = Commitlog.open(scene.files, FOLDER, log_id=7, config=SIZES)
    value = {"kind": "membership", "voters": ["n1", "n2", "n3", "n4"], "learners": [], "nodes": {}}
    grown = stamp(
        encode_control(value),
        log_id=7,
        base_index=0,
        term=4,
        timestamp_ms=1,
        offset=0,
        previous_chain=log.last_chain,
        control=True,
    )
    log.append([grown])
    log.close()
    state = MetadataLogState()
    state.apply(grown)
    state.committed(0)
    saved = msgspec.msgpack.encode((grown.header.chain, state.snapshot()))
    SnapshotFile(scene.files, f"{FOLDER}/state").save(saved)
    terms = {"n2": 5, "n3": 6, "n4": 9}
    peers = Peers(lambda peer, message: term_of(message, terms[peer]))
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"))
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(9, "n1")


@pytest.mark.rule("C-04", "C-03")
def test_a_lost_epoch_of_a_log_that_does_not_vote_needs_no_peer_and_another_identity() -> None:
    """A term that no controller has given would make the copy deaf to every role."""
    scene, peers = Scene(), Peers(lambda _peer, _message: None)
    scene.votes = False
    scene.files.remove(f"{FOLDER}/vote")
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"))
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(BATCHES[-1].term, "n1")
    assert scene.host.sound is False


@pytest.mark.rule("R-01", "R-10")
def test_a_lost_vote_does_not_wait_for_configured_members_that_are_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(peer_replicas, "ANSWER_TIMEOUT_S", 0.01)
    monkeypatch.setattr(repair_module, "PATIENCE_S", 0)
    scene = Scene()
    scene.is_configured = True
    saved_state(scene, "n1", "n2", "n3")
    scene.files.remove(f"{FOLDER}/vote")
    peers = Peers(lambda peer, message: TermAnswer(message.id, 9) if peer == "n2" else None)
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"), voters=("n1", "n8", "n9"))
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(9 + VOTE_GAP, "n1")


@pytest.mark.rule("R-01", "R-10")
@pytest.mark.parametrize(("settled", "expected"), [(False, 9), (True, 6)], ids=["replaced", "settled"])
@pytest.mark.parametrize("learns", [False, True])
def test_a_lost_vote_also_asks_others_that_may_have_campaigned(
    *, settled: bool, expected: int, learns: bool
) -> None:
    """A learner whose promotion only others know, and a voter whose removal may not be committed."""
    scene = Scene()
    grown(scene)
    shrunk = changed(scene, ["n1", "n2", "n3"], ["n4"] if learns else [])
    if settled:
        checkpoints = CheckpointFile(scene.files, f"{FOLDER}/checkpoint")
        checkpoints.load()
        checkpoints.save(Checkpoint(shrunk.last_index))
    scene.files.remove(f"{FOLDER}/vote")
    terms = {"n2": 5, "n3": 6, "n4": 9}
    peers = Peers(lambda peer, message: term_of(message, terms[peer]))
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"))
    promise = HardStateFile(scene.files, f"{FOLDER}/vote").load()
    assert promise == HardState(9 if learns else expected, "n1")


@pytest.mark.rule("R-01", "R-10")
def test_a_lost_vote_also_asks_learners_that_the_log_does_not_name() -> None:
    """The log of a group that was never changed names no member; the promotion is in other logs only."""
    scene = Scene()
    scene.learners = ("n4",)
    scene.files.remove(f"{FOLDER}/vote")
    terms = {"n2": 5, "n3": 6, "n4": 9}
    peers = Peers(lambda peer, message: term_of(message, terms[peer]))
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"))
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(9, "n1")


def repaired(
    scene: Scene, cause: CorruptFile, terms: Mapping[str, int]
) -> tuple[LogRepair, list[int | None]]:
    """Repair the vote; return the repair, and the terms that it reported while it asked its peers. terms: of
    peers that answer another one than 9."""
    reported: list[int | None] = []
    repairing = asyncio.Event()

    async def meanwhile(repair: LogRepair) -> None:
        await repairing.wait()
        reported.append(await repair.term())

    def answers(peer: str, message: PeerCall) -> PeerCall:
        repairing.set()
        return term_of(message, terms.get(peer, 9))

    return scene.run(Peers(answers), cause, meanwhile=meanwhile), reported


@pytest.mark.rule("R-01", "R-02")
@pytest.mark.parametrize("unknown", [("n2", "n3"), ("n3",)], ids=["both", "one"])
def test_votes_that_are_lost_at_too_many_voters_end_in_doubt(
    monkeypatch: pytest.MonkeyPatch, unknown: tuple[str, ...]
) -> None:
    """They would wait for one another. A term is not used again: a learner may hold records of it."""
    monkeypatch.setattr(repair_module, "PATIENCE_S", 0)
    scene = Scene()
    scene.files.remove(f"{FOLDER}/vote")
    cause = CorruptFile(f"{FOLDER}/vote", "missing")
    repair, reported = repaired(scene, cause, dict.fromkeys(unknown, TERM_UNKNOWN))
    is_hopeless = len(unknown) == 2
    marker = RepairMarker(scene.files, "data", "log")
    promise = HardStateFile(scene.files, f"{FOLDER}/vote").load()
    assert promise == HardState((BATCHES[-1].term if is_hopeless else 9) + VOTE_GAP, "n1")
    assert (scene.host.sound, marker.lost_vote) == (not is_hopeless, is_hopeless)
    assert reported == [TERM_UNKNOWN]
    assert asyncio.run(repair.term()) == (TERM_UNKNOWN if is_hopeless else promise.term)


@pytest.mark.rule("R-01")
def test_a_vote_that_contradicts_the_log_is_reported_to_no_other_repair() -> None:
    """The file is intact, but older than the last vote."""
    scene = Scene()
    cause = CorruptFile(f"{FOLDER}/vote", "term 4 is older than the log's 5")
    repair, reported = repaired(scene, cause, {})
    assert reported == [TERM_UNKNOWN]
    assert asyncio.run(repair.term()) == 9


@pytest.mark.rule("R-01", "R-10")
def test_a_lost_vote_also_asks_candidates_that_only_peers_know() -> None:
    """This log lacks the records of their membership: n4 replaced n2, and n5 replaced n3."""
    scene = Scene()
    scene.files.remove(f"{FOLDER}/vote")
    terms = {"n2": 5, "n3": 5, "n4": 6, "n5": 9}
    named = {"n2": ("n1", "n2", "n3", "n4"), "n4": ("n1", "n4", "n5")}
    peers = Peers(lambda peer, message: TermAnswer(message.id, terms[peer], 0, named.get(peer, ("n1",))))
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"))
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(9, "n1")
    assert scene.host.sound


@pytest.mark.rule("R-01", "R-02")
def test_lost_votes_of_the_voters_that_the_log_names_are_enough_to_end_in_doubt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The configuration names others, which are gone."""
    scene = Scene()
    scene.is_configured = True
    saved_state(scene, "n1", "n2", "n3")
    scene.files.remove(f"{FOLDER}/vote")
    lost = ("n2", "n3")
    monkeypatch.setattr(peer_replicas, "ANSWER_TIMEOUT_S", 0.01)
    peers = Peers(lambda peer, message: TermAnswer(message.id, TERM_UNKNOWN) if peer in lost else None)
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"), voters=("n1", "n8", "n9"))
    assert scene.host.sound is False


@pytest.mark.rule("R-01", "R-02")
@pytest.mark.parametrize("voters", [("n1", "n2", "n3"), ("n1",)], ids=["group", "alone"])
def test_a_vote_that_is_lost_with_its_whole_folder_leaves_a_doubt(voters: tuple[str, ...]) -> None:
    """The records are lost, too. A group of one begins again, as an operator wants who has moved it away."""
    scene = Scene()
    for name in scene.files.list(FOLDER):
        scene.files.remove(f"{FOLDER}/{name}")
    peers = Peers(lambda _peer, message: term_of(message, 9))
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"), voters)
    is_alone = len(voters) == 1
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(0 if is_alone else 9, "n1")
    assert scene.host.sound is is_alone
    assert RepairMarker(scene.files, "data", "log").lacks_records is not is_alone


@pytest.mark.rule("R-02", "R-10")
def test_a_log_that_is_older_than_the_data_folder_does_not_begin_again_alone() -> None:
    """The settings here may be older than its group: others may have joined since, as with an empty disk."""
    scene = Scene()
    scene.predates_folder = True
    for name in scene.files.list(FOLDER):
        scene.files.remove(f"{FOLDER}/{name}")
    scene.run(Peers(lambda _peer, _message: None), CorruptFile(f"{FOLDER}/vote", "missing"), ("n1",))
    marker = RepairMarker(scene.files, "data", "log")
    assert (scene.host.sound, marker.lacks_records, marker.lost_vote) == (False, True, True)


@pytest.mark.rule("R-01", "R-10")
@pytest.mark.parametrize(
    ("named", "configured", "answering", "expected"),
    [
        (("n1",), ("n1", "n2", "n3"), (), 1),  # the others were removed, and are gone
        (("n1", "n2", "n3"), ("n1", "n2", "n3", "n4", "n5"), ("n2",), 9),
        (("n1", "n2", "n3"), ("n1", "n4", "n5"), ("n4",), 9),  # the file is newer than this log
    ],
)
def test_a_lost_vote_waits_for_a_majority_of_one_group_that_may_be_the_newest(
    monkeypatch: pytest.MonkeyPatch,
    named: tuple[str, ...],
    configured: tuple[str, ...],
    answering: tuple[str, ...],
    expected: int,
) -> None:
    monkeypatch.setattr(peer_replicas, "ANSWER_TIMEOUT_S", 0.01)
    monkeypatch.setattr(repair_module, "PATIENCE_S", 0)
    scene = Scene()
    scene.is_configured = True
    saved_state(scene, *named)
    scene.files.remove(f"{FOLDER}/vote")
    peers = Peers(lambda peer, message: TermAnswer(message.id, 9) if peer in answering else None)
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"), configured)
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(expected + VOTE_GAP, "n1")
    assert scene.host.sound


@pytest.mark.rule("R-01", "R-10")
def test_a_configuration_that_names_this_node_alone_decides_nothing_for_its_lost_vote() -> None:
    lost = LostVote("n1", 4, (("n1", "n2", "n3"), ("n1",)), ())
    assert not lost.has_majority
    lost.take("n2", TermAnswer(1, 9))
    assert lost.has_majority
    assert LostVote("n1", 4, (("n1",), ("n1", "n2", "n3")), ()).has_majority


@pytest.mark.rule("R-01", "R-10")
def test_a_peer_that_names_no_candidates_may_know_one_with_a_later_term() -> None:
    """One of an older version, or under repair."""
    scene = Scene()
    scene.files.remove(f"{FOLDER}/vote")
    peers = Peers(lambda peer, message: TermAnswer(message.id, 9) if peer == "n2" else term_of(message, 8))
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"))
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(9 + VOTE_GAP, "n1")


@pytest.mark.rule("R-01")
def test_a_vote_that_is_lost_later_skips_the_terms_that_an_earlier_one_led_to() -> None:
    """n1 gave its vote to n3, whose vote was lost before, then lost its own; n2 knows neither."""
    answer = TermAnswer(1, 5, 0, ("n1", "n2", "n3"))
    terms = []
    for node_id, now_ms in (("n3", VOTE_GAP - 1), ("n1", VOTE_GAP + 9_000)):
        lost = LostVote(node_id, 4, (("n1", "n2", "n3"),), ())
        lost.take("n2", answer)
        terms.append(lost.safe_term(now_ms))
    elected_by_n1 = terms[0] + 1
    assert terms[1] >= elected_by_n1


@pytest.mark.rule("R-01")
def test_no_clock_leads_to_a_term_that_peers_refuse() -> None:
    year_9999_ms = 253_402_300_799_000
    lost = LostVote("n1", 4, (("n1", "n2", "n3"),), ())
    assert is_plausible_term(4, lost.safe_term(year_9999_ms))
    assert lost.safe_term(0) == 4 + VOTE_GAP


@pytest.mark.rule("R-01")
@pytest.mark.parametrize("vote", ["sound", "damaged", "doubtful"])
def test_a_log_whose_batches_are_repaired_reports_its_term(vote: str) -> None:
    """The peer that has the batches may wait for it."""
    scene = Scene()
    cause = scene.damage(12)
    repair = scene.repair(Peers(gives_all), cause, ("n1", "n2", "n3"), sound=True)
    assert asyncio.run(repair.term()) is None
    note = Note("", "read", 0, keeps_promises=True, lacks_records=False, lost_vote=vote == "doubtful")
    RepairMarker(scene.files, "data", "log").save(note)
    if vote == "damaged":
        scene.files.open(f"{FOLDER}/vote").pwrite(b"noise" * 2_000, 0)
    assert asyncio.run(repair.term()) == (4 if vote == "sound" else TERM_UNKNOWN)


@pytest.mark.rule("R-01")
@pytest.mark.parametrize("is_copy", [False, True])
def test_a_repair_that_continues_in_a_copied_folder_does_not_report_its_older_term(is_copy: bool) -> None:
    scene = Scene()
    origin = FolderOrigin(scene.files, FOLDER)
    origin.renew()
    if is_copy:
        note = scene.files.read(f"{FOLDER}/{ORIGIN_NAME}")
        scene.files.remove(f"{FOLDER}/{ORIGIN_NAME}")
        scene.files.open(f"{FOLDER}/{ORIGIN_NAME}", create=True).pwrite(note, 0)
    assert origin.is_copy() is is_copy
    repair = scene.repair(Peers(gives_all), scene.damage(3), ("n1", "n2", "n3"), sound=True)
    repair._note()
    assert asyncio.run(repair.term()) == (TERM_UNKNOWN if is_copy else 4)
