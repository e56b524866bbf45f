"""The course of one repair over a log in memory and scripted peers."""

import asyncio

import pytest

from app.log.events import JournalEvent
from app.node.network.repair_messages import FetchAnswer, FetchRequest, PeerCall
from app.node.repair import log_repair as repair_module
from app.node.repair.interfaces import RepairState
from app.node.repair.log_repair import LogRepair
from app.node.repair.marker import Note, RepairMarker
from storage.errors import CorruptLog, DiskError, InvariantError
from tests.support.memory_files import MemoryFiles
from tests.unit.node.repair.damaged_log import BATCHES, FOLDER, Peers, Scene, gives_all


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


async def give_up_when_it_waits(repair: LogRepair) -> None:
    while repair.state is not RepairState.WAITING:  # noqa: ASYNC110  # bounded
        await asyncio.sleep(0.01)
    repair.give_up()


def test_without_peers_nothing_is_thrown_away() -> None:
    scene, peers = Scene(), Peers(gives_all)

    before = scene.files.list(FOLDER)
    scene.run(peers, scene.damage(3), voters=("n1",), meanwhile=give_up_when_it_waits)
    assert peers.asked == []
    assert set(before) - set(scene.files.list(FOLDER)) <= {"epochs"}  # created again from the log


def test_a_disk_that_rots_at_once_does_not_cause_an_endless_loop() -> None:
    scene, peers = Scene(), Peers(gives_all)
    scene.host.always_damaged = True

    scene.run(peers, scene.damage(3), meanwhile=give_up_when_it_waits)
    kept = [name for name in scene.files.list(f"{FOLDER}/aside") if name.endswith(".log")]
    assert len(kept) > 3  # what was set aside first is still there


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
