"""Contexts: commands that name no cluster, clusters of `commitlog up`, several processes at once."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from app.cli.context import complete_contexts, find_target
from app.cli.main import cli
from app.client import contexts
from tests.unit.cli.fake_service import Scripted, fake_service


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "home" / "contexts.json"
    monkeypatch.setenv("COMMITLOG_CONTEXTS", str(path))
    monkeypatch.setenv("COMMITLOG_STATE", str(path.with_name("nodes.json")))
    return path


@pytest.fixture
def ended() -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def endpoints(**named: str) -> list[str]:
    return list(find_target((), named.get("context"), None, None).endpoints)


def test_commands_without_an_endpoint_go_to_the_newest_cluster_that_runs() -> None:
    assert endpoints() == ["http://127.0.0.1:8101"]
    assert contexts.add_running("first", ["http://a"]) == "first"
    assert contexts.add_running("second", ["http://b"]) == "second"
    assert endpoints() == ["http://b"]
    assert endpoints(context="first") == ["http://a"]
    contexts.remove_running("second")
    assert endpoints() == ["http://a"]
    contexts.remove_running("first")
    assert endpoints() == ["http://127.0.0.1:8101"]


def test_a_named_context_is_stronger_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a command for one cluster would be sent to another, or the token of another to it."""
    with (
        fake_service(lambda _: Scripted(200, {"logs": []})) as named,
        fake_service(lambda _: Scripted(200, {"logs": []})) as other,
    ):
        assert CliRunner().invoke(cli, ["context", "add", "prod", "-e", named.url]).exit_code == 0
        monkeypatch.setenv("COMMITLOG_ENDPOINT", other.url)
        monkeypatch.setenv("COMMITLOG_TOKEN", "of-the-other")
        for command in (["logs", "--context", "prod"], ["logs", "--context", "prod", "list"]):
            assert CliRunner().invoke(cli, command).exit_code == 0
        assert (bool(named.asked), other.asked) == (True, [])
        assert not any("authorization" in asked.headers for asked in named.asked)
        assert CliRunner().invoke(cli, ["logs"]).exit_code == 0
        assert other.asked[0].headers["authorization"] == "Bearer of-the-other"
    both = CliRunner().invoke(cli, ["logs", "--context", "prod", "-e", "http://h:1"])
    assert both.exit_code == 2
    assert "--endpoint and --context cannot be used together" in both.stderr


def test_a_context_of_the_same_name_is_replaced() -> None:
    shown = [
        CliRunner().invoke(cli, ["context", "add", "p", "-e", url]).output for url in ("http://a", "http://b")
    ]
    assert [text.splitlines()[0] for text in shown] == ["context p is added", "context p is replaced"]


def test_a_selected_context_stays_in_use_when_a_cluster_starts_and_ends() -> None:
    assert CliRunner().invoke(cli, ["context", "add", "prod", "-e", "http://p"]).exit_code == 0
    contexts.add_running("data", ["http://a"])
    assert endpoints() == ["http://p"]
    contexts.remove_running("data")
    contexts.remove_running("prod")  # not of this process: it stays
    assert endpoints() == ["http://p"]


def test_a_cluster_that_was_selected_is_not_in_use_once_it_has_ended() -> None:
    contexts.add_running("data", ["http://a"])
    contexts.add_running("other", ["http://b"])
    assert CliRunner().invoke(cli, ["context", "use", "data"]).exit_code == 0
    assert endpoints() == ["http://a"]
    contexts.remove_running("data")
    assert endpoints() == ["http://b"]


def test_a_command_names_its_cluster_when_several_run_and_none_is_selected() -> None:
    with fake_service(lambda _: Scripted(200, {"logs": []})) as node:
        contexts.add_running("data", [node.url])
        alone = CliRunner().invoke(cli, ["logs"])
        contexts.add_running("other", [node.url])
        several = CliRunner().invoke(cli, ["logs"])
        others = [
            CliRunner().invoke(cli, ["logs", *given])
            for given in (
                ["--context", "data"],
                ["--endpoint", node.url],
                ["--json"],
                ["list", "--endpoint", node.url],
                ["list", "--json"],
            )
        ]
        of_a_group = CliRunner().invoke(cli, ["logs", "list"])
        assert CliRunner().invoke(cli, ["context", "use", "data"]).exit_code == 0
        selected = CliRunner().invoke(cli, ["logs"])
    assert "(data, other); this command calls other, the newest." in several.stderr
    assert of_a_group.stderr == several.stderr
    assert [each.stderr for each in (alone, *others, selected)] == [""] * 7


