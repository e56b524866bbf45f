"""Files that a later version of the program wrote: refused as such, never taken for damage and repaired."""

import struct
from collections.abc import Callable

import pytest

from storage.care.survey import survey
from storage.errors import CorruptFile, CorruptLog, NewerFormat
from storage.file_system import FileSystem
from storage.format.batch import Batch, log_id_of
from storage.format.checksum import crc32c
from storage.log.checkpoint import MAGIC as CHECKPOINT_MAGIC
from storage.log.checkpoint import Checkpoint, CheckpointFile, SnapshotFile
from storage.log.hard_state import MAGIC as VOTE_MAGIC
from storage.log.hard_state import HardState, HardStateFile
from storage.log.manifest import MAGIC as MANIFEST_MAGIC
from storage.log.manifest import ManifestFile
from storage.log.slots import SLOT_SIZE_BYTES, encode_slot, heal_slots
from tests.support.memory_files import MemoryFiles
from tests.unit.storage.support import FOLDER, LOG_ID, grow, next_batch, open_log, open_term, sync_log

VERSION_AT = 4  # in a slot, a snapshot and a batch


def of_next_version(slot: bytes) -> bytes:
    """The slot as a version with another payload would write it: another number, its checksum is right."""
    used = struct.unpack_from("<I", slot, 16)[0] + 20
    body = slot[:VERSION_AT] + struct.pack("<H", 2) + slot[VERSION_AT + 2 : used]
    return (body + struct.pack("<I", crc32c(body))).ljust(SLOT_SIZE_BYTES, b"\0")


def newer_batch(batch: Batch, at: int = VERSION_AT, value: int = 2) -> bytes:
    """The batch with another number in its header, and the checksum of that header."""
    data = bytearray(batch.data)
    struct.pack_into("<H", data, at, value)
    end = 128 + (batch.header.appends_size + 7 & ~7)
    struct.pack_into("<I", data, 124, crc32c(bytes(data[:124] + data[128:end])))
    return bytes(data)


def closed_log(files: MemoryFiles, marked: int = 30) -> list[Batch]:
    """A log of some segments; the batches after the first `marked` are not before the durable point."""
    log = open_log(files)
    batches = [open_term(log, 1), *grow(log, marked)]
    log.close()
    return batches


def overwrite(files: FileSystem, batch: Batch, data: bytes) -> str:
    """Replace the bytes of a batch on the disk; return the path of its segment."""
    name = max(n for n in files.list(FOLDER) if n.endswith(".log") and int(n[:20]) <= batch.offset)
    path = f"{FOLDER}/{name}"
    files.open(path).pwrite(data, batch.offset - int(name[:20]))
    return path


def content_of(files: MemoryFiles) -> dict[str, bytes]:
    return {name: files.read(f"{FOLDER}/{name}") for name in files.list(FOLDER)}


