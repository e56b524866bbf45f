"""The space that a node holds back: what may use it, and how a full disk is emptied by it."""

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.errors import CommitlogError
from app.log.commands import CommandResult, Trim
from app.log.contract import Durability
from app.node.broker import Broker
from app.node.replica.log_space import LogSpace
from app.node.reserve import Reserve, ReservedFiles
from app.settings.file import parse
from storage.errors import StorageFull
from storage.file_system import write_durably
from storage.format.batch import FIRST_CHAIN, Batch, stamp
from storage.format.records import encode_control
from storage.log.commitlog import CommitlogConfig
from tests.support.memory_files import MemoryFiles
from tests.unit.node.replica.driver_support import Node, code, result
from tests.unit.raft.support import LOG_ID, body_of

KIB, MIB = 1024, 1024 * 1024
RESERVE = 4 * MIB


def test_the_reserve_is_given_back_by_halves_and_restored_when_there_is_room() -> None:
    files = MemoryFiles()
    reserve = Reserve(files, "reserve", RESERVE)
    assert reserve.restore()
    files.space_bytes = RESERVE
    held = []
    while reserve.release(keep_bytes=MIB):
        held.append(reserve.held_bytes)
    assert held == [2 * MIB, MIB]
    assert reserve.release()
    assert (reserve.held_bytes, files.free_bytes(), reserve.release()) == (0, RESERVE, False)
    write_durably(files, "folder/other", b"x")
    assert not reserve.restore()
    assert (reserve.in_use, files.free_bytes()) == (True, RESERVE - 1)
    files.remove("folder/other")
    assert reserve.restore()
    assert (reserve.in_use, files.free_bytes()) == (False, 0)


