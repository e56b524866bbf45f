"""A node follows the metadata log by log: what one log does never keeps it from the others."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from app.api.access.tokens import Tokens
from app.api.routes.health import readyz
from app.controller.metadata import CONTROLLER_LOG, LOG_DELETING, Log, LogSpec
from app.errors import LogNotFound, NoLeader, QuorumTimeout
from app.log.contract import Durability, LogOptions
from app.node.hosted_log import HostedLog
from app.node.hosted_logs import HostedLogs
from app.node.hosting.log_lookup import LogLookup
from app.node.metadata.folders import LogFolders
from app.node.metadata.logs import MetadataLogs
from app.node.request_waits import Waits
from app.settings.model import LogSettings
from storage.errors import StorageFull
from tests.support.memory_files import MemoryFiles


class Metadata(list[Log]):
    applied_index = 9

    def log(self, name: str) -> Log | None:
        return next((log for log in self if log.name == name), None)


class Folders:
    """Notes what is done to the folders of copies."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.lines: dict[str, int] = {}
        self.failing: Exception | None = None

    def prepare(self, name: str, generation: int, log_id: int) -> None:
        self.done.append(f"prepare {name} {generation}")

    def make_way(self, name: str, generation: int, log_id: int) -> bool:
        """There is no earlier log of the name."""
        return False

    def kept_generation(self, name: str) -> int | None:
        return self.lines.get(name)

    def kept(self) -> list[str]:
        return list(self.lines)

    def adopt(self, name: str, generation: int) -> None:
        """The copy has a line already."""

    def finish_removal(self, name: str) -> None:
        self.done.append(f"finish {name}")

    def remove(self, name: str) -> None:
        self.done.append(f"remove {name}")

    def drop(self, name: str, generation: int) -> None:
        if self.failing is not None:
            raise self.failing
        self.done.append(f"drop {name} {generation}")


class Host:
    """Opens every log except those that the test makes fail."""

    def __init__(self) -> None:
        self.folders = Folders()
        self.logs = HostedLogs()
        self.logs.add(
            HostedLog(LogSettings.of_spec(CONTROLLER_LOG, LogSpec(replication="raft", replicas=("n1",))), 0)
        )
        self.open: dict[str, Any] = self.logs.by_name
        self.failing: dict[str, Exception] = {}

    async def add_log(self, settings: LogSettings, log_id: int, generation: int) -> None:
        if settings.name in self.failing:
            raise self.failing[settings.name]
        hosted = self.open[settings.name] = HostedLog(settings, log_id)
        hosted.generation = generation

    async def open_replica(self, hosted: Any) -> None:
        if hosted.name in self.failing:
            raise self.failing[hosted.name]
        hosted.journal = "open"

    async def close_log(self, hosted: Any) -> None:
        hosted.journal = None


def log_of(name: str, generation: int, replication: str = "raft") -> Log:
    spec = LogSpec(replication=replication, replicas=("n1",))
    return Log(name=name, log_id=generation, generation=generation, spec=spec, version=generation)


def follower(metadata: Metadata) -> tuple[MetadataLogs, Host, Any]:
    async def in_thread(work: Any, *given: Any) -> Any:
        return work(*given)

    host = Host()
    service: Any = SimpleNamespace(
        metadata=metadata,
        followed_index=-1,
        client=SimpleNamespace(heartbeat_now=lambda: None),
        is_newest=True,
        is_current=True,
    )
    folders = Folders()
    host.folders = folders
    logs = MetadataLogs(
        node_id="n1",
        metadata=service,
        host=cast(Any, host),
        hosted=host.logs,
        folders=cast(Any, folders),
        in_thread=in_thread,
    )
    return logs, host, service


def test_a_log_of_an_unknown_mode_is_left_alone_and_the_others_are_followed() -> None:
    metadata = Metadata([log_of("a", 1), log_of("b", 2, "chain"), log_of("c", 3)])
    logs, host, service = follower(metadata)
    assert asyncio.run(logs.follow())
    assert list(host.open) == ["a", "c"]
    assert list(logs.unsupported) == ["b"]
    assert "chain" in logs.unsupported["b"].reason
    assert service.followed_index == 9
    metadata[:] = [log_of("a", 1, "chain"), log_of("b", 4)]  # a node of the newer version has changed a
    assert asyncio.run(logs.follow())
    assert list(logs.unsupported) == ["a"]
    assert host.open["a"].settings.replication == "raft"
    assert sorted(host.open) == ["a", "b"]
    metadata[:] = []
    assert asyncio.run(logs.follow())
    assert (host.open, logs.unsupported) == ({}, {})


