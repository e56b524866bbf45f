"""Errors of the operating system are reported by name, and never count as success (R-11)."""

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import pytest

from storage.care.patch import patch
from storage.care.scrub import Scrub
from storage.care.survey import survey
from storage.errors import DiskError, Exhausted, StorageError, StorageFull, SyncFailed
from storage.files import OsFileSystem
from storage.format.batch import Batch
from storage.format.epoch_file import decode_epochs
from storage.log.aside import set_aside
from storage.log.commitlog import NO_INDEX, Commitlog
from storage.log.hard_state import HardState, HardStateFile
from tests.support.memory_files import MemoryFiles, PowerCut
from tests.unit.storage.support import (
    FOLDER,
    LOG_ID,
    check_whole,
    content,
    copied,
    grow,
    open_log,
    open_term,
    snapshot,
    sync_log,
    three_terms,
)


class Refusal:
    """Raises at the `place`-th operation that `counts`; `met` is what it was, empty until then."""

    def __init__(
        self, place: int, kind: type[DiskError] = DiskError, operations: tuple[str, ...] = ()
    ) -> None:
        self.place = place
        self.kind = kind
        self.operations = operations
        self.met = ""

    def __call__(self, operation: str, path: str) -> None:
        if self.operations and operation not in self.operations:
            return
        self.place -= 1
        if self.place == -1:
            self.met = operation
            raise (SyncFailed if operation == "sync" else self.kind)(path, operation, "refused")


GROWING = ("extend", "create", "rename")  # operations that a full disk refuses


