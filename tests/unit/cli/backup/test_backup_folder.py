"""Files of a backup: each flipped byte is found, in the manifest too."""

import errno
import fcntl
import json
import os
import random
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli.backup.folder import MANIFEST, load, locked, save
from app.cli.context import CommandFailed
from app.cli.main import cli
from tests.support.disk_steps import record_disk_steps
from tests.unit.cli.backup.test_backup_limits import backup_of

SCHEMA = {"version": 1, "index": 10, "format": "json", "definition": "id BIGINT"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    manifest = backup_of(tmp_path, {"key": b"k", "value": b"1"}, {"value": None})
    manifest.settings, manifest.cursors, manifest.schemas = {"replicas": ["n1"]}, {"etl": 11}, [SCHEMA]
    save(tmp_path, manifest)
    return tmp_path


@pytest.mark.parametrize("pattern", [MANIFEST, "records-*"])
def test_every_flipped_byte_is_found(folder: Path, pattern: str) -> None:
    file, chance = next(folder.glob(pattern)), random.Random(1)
    content = file.read_bytes()
    check = ["restore", "--check", str(folder), "--json"]
    assert CliRunner().invoke(cli, check).exit_code == 0
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << chance.randrange(8)
        file.write_bytes(damaged)
        found = CliRunner().invoke(cli, check)
        assert found.exit_code in (1, 4), (place, content[max(0, place - 20) : place + 20], found.output)
        assert json.loads(found.stderr)["detail"]  # a sentence, not a traceback


def test_a_manifest_of_an_earlier_version_is_read_and_gets_a_checksum(folder: Path) -> None:
    file = folder / MANIFEST
    earlier = json.loads(file.read_text())
    del earlier["manifest_sha256"]
    file.write_text(json.dumps({**earlier, "format": 1}))
    manifest = load(folder)
    assert manifest is not None
    save(folder, manifest)
    again = load(folder)
    assert again is not None
    assert (again.format, again.cursors, again.parts) == (2, {"etl": 11}, manifest.parts)
    assert len(again.manifest_sha256.strip("0")) > 0


def test_a_manifest_of_a_later_version_is_refused(folder: Path) -> None:
    file = folder / MANIFEST
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": 3}))
    with pytest.raises(CommandFailed, match="has the format 3; this version reads 1 to 2"):
        load(folder)


def test_other_users_cannot_use_a_new_folder(tmp_path: Path) -> None:
    folder = tmp_path / "parent" / "backup"
    with locked(folder):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_new_folder_of_a_backup_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its name a power failure takes the whole backup, which was reported as complete."""
    steps = record_disk_steps(monkeypatch, "link")
    with locked(tmp_path / "backups" / "a"):
        pass
    assert steps[-2:] == [str(tmp_path), str(tmp_path / "backups")]


def test_a_folder_that_cannot_be_locked_is_not_in_use_by_another_backup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    with (
        locked(tmp_path),
        pytest.raises(CommandFailed, match=f"another backup writes to {tmp_path}"),
        locked(tmp_path),
    ):
        pass
    monkeypatch.setattr(fcntl, "flock", refuse)
    with (
        pytest.raises(CommandFailed, match=f"{tmp_path} cannot be locked .*No locks available.*local disk"),
        locked(tmp_path),
    ):
        pass