def test_a_failure_of_one_log_is_tried_again_and_the_others_are_followed() -> None:
    logs, host, service = follower(Metadata([log_of("a", 1), log_of("b", 2)]))
    host.failing["a"] = RuntimeError("a broken invariant")
    assert not asyncio.run(logs.follow())
    assert (list(host.open), service.followed_index) == (["b"], 9)
    host.failing.clear()
    assert asyncio.run(logs.follow())
    assert (sorted(host.open), service.followed_index) == (["a", "b"], 9)


@pytest.mark.parametrize("case", ["not followed", "not opened", "older metadata"])
def test_a_creation_that_this_node_does_not_carry_out_in_time_is_not_reported_as_refused(case: str) -> None:
    """The log exists then: the outcome of the call is unknown, and its repeat finds the log."""
    logs, host, service = follower(Metadata([log_of("a", 1)]))
    service.hosted = SimpleNamespace(removed=False)
    service.is_current = case != "older metadata"
    if case == "not opened":
        host.failing["a"] = StorageFull("a", "open", "full")
        assert not asyncio.run(logs.follow())
    lookup = LogLookup(HostedLogs(), service, logs, Waits(leader_wait_ms=0))
    with pytest.raises(QuorumTimeout, match="the log was created") as raised:
        asyncio.run(lookup.known("a", 0))
    assert (raised.value.outcome, raised.value.retryable) == ("unknown", True)


def test_a_log_that_cannot_be_opened_exists_and_the_node_is_not_ready() -> None:
    """A caller that finds no log would give up, instead of calling another node."""
    logs, host, service = follower(Metadata([log_of("a", 1)]))
    service.hosted = SimpleNamespace(removed=False)
    lookup = LogLookup(HostedLogs(), service, logs, Waits(leader_wait_ms=0))
    broker: Any = SimpleNamespace(
        logs={},
        metadata=service,
        metadata_logs=logs,
        tasks=SimpleNamespace(failing={}),
        waits=SimpleNamespace(stopping=False),
    )

    request: Any = SimpleNamespace(
        app=SimpleNamespace(state=SimpleNamespace(tokens=Tokens.load(None))), headers={}
    )

    def status() -> int:
        return asyncio.run(readyz(request, broker, cast(Any, None))).status_code

    host.failing["a"] = StorageFull("a", "open", "full")
    assert not asyncio.run(logs.follow())
    with pytest.raises(NoLeader, match="could not open the log"):
        lookup.find("a")
    with pytest.raises(LogNotFound):
        lookup.find("b")
    assert status() == 503
    host.failing.clear()
    assert asyncio.run(logs.follow())
    assert (list(logs.unopened), status()) == ([], 200)


@pytest.mark.rule("C-10")
def test_a_log_that_cannot_be_opened_keeps_no_other_one_from_being_deleted() -> None:
    """The controllers wait until each living node follows the metadata with the deletion."""
    metadata = Metadata([log_of("a", 1), log_of("b", 2)])
    logs, host, service = follower(metadata)
    host.failing["a"] = StorageFull("a", "open", "full")
    assert not asyncio.run(logs.follow())
    metadata[1] = msgspec.structs.replace(metadata[1], state=LOG_DELETING, version=10)
    metadata.applied_index = 10
    host.open["b"].release_files = lambda: False  # a repair uses its files
    assert not asyncio.run(logs.follow())
    assert service.followed_index == 9
    del host.open["b"].release_files
    assert not asyncio.run(logs.follow())
    assert (host.folders.done[-1], service.followed_index) == ("remove b", 10)


