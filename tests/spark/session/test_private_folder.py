"""Folders among the temporary files are of one user: no other user reads them, or has created them."""

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from app.errors import ConfigError
from spark_jobs import private_folder as module
from spark_jobs.errors import OptionError
from spark_jobs.private_folder import private_folder
from spark_jobs.sink.options import parse_sink_options

USER = 4321


@pytest.fixture(autouse=True)
def _temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_folder_is_created_once_for_its_user_alone(tmp_path: Path) -> None:
    folder = private_folder("name")
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    (folder / "kept").touch()
    assert private_folder("name") == folder
    assert (folder / "kept").exists()


def by_others(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


def read_by_others(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o755)


def a_link(folder: Path) -> None:
    target = folder.with_name("elsewhere")
    target.mkdir(mode=0o700)
    folder.symlink_to(target)


@pytest.mark.parametrize("make", [by_others, read_by_others, a_link])
def test_a_folder_that_another_user_can_use_is_refused(make: Callable[[Path], None]) -> None:
    folder = private_folder("name")
    folder.rmdir()
    make(folder)
    with pytest.raises(ConfigError, match="remove it, or set TMPDIR"):
        private_folder("name")


def test_a_folder_of_another_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.os, "getuid", lambda: USER)
    with pytest.raises(ConfigError, match=f"belongs to the user {USER}"):
        private_folder("name")


def test_rows_of_a_write_are_staged_where_no_other_user_reads_them() -> None:
    given = {"endpoint": "http://127.0.0.1:8101"}
    staging = parse_sink_options(given, streaming=False).staging
    assert staging.parent == private_folder("commitlog-staging")
    staging.parent.chmod(0o755)
    with pytest.raises(OptionError, match="without a stagingLocation"):
        parse_sink_options(given, streaming=False)
