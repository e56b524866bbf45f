"""The real file system keeps the guarantees of the interface, and reports errors with their cause."""

import errno
import fcntl
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from storage.errors import (
    CorruptLog,
    DiskError,
    DiskRefused,
    FileClosed,
    FolderLocked,
    StorageFull,
    SyncFailed,
    as_damage,
)
from storage.files import OsFileSystem, write_durably

FILES = OsFileSystem()


def test_written_bytes_are_read_copied_or_mapped(tmp_path: Path) -> None:
    file = FILES.open(f"{tmp_path}/a", create=True)
    file.pwrite([b"one", bytearray(b"two"), memoryview(b"three")], 0)
    file.pwrite(b"TWO", 3)
    assert (file.read(0, 100), file.read(3, 3), file.read(50, 1)) == (b"oneTWOthree", b"TWO", b"")
    view = file.view(3, 3)
    file.pwrite(b"x" * 100_000, 11)
    assert bytes(file.view(0, 100_011)[-1:]) == b"x"
    file.truncate(11)
    assert file.size() == 11
    file.sync()
    file.close()
    assert bytes(view) == b"TWO"
    assert FILES.read(f"{tmp_path}/a") == b"oneTWOthree"


def test_mapped_bytes_that_cannot_be_read_are_an_error_and_do_not_end_the_process(tmp_path: Path) -> None:
    file = FILES.open(f"{tmp_path}/a", create=True)
    file.pwrite(b"x" * 100_000, 0)
    assert bytes(file.view(90_000, 10_000)) == b"x" * 10_000
    os.truncate(f"{tmp_path}/a", 50_000)
    with pytest.raises(DiskError, match="cannot be read"):
        file.view(90_000, 10_000)
    assert bytes(file.view(10, 3)) == b"xxx"


def test_where_pages_cannot_be_brought_in_they_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.files._POPULATE_READ", 9_999)  # no such advice: EINVAL, as by an old kernel
    file = FILES.open(f"{tmp_path}/a", create=True)
    file.pwrite(b"x" * 100_000, 0)
    view = file.view(10, 20)
    file.pwrite(b"y" * 100_000, 0)
    assert bytes(view) == b"x" * 20


