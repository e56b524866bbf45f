"""The disk that the chaos families lie with: it keeps what was synced, and may take all else."""

from pathlib import Path
from random import Random

import pytest

from storage.errors import DiskError, StorageFull, SyncFailed
from storage.file_system import write_durably
from tests.chaos.disk.faulty_files import Faults, FaultyFileSystem
from tests.chaos.disk.power_cut import cut_power, tear


@pytest.mark.parametrize("seed", range(20))
def test_synced_bytes_stay_and_all_others_may_be_lost(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    data = tmp_path / "n1"
    files = FaultyFileSystem(data)
    files.make_folders(f"{data}/logs/a")
    path = f"{data}/logs/a/segment"
    file = files.open(path, create=True)
    files.sync_folder(f"{data}/logs/a")
    surely = bytearray()
    for _ in range(chance.randrange(1, 20)):
        file.pwrite(chance.randbytes(chance.randrange(1, 3_000)), file.size())
        if chance.random() < 0.3:
            file.sync()
            surely = bytearray(file.read(0, file.size()))
    write_durably(files, f"{data}/logs/a/small", b"new")
    cut_power(data, chance)
    left = Path(path).read_bytes()
    assert left[: len(surely)] == surely
    assert Path(f"{data}/logs/a/small").read_bytes() == b"new"


def test_every_fate_of_unsynced_names_and_bytes_is_met(tmp_path: Path) -> None:
    met = set()
    for seed in range(40):
        data = tmp_path / f"n{seed}"
        files = FaultyFileSystem(data)
        write_durably(files, f"{data}/kept", b"old")
        file = files.open(f"{data}/new", create=True)
        file.pwrite(b"x" * 2_000, 0)
        temporary = files.open(f"{data}/kept.tmp", create=True)
        temporary.pwrite(b"young", 0)
        temporary.sync()
        files.rename(f"{data}/kept.tmp", f"{data}/kept")
        cut_power(data, Random(seed))
        new = Path(f"{data}/new")
        met.add(len(new.read_bytes()) if new.exists() else None)
        assert Path(f"{data}/kept").read_bytes() in (b"old", b"young")
    assert {None, 0, 2_000} < met


def test_a_cut_that_was_not_synced_may_come_back() -> None:
    fates = {tear(b"a" * 2_000, b"a" * 100, Random(seed)) for seed in range(40)}
    assert {b"a" * 2_000, b"a" * 100} < fates


def test_faults_are_switched_on_and_off(tmp_path: Path) -> None:
    data = tmp_path / "n1"
    files = FaultyFileSystem(data)
    file = files.open(f"{data}/segment", create=True)
    file.pwrite(b"kept", 0)
    file.sync()
    for faults, operation, error in (
        (Faults(sync="segment"), file.sync, SyncFailed),
        (Faults(write="seg"), lambda: file.pwrite(b"x", 9), DiskError),
        (Faults(full=""), lambda: file.pwrite(b"x", 9), StorageFull),
        (Faults(read="segment"), lambda: file.read(0, 4), DiskError),
    ):
        faults.save(data)
        with pytest.raises(error):
            operation()
    Faults().save(data)
    assert file.read(0, 4) == b"kept"
