"""Common behaviour of all commands: errors as JSON, suggestions, lazy help, contexts, completion."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from app.cli import run
from app.cli.main import COMMANDS, cli
from app.cli.times import format_time, parse_time
from tests.unit.cli.fake_service import Scripted, committed, fake_service, problem
from tests.unit.cli.test_client import closed_url


def test_a_refusal_is_the_problem_document_on_standard_error() -> None:
    reported = problem("index-mismatch", 412, "not_applied", retryable=False, next_index=5)
    with fake_service(lambda _: reported) as node:
        result = CliRunner().invoke(cli, ["append", "v", "--json", "-e", node.url])
    assert result.exit_code == 3
    assert result.stdout == ""
    assert json.loads(result.stderr) == reported.document


def test_https_at_a_node_without_tls_is_named_alone() -> None:
    with fake_service(lambda _: Scripted(200, committed())) as node:
        secure = node.url.replace("http:", "https:")
        result = CliRunner().invoke(cli, ["append", "v", "-e", secure])
    assert result.stderr == f"commitlog: {secure} does not use TLS; its URL is {node.url}\n"
    assert result.exit_code == 5


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (["read", "--limit", "0"], "usage", 2),
        (["nonsense"], "usage", 2),
        (["logs", "nonsense"], "usage", 2),
        ([], "usage", 2),
        (["fence"], "usage", 2),
        (["read", "--give-up-s", "0", "-e", closed_url()], "no-answer", 5),
        (["logs", "list", "-e", "http://127.0.0.1:99999"], "usage", 2),
        (["logs", "list", "-e", "127.0.0.1:8101"], "usage", 2),
        (["tables", "--tables", "/no/such/folder"], "not-found", 4),
        (["append", "-f", "/no/such/file"], "usage", 2),
        (["append", "v", "--token", "a\nb"], "usage", 2),
        (["read", "--give-up-s", "nan"], "usage", 2),
        (["logs", "change", "a", "--unclean", "--wait-s", "nan"], "usage", 2),
        (["members", "promote", "n4", "--wait-s", "NaN"], "usage", 2),
        (["bench", "--seconds", "nan"], "usage", 2),
        (["append", "v", "--idempotency-key", "a\nb"], "usage", 2),
        (["read", "--token", "tok\u2014en"], "usage", 2),
        (["read", "-o", "/no/such/folder/a.json", "-e", "http://127.0.0.1:1"], "failed", 1),
        (["sim", "--colour"], "usage", 2),
    ],
)
def test_every_failure_is_json_with_its_exit_code(arguments: list[str], code: str, exit_code: int) -> None:
    result = CliRunner().invoke(cli, [*arguments, "--json"])
    assert (result.exit_code, result.stdout) == (exit_code, "")
    document = json.loads(result.stderr)
    assert (document["code"], document["outcome"]) == (code, "not_applied")
    assert document["detail"]


def test_a_group_without_a_command_names_its_commands_as_json() -> None:
    for arguments, reason in (
        (["fence", "--json"], "Missing command. It is one of remove, set."),
        (["--json", "fence"], "Missing command. It is one of remove, set."),
        (["--json"], "Missing command. See"),
    ):
        detail = json.loads(CliRunner().invoke(cli, arguments).stderr)["detail"]
        assert detail.startswith(reason)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json", "context", "list"],
        ["context", "--json", "list"],
        ["context", "list", "--json"],
        ["--json", "context"],
    ],
)
def test_json_may_precede_the_command(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMITLOG_CONTEXTS", str(tmp_path / "contexts.json"))
    result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert "contexts" in json.loads(result.stdout)


@pytest.mark.parametrize(
    ("group", "command"),
    [
        ("fence", ["set", "token", "-e", "no-url"]),
        ("leader", ["transfer", "-e", "no-url"]),
        ("schema", ["list", "-e", "no-url"]),
        ("token", ["new", "--scope", "no-scope"]),
    ],
)
def test_json_may_precede_the_command_of_each_group(group: str, command: list[str]) -> None:
    result = CliRunner().invoke(cli, [group, "--json", *command])
    document = json.loads(result.stderr)
    assert (result.exit_code, document["code"]) == (2, "usage")
    assert "Invalid value for" in document["detail"]


def test_the_script_of_a_shell_is_printed_as_json_too() -> None:
    text = CliRunner().invoke(cli, ["completion", "bash"]).stdout
    document = json.loads(CliRunner().invoke(cli, ["completion", "bash", "--json"]).stdout)
    assert document == {"shell": "bash", "source": text.removesuffix("\n")}


def test_json_as_a_value_is_not_the_option() -> None:
    result = CliRunner().invoke(cli, ["append", "--acks", "none", "--", "--json"])
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_ctrl_c_during_the_imports_is_the_exit_code_of_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Interrupting:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "app.cli.main":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "app.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupting(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 130


def test_a_misspelled_command_gets_a_suggestion() -> None:
    assert "Did you mean 'status'" in CliRunner().invoke(cli, ["stauts"]).stderr
    assert "--help" in CliRunner().invoke(cli, ["xyzzy"]).stderr
    assert "create" in CliRunner().invoke(cli, ["logs", "craete"]).stderr


def test_the_name_of_a_log_as_an_argument_gets_advice() -> None:
    assert "--log names the log" in CliRunner().invoke(cli, ["read", "orders"]).stderr
    assert "--log" not in CliRunner().invoke(cli, ["doctor", "orders"]).stderr
    given = CliRunner().invoke(cli, ["read", "orders", "--log", "orders"]).stderr
    assert "names the log" not in given


def test_help_and_version_import_neither_client_nor_arrow_nor_rich() -> None:
    heavy = ["urllib3", "pyarrow", "numpy", "rich", "msgspec"]
    program = (
        "import sys; from app.cli.main import cli\n"
        "try: cli.main(sys.argv[1:], prog_name='commitlog')\n"
        f"finally: print([name for name in {heavy} if name in sys.modules], file=sys.stderr)"
    )
    for arguments in (["--help"], ["append", "--help"]):
        done = subprocess.run(
            [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
        )
        assert done.stderr == "[]\n", arguments


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("pyarrow", ["read", "-o", "x.parquet"], "arrow"),
        ("numpy", ["demo"], "server"),
        ("uvicorn", ["up"], "server"),
        ("pyspark", ["up"], "spark"),
        ("pyspark", ["demo"], "spark"),
        ("pyspark", ["materialize", "--once"], "spark"),
        ("pyspark", ["verify", "--tables"], "spark"),
        ("pyspark", ["schema", "replay"], "spark"),
    ],
)
def test_a_command_without_its_library_names_the_extra(
    missing: str, arguments: list[str], extra: str
) -> None:
    """Programs with the client alone, as the extra `client` installs them."""
    program = (
        "import sys, importlib.util as util; missing = sys.argv.pop(1); sys.modules[missing] = None\n"
        "find = util.find_spec; util.find_spec = lambda name: None if name == missing else find(name)\n"
        "from app.cli.main import cli; cli.main(sys.argv[1:], prog_name='commitlog')"
    )
    page = {"records": [], "next_index": 0, "has_more": False, "committed_index": -1}
    with fake_service(lambda _: Scripted(200, page)) as node:
        endpoint = ["-e", node.url] if arguments[0] == "read" else []
        command = [sys.executable, "-c", program, missing, *arguments, *endpoint]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert f"needs {missing}, which is not installed: pip install 'PATH_OF_THE_WHEEL[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_client_without_arrow_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "from app.client import CommitlogClient, RecordProducer\n"
        "from app.client.data_frames import append_frame, read_frame, read_pandas, to_arrow\n"
        "client = CommitlogClient('http://127.0.0.1:1', give_up_s=0)\n"
        "producer = RecordProducer(client)\n"
        "for call in (lambda: to_arrow([1]), lambda: append_frame(client, [1]), lambda: read_frame(client),\n"
        "             lambda: read_pandas(client), lambda: client.read_arrow(0),\n"
        "             lambda: client.append_arrow(None), lambda: producer.send_arrow(None)):\n"
        "    try: call()\n"
        "    except ModuleNotFoundError as error: print(error.name, error)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    line = "pyarrow pyarrow is not installed: pip install 'PATH_OF_THE_WHEEL[arrow]'"
    assert done.stdout.splitlines() == [line] * 7


def test_tables_need_no_arrow_and_explain_that_there_are_none() -> None:
    program = (
        "import sys; sys.modules['pyarrow'] = sys.modules['numpy'] = None\n"
        "from app.cli.main import cli; cli.main(['tables', '-e', sys.argv[1]], prog_name='commitlog')"
    )
    with fake_service(lambda _: Scripted(200, {"tables": []})) as node:
        command = [sys.executable, "-c", program, node.url]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("log default has no Delta tables")


def test_the_client_imports_asyncio_and_producers_when_they_are_used() -> None:
    program = (
        "import sys, app.client; parts = ('asyncio', 'app.client.producer', 'app.client.consumer')\n"
        "print([part for part in parts if part in sys.modules])\n"
        "from app.client import *; print(AsyncCommitlogClient.__name__, hasattr(app.client, 'nothing'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "AsyncCommitlogClient False"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_line(name: str) -> None:
    assert COMMANDS[name][1].endswith(".")
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    parts = command.commands.values() if isinstance(command, click.Group) else [command]
    assert all(part.get_short_help_str() for part in parts)
    assert name in CliRunner().invoke(cli, ["--help"]).output


def test_a_context_names_the_cluster_its_log_and_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMMITLOG_CONTEXTS", str(tmp_path / "contexts.json"))
    token = tmp_path / "token"
    token.write_text("secret\n")
    with fake_service(lambda _: Scripted(200, committed())) as node:
        add = ["context", "add", "prod", "-e", node.url, "--log", "orders", "--token-file", str(token)]
        assert CliRunner().invoke(cli, add).exit_code == 0
        assert CliRunner().invoke(cli, ["append", "v"]).exit_code == 0  # the first context is in use
        assert CliRunner().invoke(cli, ["append", "v", "-l", "other", "--context", "prod"]).exit_code == 0
    first, second = node.appends()
    assert first.path == "/v1/logs/orders/records"
    assert first.headers["authorization"] == "Bearer secret"
    assert second.path == "/v1/logs/other/records"
    shown = json.loads(CliRunner().invoke(cli, ["context", "show", "--json"]).output)
    assert (shown["name"], shown["endpoints"], shown["current"]) == ("prod", [node.url], True)
    assert "secret" not in (tmp_path / "contexts.json").read_text()
    unknown = CliRunner().invoke(cli, ["append", "v", "--context", "nope"])
    assert unknown.exit_code == 2
    assert "prod" in unknown.stderr
    assert CliRunner().invoke(cli, ["context", "use", "nope"]).exit_code == 4
    assert CliRunner().invoke(cli, ["context", "remove", "prod"]).exit_code == 0
    assert json.loads(CliRunner().invoke(cli, ["context", "--json"]).output) == {
        "current": None,
        "contexts": [],
    }


def test_logs_and_nodes_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    logs = {"logs": [{"name": "orders"}, {"name": "other"}, {"name": "x"}]}
    with fake_service(lambda _: Scripted(200, {**logs, "nodes": [{"id": "n1", "url": node.url}]})) as node:
        for words, found in (
            (["tail", "--log", "o"], ["orders", "other"]),
            (["logs", "show", "ord"], ["orders"]),
            (["leader", "transfer", "--to", ""], ["n1"]),
        ):
            monkeypatch.setenv("COMP_WORDS", " ".join(["commitlog", *words[:-1], "-e", node.url, words[-1]]))
            if words[-2].startswith("--"):  # the option whose value is completed comes last
                line = ["commitlog", *words[:-2], "-e", node.url, *words[-2:]]
                monkeypatch.setenv("COMP_WORDS", " ".join(line))
            count = len(words) + 2
            monkeypatch.setenv("COMP_CWORD", str(count))
            monkeypatch.setenv("_COMMITLOG_COMPLETE", "bash_complete")
            result = CliRunner().invoke(cli, prog_name="commitlog", complete_var="_COMMITLOG_COMPLETE")
            assert result.output.split() == [f"plain,{name}" for name in found]
    monkeypatch.delenv("_COMMITLOG_COMPLETE")
    assert "_COMMITLOG_COMPLETE" in CliRunner().invoke(cli, ["completion", "zsh"]).output


def test_times_are_iso_milliseconds_or_ages() -> None:
    assert parse_time("1730000000000") == 1_730_000_000_000
    assert parse_time("2024-10-27T03:33:20Z") == 1_730_000_000_000
    assert parse_time("2024-10-27 03:33:20") == 1_730_000_000_000
    assert parse_time("2024-10-27T05:33:20.5+02:00") == 1_730_000_000_500
    assert parse_time("1d") < parse_time("15m") < parse_time("90s")
    assert abs(parse_time("1.5h") - parse_time("90m")) < 1_000
    assert format_time(1_730_000_000_500) == "2024-10-27T03:33:20.500Z"
    assert parse_time(format_time(-1)) == -1
    assert format_time(-62_135_596_800_000) == "0001-01-01T00:00:00.000Z"
    assert format_time(10**17) == "100000000000000000 ms"
    for wrong in ("yesterday", "", "5 minutes"):
        with pytest.raises(ValueError, match=r"[Ii]nvalid isoformat"):
            parse_time(wrong)


def commands(group: click.Group, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield every command below the group, and the group itself, by its words."""
    yield path, group
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                yield from commands(command, (*path, name))
            else:
                yield (*path, name), command


