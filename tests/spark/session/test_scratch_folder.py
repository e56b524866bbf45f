"""Scratch folders of jobs that were killed go at the next start, and nothing else does."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.scratch_folder import LOCK, make_scratch, remove_scratch

PREFIX = "commitlog-job-"
JOB = """
import sys
from pathlib import Path
from spark_jobs.scratch_folder import make_scratch
print(make_scratch(sys.argv[1], Path(sys.argv[2])), flush=True)
sys.stdin.read()
"""


def started(parent: Path) -> tuple[subprocess.Popen[str], Path]:
    """Return a process that has a folder, and the folder with a file in it."""
    command = [sys.executable, "-c", JOB, PREFIX, str(parent)]
    job = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert job.stdout is not None
    folder = Path(job.stdout.readline().strip())
    (folder / "spark").mkdir()
    (folder / "spark" / "block").write_bytes(b"x")
    return job, folder


def end(job: subprocess.Popen[str]) -> None:
    with job:
        job.send_signal(signal.SIGKILL)


def test_the_folder_of_a_killed_process_goes_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    killed, abandoned = started(tmp_path)
    living, used = started(tmp_path)
    try:
        end(killed)
        assert abandoned.exists()
        own = make_scratch(PREFIX, tmp_path)
        other = make_scratch(PREFIX, tmp_path)  # of this process, as the query of a job and the job itself
        assert sorted(tmp_path.iterdir()) == sorted([used, own, other])
        assert (used / "spark" / "block").exists()
        remove_scratch(own)
        assert sorted(tmp_path.iterdir()) == sorted([used, other])
        remove_scratch(other)
    finally:
        end(living)


def test_no_link_is_followed_and_no_folder_without_a_lock_is_removed(tmp_path: Path) -> None:
    """Links are not followed, and a folder of an earlier release, or one that is just being made, has no
    lock."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / LOCK).touch()
    parent = tmp_path / "tmp"
    (parent / f"{PREFIX}earlier").mkdir(parents=True)
    (parent / f"{PREFIX}linked").symlink_to(precious)
    for name, target in (("lock-linked", precious / LOCK), ("lock-lost", tmp_path / "none")):
        (parent / f"{PREFIX}{name}").mkdir()
        (parent / f"{PREFIX}{name}" / LOCK).symlink_to(target)
    (parent / f"{PREFIX}file").touch()
    (parent / "other").mkdir()
    (parent / "other" / LOCK).touch()
    before = sorted(parent.iterdir())
    own = make_scratch(PREFIX, parent)
    assert sorted(parent.iterdir()) == sorted([*before, own])
    assert (precious / LOCK).exists()
    remove_scratch(own)


def test_a_link_within_the_folder_of_a_killed_process_is_removed_without_its_target(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "table").touch()
    job, abandoned = started(tmp_path)
    (abandoned / "link").symlink_to(precious)
    end(job)
    remove_scratch(make_scratch(PREFIX, tmp_path))
    assert not abandoned.exists()
    assert (precious / "table").exists()


def test_the_folder_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, abandoned = started(tmp_path)
    end(job)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)
    remove_scratch(make_scratch(PREFIX, tmp_path))
    assert abandoned.exists()