@pytest.mark.parametrize("generation", [-1, 1])
def test_changed_settings_of_a_log_are_applied_and_unknown_values_are_not(generation: int) -> None:
    """Settings of a log of the configuration file (-1), and of one that a client has created."""
    before = LogSpec(replication="controller", replicas=("n1", "n2"))
    changed = msgspec.structs.replace(
        before, durability="replicated", preferred="n1", min_in_sync_replicas=2, in_sync_replicas=2
    )
    metadata = Metadata([Log(name="a", log_id=1, generation=generation, spec=changed, version=3)])
    logs, host, _ = follower(metadata)
    hosted = host.open["a"] = HostedLog(LogSettings.of_spec("a", before), 1)
    hosted.generation, hosted.journal = generation, "open"
    assert asyncio.run(logs.follow())
    settings, options = hosted.settings, hosted.settings.options
    assert (options.durability, settings.preferred) == (Durability.REPLICATED, "n1")
    assert (options.min_in_sync_replicas, options.in_sync_replicas) == (2, 2)
    metadata[0] = msgspec.structs.replace(metadata[0], spec=msgspec.structs.replace(changed, durability="?"))
    asyncio.run(logs.follow())
    assert hosted.settings is settings


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("generation", [-1, 1])
def test_a_master_learns_the_floor_that_its_log_had_before_it_was_raised(generation: int) -> None:
    spec = LogSpec(replication="classic", replicas=("n1", "n2"), min_in_sync_replicas=2)
    log = Log(name="a", log_id=1, generation=generation, spec=spec, version=3, raised_from=1)
    logs, host, _ = follower(Metadata([log]))
    hosted = host.open["a"] = HostedLog(LogSettings.of_spec("a", spec), 1)
    hosted.generation = generation
    assert asyncio.run(logs.follow())
    assert hosted.settings.options.raised_from == 1


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("is_changed", [False, True])
def test_a_master_trusts_no_floor_of_metadata_that_may_be_old(is_changed: bool) -> None:
    """Without controllers the newest metadata are unknown: they may have a lower floor, which others used."""
    spec = LogSpec(replication="classic", replicas=("n1", "n2"), min_in_sync_replicas=2)
    log = Log(name="a", log_id=1, generation=-1, spec=spec, version=3)
    logs, host, service = follower(Metadata([log] if is_changed else []))
    service.is_current = False
    hosted = host.open["a"] = HostedLog(LogSettings.of_spec("a", spec), 1)
    assert hosted.settings.options.raised_from == 1
    assert asyncio.run(logs.follow())
    assert hosted.settings.options.raised_from == 1
    service.is_current = True
    assert asyncio.run(logs.follow())
    assert hosted.settings.options.raised_from == 0


@pytest.mark.rule("C-12")
def test_settings_changed_while_a_log_is_opened_reach_its_driver() -> None:
    before = LogSpec(replication="controller", replicas=("n1", "n2"))
    after = msgspec.structs.replace(before, min_in_sync_replicas=2)
    hosted = HostedLog(LogSettings.of_spec("a", before), 1)
    taken: list[LogOptions] = []
    driver: Any = SimpleNamespace(change_options=taken.append)
    hosted.take_settings(LogSettings.of_spec("a", after))  # a repair opens it, with the settings of before
    hosted.opened(driver)
    assert [each.min_in_sync_replicas for each in taken] == [2]
    hosted.take_settings(LogSettings.of_spec("a", before))
    assert [each.min_in_sync_replicas for each in taken] == [2, 1]


def of_nodes(metadata: Metadata, *replicas: str, leaving: tuple[str, ...] = (), generation: int = 1) -> None:
    """The log "a" in controller mode is kept by these nodes from now on."""
    before = metadata[0] if metadata else log_of("a", generation, "controller")
    spec = LogSpec(replication="controller", replicas=replicas)
    metadata[:] = [msgspec.structs.replace(before, spec=spec, leaving=leaving)]
    metadata.applied_index += 1


@pytest.mark.rule("C-10")
def test_a_new_replica_is_opened_and_one_that_was_taken_out_is_removed() -> None:
    metadata = Metadata()
    of_nodes(metadata, "n2")
    logs, host, _ = follower(metadata)
    assert asyncio.run(logs.follow())
    hosted: Any = host.open["a"]
    assert hosted.journal is None
    of_nodes(metadata, "n1", "n2")
    assert asyncio.run(logs.follow())
    assert (hosted.journal, host.folders.done) == ("open", ["prepare a 1"])
    of_nodes(metadata, "n2", leaving=("n1",))
    assert asyncio.run(logs.follow())
    assert hosted.journal == "open"
    of_nodes(metadata, "n2")
    assert asyncio.run(logs.follow())
    assert hosted.journal is None
    assert host.folders.done[-1] == "drop a 1"
    assert host.open["a"] is hosted