class Life:
    """A log that meets every error; `acknowledged` is what it reported as durable."""

    def __init__(self, files: MemoryFiles) -> None:
        self.files = files
        self.acknowledged: list[Batch] = []
        self.log: Commitlog | None = None

    def steps(self) -> Iterator[Callable[[], None]]:
        """Each may be tried again when it found no room."""
        yield self.open
        for term in (1, 2):
            yield partial(self.open_term, term)
            for seed in range(3):
                yield partial(self.grow, seed)
                yield self.sync
        yield self.cut
        yield lambda: self.grow(9)
        yield self.sync
        yield self.trim
        yield lambda: self.grow(10)
        yield self.sync
        yield self.scrub
        yield self.close

    def open(self) -> None:
        self.log = open_log(self.files)

    def now(self) -> Commitlog:
        assert self.log is not None
        return self.log

    def open_term(self, term: int) -> None:
        open_term(self.now(), term)

    def grow(self, seed: int) -> None:
        grow(self.now(), 9, Random(seed), sync=False)

    def sync(self) -> None:
        sync_log(self.now())
        self.acknowledged = [b for b in content(self.now()) if b.last_index <= self.now().durable_index]

    def cut(self) -> None:
        log = self.now()
        self.acknowledged = self.acknowledged[:-5]
        log.truncate_after(self.acknowledged[-1].last_index)

    def trim(self) -> None:
        log = self.now()
        log.settle(log.durable_index)
        ticket = log.start_trim(log.end_index // 2)
        assert ticket is not None
        self.acknowledged = [b for b in self.acknowledged if b.base_index >= log.begin_index]
        ticket.run()

    def scrub(self) -> None:
        for step in Scrub(self.files, self.now(), 3_000):
            step.run()

    def close(self) -> None:
        self.now().close()


def check_kept(files: MemoryFiles, acknowledged: list[Batch]) -> None:
    """After a power cut the acknowledged batches are there, up to a beginning that had not become durable."""
    files.crash()
    last = acknowledged[-1].last_index if acknowledged else NO_INDEX
    held = content(open_log(files, committed_index=last))
    kept = [batch for batch in held if acknowledged and batch.base_index >= acknowledged[0].base_index]
    assert kept[: len(acknowledged)] == acknowledged


def input_output_errors(seed: int, first: int, stride: int) -> int:
    """Let one operation in `stride` fail from the `first` one on, each in an incarnation of its own.

    Return how many failed.

    `python -m tests.chaos.storage` may run it in full: stride 1.
    """
    for place in count(first, stride):
        files = MemoryFiles(Random(seed))
        refusal = files.refuse = Refusal(place)
        life = Life(files)
        caught: StorageError | None = None
        step = life.open
        try:
            for step in life.steps():
                step()
                assert not refusal.met or (refusal.met, step) == ("read", life.scrub)  # of a file it heals
                refusal.met = ""
        except DiskError as error:
            caught = error
        files.refuse = None
        assert (caught is None) == (not refusal.met)
        if caught is not None:
            assert "refused" in str(caught)
            assert FOLDER in str(caught)
        if refusal.met in ("sync", "truncate", "remove") and life.log is not None and step == life.sync:
            grow(life.log, 1, sync=False)
            with pytest.raises(DiskError, match="after a failure"):
                sync_log(life.log)
        check_kept(files, life.acknowledged)
        if refusal.place >= 0:
            return (place - first) // stride
    raise AssertionError


@pytest.mark.rule("R-11")
def test_an_input_output_error_anywhere_is_named_and_nothing_is_acknowledged_after_it() -> None:
    assert input_output_errors(1, 0, 9) > 20


@pytest.mark.parametrize("full", [False, True])
def test_an_append_that_cannot_be_undone_is_an_error_of_the_disk_that_no_room_ends(full: bool) -> None:
    files = MemoryFiles()
    log = open_log(files)
    open_term(log, 1)
    sync_log(log)

    def refuse(operation: str, path: str) -> None:
        if operation in ("write", "extend", "truncate", "create"):
            raise (StorageFull if full else DiskError)(path, operation, "refused")

    files.refuse = refuse
    with pytest.raises(DiskError, match=r"undo a failed append in .*refused.*after .*refused") as caught:
        grow(log, 1, sync=False)
    assert not isinstance(caught.value, StorageFull)


def full_disks(first: int, stride: int) -> int:
    """The same with a full disk at every operation that needs room; then the same step is done again."""
    for place in count(first, stride):
        files = MemoryFiles(Random(place))
        refusal = files.refuse = Refusal(place, StorageFull, GROWING)
        life = Life(files)
        for step in life.steps():
            try:
                step()
            except StorageFull:
                if life.log is not None:
                    content(life.log)
                if step != life.trim:
                    step()
        expected = content(life.now())
        assert expected[: len(life.acknowledged)] == life.acknowledged
        check_whole(open_log(files), expected)
        check_kept(files, life.acknowledged)
        if not refusal.met:
            return (place - first) // stride
    raise AssertionError


def test_a_full_disk_anywhere_leaves_a_log_that_continues_when_there_is_room() -> None:
    assert full_disks(0, 4) > 10


@pytest.mark.parametrize("kind", [StorageFull, DiskError])
def test_a_refusal_within_a_repair_is_named_and_the_repair_can_be_done_again(kind: type[DiskError]) -> None:
    source = MemoryFiles()
    log = three_terms(source)
    whole = content(log)
    log.close()
    missing = sorted(name for name in snapshot(source) if name.endswith(".log"))[1]

    def repair(files: MemoryFiles) -> None:
        for damage in survey(files, FOLDER, LOG_ID, whole[-1].last_index).damages:
            lost = [b for b in whole if damage.first_index <= b.base_index <= damage.last_index]
            assert patch(files, FOLDER, LOG_ID, damage, lost) is None

    for place in count():
        files = copied(source)
        files.remove(f"{FOLDER}/{missing}")
        refusal = files.refuse = Refusal(place, kind, GROWING if kind is StorageFull else ())
        with pytest.raises(DiskError, match="refused") if place < 2 else contextlib.suppress(DiskError):
            repair(files)
        files.refuse = None
        repair(files)
        check_whole(open_log(files, committed_index=whole[-1].last_index), whole)
        if not refusal.met:
            return


def test_a_refusal_while_a_log_is_set_aside_is_named() -> None:
    for place in count():
        files = MemoryFiles()
        three_terms(files).close()
        refusal = files.refuse = Refusal(place)
        with contextlib.suppress(DiskError):
            set_aside(files, FOLDER)
        files.refuse = None
        set_aside(files, FOLDER)
        check_whole(open_log(files), [])
        if not refusal.met:
            assert place > 10
            return


# --- after a failed sync


@pytest.mark.rule("R-11")
def test_after_a_failed_sync_nothing_is_synced_again() -> None:
    """Not by the next sync, nor by the undoing of an append that found no room, nor by a cut or a trim."""
    acts: dict[str, Callable[[Commitlog], object]] = {
        "sync": lambda log: grow(log, 1),
        "append": lambda log: grow(log, 1),
        "cut": lambda log: log.truncate_after(log.floor_batch_end(log.end_index - 3)),
        "trim": lambda log: log.start_trim(30).run(),  # type: ignore[union-attr]
        "reset": lambda log: log.reset(5_000, 400_000),
        "close": lambda log: log.close(),
    }
    for act in acts:
        files = MemoryFiles(Random(1))
        log = three_terms(files)
        durable = content(log)
        log.settle(log.end_index)
        grow(log, 3, sync=False)
        ticket = log.start_sync()
        assert ticket is not None
        files.syncs_fail = True
        with pytest.raises(SyncFailed):
            ticket.run()
        files.syncs_fail = False
        before = log.durable_index
        if act == "append":
            files.space_bytes = 0
        with pytest.raises(DiskError, match="after a failure"):
            acts[act](log)
        assert log.durable_index <= before or act in ("append", "cut")
        files.space_bytes = None
        check_kept(files, durable)


@pytest.mark.rule("R-11")
def test_pages_that_a_restart_found_in_the_cache_after_a_failed_sync_are_written_again() -> None:
    """Its pages pass for clean: a sync alone would keep nothing of them."""
    for seed in range(5):
        files = MemoryFiles(Random(seed))
        log = three_terms(files)
        grow(log, 30, Random(seed), sync=False)
        files.syncs_fail = True
        with pytest.raises(SyncFailed):
            sync_log(log)
        files.syncs_fail = False
        again = open_log(files)
        acknowledged = content(again)
        assert again.durable_index == acknowledged[-1].last_index
        check_kept(files, acknowledged)


@pytest.mark.rule("A-03")
def test_an_epoch_file_that_was_renamed_before_a_kill_outlives_a_power_cut() -> None:
    """The restart finds it right and leaves it; its name must have become durable all the same."""
    for seed in range(10):
        files = MemoryFiles(Random(seed))
        log = three_terms(files)
        open_term(log, 4)
        files.power_cut_at = files.operations + 6  # behind the rename, before the sync of the folder
        with pytest.raises(PowerCut):
            sync_log(log)
        files.power_cut_at = None  # only the process was killed
        assert len(decode_epochs(files.read(f"{FOLDER}/epochs"))) == 4
        again = open_log(files)
        epochs = again.epochs
        assert [epoch.term for epoch in epochs] == [1, 2, 3, 4]
        files.crash()
        before = files.read(f"{FOLDER}/epochs")
        assert open_log(files).epochs == epochs
        assert files.read(f"{FOLDER}/epochs") == before


@pytest.mark.rule("R-01")
def test_a_vote_that_met_an_error_is_the_old_or_the_new_one() -> None:
    for place in range(12):
        files = MemoryFiles(Random(place))
        vote = HardStateFile(files, "d/vote")
        vote.load()
        vote.save(HardState(4, "n1"))
        files.refuse = Refusal(place)
        try:
            vote.save(HardState(5, "n2"))
            expected = [HardState(5, "n2")]
        except DiskError:
            expected = [HardState(4, "n1"), HardState(5, "n2")]
        files.refuse = None
        files.crash()
        assert HardStateFile(files, "d/vote").load() in expected


# --- the real file system


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EACCES, "the user that runs the node must own"),
        (errno.EPERM, "the user that runs the node must own"),
        (errno.EROFS, "Read-only file system: mount it read-write again"),
    ],
)
def test_a_refused_access_names_the_remedy(
    number: int, remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    log = open_log(OsFileSystem(), folder=str(tmp_path))
    grow(log, 2)
    log.close()
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DiskError, match=rf"{tmp_path}.*{remedy}") as caught:
        open_log(OsFileSystem(), folder=str(tmp_path))
    assert caught.value.operation == "open"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_lack_of_descriptors_or_memory_is_known_as_passing(
    number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(Exhausted, match=os.strerror(number)):
        OsFileSystem().open("file")


@pytest.mark.parametrize("name", ["manifest", "epochs", f"{0:020d}.log", f"{0:020d}.index"])
def test_a_folder_in_the_place_of_a_file_is_named(name: str, tmp_path: Path) -> None:
    log = open_log(OsFileSystem(), folder=str(tmp_path))
    grow(log, 2)
    log.close()
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(StorageError, match=str(tmp_path)):
        open_log(OsFileSystem(), folder=str(tmp_path))
