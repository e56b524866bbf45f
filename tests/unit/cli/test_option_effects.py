"""Options that would have no effect are refused, and those of two have one each."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from app.cli.main import cli
from tests.unit.cli.fake_service import Asked, Scripted, fake_service, problem

SCHEMA = "app.cli.log_state.schema"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["append", "v", "--key-column", "id"], "VALUES and --file"),
        (["append", "v", "--skip", "1"], "VALUES and --file"),
        (["append", "v", "--batch", "10"], "VALUES and --file"),
        (["append", "-"], "- is not read as standard input"),
        (["append", "--ndjson", "--key", ""], "--key, --header and --timestamp cannot be used with ndjson"),
        (["read", "--format", "parquet", "--encoding", "base64"], "--encoding cannot be used with parquet"),
        (["read", "-o", "a.arrow", "--encoding", "json"], "--encoding cannot be used with arrow"),
        (["read", "-o", "a.csv", "--json"], "--json and --output a.csv cannot be used together"),
        (["logs", "change", "a", "--priority", "n1=1", "--priority", "n1=2"], "n1 is named twice"),
        (["restore", "--check", ".", "--log", "a"], "--log and --replicas cannot be used with --check"),
        (["tables", "--table", "events"], "--table and --timeout-ms require --wait"),
        (["tables", "--at-index", "1", "--timeout-ms", "5"], "--table and --timeout-ms require --wait"),
    ],
)
def test_an_option_without_an_effect_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with fake_service(lambda _: Scripted(500)) as node:
        refused = CliRunner().invoke(cli, [*arguments, "-e", node.url], input="{}")
    assert (refused.exit_code, node.asked) == (2, [])
    assert reason in refused.stderr


@pytest.mark.parametrize(("given", "code"), [("one\n", 0), ("one", 0), ("one\n\n", 0), ("one\ntwo\n", 2)])
def test_a_second_token_is_not_dropped(given: str, code: int) -> None:
    """Its holder would be refused by the nodes."""
    result = CliRunner().invoke(cli, ["token", "hash", "--scope", "read"], input=given)
    assert (result.exit_code, "must hold one token" in result.stderr) == (code, code == 2)


def test_a_node_of_no_configuration_is_refused() -> None:
    refused = CliRunner().invoke(cli, ["doctor", "--node", "n2"])
    assert (refused.exit_code, "--node requires --config" in refused.stderr) == (2, True)


@pytest.mark.parametrize(
    ("command", "module"), [(["verify", "--tables"], "app.cli.verify"), (["schema", "replay"], SCHEMA)]
)
def test_a_job_gets_the_time_limit_of_its_command(
    monkeypatch: pytest.MonkeyPatch, command: list[str], module: str
) -> None:
    begun: list[Sequence[str]] = []
    monkeypatch.setattr(f"{module}.become_job", lambda _, arguments, __: begun.append(arguments))
    with fake_service(lambda _: Scripted(200, {"nodes": []})) as node:
        CliRunner().invoke(cli, [*command, "--give-up-s", "7", "-e", node.url])
    (arguments,) = begun
    assert arguments[arguments.index("--give-up-s") + 1] == "7.0"


def test_last_does_not_limit_the_events_that_follow() -> None:
    def answer(asked: Asked) -> Scripted:
        if asked.path == "/v1/cluster":
            return Scripted(200, {"nodes": [{"id": "n1", "url": node.url}]})
        first = int(asked.query["from_seq"])
        if first == 8:
            return problem("log-not-found", 404, "not_applied", retryable=False)
        event = {"node": "n1", "timestamp": 0, "term": 1, "kind": "role", "data": {}}
        events = [{**event, "seq": seq} for seq in range(first, first + 4)]
        return Scripted(200, {"events": events, "next_seq": first + 4, "has_more": False})

    with fake_service(answer) as node:
        shown = CliRunner().invoke(cli, ["events", "--node", "n1", "-n", "1", "-f", "--json", "-e", node.url])
    assert [json.loads(line)["seq"] for line in shown.stdout.splitlines()] == [3, 4, 5, 6, 7]


def test_a_tail_from_the_end_begins_where_its_consistency_ends() -> None:
    def answer(asked: Asked) -> Scripted:
        if asked.path.endswith("/tail"):
            assert asked.query["consistency"] == "local"
            return Scripted(200, {"begin_index": 0, "end_index": 9, "committed_index": 4})
        return Scripted(200, {"records": [], "next_index": 10, "has_more": False, "committed_index": 4})

    with fake_service(answer) as node:
        shown = CliRunner().invoke(cli, ["tail", "-n", "0", "--consistency", "local", "-e", node.url])
    assert shown.exit_code == 0, shown.output
    assert node.asked[-1].query["from_index"] == "10"
