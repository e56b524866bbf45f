"""Reports of child processes that end by themselves."""

import errno
import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from app.local.cluster import ClusterError, LocalCluster
from app.local.processes import ChildProcess
from app.local.spark_job import SparkJob

Usage = namedtuple("Usage", "total used free")


def ended_child(folder: Path) -> ChildProcess:
    child = ChildProcess("app.no_such_module", [], log=folder / "log", pid_file=folder / "pid")
    assert child.wait(30) == 1
    return child


def test_the_last_line_of_the_log_shows_why_a_child_ended(tmp_path: Path) -> None:
    first, *last = ended_child(tmp_path).ending(1).splitlines()
    assert first == f"ended with exit code 1; its log: {tmp_path}/log"
    assert len(last) == 1
    assert "No module named app.no_such_module" in last[0]


def test_a_full_disk_is_named_even_if_the_log_is_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = ended_child(tmp_path)
    (tmp_path / "log").write_bytes(b"")
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: Usage(10**9, 10**9, 4096))
    assert child.ending() == (
        f"ended with exit code 1; its log: {tmp_path}/log; "
        "its disk is full (4 KiB are free): remove files there"
    )


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: object, **_named: object) -> int:
        raise OSError(28, os.strerror(28))

    with LocalCluster(tmp_path / "data", nodes=1, port=19_401) as cluster:
        monkeypatch.setattr(Path, "write_bytes", refuse)
        with pytest.raises(ClusterError, match="data cannot be used: No space left on device"):
            cluster.start()
        monkeypatch.setattr(Path, "mkdir", refuse)
        with pytest.raises(ClusterError, match="spark cannot be used: No space left on device"):
            SparkJob(cluster)


def test_a_pid_file_that_cannot_be_removed_ends_no_other_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent supervises the other nodes too: one disk that became read-only must not end it."""

    def refuse(*_arguments: object, **_named: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refuse)
    child = ended_child(tmp_path)
    assert (tmp_path / "pid").exists()
    assert child.ending().startswith(
        f"ended with exit code 1; its log: {tmp_path}/log; its disk fails: Read-only file system\n"
    )


def test_a_log_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fails must not end the parent when it reports the child."""

    def refuse(*_arguments: object, **_named: object) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    child = ended_child(tmp_path)
    monkeypatch.setattr(Path, "read_text", refuse)
    assert child.ending() == (
        f"ended with exit code 1; its log: {tmp_path}/log; its disk fails: Input/output error"
    )
    monkeypatch.setattr(shutil, "disk_usage", refuse)
    assert child.ending().endswith("its disk fails: Input/output error")


def test_a_removed_folder_is_named(tmp_path: Path) -> None:
    child = ended_child(tmp_path)
    shutil.rmtree(tmp_path)
    assert child.ending() == f"ended with exit code 1; its log: {tmp_path}/log; the log was removed"