@pytest.mark.rule("R-01", "D-20")
@pytest.mark.parametrize("slots", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize(
    ("name", "magic", "save", "load"),
    [
        (
            "vote",
            VOTE_MAGIC,
            lambda files, path: HardStateFile(files, path).save(HardState(7, "n1")),
            lambda files, path: HardStateFile(files, path).load(),
        ),
        (
            "checkpoint",
            CHECKPOINT_MAGIC,
            lambda files, path: CheckpointFile(files, path).save(Checkpoint(8, 9)),
            lambda files, path: CheckpointFile(files, path).load(),
        ),
        (
            "manifest",
            MANIFEST_MAGIC,
            lambda files, path: None,
            lambda files, path: ManifestFile(files, path).load(),
        ),
    ],
)
def test_a_small_file_of_a_later_version_is_kept_as_it_is(
    name: str,
    magic: bytes,
    save: Callable[[FileSystem, str], None],
    load: Callable[[FileSystem, str], object],
    slots: tuple[int, ...],
) -> None:
    files, path = MemoryFiles(), f"{FOLDER}/{name}"
    closed_log(files)
    save(files, path)
    data = files.read(path)
    for slot in slots:
        at = slot * SLOT_SIZE_BYTES
        files.open(path).pwrite(of_next_version(data[at : at + SLOT_SIZE_BYTES]), at)
    before = content_of(files)
    for action in (load, lambda files, path: heal_slots(files, path, magic)):
        with pytest.raises(NewerFormat, match=f"{path}: its format is not 1: a later version"):
            action(files, path)
    assert content_of(files) == before


@pytest.mark.parametrize(
    ("name", "magic", "load"),
    [
        ("vote", VOTE_MAGIC, lambda files, path: HardStateFile(files, path).load()),
        ("checkpoint", CHECKPOINT_MAGIC, lambda files, path: CheckpointFile(files, path).load()),
        ("manifest", MANIFEST_MAGIC, lambda files, path: ManifestFile(files, path).load()),
    ],
)
def test_an_intact_small_file_with_an_unknown_content_is_of_a_later_version(
    name: str, magic: bytes, load: Callable[[FileSystem, str], object]
) -> None:
    files, path = MemoryFiles(), f"{FOLDER}/{name}"
    files.make_folders(FOLDER)
    files.open(path, create=True).pwrite(encode_slot(magic, 3, b"?" * 99) * 2, 0)
    with pytest.raises(NewerFormat, match=path):
        load(files, path)


def test_a_damaged_version_is_damage() -> None:
    """The checksum does not cover it: the other slot is right, and without one the file is damaged."""
    files, path = MemoryFiles(), f"{FOLDER}/vote"
    files.make_folders(FOLDER)
    HardStateFile(files, path).load()
    HardStateFile(files, path).save(HardState(7, "n1"))
    files.open(path).pwrite(b"\2", VERSION_AT)
    assert HardStateFile(files, path).load() == HardState(7, "n1")
    for at in (0, SLOT_SIZE_BYTES):
        files.open(path).pwrite(b"\2", at + VERSION_AT)
    with pytest.raises(CorruptFile, match="neither"):
        HardStateFile(files, path).load()


def test_a_snapshot_of_a_later_version_is_refused() -> None:
    files, path = MemoryFiles(), f"{FOLDER}/state"
    files.make_folders(FOLDER)
    snapshot = SnapshotFile(files, path)
    snapshot.save(b"payload")
    data = files.read(path)
    files.open(path).pwrite(b"\2", VERSION_AT)
    with pytest.raises(CorruptFile, match="checksum"):
        snapshot.load()
    body = data[:VERSION_AT] + b"\2\0" + data[VERSION_AT + 2 : -4]
    files.open(path).pwrite(body + struct.pack("<I", crc32c(body)), 0)
    with pytest.raises(NewerFormat, match="its format is 2, not 1"):
        snapshot.load()


@pytest.mark.rule("D-20", "R-11")
@pytest.mark.parametrize(("at", "value"), [(VERSION_AT, 2), (6, 2), (80, 1)])
@pytest.mark.parametrize("committed_index", [-1, 10])
def test_a_log_that_ends_with_batches_of_a_later_version_keeps_them(
    at: int, value: int, committed_index: int
) -> None:
    """They were taken for a torn tail and truncated, although a majority may have acknowledged them."""
    files = MemoryFiles()
    closed_log(files)
    log = open_log(files)
    last = next_batch(log)
    log.append([last])
    sync_log(log)
    path = overwrite(files, last, newer_batch(last, at, value))
    before = files.read(path)
    with pytest.raises(NewerFormat, match=f"{path}: log offset {last.offset}: unknown"):
        open_log(files, committed_index=committed_index)
    assert files.read(path) == before


def test_a_sealed_batch_of_a_later_version_is_no_damage() -> None:
    files = MemoryFiles()
    batch = closed_log(files)[5]
    overwrite(files, batch, newer_batch(batch))
    log = open_log(files)
    log.settle(log.end_index)
    with pytest.raises(NewerFormat, match=f"log offset {batch.offset}: unknown format 2"):
        log.batch_at(batch.base_index)
    log.close()
    before = content_of(files)
    with pytest.raises(NewerFormat, match=f"log offset {batch.offset}: unknown format 2"):
        survey(files, FOLDER, LOG_ID)
    assert content_of(files) == before


def test_a_damaged_format_of_a_batch_is_damage() -> None:
    files = MemoryFiles()
    batch = closed_log(files)[5]
    overwrite(files, batch, batch.data[:VERSION_AT] + b"\2\0" + batch.data[VERSION_AT + 2 :])
    log = open_log(files)
    with pytest.raises(CorruptLog, match="checksum of the header"):
        log.batch_at(batch.base_index)
    log.close()
    assert [each.first_index for each in survey(files, FOLDER, LOG_ID).damages] == [batch.base_index]


@pytest.mark.parametrize("log_id", [LOG_ID, log_id_of("test", "another")])
def test_a_record_that_holds_a_batch_of_a_later_version_is_a_record(log_id: int) -> None:
    """A survey that skips damage finds the batch in the value: it is of another log, or of another place."""
    files = MemoryFiles()
    log = open_log(files)
    open_term(log, 1)
    data = bytearray(newer_batch(next_batch(log)))
    struct.pack_into("<Q", data, 16, log_id)
    struct.pack_into("<I", data, 124, crc32c(bytes(data[:124])))
    holder = next_batch(log, [bytes(data)])
    log.append([holder])
    grow(log, 3)
    log.close()
    place = bytes(holder.data).find(b"CLB1", 1)
    assert place % 8 == 0
    overwrite(files, holder, b"\0")
    assert [each.first_index for each in survey(files, FOLDER, LOG_ID).damages] == [holder.base_index]
