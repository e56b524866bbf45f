"""conf/spark.toml: its values, refused values, and precedence."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from app.cli.delta import materialize
from app.errors import ConfigError
from spark_jobs import notebook, package, run, upkeep, verify
from spark_jobs.session import settings
from spark_jobs.session.settings import SparkSettings, load, parse

FILE = Path(__file__).parents[3] / "conf" / "spark.toml"


def uncommented(text: str) -> str:
    """The file with every key that it only describes, except `remote`, which excludes another one."""
    lines = [line.removeprefix("# ") for line in text.splitlines()]
    return "\n".join(line for line in lines if line.startswith(("[", '"')) or " = " in line.split("#")[0])


@click.command()
@settings.spark_options
def command(**options: Any) -> SimpleNamespace:
    return SimpleNamespace(**options)


def given(*arguments: str) -> SimpleNamespace:
    return settings.given_options(command, "a_job", arguments)


def test_the_file_of_the_repository_has_the_defaults_and_names_every_key(tmp_path: Path) -> None:
    assert load(FILE) == SparkSettings()
    text = uncommented(FILE.read_text()).replace("remote =", "# remote =")
    path = tmp_path / "spark.toml"
    path.write_text(text)
    full = load(path)
    silent = {
        name for part in (full.session, full.locations) for name, value in vars(part).items() if not value
    }
    assert silent == {"remote"}
    assert full.conf == {"spark.sql.ansi.enabled": "true"}


def test_paths_are_relative_to_the_file_and_urls_are_left_alone() -> None:
    document = {
        "session": {"jars": "jars"},
        "locations": {"tables": "../tables", "checkpoints": "scratch"},
        "conf": {"spark.a": 1, "spark.b": False, "spark.c": "x"},
    }
    found = parse(document, Path("/etc/commitlog"))
    assert found.session.jars == Path("/etc/commitlog/jars")
    assert found.locations.tables == "/etc/tables"
    assert found.locations.checkpoints == Path("/etc/commitlog/scratch")
    assert found.conf == {"spark.a": "1", "spark.b": "false", "spark.c": "x"}
    url = parse({"locations": {"tables": "s3://bucket/tables"}}, Path("/etc"))
    assert url.locations.tables == "s3://bucket/tables"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[session]\nmastr = 'local'\ncores = '2'", "session.cores: .*, got '2'; session.mastr: unknown key"),
        ("[sesion]\nmaster = 'local'", "sesion: unknown key"),
        ("[session]\nmaster = 'sparc://h:1'", "master must be local.*got 'sparc://h:1'"),
        ("[session]\nremote = 'h:1'", "remote must be sc://HOST:PORT, got 'h:1'"),
        ("[session]\nmaster = 'local[2]'\nremote = 'sc://h:1'", "master and remote cannot be used together"),
        (
            "[session]\ndriver_memory = '2 gigabytes'",
            "driver_memory must be a size such as 2g, got '2 gigabytes'",
        ),
        ("[session]\nshuffle_partitions = 0", "shuffle_partitions must be positive, got 0"),
        ("[conf]\nspark.sql.ansi.enabled = true", "put names in quotes"),
        ("[conf]\n'spark.executor.memory' = '1g'", r"conf: spark.executor.memory is set by \[session\]"),
        ("[conf]\n'master' = '1g'", "conf: 'master' is not a setting of Spark"),
        ("[session", "spark.toml: Expected"),
    ],
)
def test_impossible_settings_are_refused_and_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "spark.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=complaint) as refused:
        load(path)
    assert str(refused.value).startswith(f"{path}: ")


def test_command_lines_win_over_the_file_and_the_file_over_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text("[session]\nremote = 'sc://one:1'\n[locations]\ntables = 's3://b/t'\ncheckpoints = 'c'")
    two.write_text("[session]\nmaster = 'spark://two:2'")
    monkeypatch.setenv(settings.VARIABLE, str(one))
    assert settings.settings_of(given()).session.remote == "sc://one:1"
    assert settings.settings_of(given("--conf", str(two))).session.master == "spark://two:2"
    won = settings.settings_of(given("--master", "local[7]")).session
    assert (won.master, won.remote) == ("local[7]", None)
    with pytest.raises(ConfigError, match="cannot be used together"):
        settings.settings_of(given("--master", "local", "--remote", "sc://h:1"))
    config = run.parse_arguments(["--endpoint", "http://127.0.0.1:1", "--progress", "p"])
    assert (config.tables_root, config.checkpoints) == ("s3://b/t", tmp_path / "c")
    monkeypatch.delenv(settings.VARIABLE)
    assert settings.settings_of(given(), master="local[1]").session.master == "local[1]"


@pytest.mark.parametrize("named", [True, False])
def test_the_command_hands_the_file_on_and_leaves_the_places_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool
) -> None:
    for variable in (settings.VARIABLE, "COMMITLOG_TABLES"):
        monkeypatch.delenv(variable, raising=False)
    path = tmp_path / "spark.toml"
    path.write_text('[locations]\ntables = "t"\ncheckpoints = "c"\n')
    ran: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda _, command: ran.append(command))
    given = ["--spark-conf", str(path)] if named else []
    CliRunner().invoke(materialize.materialize_command, [*given, "--once"], catch_exceptions=False)
    config = run.parse_arguments(ran[0][ran[0].index(materialize.JOB) + 1 :])
    root = tmp_path / "t" if named else materialize.DEFAULT_TABLES.resolve()
    scratch = tmp_path / "c" if named else materialize.DEFAULT_CHECKPOINTS
    assert (config.tables_root, config.checkpoints, config.available_now) == (str(root), scratch, True)


def test_jobs_report_what_they_lack_before_spark_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(settings.VARIABLE, raising=False)
    assert run.main(["--endpoint", "http://127.0.0.1:1"]) == 2
    assert "set --tables, or locations.tables" in capsys.readouterr().err
    assert run.main(["--endpoint", "http://127.0.0.1:1", "--tables", "s3://b/t"]) == 2
    assert "progress: set a path; it is required if the tables are at a URL" in capsys.readouterr().err
    given = ["--endpoint", "http://127.0.0.1:1", "--tables", str(tmp_path), "--checkpoints", "s3://b/c"]
    assert run.main(given) == 2
    assert "must be a folder of the driver, not a URL" in capsys.readouterr().err
    assert upkeep.main(["--conf", str(tmp_path / "none.toml")]) == 2
    assert "none.toml: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("job", [run.main, upkeep.main, verify.main, notebook.main, package.main])
def test_each_job_shows_examples_and_refuses_unknown_options(
    job: Callable[[list[str]], int], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        job(["--help"])
    printed = capsys.readouterr().out
    assert ended.value.code == 0
    assert all(part in printed for part in ("Usage: python -m spark_jobs.", "Example", "--conf", "--master"))
    with pytest.raises(SystemExit) as ended:
        job(["--no-such-option"])
    assert ended.value.code == 2
    assert "No such option" in capsys.readouterr().err