def test_a_disk_without_room_for_the_reserve_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Appends were refused from the start of the node, without a line that named the reserve."""
    files = MemoryFiles()
    files.space_bytes = MIB
    reserve = Reserve(files, "reserve", RESERVE)
    assert (reserve.restore(), reserve.restore(), reserve.in_use) == (False, False, True)
    assert [(record.levelname, "reserve_bytes" in record.message) for record in caplog.records] == [
        ("ERROR", True)
    ]


def test_small_files_use_the_reserve_and_segments_do_not() -> None:
    disk = MemoryFiles()
    reserve = Reserve(disk, "reserve", RESERVE)
    files = ReservedFiles(disk, reserve)
    reserve.restore()
    disk.space_bytes = RESERVE
    segment = files.open("log/00000000000000000000.log", create=True)
    with pytest.raises(StorageFull):
        segment.pwrite(b"record", 0)
    assert not reserve.in_use
    write_durably(files, "log/state", bytes(3 * MIB))
    assert len(disk.read("log/state")) == 3 * MIB
    with pytest.raises(StorageFull):
        write_durably(files, "log/state", bytes(3 * MIB))


class FullNode(Node):
    """The only voter of a log with many segments, on a disk that is full."""

    def __init__(self) -> None:
        self.disk = MemoryFiles()
        self.reserve = Reserve(self.disk, "data/reserve", RESERVE)
        self.reserve.restore()
        super().__init__(
            Path("data"),
            files=ReservedFiles(self.disk, self.reserve),
            reserve=self.reserve,
            storage=CommitlogConfig(tail_cache_bytes=0).fit_to(4 * MIB),
            durability=Durability.FSYNC,
        )
        for _ in range(20):
            result(self.append(bytes(100 * KIB)))
        self.disk.space_bytes = sum(len(self.disk.read(path)) for path in self.disk._names)


@pytest.mark.parametrize(
    ("control", "leads", "left_bytes"),
    [(False, True, RESERVE), (False, False, RESERVE // 2), (True, False, 0), (True, True, 0)],
)
def test_a_record_of_the_leader_leaves_half_of_the_reserve_for_the_trims_that_follow(
    control: bool, leads: bool, left_bytes: int
) -> None:
    """A follower that used all of it for records could not write the trim that would make room."""
    reserve = Reserve(MemoryFiles(), "reserve", RESERVE)
    reserve.restore()
    batch = stamp(
        encode_control({"kind": "trim", "until_index": 1}) if control else body_of(1, b"v"),
        log_id=LOG_ID,
        base_index=0,
        term=1,
        timestamp_ms=1,
        offset=0,
        previous_chain=FIRST_CHAIN,
        control=control,
    )

    def full(_batches: Sequence[Batch]) -> None:
        raise StorageFull("log", "write", "no space left")

    assert not LogSpace("log", "n1", reserve).write(full, [batch], leads=leads, now_ms=0)
    assert reserve.held_bytes == left_bytes


def test_a_full_disk_is_reported_once_in_ten_seconds(caplog: pytest.LogCaptureFixture) -> None:
    """Clients try again and again; each refusal names the cause."""

    def full(_batches: Sequence[Batch]) -> None:
        raise StorageFull("log", "write", "no space left")

    batch = SimpleNamespace(is_control=False)
    consequences = {True: "appends are refused", False: "records of the leader are not stored"}
    for leads, consequence in consequences.items():
        caplog.clear()
        space = LogSpace("orders", "n1", None)
        for now_ms in range(0, 25_000, 50):
            assert not space.write(full, [cast(Any, batch)], leads=leads, now_ms=now_ms)
        line = f"log orders: the disk is full, {consequence}: make space (docs/operations.md, section 8)"
        assert [record.getMessage() for record in caplog.records] == [line] * 3


@pytest.mark.rule("D-28")
def test_a_full_disk_can_be_trimmed_and_takes_records_again() -> None:
    node = FullNode()
    assert code(node.append(b"v" * KIB)) == "storage-full"
    assert not node.reserve.in_use  # clients' records do not touch it
    trimmed = node.command(Trim(15))
    assert isinstance(trimmed, CommandResult)
    assert node.reserve.in_use
    refused = node.append(b"v" * KIB)  # what is left is for the service
    assert isinstance(refused, CommitlogError)
    assert (refused.code, refused.detail[:24]) == ("storage-full", "the disk of node n1: no ")
    assert code(node.append(b"v" * KIB, match_index=3)) == "index-mismatch"  # the conditions come first
    for _ in range(3):
        node.tick(1_000)
    assert node.driver.log.begin_index > 10
    assert node.disk.free_bytes() > RESERVE // 2
    assert node.reserve.restore()
    assert not isinstance(node.append(b"v" * KIB), CommitlogError)


def test_the_watermarks_of_the_journal_do_not_use_up_what_room_there_is() -> None:
    node = FullNode()
    node.reserve.release()
    before = len(node.events("watermarks"))
    for _ in range(10):
        node.tick(1_000)
    assert len(node.events("watermarks")) == before
    node.disk.space_bytes = None
    assert node.reserve.restore()
    node.tick(4_000)
    assert len(node.events("watermarks")) > before


def test_a_small_disk_has_small_segments_and_a_small_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trim gives back whole segments: one that fills the disk would never be given back."""
    size = SimpleNamespace(total=8 * MIB)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: size if folder == tmp_path else None)
    node = {"id": "n1", "listen": "127.0.0.1:1", "peer_listen": "127.0.0.1:2", "data": f"{tmp_path}/new/n1"}
    settings = parse({"cluster": {"id": "small"}, "nodes": [node]}, "n1")

    async def run() -> None:
        broker = Broker(settings)
        assert broker.settings.storage.segment_max_bytes == broker.reserve.size_bytes == MIB // 2
        size.total = 1 << 40
        assert Broker(settings).settings.storage == CommitlogConfig()

    asyncio.run(run())


def test_a_small_file_that_finds_no_space_gives_it_back() -> None:
    """A state that outgrows the free space takes all of the reserve; trims need that to empty the disk."""
    disk = MemoryFiles()
    reserve = Reserve(disk, "reserve", RESERVE)
    files = ReservedFiles(disk, reserve)
    reserve.restore()
    write_durably(files, "log/state", b"old")
    disk.space_bytes = RESERVE + 3
    with pytest.raises(StorageFull):
        write_durably(files, "log/state", bytes(2 * RESERVE))
    assert reserve.restore()
    assert (files.read("log/state"), files.list("log"), disk.free_bytes()) == (b"old", ["state"], 0)
