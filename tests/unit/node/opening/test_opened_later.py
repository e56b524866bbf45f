"""A replica that cannot be opened now is opened later, and keeps no files open meanwhile."""

import asyncio
import threading
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.controller.metadata import CONTROLLER_LOG, LogSpec
from app.ha.auto_switch.slave_side import Rollback
from app.log.contract import Role
from app.node.hosted_log import HostedLog
from app.node.hosted_logs import HostedLogs
from app.node.hosting.log_journals import LogJournals
from app.node.hosting.node_logs import NodeLogs
from app.node.repair.rollbacks import Rollbacks
from app.node.tasks import TaskSupervisor
from app.settings.model import LogSettings
from storage.errors import CorruptFile, DiskError, NewerFormat, StorageFull
from storage.files import OsFileSystem
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.hard_state import HardState, HardStateFile
from storage.log.journal import Journal
from tests.support.event_loop import until
from tests.support.memory_files import MemoryFiles
from tests.unit.node.repair.test_fetch import history
from tests.unit.node.repair.test_server import Clock
from tests.unit.node.replica.driver_support import Node, result

SPEC = LogSpec(replication="raft", replicas=("n1", "n2"))


class Lane:
    async def drain(self) -> None:
        """No work waits."""


class Scene:
    """A node whose opener has no space at first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.refusal: Exception | None = StorageFull("data/logs/a/vote", "write", "no space left")
        self.files = MemoryFiles()
        self.attempts = self.open_journals = 0
        self.opened_by: int | None = None  # thread of the last opening
        self.begins: bool | None = None  # whether the last opening took an empty folder for a new one
        self.predates_folder: bool | None = None  # the same for the log and the data folder
        disk: Any = SimpleNamespace(lane=lambda _name: Lane())
        services: Any = SimpleNamespace(
            node_id="n1",
            data_folder="data",
            files=self.files,
            storage=CommitlogConfig(),
            clock=Clock(),
            transport=SimpleNamespace(send=None),
            random=Random(1),
            fail=None,
            disk=disk,
            log_folder=lambda name: f"data/logs/{name}",
        )
        nothing = SimpleNamespace(detach=lambda _hosted: None)
        self.hosted_logs = HostedLogs()
        self.tasks = TaskSupervisor(lambda _what, error: pytest.fail(str(error)))
        self.node_logs = NodeLogs(
            cast(Any, SimpleNamespace(open=self._open)),
            services,
            disk,
            self.hosted_logs,
            LogJournals(services, 1 << 20, self.hosted_logs),
            cast(Any, nothing),
            self.tasks,
            cast(Any, None),
        )
        opened, closed = Journal.__init__, Journal.close

        def opening(journal: Journal, *given: Any) -> None:
            opened(journal, *given)
            self.open_journals += 1

        def closing(journal: Journal) -> None:
            closed(journal)
            self.open_journals -= 1

        monkeypatch.setattr(Journal, "__init__", opening)
        monkeypatch.setattr(Journal, "close", closing)
        self.hosted = HostedLog(LogSettings.of_spec("a", SPEC), 7)
        self.hosted.generation = 0

    def _open(
        self, hosted: HostedLog, _events: object, *, begins: bool, predates_folder: bool, **_: bool
    ) -> None:
        """Open nothing while the disk refuses it to the log `a`."""
        self.attempts += 1
        self.opened_by = threading.get_ident()
        self.begins, self.predates_folder = begins, predates_folder
        if self.refusal is not None and hosted is self.hosted:
            raise self.refusal


@pytest.mark.rule("R-01", "R-02")
@pytest.mark.parametrize(("generation", "begins"), [(3, False), (9, False), (10, True)])
def test_an_empty_folder_is_new_only_if_its_log_is_newer_than_all_metadata_of_this_node(
    monkeypatch: pytest.MonkeyPatch, generation: int, begins: bool
) -> None:
    """A kill leaves an old checkpoint: the log may have been opened, and its files removed since."""
    scene = Scene(monkeypatch)
    scene.refusal, scene.hosted.generation = None, generation
    scene.node_logs.know_metadata(
        cast(Any, SimpleNamespace(committed_index=5, log=SimpleNamespace(end_index=9)))
    )
    asyncio.run(scene.node_logs.open_replica(scene.hosted))
    assert scene.begins is begins


@pytest.mark.rule("R-02", "R-10")
@pytest.mark.parametrize(
    ("generation", "predates"), [(-1, False), (4, True), (5, False)], ids=["configured", "older", "newer"]
)
def test_only_a_log_of_the_metadata_may_be_older_than_the_data_folder(
    monkeypatch: pytest.MonkeyPatch, generation: int, predates: bool
) -> None:
    """That an earlier incarnation knew it is not enough: it may have been killed before it opened the log."""
    scene = Scene(monkeypatch)
    scene.refusal, scene.hosted.generation = None, generation
    scene.node_logs._birth.save(4)
    scene.node_logs.know_metadata(
        cast(Any, SimpleNamespace(committed_index=5, log=SimpleNamespace(end_index=9)))
    )
    asyncio.run(scene.node_logs.open_replica(scene.hosted))
    assert scene.predates_folder is predates
    assert scene.node_logs.repairs._predates_folder(scene.hosted) is predates


@pytest.mark.rule("C-10")
def test_a_replica_that_was_added_while_the_disk_was_full_counts_as_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a journal it would count as open, and would never be opened again."""
    scene = Scene(monkeypatch)
    for _ in range(2):
        with pytest.raises(StorageFull):
            asyncio.run(scene.node_logs.open_replica(scene.hosted))
        assert (scene.hosted.journal, scene.open_journals) == (None, 0)
    scene.refusal = None
    asyncio.run(scene.node_logs.open_replica(scene.hosted))
    assert scene.hosted.journal is not None


