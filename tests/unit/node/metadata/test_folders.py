"""Folders of logs that come and go, identities and receipts: whole after a crash at any moment."""

from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from app.controller.metadata import LogSpec
from app.controller.replicas_manager import CopyIdentity
from app.node.hosted_log import HostedLog
from app.node.hosted_logs import HostedLogs
from app.node.hosting.log_journals import LogJournals
from app.node.metadata.folders import LogFolders
from app.node.metadata.replica_identity import IdentityFile
from app.node.repair.marker import Note, RepairMarker
from app.node.repair.receipts import ReceiptWriter
from app.node.reserve import ReservedFiles
from app.settings.model import LogSettings
from storage.errors import CorruptFile, DiskError, SyncFailed
from storage.file_system import FileSystem, write_durably
from storage.files import OsFileSystem
from storage.format.batch import stamp
from storage.format.records import RecordColumns, encode_body
from storage.log.aside import set_aside
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.watched_files import WatchedFiles, WatchedSyncs
from tests.support.memory_files import MemoryFiles, PowerCut


def fill(files: FileSystem, name: str, content: bytes, data: str = "d") -> None:
    for path in (f"{data}/logs/{name}/00.seg", f"{data}/logs/{name}/vote", f"{data}/journal/{name}/00.seg"):
        files.make_folders(path.rpartition("/")[0])
        write_durably(files, path, content)


def held(files: MemoryFiles, name: str) -> list[bytes]:
    paths = (f"d/logs/{name}/00.seg", f"d/logs/{name}/vote", f"d/journal/{name}/00.seg")
    return [files.read(path) for path in paths if files.exists(path)]


def is_deleting(files: MemoryFiles) -> bool:
    return b'"deleting":true' in files.read("d/generations/a")


def replace_generation(files: MemoryFiles) -> None:
    folders = LogFolders(files, "d")
    folders.finish_removals()
    folders.prepare("a", 2, 2)
    fill(files, "a", b"new")