def examples(command: click.Command) -> list[list[str]]:
    """Return the arguments of `commitlog` in the examples of a command's help."""
    text = (command.help or "").partition("Examples:")[2]
    return [shlex.split(each) for each in re.findall(r"\bcommitlog ((?:(?!   |[|<>)]).)+)", text)]


@pytest.mark.parametrize(
    ("path", "command"), [each for each in commands(cli, ()) if each[0]], ids=lambda each: str(each)[:40]
)
def test_every_option_has_help_and_every_command_valid_examples(
    path: tuple[str, ...], command: click.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [each for each in command.params if isinstance(each, click.Option)]
    assert [each.opts for each in options if not each.help] == []
    if isinstance(command, click.Group):
        shown = CliRunner().invoke(command, ["--help"], terminal_width=80).output.partition("Commands:")[2]
        assert "..." not in shown  # each line of the list is a whole sentence
    found = examples(command)
    assert found
    for arguments in found:
        parsed: click.Command = cli
        while isinstance(parsed, click.Group) and arguments:
            with click.Context(parsed) as context:
                name, *rest = arguments
                nested = parsed.get_command(context, name)
            assert nested is not None, f"`{' '.join(arguments)}` names no command"
            parsed, arguments = nested, rest
        for option in parsed.params:
            if isinstance(option.type, click.Path):
                monkeypatch.setattr(option.type, "exists", False)
        parsed.make_context(path[-1], list(arguments))
