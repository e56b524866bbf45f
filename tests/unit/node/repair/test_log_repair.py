"""The course of one repair over a log in memory and scripted peers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from random import Random
from typing import Any

import msgspec
import pytest

from app.controller.log_state import MetadataLogState
from app.log.contract import NO_INDEX
from app.log.events import JournalEvent
from app.log.state import LogState
from app.node.network.peer_calls import PeerCalls
from app.node.network.repair_messages import FetchAnswer, FetchRequest, PeerCall, TermAnswer, TermRequest
from app.node.repair import log_repair as repair_module
from app.node.repair import peer_replicas
from app.node.repair.interfaces import DamagedCopy, FoundDamage, RepairState
from app.node.repair.log_repair import LogRepair
from app.node.repair.marker import Note, RepairMarker
from app.node.replica.driver import LogDriver
from storage.errors import CorruptFile, CorruptLog, DiskError, InvariantError, UnreadableFile
from storage.format.batch import stamp
from storage.format.records import encode_control
from storage.format.segment_format import segment_name
from storage.log.checkpoint import CheckpointFile, SnapshotFile
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.hard_state import HardState, HardStateFile
from storage.log.manifest import ManifestFile
from tests.support.memory_files import MemoryFiles
from tests.unit.node.repair.test_fetch import history
from tests.unit.node.repair.test_server import Clock
from tests.unit.raft.support import MemoryLog

BATCHES = history(40)
SIZES = CommitlogConfig(segment_max_bytes=4_000, mark_interval_bytes=1_000, tail_cache_bytes=0)
FOLDER = "data/logs/log"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of milliseconds before a repair tries something again."""
    monkeypatch.setattr(repair_module, "_RETRY_FIRST_S", 0.002)
    monkeypatch.setattr(repair_module, "_RETRY_LAST_S", 0.05)


class Peers:
    """Transport and other nodes in one: `answers` has the reply of a peer, None: no reply."""

    def __init__(self, answers: Callable[[str, PeerCall], PeerCall | None]) -> None:
        self.asked: list[tuple[str, PeerCall]] = []
        self.answers = answers
        self.calls = PeerCalls(self, Random(1))

    def send(self, target: str, log_id: int, message: Any) -> None:
        self.asked.append((target, message))
        answer = self.answers(target, message)
        if answer is not None:
            asyncio.get_running_loop().call_soon(self.calls.answered, target, log_id, answer)


