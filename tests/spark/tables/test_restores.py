"""RESTORE commits of a table, found in its log without Spark."""

from pathlib import Path

import pytest

from spark_jobs.tables import restores as module
from spark_jobs.tables.restores import Restores
from tests.spark.no_spark import no_spark
from tests.support.delta_files import DeltaFiles


def test_a_restore_behind_removed_commits_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver was suspended until the commits after its last look were removed from the history."""
    monkeypatch.setattr(module, "table_properties", lambda spark, path: {})
    files = DeltaFiles(tmp_path / "records")
    files.create()
    restores = Restores(no_spark(), str(files.folder))
    assert not restores.due()
    for first in (0, 10, 20):
        files.bring(first, first + 10)
    files.checkpoint()
    for version in range(files.version):
        (files.log / f"{version:020d}.json").unlink()
    assert not restores.due()
    assert files.restore(2) == 4
    assert restores.due() == [4]