def entries(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_a_log_that_was_deleted_leaves_nothing_in_the_data_folder(tmp_path: Path) -> None:
    """Three folders a log would stay: a node whose logs come and go would have millions in some years."""
    no_reserve: Any = None  # none of these files meets a full disk
    files, data = ReservedFiles(WatchedFiles(OsFileSystem(), WatchedSyncs()), no_reserve), str(tmp_path)
    folders = LogFolders(files, data)
    folders.finish_removals()
    folders.prepare("kept", 0, 1)
    fill(files, "kept", b"kept", data)
    before = entries(tmp_path)
    for number in range(3):
        folders.prepare(f"log-{number}", number, 2)
        fill(files, f"log-{number}", b"old", data)
        files.make_folders(f"{data}/logs/log-{number}/aside")
        folders.remove(f"log-{number}")
    assert [path for path in entries(tmp_path) if path not in before] == ["receipts"]


def test_a_folder_that_cannot_be_removed_yet_keeps_no_log_from_its_deletion() -> None:
    """As where a file system still lists a file that another process has open."""

    class Files(MemoryFiles):
        def remove_folder(self, path: str) -> None:
            raise DiskError(path, "remove folder", "directory not empty")

    files = Files()
    replace_generation(files)
    LogFolders(files, "d").remove("a")
    assert held(files, "a") == []
    assert LogFolders(files, "d").kept() == []


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("restarts", [False, True])
def test_a_generation_outlives_a_power_failure_before_its_log_is_opened(seed: int, restarts: bool) -> None:
    """Without it the log is of an unknown generation, and the node refuses to open it."""

    def refuse(operation: str, path: str) -> None:
        if (operation, path) == ("sync", "d/generations") and files.exists("d/generations/a"):
            raise SyncFailed(path, operation, "input/output error")

    files = MemoryFiles(Random(seed))
    folders = LogFolders(files, "d")
    folders.finish_removals()
    files.refuse = refuse
    with pytest.raises(SyncFailed):
        folders.prepare("a", 1, 1)
    files.refuse = None
    if restarts:
        folders = LogFolders(files, "d")
        folders.finish_removals()
    else:
        folders.prepare("a", 1, 1)
    fill(files, "a", b"log")
    files.crash()
    assert folders.kept_generation("a") == 1
    assert held(files, "a") == [b"log"] * 3


def test_a_restart_with_many_logs_syncs_their_generations_once() -> None:
    files, names = MemoryFiles(), [f"l{number}" for number in range(20)]
    folders = LogFolders(files, "d")
    folders.finish_removals()
    for generation, name in enumerate(names):
        folders.prepare(name, generation, generation)
    folders = LogFolders(files, "d")
    folders.finish_removals()
    before = files.operations
    for generation, name in enumerate(names):
        folders.prepare(name, generation, generation)
    assert files.operations == before


@pytest.mark.parametrize("seed", range(6))
def test_the_note_of_a_damaged_log_does_not_return_after_its_removal(seed: int) -> None:
    """A later log of the name would open in doubt: without others it would never serve."""
    files = MemoryFiles(Random(seed))
    folders, marker = LogFolders(files, "d"), RepairMarker(files, "d", "a")
    folders.finish_removals()
    folders.prepare("a", 1, 1)
    marker.save(Note("damage", "read", 1))
    folders.remove("a")
    files.crash()
    assert not marker.exists
    assert folders.kept() == []


@pytest.mark.parametrize("seed", range(4))
def test_a_crash_while_a_log_is_replaced_leaves_the_old_one_or_continues_with_its_end(seed: int) -> None:
    def prepared() -> MemoryFiles:
        files = MemoryFiles(Random(seed))
        folders = LogFolders(files, "d")
        folders.finish_removals()
        folders.prepare("a", 1, 1)
        fill(files, "a", b"old")
        return files

    files = prepared()
    start = files.operations
    replace_generation(files)
    for operation in range(start, files.operations):
        crashed = prepared()
        crashed.power_cut_at = operation
        with pytest.raises(PowerCut):
            replace_generation(crashed)
        crashed.crash()
        if LogFolders(crashed, "d").kept_generation("a") == 1 and not is_deleting(crashed):
            assert held(crashed, "a") == [b"old"] * 3  # nothing is removed before the note names it
        LogFolders(crashed, "d").finish_removals()
        LogFolders(crashed, "d").prepare("a", 2, 2)
        assert b"old" not in held(crashed, "a")
        assert LogFolders(crashed, "d").kept_generation("a") == 2


@pytest.mark.rule("C-10", "R-10")
def test_the_folder_of_a_deleted_log_is_not_a_replica_of_the_next_one_of_its_name(tmp_path: Path) -> None:
    """It would have no generation: it would stay when its log is deleted, and block the next one here."""
    files, data = OsFileSystem(), str(tmp_path)
    services: Any = SimpleNamespace(
        node_id="n1",
        data_folder=data,
        files=files,
        storage=CommitlogConfig(),
        log_folder=lambda name: f"{data}/logs/{name}",
    )
    folders, journals = LogFolders(files, data), LogJournals(services, 1 << 20, HostedLogs())
    folders.finish_removals()
    folders.prepare("a", 1, 1)
    write_durably(files, f"{data}/logs/a/vote", b"of the first log")
    set_aside(files, f"{data}/logs/a")
    folders.remove("a")
    files.make_folders(f"{data}/logs/a/aside")  # as a crash leaves it, and earlier versions did
    elsewhere = HostedLog(LogSettings.of_spec("a", LogSpec(replication="raft", replicas=("n2", "n3"))), 2)
    folders.make_way("a", 2, 2)
    journals.open_if_kept(elsewhere)
    assert elsewhere.journal is None
    write_durably(files, f"{data}/logs/a/vote", b"of a member that joined")
    journals.open_if_kept(elsewhere)
    assert elsewhere.journal is not None
    elsewhere.journal.close()


def test_an_unknown_folder_is_not_taken_for_a_log_nor_removed() -> None:
    files = MemoryFiles()
    fill(files, "a", b"an operator's")
    with pytest.raises(CorruptFile, match="not of the controllers"):
        LogFolders(files, "d").prepare("a", 1, 1)
    assert len(held(files, "a")) == 3
    LogFolders(files, "d").remove("a")  # not a log of theirs
    assert len(held(files, "a")) == 3


def test_a_log_that_rebuilt_metadata_do_not_know_is_not_removed() -> None:
    """It was created after the copy of the metadata; an earlier log has that name there."""
    files = MemoryFiles()
    folders = LogFolders(files, "d")
    folders.prepare("a", 9, 9)
    fill(files, "a", b"kept")
    for make in (folders.prepare, folders.make_way):
        with pytest.raises(CorruptFile, match="a later log of this name"):
            make("a", 7, 7)
    assert held(files, "a") == [b"kept"] * 3
    assert folders.kept_generation("a") == 9


def test_a_damaged_note_of_a_generation_is_damage() -> None:
    files = MemoryFiles()
    folders = LogFolders(files, "d")
    folders.prepare("a", 1, 1)
    write_durably(files, "d/generations/a", b"00000000 {}\n")
    with pytest.raises(CorruptFile, match="checksum"):
        folders.prepare("a", 1, 1)
    folders.finish_removals()  # the node starts with its other logs


@pytest.mark.parametrize("generation", [1, 2])
def test_a_damaged_note_is_written_again_if_the_folder_holds_this_very_log(generation: int) -> None:
    files = MemoryFiles()
    folders = LogFolders(files, "d")
    folders.prepare("a", 1, 101)
    Commitlog.open(files, "d/logs/a", log_id=101).close()
    note = files.read("d/generations/a")
    write_durably(files, "d/generations/a", note[:3] + b"?" + note[4:])
    if generation == 1:
        folders.prepare("a", 1, 101)
        assert folders.kept_generation("a") == 1
    else:  # whether the earlier log was being removed is unknown
        with pytest.raises(CorruptFile, match="checksum"):
            folders.prepare("a", 2, 102)
    assert files.exists("d/logs/a/manifest")


@pytest.mark.rule("C-03")
def test_an_identity_is_read_as_it_was_saved_and_a_damaged_one_is_none() -> None:
    files = MemoryFiles()
    identity_file = IdentityFile(files, "d", "a")
    assert identity_file.load() is None
    identity_file.save(CopyIdentity("code", 7))
    assert identity_file.load() == CopyIdentity("code", 7)
    whole = files.read("d/logs/a/replica")
    for position in range(len(whole) - 1):
        write_durably(files, "d/logs/a/replica", whole[:position] + b"\x00" + whole[position + 1 :])
        assert identity_file.load() is None


@pytest.mark.rule("A-04")
def test_a_receipt_holds_every_record_past_the_cut_and_is_durable() -> None:
    files = MemoryFiles()
    files.make_folders("d/logs/a")
    log = Commitlog.open(files, "d/logs/a", log_id=7, config=CommitlogConfig())
    for number in range(4):
        records = RecordColumns()
        records.add(b"v%d" % number)
        records.add(b"w%d" % number, key=b"k")
        log.append(
            [
                stamp(
                    encode_body(records),
                    log_id=7,
                    base_index=log.next_index,
                    term=1,
                    timestamp_ms=1_000,
                    offset=log.end_offset,
                    previous_chain=log.last_chain,
                )
            ]
        )
    writer = ReceiptWriter(files, "d", "a")
    assert writer.write(log, log.end_index, 3) is None
    path = writer.write(log, 3, 3)
    assert path is not None
    files.crash()
    rows = pa.ipc.open_file(files.read(path)).read_all().to_pylist()
    assert [(row["index"], row["value"], row["key"]) for row in rows] == [
        (4, b"v2", None),
        (5, b"w2", b"k"),
        (6, b"v3", None),
        (7, b"w3", b"k"),
    ]
    assert writer.write(log, 3, 3) == path


def test_a_crash_while_a_copy_is_dropped_leaves_all_of_it_or_nothing_and_its_receipts_stay() -> None:
    """The same for a log of the configuration file, which has no line of its own."""

    def prepared() -> MemoryFiles:
        files = MemoryFiles(Random(1))
        LogFolders(files, "d").finish_removals()
        fill(files, "a", b"old")
        files.make_folders("d/receipts/a")
        write_durably(files, "d/receipts/a/1.arrow", b"lost")
        return files

    files = prepared()
    start = files.operations
    LogFolders(files, "d").drop("a", -1)
    assert held(files, "a") == []
    for operation in range(start, files.operations):
        crashed = prepared()
        crashed.power_cut_at = operation
        with pytest.raises(PowerCut):
            LogFolders(crashed, "d").drop("a", -1)
        crashed.crash()
        LogFolders(crashed, "d").finish_removals()
        assert held(crashed, "a") in ([], [b"old"] * 3)
        assert crashed.read("d/receipts/a/1.arrow") == b"lost"
        assert LogFolders(crashed, "d").kept_generation("a") is None


@pytest.mark.parametrize("drop", [False, True])
def test_a_log_whose_copy_was_set_aside_may_be_created_again(tmp_path: Path, drop: bool) -> None:
    """The folder `aside` in it is empty after the removal, but a folder is not an unknown log."""
    files, data = OsFileSystem(), str(tmp_path)
    folders = LogFolders(files, data)
    folders.finish_removals()
    folders.prepare("a", 1, 7)
    Commitlog.open(files, f"{data}/logs/a", log_id=7).close()
    set_aside(files, f"{data}/logs/a")
    Commitlog.open(files, f"{data}/logs/a", log_id=7).close()
    if drop:
        folders.drop("a", 1)
    folders.prepare("a", 2, 8)
    assert folders.kept_generation("a") == 2
    Commitlog.open(files, f"{data}/logs/a", log_id=8).close()


def test_a_log_named_as_a_temporary_file_of_another_one_keeps_its_line(tmp_path: Path) -> None:
    """Without its line the node would take its files for those of an unknown log."""
    files, data = OsFileSystem(), str(tmp_path)
    folders = LogFolders(files, data)
    folders.finish_removals()
    folders.prepare("a.tmp", 1, 7)
    folders.prepare("a", 2, 8)
    assert (folders.kept_generation("a.tmp"), folders.kept_generation("a")) == (1, 2)
    assert folders.kept() == ["a", "a.tmp"]
    folders.prepare("a.tmp", 1, 7)
    for name in (".b.tmp", "b.tmp"):  # left by a crash, of this version and of earlier ones
        files.open(f"{data}/generations/{name}", create=True).close()
    assert folders.kept() == ["a", "a.tmp"]
    folders.prepare("b.tmp", 3, 9)  # a log of that name is created later
    assert folders.kept() == ["a", "a.tmp", "b.tmp"]
    assert folders.kept_generation("b.tmp") == 3
