"""A sync that takes long is reported once, and once when none does any more."""

import itertools
import os
from pathlib import Path

import pytest

from app.node.data_folder import DataFolder
from app.node.upkeep import SLOW_SYNC_S, SlowSyncs
from app.settings.file import parse
from storage.errors import SyncFailed
from storage.watched_files import WatchedSyncs


class Disk:
    """Syncs that are in progress while the clock moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.syncs = WatchedSyncs(now_s=lambda: self.now_s)
        self.slow = SlowSyncs(self.syncs)

    def sync(self, path: str, *, takes_s: float) -> None:
        """The check runs each second meanwhile."""

        def run() -> None:
            for _ in range(int(takes_s)):
                self.now_s += 1.0
                self.slow.check()

        self.syncs.run(path, run)


def test_a_sync_that_hangs_is_reported_once_with_its_file_and_its_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = Disk()
    disk.sync("data/logs/a/0.log", takes_s=30)
    text = f"the disk hangs or is slow: a sync of data/logs/a/0.log has waited for {SLOW_SYNC_S:.0f} s"
    assert caplog.messages == [text]
    disk.slow.check()
    disk.slow.check()
    assert caplog.messages[1:] == ["the disk answers again: a sync of data/logs/a/0.log took at least 30 s"]


def test_syncs_that_return_in_time_are_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    for _ in range(10):
        disk.sync("file", takes_s=SLOW_SYNC_S - 1)
        disk.slow.check()
    assert caplog.messages == []
    assert disk.syncs.longest() == (0.0, "")


def test_the_wait_is_exactly_zero_without_a_sync() -> None:
    """The clock moves on with each call of it."""
    times_s = itertools.count(100.0)
    assert WatchedSyncs(now_s=lambda: next(times_s)).longest() == (0.0, "")


def test_the_oldest_of_several_syncs_is_named(caplog: pytest.LogCaptureFixture) -> None:
    disk = Disk()
    disk.now_s += 1.0
    disk.syncs.run("first", lambda: disk.sync("second", takes_s=5))
    disk.slow.check()
    assert [text.partition("a sync of ")[2] for text in caplog.messages] == [
        f"first has waited for {SLOW_SYNC_S:.0f} s",
        "first took at least 5 s",
    ]


def test_a_sync_that_fails_is_not_in_progress_any_more() -> None:
    disk = Disk()

    def fail() -> None:
        raise SyncFailed("file", "sync", "Input/output error")

    with pytest.raises(SyncFailed):
        disk.syncs.run("file", fail)
    disk.now_s += 60.0
    assert disk.syncs.longest() == (0.0, "")


@pytest.mark.parametrize("name", ["00000000000000000000.log", "vote", "", "logs/"])
def test_the_syncs_of_all_files_of_a_node_are_watched(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """name: empty for the folder itself; `logs/` for a new folder."""
    node = {"id": "n1", "listen": "127.0.0.1:1", "peer_listen": "127.0.0.1:2", "data": str(tmp_path)}
    data = DataFolder(parse({"cluster": {"id": "c"}, "nodes": [node]}, "n1"), disk_bytes=1 << 30)
    waiting: list[str] = []
    call = "fsync" if name in ("", "logs/") else "fdatasync"
    monkeypatch.setattr(os, call, lambda _descriptor: waiting.append(data.syncs.longest()[1]))
    (tmp_path / "lock").touch()
    path = str(tmp_path / name) if name else str(tmp_path)
    if name == "logs/":
        data.files.make_folders(path)
    elif name:
        data.files.open(path, create=True).sync()
    else:
        data.files.sync_folder(path)
    assert waiting == [path]