class Host:
    """app.node.repair.log_repair.RepairHost: only opens the log, in place of its driver."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.log: Commitlog | None = None
        self.marked_when_opened = False
        self.sound: bool | None = None  # how the log was opened
        self.always_damaged = False

    def record(self, event: JournalEvent) -> None:
        self.events.append((event.kind, event.data))

    def open_log(self, *, sound: bool) -> Any:
        self.sound = sound
        if not self.files.exists(f"{FOLDER}/vote"):
            raise CorruptFile(f"{FOLDER}/vote", "missing")
        HardStateFile(self.files, f"{FOLDER}/vote").load()
        CheckpointFile(self.files, f"{FOLDER}/checkpoint").load()
        self.marked_when_opened = RepairMarker(self.files, "data", "log").exists
        if self.always_damaged:
            raise CorruptLog(FOLDER, 0, "a disk that rots at once")
        return Commitlog.open(self.files, FOLDER, log_id=7, config=SIZES)

    def serve(self, driver: LogDriver) -> None:
        self.log = driver  # type: ignore[assignment]  # what `open_log` gave

    def fail(self, what: str, error: BaseException) -> None:
        raise AssertionError(f"{what}: {error}")


def gives_all(_peer: str, message: PeerCall) -> PeerCall | None:
    """A healthy peer: two batches an answer."""
    if isinstance(message, TermRequest):
        return TermAnswer(message.id, 9)
    assert isinstance(message, FetchRequest)
    wanted = [b for b in BATCHES if message.first_index <= b.base_index <= message.last_index]
    return FetchAnswer(message.id, 0, 79, False, tuple(wanted[:2]))


class Scene:
    """A node's log of 40 batches, closed, with a vote."""

    def __init__(self) -> None:
        self.files = MemoryFiles()
        log = Commitlog.open(self.files, FOLDER, log_id=7, config=SIZES)
        log.append(BATCHES)
        log.close()
        HardStateFile(self.files, f"{FOLDER}/vote").save(HardState(4, "n2"))
        self.host = Host(self.files)
        self.votes = True
        self.state_type: type[LogState] = LogState
        self.is_configured = False
        self.learners: tuple[str, ...] = ()

    def repair(
        self, peers: Peers, cause: CorruptLog | CorruptFile, voters: tuple[str, ...], sound: bool
    ) -> LogRepair:
        return LogRepair(
            self.host,
            DamagedCopy(
                files=self.files,
                folder=FOLDER,
                log_name="log",
                log_id=7,
                node_id="n1",
                voters=voters,
                learners=self.learners,
                storage=SIZES,
                marker=RepairMarker(self.files, "data", "log"),
                votes=self.votes,
                state_type=self.state_type,
                is_configured=self.is_configured,
            ),
            FoundDamage(
                cause=cause,
                found_by="start",
                sound=sound,
            ),
            calls=peers.calls,
            clock=Clock(),
        )

    def run(
        self,
        peers: Peers,
        cause: CorruptLog | CorruptFile,
        voters: tuple[str, ...] = ("n1", "n2", "n3"),
        meanwhile: Callable[[LogRepair], Awaitable[None]] | None = None,
        sound: bool = True,
    ) -> LogRepair:
        async def bounded() -> LogRepair:
            async with asyncio.timeout(20):
                repair = self.repair(peers, cause, voters, sound)
                task = asyncio.create_task(repair.run())
                if meanwhile is not None:
                    await meanwhile(repair)
                await task
                return repair

        return asyncio.run(bounded())

    @property
    def segments(self) -> list[str]:
        return [name for name in self.files.list(FOLDER) if name.endswith(".log")]

    def damage(self, position: int, data: bytes = b"noise" * 40) -> CorruptLog:
        batch = BATCHES[position]
        for name in sorted(self.files.list(FOLDER), reverse=True):
            if name.endswith(".log") and int(name[:20]) <= batch.offset:
                self.files.open(f"{FOLDER}/{name}").pwrite(data, batch.offset - int(name[:20]))
                return CorruptLog(f"{FOLDER}/{name}", batch.offset, "noise")
        raise AssertionError("no such segment")


def test_every_stretch_is_fetched_and_the_log_is_as_it_was() -> None:
    scene, peers = Scene(), Peers(gives_all)
    scene.damage(3)
    repair = scene.run(peers, scene.damage(20))
    assert scene.host.log is not None
    assert scene.host.log.read_batches(0, 10**6) != []
    held = [batch for index in range(0, 80, 2) for batch in [scene.host.log.batch_at(index)]]
    assert held == BATCHES
    assert [(kind, data.get("found_by")) for kind, data in scene.host.events] == [("corruption", "start")]
    assert repair.result.batches >= 2
    assert not repair.result.set_aside
    assert scene.host.marked_when_opened  # the note stays until the core reports that it is healed
    assert scene.host.sound  # all that it promised is there
    asked = [message for _, message in peers.asked if isinstance(message, FetchRequest)]
    assert all(0 <= message.first_index <= message.last_index <= 79 for message in asked)