@pytest.mark.rule("C-03")
def test_metadata_of_an_earlier_time_remove_no_copy() -> None:
    """After a crash a node knows what was committed by its last checkpoint: perhaps not that it was added."""
    metadata = Metadata()
    of_nodes(metadata, "n1", "n2")
    logs, host, service = follower(metadata)
    asyncio.run(logs.follow())
    hosted = host.open["a"]
    hosted.journal = "open"
    of_nodes(metadata, "n2")
    service.is_current = False
    assert asyncio.run(logs.follow())
    assert hosted.journal == "open"
    service.is_current = True
    metadata.applied_index = 1  # a repair has brought this back
    metadata.clear()
    assert not asyncio.run(logs.follow())
    assert host.open["a"].journal == "open"


@pytest.mark.rule("R-07", "C-09")
def test_metadata_of_an_earlier_time_neither_begin_nor_replace_a_log() -> None:
    """After a crash: "a" was created again since, and "b" was deleted. Only "c" is kept as they show it."""
    metadata = Metadata([log_of("a", 1), log_of("b", 2), log_of("c", 3)])
    logs, host, service = follower(metadata)
    service.is_newest = False
    host.folders.lines = {"a": 5, "c": 3}
    assert not asyncio.run(logs.follow())
    assert (sorted(host.open), host.folders.done) == (["c"], ["prepare c 3"])
    metadata[:] = [log_of("a", 5), log_of("c", 3), log_of("d", 6)]
    assert not asyncio.run(logs.follow())
    assert (sorted(host.open), service.followed_index) == (["a", "c"], -1)
    service.is_newest = True
    assert asyncio.run(logs.follow())
    assert sorted(host.open) == ["a", "c", "d"]
    assert not any(step.startswith("remove") for step in host.folders.done)


@pytest.mark.parametrize("is_newest", [False, True])
def test_the_copy_of_an_earlier_log_is_removed_also_where_the_next_one_has_none(is_newest: bool) -> None:
    """A crash came between the deletion and the removal of the files."""
    files = MemoryFiles()
    folders = LogFolders(files, "d")
    folders.prepare("a", 1, 1)
    log = log_of("a", 5)
    spec = msgspec.structs.replace(log.spec, replicas=("n2",))
    logs, host, service = follower(Metadata([msgspec.structs.replace(log, spec=spec)]))
    logs._folders, service.is_newest = folders, is_newest
    assert asyncio.run(logs.follow()) is is_newest
    assert (sorted(host.open), folders.kept_generation("a")) == ((["a"], None) if is_newest else ([], 1))


@pytest.mark.parametrize("kept", [1, 5])
def test_a_node_that_was_stopped_during_a_deletion_removes_its_copy_when_it_starts(kept: int) -> None:
    """Unless the copy is of a later log of that name: the metadata are of a checkpoint."""
    folders = LogFolders(MemoryFiles(), "d")
    folders.prepare("a", kept, kept)
    deleting = msgspec.structs.replace(log_of("a", 1), state=LOG_DELETING)
    logs, host, service = follower(Metadata([deleting]))
    logs._folders, service.is_newest = folders, False
    assert asyncio.run(logs.follow())
    assert (host.open, folders.kept_generation("a")) == ({}, None if kept == 1 else 5)


def test_a_copy_that_cannot_be_removed_now_is_removed_later_and_not_reopened() -> None:
    metadata = Metadata()
    of_nodes(metadata, "n1", "n2", generation=-1)
    logs, host, _ = follower(metadata)
    hosted: Any = HostedLog(LogSettings.of_spec("a", metadata[0].spec), 1)
    host.open["a"] = hosted
    assert asyncio.run(logs.follow())
    assert (hosted.journal, host.folders.done) == ("open", ["finish a"])
    of_nodes(metadata, "n2")
    host.folders.failing = StorageFull("a", "remove", "full")
    assert not asyncio.run(logs.follow())
    assert hosted.journal is None
    host.folders.failing = None
    assert asyncio.run(logs.follow())
    assert host.folders.done[-1] == "drop a -1"


class FileUser:
    """A repair or a rollback, which ends when the test lets it."""

    def __init__(self) -> None:
        self.is_given_up = False

    def give_up(self) -> None:
        self.is_given_up = True


