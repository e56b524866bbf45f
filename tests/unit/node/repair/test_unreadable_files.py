"""Repairs of files that a disk refuses to read."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.log.contract import NO_INDEX
from app.node.network.repair_messages import FetchAnswer, FetchRequest, PeerCall, TermRequest
from app.node.repair import fetch
from app.node.repair import log_repair as repair_module
from app.node.repair.copy_files import CopyFiles
from app.node.repair.interfaces import RepairState
from app.node.repair.log_repair import LogRepair
from storage.care.survey import Survey
from storage.errors import DiskError, UnreadableFile
from storage.format.batch import Batch
from tests.unit.node.repair.damaged_log import BATCHES, FOLDER, Peers, Scene, gives_all
from tests.unit.node.repair.test_server import Node


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
    assert name in ("vote", "group") or not scene.files.exists(path)


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


def lacks_them(_peer: str, message: PeerCall) -> PeerCall:
    return FetchAnswer(message.id, 0, 39)


@pytest.mark.rule("C-12", "H-07")
@pytest.mark.parametrize("position", [39, 25])
@pytest.mark.parametrize(("votes", "voters"), [(False, ("n1", "n2")), (True, ("n1",)), (False, ("n1",))])
def test_records_that_no_peer_has_are_read_again_after_a_read_error(
    votes: bool, voters: tuple[str, ...], position: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master whose slave lacked them waited for the slave until the node was started again."""
    monkeypatch.setattr(fetch, "PAUSE_LAST_MS", 1)
    monkeypatch.setattr(repair_module, "_RETRY_LAST_S", 0.001)
    scene, offset = Scene(), BATCHES[position].offset
    scene.votes = votes
    path = f"{FOLDER}/{max(name for name in scene.segments if int(name[:20]) <= offset)}"

    def refuse_reads(operation: str, met: str) -> None:
        if operation == "read" and met == path:
            raise DiskError(met, operation, "input/output error")

    scene.files.refuse = refuse_reads

    async def meanwhile(repair: LogRepair) -> None:
        while repair.state is not RepairState.WAITING:  # noqa: ASYNC110  # bounded
            await asyncio.sleep(0.001)
        assert scene.host.log is None
        scene.files.refuse = None

    cause = UnreadableFile(path, offset, "it cannot be read: input/output error")
    repair = scene.run(Peers(lacks_them), cause, voters=voters, meanwhile=meanwhile)
    assert scene.host.log is not None
    assert [scene.host.log.batch_at(index) for index in range(0, 80, 2)] == BATCHES
    assert not repair.result.set_aside


@pytest.mark.rule("C-12", "H-07")
@pytest.mark.parametrize("voters", [("n1", "n2"), ("n1",)])
def test_a_disk_that_reads_only_now_and_then_is_read_again(
    voters: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read the batch, then refused it to the survey: the batch was never read again."""
    monkeypatch.setattr(fetch, "PAUSE_LAST_MS", 1)
    monkeypatch.setattr(repair_module, "_RETRY_LAST_S", 0.001)
    scene, offset = Scene(), BATCHES[25].offset
    scene.votes = False
    path = f"{FOLDER}/{max(name for name in scene.segments if int(name[:20]) <= offset)}"
    survey, surveys = CopyFiles.survey, []

    def refuse_reads(operation: str, met: str) -> None:
        if operation == "read" and met == path:
            raise DiskError(met, operation, "input/output error")

    def survey_of_a_sick_disk(copy: CopyFiles) -> Survey:
        surveys.append(copy)
        scene.files.refuse = refuse_reads if len(surveys) <= 3 else None
        found = survey(copy)
        scene.files.refuse = None
        return found

    async def meanwhile(_repair: LogRepair) -> None:
        async with asyncio.timeout(5):
            while scene.host.log is None:  # noqa: ASYNC110  # bounded
                await asyncio.sleep(0.001)

    monkeypatch.setattr(CopyFiles, "survey", survey_of_a_sick_disk)
    cause = UnreadableFile(path, offset, "it cannot be read: input/output error")
    scene.run(Peers(lacks_them), cause, voters=voters, meanwhile=meanwhile)
    assert scene.host.log is not None
    assert [scene.host.log.batch_at(index) for index in range(0, 80, 2)] == BATCHES


class Unsurveyed:
    """A log under repair that gives nothing yet."""

    async def term(self) -> int | None:
        return None

    async def held(
        self, _first_index: int, _last_index: int, _max_bytes: int, *, committed: bool
    ) -> Sequence[Batch]:
        return ()


def busy_offline(request: FetchRequest) -> PeerCall:
    """The answer of a node that reads another log under repair just now."""

    async def answered() -> PeerCall:
        node = Node(committed=19)
        async with node.server._reading:
            await node.server.answer("n1", 7, None, request, Unsurveyed())
        return node.sent.pop()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, answered()).result()


def gives_nothing(request: FetchRequest) -> PeerCall:
    return FetchAnswer(request.id, NO_INDEX, NO_INDEX)


@pytest.mark.rule("R-01", "R-02")
@pytest.mark.parametrize("answer", [gives_nothing, busy_offline])
def test_an_unreadable_log_is_not_set_aside_while_no_peer_has_records_of_it(
    answer: Callable[[FetchRequest], PeerCall],
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
        return answer(message) if isinstance(message, FetchRequest) else None

    peers = Peers(offline)
    scene.files.refuse = refuse_reads
    path = f"{FOLDER}/manifest"
    repair = scene.run(peers, UnreadableFile(path, 0, "it cannot be read: input/output error"))
    assert scene.host.log is not None
    assert (scene.host.log.end_index, scene.host.sound, repair.result.set_aside) == (79, True, False)