@pytest.mark.rule("R-02")
@pytest.mark.parametrize(
    ("positions", "sound"), [((39,), True), ((39, 3), True), ((3, 39), True), ((20,), False)]
)
def test_a_log_that_may_still_lack_what_it_promised_is_opened_unsound(
    positions: tuple[int, ...], sound: bool
) -> None:
    """Records after a damaged end are unknown, whatever else is damaged and repaired; and a copy that was not
    sound before is not made so."""
    scene = Scene()
    causes = [scene.damage(position) for position in positions]
    scene.run(Peers(gives_all), causes[0], sound=sound)
    assert scene.host.sound is False
    assert not RepairMarker(scene.files, "data", "log").keeps_promises


def test_the_promise_of_a_note_is_withdrawn_and_never_made_again() -> None:
    files = MemoryFiles()
    marker = RepairMarker(files, "data", "log")
    marker.save(Note("noise", "read", 1, keeps_promises=True, lacks_records=False))
    assert marker.keeps_promises
    assert not marker.lacks_records
    marker.save(Note("later", "scrub", 2, keeps_promises=False, lacks_records=True))
    marker.save(Note("later", "scrub", 3, keeps_promises=True, lacks_records=False))
    assert not marker.keeps_promises
    assert marker.lacks_records
    assert b"noise" in files.read("data/repairing/log")
    files.open("data/repairing/log").pwrite(b"x", 0)
    assert marker.exists
    assert not marker.keeps_promises


def trimmed_before(**begins: int) -> Callable[[str, PeerCall], PeerCall]:
    """Healthy peers whose logs begin at these indexes."""

    def answers(peer: str, message: PeerCall) -> PeerCall:
        assert isinstance(message, FetchRequest)
        if message.first_index < begins[peer]:
            return FetchAnswer(message.id, begins[peer], 79)
        held = gives_all(peer, message)
        assert isinstance(held, FetchAnswer)
        return FetchAnswer(message.id, begins[peer], 79, False, held.batches)

    return answers


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("positions", [(3,), (3, 35), (35, 3)])
def test_records_that_all_peers_have_trimmed_are_trimmed_here_and_the_rest_is_kept(
    positions: tuple[int, ...],
) -> None:
    scene = Scene()
    causes = [scene.damage(position) for position in positions]
    repair = scene.run(Peers(trimmed_before(n2=60, n3=62)), causes[0])
    assert not repair.result.set_aside
    assert scene.host.log is not None
    assert (scene.host.log.begin_index, scene.host.log.end_index) == (60, 79)
    assert [scene.host.log.batch_at(index) for index in range(60, 80, 2)] == BATCHES[30:]
    assert scene.host.sound  # every replica may remove what is missing
    assert repair.result.as_event().data["begin_index"] == 60
    assert not any(int(name[:20]) + 4_000 < BATCHES[30].offset for name in scene.segments)


@pytest.mark.rule("A-09", "H-06")
def test_a_master_gives_up_nothing_because_its_slaves_begin_later() -> None:
    """They began with its last segment: no trim has removed what they lack, and no other copy has it."""
    scene = Scene()
    scene.votes = False
    repair = scene.run(Peers(trimmed_before(n2=60, n3=62)), scene.damage(3))
    assert repair.result.set_aside
    assert any(int(name[:20]) == 0 for name in scene.files.list(f"{FOLDER}/aside") if name.endswith(".log"))


def test_a_log_begins_within_a_damage_where_the_peers_begin() -> None:
    scene = Scene()
    causes = [scene.damage(position) for position in range(25, 35)]
    repair = scene.run(Peers(trimmed_before(n2=60, n3=62)), causes[0])
    assert scene.host.log is not None
    assert (scene.host.log.begin_index, scene.host.log.end_index) == (60, 79)
    assert [scene.host.log.batch_at(index) for index in range(60, 80, 2)] == BATCHES[30:]
    assert repair.result.stretches == [{"first_index": 60, "last_index": 69}]
    assert scene.host.sound