def test_where_files_cannot_be_mapped_they_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on 9p and some FUSE file systems. A refused mapping would count as damage of every segment."""
    monkeypatch.setattr(mmap, "mmap", refuse_with(errno.ENODEV))
    file = FILES.open(f"{tmp_path}/a", create=True)
    file.pwrite(b"x" * 100, 0)
    later = file.later_view(10, 20)
    assert bytes(file.view(0, 100)) == b"x" * 100
    assert bytes(later()) == b"x" * 20
    with pytest.raises(DiskError, match="101 bytes wanted of 100"):
        file.view(0, 101)


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_that_cannot_sync_folders_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "fsync", refuse_with(number))
    with pytest.raises(SyncFailed, match=rf"sync {tmp_path}: .*use a folder on a local disk"):
        FILES.sync_folder(str(tmp_path))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", refuse_with(number))
    with pytest.raises(DiskError, match=rf"lock {tmp_path}/lock: .*use a folder on a local disk") as caught:
        FILES.lock(f"{tmp_path}/lock")
    assert not isinstance(caught.value, FolderLocked)


def test_more_buffers_than_one_call_takes_are_all_written(tmp_path: Path) -> None:
    file = FILES.open(f"{tmp_path}/a", create=True)
    parts = [bytes([k % 251]) * (k % 7) for k in range(3_000)]
    file.pwrite(parts, 5)
    assert file.read(0, 1 << 20) == bytes(5) + b"".join(parts)


def test_a_write_that_is_cut_short_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, [b"".join(parts)[:3]], at))
    file = FILES.open(f"{tmp_path}/a", create=True)
    file.pwrite([b"12345", b"67890"], 0)
    assert file.read(0, 100) == b"1234567890"


@pytest.mark.parametrize(("number", "kind"), [(28, StorageFull), (122, StorageFull), (5, DiskError)])
def test_a_refused_write_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[DiskError]
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(number, "no")

    file = FILES.open(f"{tmp_path}/a", create=True)
    monkeypatch.setattr(os, "pwritev", refuse)
    with pytest.raises(DiskError) as caught:
        file.pwrite(b"x", 0)
    assert type(caught.value) is kind
    assert f"{tmp_path}/a" in str(caught.value)


@pytest.mark.rule("R-11")
def test_a_failed_sync_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: int) -> None:
        raise OSError(5, "input/output error")

    file = FILES.open(f"{tmp_path}/a", create=True)
    monkeypatch.setattr(os, "fdatasync", refuse)
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(SyncFailed):
        file.sync()
    with pytest.raises(SyncFailed):
        FILES.sync_folder(str(tmp_path))


def test_a_missing_file_is_a_disk_error(tmp_path: Path) -> None:
    missing = f"{tmp_path}/missing"
    for call in (FILES.open, FILES.read, FILES.remove, FILES.list, FILES.sync_folder):
        with pytest.raises(DiskError, match="missing"):
            call(missing)
    with pytest.raises(DiskError):
        FILES.rename(missing, f"{tmp_path}/a")
    file = FILES.open(f"{tmp_path}/empty", create=True)
    assert bytes(file.view(0, 0)) == b""
    with pytest.raises(DiskError):
        file.view(0, 1)


def test_names_folders_and_whole_files(tmp_path: Path) -> None:
    FILES.make_folders(f"{tmp_path}/b/c/d")
    FILES.make_folders(f"{tmp_path}/b/c/d")
    write_durably(FILES, f"{tmp_path}/b/two", b"2")
    write_durably(FILES, f"{tmp_path}/b/two", b"22")
    FILES.rename(f"{tmp_path}/b/two", f"{tmp_path}/b/one")
    assert FILES.list(f"{tmp_path}/b") == ["c", "one"]
    assert FILES.read(f"{tmp_path}/b/one") == b"22"
    assert FILES.exists(f"{tmp_path}/b/one")
    FILES.remove(f"{tmp_path}/b/one")
    assert not FILES.exists(f"{tmp_path}/b/one")


def test_other_users_cannot_use_a_new_folder(tmp_path: Path) -> None:
    (tmp_path / "given").mkdir(mode=0o755)
    FILES.make_folders(f"{tmp_path}/given/data/logs")
    modes = [stat.S_IMODE((tmp_path / each).stat().st_mode) for each in ("given", "given/data")]
    assert modes == [0o755, 0o700]


def synced_folders(monkeypatch: pytest.MonkeyPatch, failing: str = "") -> list[str]:
    """Return a list that gets each folder that is synced; the first sync of `failing` fails."""
    synced: list[str] = []
    refused: list[str] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        if synced[-1] == failing and not refused:
            refused.append(failing)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    return synced


@pytest.mark.rule("R-11")
@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_folder_whose_sync_failed_is_not_durable_until_a_sync_of_it_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    (tmp_path / "lock").touch()
    parents = [f"{tmp_path}", f"{tmp_path}/logs", f"{tmp_path}/logs/a"]
    synced = synced_folders(monkeypatch, parents[failing])
    with pytest.raises(SyncFailed):
        FILES.make_folders(f"{tmp_path}/logs/a/aside")
    assert synced == parents[: failing + 1]
    synced.clear()
    FILES.make_folders(f"{tmp_path}/logs/a/aside")
    assert synced == parents[failing:]


@pytest.mark.rule("R-11")
def test_a_folder_whose_maker_was_killed_before_the_sync_is_made_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "logs" / "a").mkdir(parents=True)
    synced = synced_folders(monkeypatch)
    FILES.make_folders(f"{tmp_path}/logs/a")
    assert synced[-1:] == [f"{tmp_path}/logs"]
    FILES.open(f"{tmp_path}/logs/a/vote", create=True).close()
    synced.clear()
    FILES.make_folders(f"{tmp_path}/logs/a")
    assert synced == []  # it was durable before anything was put into it


@pytest.mark.parametrize("denied", [os.R_OK, os.W_OK])
def test_a_folder_that_another_user_has_made_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, denied: int
) -> None:
    """As systemd does below /var/lib/private, which the user of the node cannot open."""
    synced = synced_folders(monkeypatch)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path or not mode & denied)
    (tmp_path / "data").mkdir()
    FILES.make_folders(f"{tmp_path}/data")
    assert synced == []


def test_a_folder_has_one_owner(tmp_path: Path) -> None:
    lock = FILES.lock(f"{tmp_path}/lock")
    with pytest.raises(FolderLocked):
        FILES.lock(f"{tmp_path}/lock")
    lock.release()
    lock.release()
    FILES.lock(f"{tmp_path}/lock").release()


def test_a_read_that_fails_is_damage_and_one_of_a_closed_file_is_not(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    file = OsFileSystem().open(path, create=True)
    file.pwrite(b"content", 0)
    file.close()
    for read in (file.read, file.view):
        with pytest.raises(FileClosed) as refused:
            read(0, 7)
        assert as_damage(refused.value) is refused.value
    assert isinstance(as_damage(DiskError(path, "read", "input/output error")), CorruptLog)


def refuse_with(number: int) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize(
    "number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.EROFS]
)
@pytest.mark.parametrize("call", ["open", "pread", "mmap"])
def test_a_refusal_that_is_not_about_the_file_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    path = f"{tmp_path}/a"
    file = FILES.open(path, create=True)
    file.pwrite(b"content", 0)
    monkeypatch.setattr(mmap if call == "mmap" else os, call, refuse_with(number))
    with pytest.raises(DiskRefused) as caught:
        file.view(0, 7) if call == "mmap" else FILES.read(path)
    assert as_damage(caught.value) is caught.value


@pytest.mark.rule("R-01", "R-02")
def test_a_run_of_the_system_that_cannot_be_named_for_now_is_not_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unknown run is a doubt about everything that was not synced, and that doubt is durable."""
    for number in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        monkeypatch.setattr(Path, "read_text", refuse_with(number))
        with pytest.raises(DiskRefused):
            FILES.boot_id()
    for number in (errno.ENOENT, errno.EACCES):
        monkeypatch.setattr(Path, "read_text", refuse_with(number))
        assert FILES.boot_id() == ""


def test_missing_memory_for_mapped_pages_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = FILES.open(f"{tmp_path}/a", create=True)
    file.pwrite(b"content", 0)
    assert bytes(file.view(0, 7)) == b"content"
    monkeypatch.setattr(file, "_map", SimpleNamespace(madvise=refuse_with(errno.ENOMEM)))
    with pytest.raises(DiskRefused):
        file.view(0, 7)


@pytest.mark.rule("R-01")
@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ENOMEM, errno.ESTALE, errno.ELOOP])
def test_a_file_that_the_system_cannot_find_for_now_is_not_a_missing_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    FILES.open(f"{tmp_path}/vote", create=True).close()
    with monkeypatch.context() as patched:
        patched.setattr(os, "lstat", refuse_with(number))
        with pytest.raises(DiskError, match="vote"):
            FILES.exists(f"{tmp_path}/vote")
    with monkeypatch.context() as patched:
        patched.setattr(Path, "is_dir", refuse_with(number))
        with pytest.raises(DiskError, match="logs"):
            FILES.make_folders(f"{tmp_path}/logs")
    assert FILES.exists(f"{tmp_path}/vote")
    assert not FILES.exists(f"{tmp_path}/missing")
    assert not FILES.exists(f"{tmp_path}/vote/below")