def test_a_name_that_is_taken_gets_a_number() -> None:
    assert CliRunner().invoke(cli, ["context", "add", "data", "-e", "http://p"]).exit_code == 0
    assert contexts.add_running("data", ["http://a"]) == "data-2"
    assert contexts.add_running("data", ["http://b"]) == "data-3"
    assert endpoints(context="data") == ["http://p"]


def test_a_cluster_whose_process_was_killed_is_not_used_and_then_forgotten(ended: int) -> None:
    with contexts.changing() as known:
        known.contexts["killed"] = contexts.NamedCluster(["http://k"], pid=ended)
    assert endpoints() == ["http://127.0.0.1:8101"]
    assert contexts.add_running("killed", ["http://a"]) == "killed"
    assert endpoints() == ["http://a"]


def test_processes_that_change_the_file_at_the_same_time_lose_nothing(file: Path) -> None:
    program = (
        "import sys\n"
        "from app.client import contexts\n"
        "for number in range(20):\n"
        "    with contexts.changing() as known:\n"
        "        known.contexts[f'{sys.argv[1]}-{number}'] = contexts.NamedCluster(['http://a'])\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, name]) for name in ("a", "b", "c")]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    assert len(json.loads(file.read_text())["contexts"]) == 60


def test_a_damaged_file_is_one_sentence_and_does_not_disturb_completion(file: Path) -> None:
    file.parent.mkdir()
    file.write_text("{")
    found = CliRunner().invoke(cli, ["context"])
    assert (found.exit_code, found.stderr.count("\n")) == (1, 1)
    assert str(file) in found.stderr
    assert "repair or delete it" in found.stderr
    changed = CliRunner().invoke(cli, ["context", "use", "--none"])
    assert (changed.exit_code, changed.stderr) == (1, found.stderr)
    assert file.read_text() == "{"
    status = CliRunner().invoke(cli, ["status"])
    assert (status.exit_code, status.stderr) == (1, found.stderr)
    command = click.Command("any")
    assert complete_contexts(click.Context(command), click.Argument(["name"]), "") == []


def test_a_user_without_contexts_learns_how_to_add_one() -> None:
    shown = CliRunner().invoke(cli, ["context"])
    assert shown.exit_code == 0
    assert "commitlog context add" in shown.output


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").write_text("")
    monkeypatch.setenv("COMMITLOG_CONTEXTS", str(tmp_path / "plain" / "contexts.json"))
    with pytest.raises(contexts.ContextError, match=r"json cannot be written .*; set COMMITLOG_CONTEXTS"):
        contexts.add_running("data", ["http://a"])


def test_a_token_file_is_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "token").write_text("secret\n")
    monkeypatch.chdir(here)
    added = ["context", "add", "prod", "-e", "http://p", "--token-file", "token"]
    assert CliRunner().invoke(cli, added).exit_code == 0
    monkeypatch.chdir(there)
    assert find_target((), None, None, None).token == "secret"


def test_a_token_file_of_an_unknown_user_is_refused() -> None:
    cluster = contexts.NamedCluster(["http://a"], token_file="~nobody-here/token")
    with pytest.raises(contexts.ContextError, match="the token file ~nobody-here/token cannot be read"):
        cluster.token()


def test_a_file_of_another_user_is_not_called_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with the HOME of root, which sudo may keep."""

    def refuse(_: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(contexts.ContextError) as refused:
        contexts.load()
    assert "cannot be read (Permission denied); set COMMITLOG_CONTEXTS" in str(refused.value)
    assert "delete" not in str(refused.value)