@pytest.mark.parametrize("kind", ["repair", "rollback"])
def test_a_log_of_a_deleted_name_opens_once_the_files_of_the_earlier_one_are_free(kind: str) -> None:
    """Both logs have one folder: a repair of the earlier one would write into the new one, and serve it."""
    metadata = Metadata([log_of("a", 1)])
    logs, host, _ = follower(metadata)
    asyncio.run(logs.follow())
    earlier, user = host.open["a"], FileUser()
    setattr(earlier, kind, user)
    host.folders.done.clear()
    metadata[:] = [log_of("a", 5)]  # this node was cut off while it was deleted and created
    assert not asyncio.run(logs.follow())
    assert user.is_given_up
    assert (host.open["a"], host.folders.done) == (earlier, [])
    setattr(earlier, kind, None)
    assert asyncio.run(logs.follow())
    assert host.folders.done == ["remove a", "prepare a 5"]
    assert host.open["a"].generation == 5


@pytest.mark.parametrize("kind", ["repair", "rollback"])
def test_a_node_that_is_added_again_while_its_copy_is_removed_opens_a_new_one(kind: str) -> None:
    metadata = Metadata()
    of_nodes(metadata, "n1", "n2")
    logs, host, _ = follower(metadata)
    asyncio.run(logs.follow())
    hosted = host.open["a"]
    hosted.journal = "open"
    setattr(hosted, kind, FileUser())
    of_nodes(metadata, "n2")
    assert not asyncio.run(logs.follow())
    of_nodes(metadata, "n1", "n2")
    assert not asyncio.run(logs.follow())
    assert hosted.journal == "open"
    setattr(hosted, kind, None)  # it was given up: nothing serves the copy
    host.folders.done.clear()
    assert asyncio.run(logs.follow())
    assert (hosted.journal, host.folders.done) == ("open", ["drop a 1", "prepare a 1"])
    assert asyncio.run(logs.follow())
    assert host.folders.done == ["drop a 1", "prepare a 1"]


def test_a_removal_of_a_copy_that_a_deletion_overtakes_leaves_the_next_log_of_the_name_alone() -> None:
    metadata = Metadata()
    of_nodes(metadata, "n1", "n2")
    logs, host, _ = follower(metadata)
    asyncio.run(logs.follow())
    hosted = host.open["a"]
    hosted.journal, hosted.repair = "open", FileUser()
    of_nodes(metadata, "n2")
    assert not asyncio.run(logs.follow())
    hosted.repair = None
    metadata[:] = [log_of("a", 7, "controller")]
    assert asyncio.run(logs.follow())
    host.open["a"].journal = "open"
    assert asyncio.run(logs.follow())
    assert host.open["a"].journal == "open"
    assert host.folders.done[-1] == "prepare a 7"


def test_files_of_a_log_that_the_newest_metadata_do_not_have_are_kept_and_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was deleted while the node was stopped, or the metadata were rebuilt from an older copy."""
    logs, host, service = follower(Metadata([log_of("a", 1)]))
    host.folders.lines = {"a": 1, "b": 2}
    service.is_current = False
    asyncio.run(logs.follow())
    assert "log b" not in caplog.text  # older metadata may not have it yet
    service.is_current = True
    for _ in range(2):
        asyncio.run(logs.follow())
    assert caplog.text.count("its files are here") == caplog.text.count("log b: its files") == 1
    assert host.folders.done == ["prepare a 1"]


@pytest.mark.rule("C-10")
def test_metadata_that_a_repair_has_brought_back_remove_no_log_that_newer_ones_have_opened() -> None:
    """They are from before its creation. This node has not followed the newer ones completely."""
    metadata = Metadata([log_of("a", 5), log_of("b", 6)])
    logs, host, service = follower(metadata)
    service.is_newest = service.is_current = False
    host.folders.lines["a"] = 5
    assert not asyncio.run(logs.follow())
    assert (list(host.open), service.followed_index) == (["a"], -1)  # b has no copy here and waits
    newer, metadata[:], metadata.applied_index = list(metadata), [], 4
    assert not asyncio.run(logs.follow())
    assert list(host.open) == ["a"]
    assert "remove a" not in host.folders.done
    metadata[:], metadata.applied_index = newer, 9
    service.is_newest = True
    assert asyncio.run(logs.follow())
    assert (list(host.open), service.followed_index) == (["a", "b"], 9)