def test_a_log_beyond_what_the_descriptors_allow_is_opened_once_another_one_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a descriptor for its sync each log would end the node, which could not start again."""
    monkeypatch.setattr("app.node.hosting.log_journals.logs_allowed", lambda: 2)
    scene = Scene(monkeypatch)
    scene.refusal = None
    others = [HostedLog(LogSettings.of_spec(name, SPEC), number) for number, name in enumerate("bc")]
    for other in others:
        scene.hosted_logs.add(other)
        asyncio.run(scene.node_logs.open_replica(other))
    with pytest.raises(StorageFull, match="2 logs are open, as many as"):
        asyncio.run(scene.node_logs.open_replica(scene.hosted))
    assert (scene.hosted.journal, scene.open_journals) == (None, 2)
    asyncio.run(scene.node_logs.close_log(others[0]))
    asyncio.run(scene.node_logs.open_replica(scene.hosted))
    assert scene.hosted.journal is not None


@pytest.mark.rule("R-10")
def test_a_member_that_its_leader_pushes_to_joins_once_the_disk_has_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("app.node.hosting.node_logs._JOIN_RETRY_S", 0.1)
    scene = Scene(monkeypatch)

    async def pushes() -> None:
        for _ in range(3):
            scene.node_logs.join(scene.hosted)
        await until(lambda: not scene.hosted.is_opening)
        scene.node_logs.join(scene.hosted)
        assert (scene.attempts, scene.hosted.journal, scene.open_journals) == (1, None, 0)
        scene.refusal = None
        await asyncio.sleep(0.11)
        scene.node_logs.join(scene.hosted)
        await until(lambda: not scene.hosted.is_opening)
        await scene.tasks.stop()

    asyncio.run(pushes())
    assert scene.hosted.journal is not None


@pytest.mark.rule("R-10")
def test_a_log_is_joined_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its opening waits for about 20 syncs: on a slow disk all other logs of the node would wait too."""
    scene = Scene(monkeypatch)
    scene.refusal = None

    async def push() -> None:
        scene.node_logs.join(scene.hosted)
        assert not scene.hosted.release_files()  # a removal waits for the opening
        await until(lambda: not scene.hosted.is_opening)
        await scene.tasks.stop()

    asyncio.run(push())
    assert (scene.attempts, scene.open_journals) == (1, 1)
    assert scene.opened_by not in (None, threading.get_ident())


def test_a_log_without_space_for_its_opening_keeps_no_other_log_from_being_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk is full and the reserve exhausted: one log needs no space, the other one opens later."""
    scene = Scene(monkeypatch)
    other = HostedLog(LogSettings.of_spec("b", SPEC), 8)
    scene.hosted_logs.add(HostedLog(LogSettings.of_spec("__controller", SPEC), 9))

    async def start() -> None:
        opened = await scene.node_logs.open_all([scene.hosted, other], 2)
        assert (scene.hosted.journal is None, other.journal is None, scene.open_journals) == (True, False, 1)
        await scene.node_logs.serve_all(opened)
        await until(lambda: "open a" in scene.tasks.failing)  # /readyz and a metric report it
        assert (scene.hosted.journal, scene.open_journals) == (None, 1)
        scene.refusal = None
        await until(lambda: scene.hosted.journal is not None and not scene.tasks.failing)
        await scene.tasks.stop()

    asyncio.run(start())
    assert scene.open_journals == 2


def test_a_node_without_space_for_its_metadata_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.hosted_logs.controller = scene.hosted
    with pytest.raises(StorageFull):
        asyncio.run(scene.node_logs.open_all([scene.hosted], 1))


def test_a_log_that_is_being_opened_is_neither_opened_twice_nor_removed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene = Scene(monkeypatch)
    scene.refusal = None

    async def at_once() -> None:
        opening = asyncio.create_task(scene.node_logs.open_replica(scene.hosted))
        await asyncio.sleep(0)  # the thread has begun; that it has ended is noticed in a later turn
        scene.node_logs.join(scene.hosted)
        await scene.node_logs.open_replica(scene.hosted)
        assert not scene.hosted.release_files()
        await opening

    asyncio.run(at_once())
    assert (scene.attempts, scene.open_journals, scene.hosted.release_files()) == (1, 1, True)


@pytest.mark.rule("R-11")
def test_a_file_that_cannot_be_read_at_the_opening_is_damage_of_its_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would end the start of the node, with all of its logs."""
    scene = Scene(monkeypatch)
    scene.refusal = DiskError("data/logs/a/vote", "read", "input/output error")
    found: list[str] = []
    monkeypatch.setattr(
        scene.node_logs.repairs, "begin", lambda _hosted, cause, _found_by: found.append(cause.path)
    )
    asyncio.run(scene.node_logs.open_replica(scene.hosted))
    assert found == ["data/logs/a/vote"]
    scene.refusal = DiskError("data/elsewhere", "read", "input/output error")  # no repair of the log helps
    with pytest.raises(DiskError):
        asyncio.run(scene.node_logs.open_replica(scene.hosted))