@pytest.mark.parametrize("other", [False, True])
def test_a_log_of_which_all_peers_have_trimmed_everything_is_set_aside(other: bool) -> None:
    """Nothing of it is left, or it holds other records where the peers begin."""
    scene = Scene()

    def answers(_peer: str, message: PeerCall) -> PeerCall:
        assert isinstance(message, FetchRequest)
        begin = 60 if other else 80
        held = history(41, salt="other" if other else "")[begin // 2 :]
        batches = tuple(held[:1]) if message.first_index == begin else ()
        return FetchAnswer(message.id, begin, 81, False, batches)

    repair = scene.run(Peers(answers), scene.damage(3))
    assert repair.result.set_aside
    assert scene.host.log is not None
    assert scene.host.log.end_index == -1
    assert scene.host.sound is False
    assert RepairMarker(scene.files, "data", "log").lacks_records
    assert any(name.endswith(".log") for name in scene.files.list(f"{FOLDER}/aside"))
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(4, "n2")  # the promise stays


def test_peers_that_trim_while_they_are_asked_are_asked_for_their_new_begin() -> None:
    scene, asked = Scene(), 0

    def answers(peer: str, message: PeerCall) -> PeerCall:
        nonlocal asked
        asked += 1
        return trimmed_before(n2=60 + asked // 3 * 2 if asked < 24 else 76, n3=76)(peer, message)

    scene.run(Peers(answers), scene.damage(3))
    assert scene.host.log is not None
    assert scene.host.log.end_index == 79
    assert 60 <= scene.host.log.begin_index <= 76


@pytest.mark.rule("R-01")
def test_a_lost_vote_is_made_safe_by_the_terms_of_all_others() -> None:
    silent = ["n3"]

    def answers(peer: str, message: PeerCall) -> PeerCall | None:
        if peer in silent:
            silent.remove(peer)  # the first time
            return None
        return TermAnswer(message.id, 9 if peer == "n2" else 12)

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
    assert promise == HardState(9 + repair_module.VOTE_GAP, "n1")
    assert scene.host.sound


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


@pytest.mark.rule("R-01")
def test_a_lost_vote_also_asks_voters_that_only_the_log_knows() -> None:
    """The group has grown since the configuration was written: they too may have been voted for."""
    scene = Scene()
    log = Commitlog.open(scene.files, FOLDER, log_id=7, config=SIZES)
    value = {"kind": "membership", "voters": ["n1", "n2", "n3", "n4"], "learners": [], "nodes": {}}
    grown = stamp(
        encode_control(value),
        log_id=7,
        base_index=log.next_index,
        term=4,
        timestamp_ms=1,
        offset=log.end_offset,
        previous_chain=log.last_chain,
        control=True,
    )
    log.append([grown])
    log.close()
    scene.files.remove(f"{FOLDER}/vote")
    terms = {"n2": 5, "n3": 6, "n4": 9}
    peers = Peers(lambda peer, message: TermAnswer(message.id, terms[peer]))
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"))
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(9, "n1")


def test_a_repair_that_waits_is_logged_once_and_can_be_given_up() -> None:
    scene, peers = Scene(), Peers(lambda _peer, message: FetchAnswer(message.id, -1, -1))

    async def meanwhile(repair: LogRepair) -> None:
        while len(peers.asked) < 5 or repair.state is not RepairState.WAITING:  # noqa: ASYNC110  # bounded
            await asyncio.sleep(0.01)
        repair.give_up()

    scene.run(peers, scene.damage(3), meanwhile=meanwhile)
    assert scene.host.log is None
    assert [kind for kind, _ in scene.host.events] == ["corruption", "repair"]
    assert RepairMarker(scene.files, "data", "log").exists


def test_without_peers_nothing_is_thrown_away() -> None:
    scene, peers = Scene(), Peers(gives_all)

    async def meanwhile(repair: LogRepair) -> None:
        while repair.state is not RepairState.WAITING:  # noqa: ASYNC110  # bounded
            await asyncio.sleep(0.01)
        repair.give_up()

    before = scene.files.list(FOLDER)
    scene.run(peers, scene.damage(3), voters=("n1",), meanwhile=meanwhile)
    assert peers.asked == []
    assert set(before) - set(scene.files.list(FOLDER)) <= {"epochs"}  # created again from the log


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


def test_a_disk_that_rots_at_once_does_not_cause_an_endless_loop() -> None:
    scene, peers = Scene(), Peers(gives_all)
    scene.host.always_damaged = True

    async def meanwhile(repair: LogRepair) -> None:
        while repair.state is not RepairState.WAITING:  # noqa: ASYNC110  # bounded
            await asyncio.sleep(0.01)
        repair.give_up()

    scene.run(peers, scene.damage(3), meanwhile=meanwhile)
    kept = [name for name in scene.files.list(f"{FOLDER}/aside") if name.endswith(".log")]
    assert len(kept) > 3  # what was set aside first is still there


@pytest.mark.rule("C-04", "C-03")
def test_a_lost_epoch_of_a_log_that_does_not_vote_needs_no_peer_and_another_identity() -> None:
    """A term that no controller has given would make the copy deaf to every role."""
    scene, peers = Scene(), Peers(lambda _peer, _message: None)
    scene.votes = False
    scene.files.remove(f"{FOLDER}/vote")
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"))
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(BATCHES[-1].term, "n1")
    assert scene.host.sound is False


@pytest.mark.parametrize("error", [DiskError(FOLDER, "write", "refused"), InvariantError("not its log")])
def test_an_error_that_stops_a_node_also_stops_it_during_a_repair(error: Exception) -> None:
    scene = Scene()
    failures: list[BaseException] = []

    def record(_event: JournalEvent) -> None:
        raise error

    scene.host.record = record  # type: ignore[method-assign]
    scene.host.fail = lambda _what, error: failures.append(error)  # type: ignore[method-assign]
    scene.run(Peers(gives_all), scene.damage(3))
    assert failures == [error]
    assert scene.host.log is None


def test_a_full_disk_delays_a_repair_and_does_not_set_the_log_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repair_module, "_RETRY_LAST_S", 0.01)
    scene, waits = Scene(), 0
    last = [name for name in scene.files.list(FOLDER) if name.endswith(".log")][-1]
    scene.files.open(f"{FOLDER}/{last}").truncate(0)
    cause = CorruptLog(f"{FOLDER}/{last}", BATCHES[-1].offset, "the end is missing")

    def waited(peer: str, message: PeerCall) -> PeerCall | None:
        nonlocal waits
        waits += 1
        scene.files.space_bytes = 0 if waits < 10 else None
        return gives_all(peer, message)

    repair = scene.run(Peers(waited), cause)
    assert not repair.result.set_aside
    assert scene.host.log is not None
    assert [scene.host.log.batch_at(index) for index in range(0, 80, 2)] == BATCHES


@pytest.mark.parametrize(
    ("name", "sound"),
    [("vote", True), ("checkpoint", True), ("state", True), ("group", False), ("opened", False)],
)
def test_a_small_file_that_cannot_be_read_for_long_is_repaired_as_a_damaged_one(
    name: str, sound: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repair_module, "UNREADABLE_S", 0)
    scene = Scene()
    path = f"{FOLDER}/{name}"
    if name != "vote":
        scene.files.open(path, create=True)
    opened = scene.host.open_log

    def open_log(*, sound: bool) -> Any:
        scene.files.read(path)
        return opened(sound=sound)

    def unreadable(operation: str, met: str) -> None:
        if operation == "read" and met == path:
            raise DiskError(met, "read", "input/output error")

    scene.host.open_log = open_log if name == "vote" else opened  # type: ignore[method-assign]
    scene.files.refuse = unreadable

    def answers(peer: str, message: PeerCall) -> PeerCall | None:
        if isinstance(message, TermRequest) or name != "vote":
            scene.files.refuse = None  # a new file takes the place of the unreadable one
        return gives_all(peer, message)

    scene.run(Peers(answers), UnreadableFile(path, 0, "it cannot be read: input/output error"))
    assert scene.host.log is not None
    assert (scene.host.log.end_index, scene.host.sound) == (79, sound)
    assert name == "vote" or not scene.files.exists(path)


@pytest.mark.rule("R-01", "R-02")
@pytest.mark.parametrize("name", ["manifest", "vote", "origin", "checkpoint"])
def test_a_disk_that_refuses_reads_for_a_while_loses_nothing(name: str) -> None:
    """Three repairs in a row found the manifest unreadable and set the whole log aside within 14 ms."""
    scene, refused = Scene(), []

    def refuse_reads(operation: str, path: str) -> None:
        if operation == "read" and len(refused) < 4:
            refused.append(path)
            raise DiskError(path, operation, "input/output error")

    held = {file: scene.files.read(f"{FOLDER}/{file}") for file in ("manifest", "vote")}
    scene.files.refuse = refuse_reads
    cause = UnreadableFile(f"{FOLDER}/{name}", 0, "it cannot be read: input/output error")
    repair = scene.run(Peers(lambda _peer, _message: None), cause)
    assert scene.host.log is not None
    assert (scene.host.log.end_index, scene.host.sound, repair.result.set_aside) == (79, True, False)
    assert {file: scene.files.read(f"{FOLDER}/{file}") for file in held} == held
    assert [kind for kind, _ in scene.host.events] == ["corruption", "repair"]


@pytest.mark.rule("R-01", "R-02")
def test_an_unreadable_log_is_not_set_aside_while_no_peer_has_records_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else a group whose disks all refuse to read for a minute would begin again without its records."""
    monkeypatch.setattr(repair_module, "UNREADABLE_S", 0)
    scene = Scene()

    def refuse_reads(operation: str, path: str) -> None:
        if operation == "read":
            raise DiskError(path, operation, "input/output error")

    def offline(_peer: str, message: PeerCall) -> PeerCall | None:
        if isinstance(message, FetchRequest) and len(peers.asked) > 6:
            scene.files.refuse = None
        return FetchAnswer(message.id, NO_INDEX, NO_INDEX) if isinstance(message, FetchRequest) else None

    peers = Peers(offline)
    scene.files.refuse = refuse_reads
    path = f"{FOLDER}/manifest"
    repair = scene.run(peers, UnreadableFile(path, 0, "it cannot be read: input/output error"))
    assert scene.host.log is not None
    assert (scene.host.log.end_index, scene.host.sound, repair.result.set_aside) == (79, True, False)


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
    peers = Peers(lambda peer, message: TermAnswer(message.id, terms[peer]))
    scene.run(peers, CorruptFile(f"{FOLDER}/vote", "missing"))
    assert HardStateFile(scene.files, f"{FOLDER}/vote").load() == HardState(9, "n1")


def saved_state(scene: Scene, *members: str) -> None:
    """Save a state of the log that names these members."""
    value = {"kind": "membership", "voters": members, "learners": [], "nodes": {}}
    log = MemoryLog()
    log.write([log.stamp(encode_control(value), 1, control=True)])
    state = scene.state_type()
    state.apply(log.batches[0])
    state.committed(0)
    saved = msgspec.msgpack.encode((log.last_chain, state.snapshot()))
    SnapshotFile(scene.files, f"{FOLDER}/state").save(saved)


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
def test_a_repair_without_a_readable_state_asks_the_configured_members() -> None:
    scene = Scene()
    scene.is_configured = True
    scene.files.open(f"{FOLDER}/state", create=True).pwrite(b"noise", 0)
    peers = Peers(gives_all)
    scene.run(peers, scene.damage(20))
    assert {peer for peer, _ in peers.asked} <= {"n2", "n3"}
    assert scene.host.sound