@pytest.mark.rule("R-11")
def test_a_journal_that_cannot_be_read_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(monkeypatch)
    scene.refusal = None
    asyncio.run(scene.node_logs.open_replica(scene.hosted))
    asyncio.run(scene.node_logs.close_log(scene.hosted))

    def unreadable(operation: str, path: str) -> None:
        if operation == "read" and path == "data/journal/a/manifest":
            scene.files.refuse = None  # the file that is set aside
            raise DiskError(path, "read", "input/output error")

    scene.files.refuse = unreadable
    asyncio.run(scene.node_logs.open_replica(scene.hosted))
    assert scene.hosted.journal is not None


def test_an_opening_that_fails_closes_the_log_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)
    result(node.append())
    folder = node.driver.log.folder
    vote = HardStateFile(OsFileSystem(), f"{folder}/vote")
    vote.load()
    vote.save(HardState(0))  # older than the log: this node must not take part
    closed: list[str] = []
    monkeypatch.setattr(Commitlog, "close", lambda log: closed.append(log.folder))
    with pytest.raises(CorruptFile, match="older than the log"):
        node.open()
    assert closed == [folder]


@pytest.mark.rule("R-01", "D-20")
def test_a_log_of_a_later_version_ends_the_start_and_is_not_repaired(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that was rolled back: only the version that wrote the log may change it."""
    scene = Scene(monkeypatch)
    scene.refusal = NewerFormat("data/logs/a/vote", "its format is 2")

    async def run() -> None:
        with pytest.raises(NewerFormat, match="start that version"):
            await scene.node_logs.open_all([scene.hosted], 1)
        with pytest.raises(NewerFormat, match="start that version"):
            await scene.node_logs.open_replica(scene.hosted)

    asyncio.run(run())
    assert scene.hosted.repair is None


@pytest.mark.rule("A-04")
def test_damage_that_is_found_by_the_opening_after_a_rollback_is_repaired(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rollback still had the files for itself then, and the log stayed closed until a restart."""
    scene = Scene(monkeypatch)
    hosted, folder = scene.hosted, "data/logs/a"
    log = Commitlog.open(scene.files, folder, log_id=7)
    log.append(history(10))
    log.close()
    hosted.journal = cast(Any, "open")
    hosted.driver = cast(Any, SimpleNamespace(abandon=lambda: None, close=log.close))
    hosted.ha = cast(Any, SimpleNamespace(wanted_rollback=Rollback(1, 2)))
    scene.refusal = CorruptFile(f"{folder}/vote", "checksum")
    rollbacks = Rollbacks(scene.node_logs, scene.node_logs._services, lambda *_: None, cast(Any, scene.tasks))

    async def run() -> None:
        rollbacks.begin_wanted(hosted)
        await until(lambda: hosted.rollback is None)
        assert (scene.attempts, hosted.driver) == (1, None)
        assert hosted.repair is not None
        assert str(hosted.repair.cause) == str(scene.refusal)
        await scene.tasks.stop()

    asyncio.run(run())


@pytest.mark.rule("R-08", "C-10")
def test_a_read_that_a_repair_overtakes_does_not_show_that_the_repaired_log_has_caught_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A repair of `__controller` may bring older metadata back: they must not count as the newest."""
    scene = Scene(monkeypatch)
    node_logs, hosted = scene.node_logs, scene.hosted
    scene.hosted_logs.add(HostedLog(LogSettings.of_spec(CONTROLLER_LOG, SPEC), 0))
    hosted.driver = cast(Any, SimpleNamespace(role=Role.FOLLOWER))

    async def read_index(_hosted: HostedLog) -> int:
        hosted.driver = None  # as the repair does before this read continues
        return 7

    node_logs._waits = cast(Any, SimpleNamespace(read_index=read_index))
    asyncio.run(node_logs._watch_until_caught_up(hosted))
    assert not hosted.caught_up
