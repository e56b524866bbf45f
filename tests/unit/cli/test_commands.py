"""The commands against a scripted node: what they print, and with which exit code they end."""

import json
import time
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from app.cli.log_state.schema import _show_check
from app.cli.main import COMMANDS, cli
from app.client import connection
from app.log.events import KINDS
from tests.unit.cli.fake_service import Asked, Scripted, committed, fake_service, problem
from tests.unit.cli.test_client import closed_url

RECORD = {"index": 4, "term": 1, "offset": 0, "timestamp": 1_730_000_000_000, "key": "k", "type": "data"}


def run(*arguments: str, url: str, stdin: str = "") -> Result:
    return CliRunner().invoke(cli, [*arguments, "--endpoint", url], input=stdin)


def answering(reported: Scripted) -> Any:
    return fake_service(lambda _: reported)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    parts = [[name, part] for part in command.commands] if isinstance(command, click.Group) else [[name]]
    for arguments in parts:
        result = CliRunner().invoke(cli, [*arguments, "--help"])
        assert result.exit_code == 0, result.output
        assert name in ("sim", "completion") or "--json" in result.output


@pytest.mark.parametrize(
    ("reported", "exit_code"),
    [
        (Scripted(200, committed()), 0),
        (problem("forbidden", 403, "not_applied", retryable=False), 1),
        (problem("idempotency-key-reused", 422, "not_applied", retryable=False), 1),
        (problem("invalid-request", 422, "not_applied", retryable=False), 2),
        (problem("index-mismatch", 412, "not_applied", retryable=False, next_index=5), 3),
        (problem("log-not-found", 404, "not_applied", retryable=False), 4),
        (problem("storage-full", 507, "not_applied", retryable=False), 5),
        (problem("internal", 500, "unknown", retryable=False), 6),
    ],
)
def test_exit_codes_of_an_append(reported: Scripted, exit_code: int) -> None:
    with answering(reported) as node:
        result = run("append", "v", url=node.url)
    assert result.exit_code == exit_code
    if exit_code:
        assert result.stderr.startswith(f"commitlog: {reported.document['code']}: ")
        assert result.stderr.count("\n") == (2 if exit_code == 6 else 1)


def test_no_node_at_all_is_unavailable() -> None:
    for arguments in (["append", "v"], ["read"], ["logs"], ["status"]):
        result = run(*arguments, "--give-up-s", "0.1", url=closed_url())
        assert result.exit_code == 5, result.output
        assert "does not answer" in result.stderr


def test_wrong_usage_is_two() -> None:
    for arguments in (["nonsense"], ["read", "--limit", "0"], ["append", "a", "--header", "x"]):
        assert CliRunner().invoke(cli, arguments).exit_code == 2
    assert CliRunner().invoke(cli, ["logs", "--endpoint", "localhost:1"]).exit_code == 2


def test_append_sends_key_headers_and_conditions() -> None:
    with answering(Scripted(200, committed(7, 2))) as node:
        options = ["-k", "k", "-H", "a=b", "--match-index", "7", "--idempotency-key", "mine"]
        result = run("append", "x", "y", *options, url=node.url)
    assert result.output == "log default, index 7 to 8, term 1, leader n1\n"
    asked = node.appends()[0]
    assert asked.headers["idempotency-key"] == "mine"
    assert asked.query["match_index"] == "7"
    assert [json.loads(line) for line in asked.body.splitlines()] == [
        {"value": value, "key": "k", "headers": [["a", "b"]]} for value in ("x", "y")
    ]


def test_append_cuts_standard_input_into_appends() -> None:
    with fake_service(lambda asked: Scripted(200, committed(0, asked.body.count(b"\n")))) as node:
        result = run("append", "--batch", "2", url=node.url, stdin="a\nb\nc\n")
    assert [asked.body.count(b"\n") for asked in node.appends()] == [2, 1]
    assert result.output == "appended 3 records from index 0 to 0 of log default, term 1\n"


def test_append_takes_record_objects_by_line() -> None:
    with answering(Scripted(200, committed())) as node:
        assert run("append", "--ndjson", url=node.url, stdin='{"value": "a"}\n\n').exit_code == 0
        wrong = run("append", "--ndjson", url=node.url, stdin='{"value": "a"}\nnonsense\n')
    assert wrong.exit_code == 2
    assert "line 2 is not JSON" in wrong.stderr


def test_append_json_prints_the_answer_as_it_came() -> None:
    with answering(Scripted(200, committed(3))) as node:
        result = run("append", "v", "--json", url=node.url)
    assert json.loads(result.output) == committed(3)


def test_read_prints_lines_or_the_page() -> None:
    page: dict[str, Any] = {"log": "default", "records": [{**RECORD, "value": "v\nw"}]}
    page |= {"next_index": 5, "has_more": True}
    page["committed_index"] = 9
    with answering(Scripted(200, page)) as node:
        text = run("read", "--from-index", "4", url=node.url)
        document = run("read", "--last", "1", "--json", url=node.url)
    assert text.stdout == "       4  2024-10-27T03:33:20.000Z  k  v\\nw\n"
    assert "more from index 5" in text.stderr
    assert json.loads(document.stdout) == page
    assert node.asked[0].query == {"from_index": "4", "limit": "1000", "wait_ms": "0"}
    assert node.asked[1].query["last"] == "1"


def test_an_output_file_is_reported_with_the_rest_that_it_lacks(tmp_path: Path) -> None:
    page = {"records": [RECORD], "next_index": 5, "has_more": True, "committed_index": 9}
    with answering(Scripted(200, page)) as node:
        result = run("read", "-o", str(tmp_path / "a.csv"), url=node.url)
    assert result.stdout == ""
    assert f"{tmp_path / 'a.csv'}: 1 record\n" in result.stderr
    assert "more from index 5: --from-index 5, or --all" in result.stderr


@pytest.mark.parametrize(
    ("begin", "reason"), [(100, ""), (92, "; only whole batches"), (120, "; it began there before")]
)
def test_trim_explains_where_the_log_begins(begin: int, reason: str) -> None:
    with answering(Scripted(200, {"log": "default", "begin_index": begin})) as node:
        result = run("trim", "100", url=node.url)
    assert result.stdout.startswith(f"log default begins at index {begin}{reason}")


def test_an_append_without_an_answer_has_an_unknown_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "SLACK_S", -4.8)  # the service may take 5 s

    def answer(asked: Asked) -> Scripted:
        time.sleep(0.4)
        return Scripted(0)

    with fake_service(answer) as node:
        result = run("append", "v", "--give-up-s", "0.1", url=node.url)
    assert result.exit_code == 6
    assert f"{node.url} did not answer within 0.2 s\n" in result.stderr
    assert "the outcome is unknown" in result.stderr


def test_read_wants_one_start() -> None:
    result = run("read", "--from-index", "4", "--from", "earliest", url="http://127.0.0.1:1")
    assert result.exit_code == 2


def test_tail_reads_page_after_page() -> None:
    def answer(asked: Asked) -> Scripted:
        index = int(asked.query.get("from_index", 4))
        record = {**RECORD, "index": index, "value": None}
        more = {"next_index": index + 1, "has_more": index < 6, "committed_index": 6}
        return Scripted(200, {"records": [record], **more})

    with fake_service(answer) as node:
        result = run("tail", "-n", "3", "--json", url=node.url)
    assert [json.loads(line)["index"] for line in result.output.splitlines()] == [4, 5, 6]


def test_epochs_and_watermarks_as_tables() -> None:
    epoch = {"epoch": 2, "term": 2, "leader": "n3", "start_index": 1_000, "start_offset": 9, "started_ms": 0}
    epochs = [{**epoch, "end_index": None, "end_offset": None}]
    with answering(Scripted(200, {"epochs": epochs})) as node:
        shown = run("epochs", url=node.url).output
        assert "1,000" in shown
        assert "open" in shown
    with answering(Scripted(200, {"7": {"n1": 44, "n2": 41}})) as node:
        shown = run("watermarks", "--term", "7", url=node.url).output
        assert "44" in shown
        assert "n2" in shown


def test_ha_status_as_a_table() -> None:
    slave = {
        "id": "n2",
        "state": "REFUSED",
        "acked_offset": None,
        "gap_bytes": 1_234,
        "transfer_bytes_per_s": 0,
        "in_sync": False,
        "reason": "another history",
    }
    status = {"node": "n1", "log": "default", "role": "master", "master": "n1", "end_offset": 5_678}
    status |= {"waits_for": "n2 must connect", "slaves": [slave], "link": None}

    def answer(asked: Asked) -> Scripted:
        if asked.path == "/v1/cluster":
            return Scripted(200, {"nodes": [{"id": "n1", "url": node.url}]})
        return Scripted(200, status)

    with fake_service(answer) as node:
        shown = run("ha-status", url=node.url).output
        for text in ("n2", "REFUSED", "1,234", "5,678", "n1 takes no appends: n2 must connect"):
            assert text in shown
        assert json.loads(run("ha-status", "--node", "n1", "--json", url=node.url).output) == status
        status |= {"replication": "raft", "role": "leader", "slaves": []}
        assert run("ha-status", url=node.url).output == (
            "log default has no slaves in Raft mode: `commitlog status` shows its followers\n"
        )


def test_logs_show_masters_only_where_one_has_a_master() -> None:
    log = {"name": "a", "replication": "raft", "durability": "fsync", "replicas": ["n1"], "master": None}
    elected = {
        **log,
        "name": "b",
        "replication": "controller",
        "master": "n2",
        "sync_state_set": ["n2", "n3"],
    }
    with fake_service(lambda _: Scripted(200, {"logs": [log]})) as node:
        assert "master" not in run("logs", url=node.url).output
    with fake_service(lambda _: Scripted(200, {"logs": [log, elected]})) as node:
        shown = run("logs", url=node.url).output
        assert "master" in shown
        assert "n2, n3" in shown


def test_logs_show_the_spark_jobs_only_where_one_has_failed() -> None:
    log = {"name": "a", "replication": "raft", "durability": "fsync", "replicas": ["n1"], "master": None}
    runs, failed = ({**log, "tables_job": state} for state in ("running", "failed"))
    for logs, is_shown in (([log, runs], False), ([log, runs, failed], True)):
        with answering(Scripted(200, {"logs": logs})) as node:
            shown = run("logs", url=node.url).output
            assert ("Spark job" in shown, "failed" in shown) == (is_shown, is_shown)


def test_replicas_change_until_nothing_is_leaving_any_more() -> None:
    """In Raft mode the call is repeated while the new member catches up; then the log is read."""
    log = {"name": "a", "replicas": ["n1", "n4"], "leaving": ["n2"]}
    reported = [
        problem("not-caught-up", 409, "not_applied", retryable=False),
        Scripted(200, log),
        Scripted(200, {"logs": [{**log, "leaving": []}]}),
    ]
    with fake_service(
        lambda asked: Scripted(404) if asked.path == "/v1/cluster" else reported.pop(0)
    ) as node:
        change = ["logs", "change", "a", "--replicas", "n1,n4", "--learners", "", "--wait-s", "20"]
        result = run(*change, url=node.url)
        assert result.exit_code == 0, result.output
        assert [asked.method for asked in node.asked] == ["PATCH", "PATCH", "GET"]
        assert json.loads(node.asked[0].body) == {"replicas": ["n1", "n4"], "learners": []}
    assert "leaving" not in result.output


def test_force_alone_ends_a_pending_change_of_replicas() -> None:
    with fake_service(lambda _: Scripted(200, {"name": "a", "replicas": ["n1"], "learners": []})) as node:
        assert run("logs", "change", "a", "--force", url=node.url).exit_code == 0
    assert [json.loads(asked.body) for asked in node.asked if asked.method == "PATCH"] == [{"force": True}]


def test_members_of_one_log_and_the_metadata_of_dead_nodes() -> None:
    with fake_service(lambda _: Scripted(200, {"members": [], "node": "n3", "logs": ["a"]})) as node:
        for arguments in (
            ["promote", "n3", "--of", "a"],
            ["demote", "n3", "--of", "a"],
            ["remove", "n3", "--of", "a", "--force"],
            ["clean", "n3"],
        ):
            assert run("members", *arguments, url=node.url).exit_code == 0
        asked = [
            (asked.method, asked.path.removeprefix("/v1/cluster/members/"), asked.query)
            for asked in node.asked
        ]
    assert asked == [
        ("POST", "n3:promote", {"log": "a"}),
        ("POST", "n3:demote", {"log": "a"}),
        ("DELETE", "n3", {"log": "a", "force": "true"}),
        ("POST", "n3:clean", {}),
    ]


def test_a_change_of_one_log_shows_the_roles_in_it() -> None:
    member = {"voter": True, "alive": True, "version": "1", "url": "http://h:1", "peer_address": "h:2"}
    members = [{"id": "n1", "role": "voter", **member}, {"id": "n3", "role": "learner", **member}]
    with fake_service(lambda _: Scripted(200, {"members": members})) as node:
        lines = run("members", "demote", "n3", "--of", "pay", url=node.url).output.splitlines()
        whole = run("members", "promote", "n3", url=node.url).output
    assert "role in pay" in lines[1]
    assert next(line for line in lines if "n3" in line).split()[-1] == "learner"
    assert "role" not in whole


def test_settings_of_the_controllers_are_name_and_value() -> None:
    for wrong in (["lease_ms"], ["lease_ms=long"], []):
        assert CliRunner().invoke(cli, ["controller", "set", *wrong]).exit_code == 2


def test_cursors_are_listed_with_their_versions() -> None:
    etl = {"log": "default", "name": "etl", "index": 1_042, "fence": True, "version": "17"}
    job = {"log": "default", "name": "job", "index": 7, "fence": False, "version": "18", "holder": "job-1"}
    with answering(Scripted(200, {"cursors": [etl, job]})) as node:
        shown = run("cursors", "list", url=node.url).output
        assert node.asked[-1].path == "/v1/logs/default/cursors"
        lines = [line.split() for line in shown.rstrip().splitlines()[-2:]]
        assert lines == [["etl", "1,042", "yes", "17"], ["job", "7", "no", "18", "job-1"]]
        assert json.loads(run("cursors", "list", "--json", url=node.url).output) == {"cursors": [etl, job]}
        assert run("cursors", url=node.url).output == shown
        assert run("cursors", "--log", "a", "list", url=node.url).exit_code == 0
        assert node.asked[-1].path == "/v1/logs/a/cursors"
    with answering(Scripted(200, {"cursors": []})) as node:
        assert "has no cursors" in run("cursors", "list", url=node.url).output


def test_tables_in_a_pipe_are_as_wide_as_they_need_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    with answering(Scripted(200, {"1": {"n1": 4, "n2": 4}})) as node:
        shown = run("watermarks", url=node.url).output
        assert shown.splitlines()[0] == "watermarks: last acknowledged index"
    checks = json.loads(CliRunner().invoke(cli, ["doctor", "--json"]).output)["checks"]
    heading = 2  # lines
    assert len(CliRunner().invoke(cli, ["doctor"]).output.splitlines()) == heading + len(checks)


def test_options_before_the_subcommand_hold_for_it() -> None:
    """`commitlog logs -e URL delete orders` acts on the cluster of URL, not on the default one."""
    log = {"name": "orders", "replication": "raft", "replicas": ["n1"]}
    with fake_service(lambda _: Scripted(200, {"logs": [log], **log})) as node:
        options = ["-e", node.url, "--token", "t", "--json"]
        result = CliRunner().invoke(cli, ["logs", *options, "delete", "orders"])
        assert json.loads(result.stdout)["name"] == "orders", result.output
        assert (node.asked[-1].method, node.asked[-1].path) == ("DELETE", "/v1/logs/orders")
        assert node.asked[-1].headers["authorization"] == "Bearer t"
        nearer = ["logs", "-e", closed_url(), "list", "-e", node.url]
        assert CliRunner().invoke(cli, nearer).exit_code == 0


def test_a_removed_node_that_still_votes_is_explained() -> None:
    member: dict[str, Any] = {"id": "n1", "url": "http://n1", "peer_address": "n1:1"}
    member |= {"voter": True, "alive": True, "version": "1"}
    logs = [
        {"name": "a", "replication": "raft", "replicas": ["n1"]},
        {"name": "b", "replication": "classic", "replicas": ["n1", "n2"]},
        {"name": "c", "replication": "controller", "replicas": ["n2"]},
    ]
    with fake_service(lambda _: Scripted(200, {"members": [member], "logs": logs})) as node:
        removed = run("members", "remove", "n1", url=node.url)
        assert removed.exit_code == 0
        assert "keeps logs in controller or classic mode, b. Move or delete them" in removed.stderr
        assert "are fixed (b): to end the vote alone, use `commitlog members remove n1 --of" in removed.stderr
        member["voter"] = False
        assert run("members", "remove", "n1", url=node.url).stderr == ""


def test_members_change_in_one_log_by_of_and_never_by_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """--log without an effect would remove the node from every log."""
    monkeypatch.setenv("COMMITLOG_LOG", "a")  # names the log of the other commands
    with fake_service(lambda _: Scripted(200, {"members": []})) as node:
        for arguments in (["remove", "n3", "--log", "a"], ["--log", "a", "promote", "n3"]):
            refused = run("members", *arguments, url=node.url)
            assert (refused.exit_code, node.asked) == (2, [])
            assert "--of LOG names the log" in refused.stderr
        assert run("members", "remove", "n3", url=node.url).exit_code == 0
        assert run("members", "list", "--log", "a", url=node.url).exit_code == 0


def test_events_of_an_unknown_kind_are_refused() -> None:
    event = {"seq": 0, "node": "n1", "timestamp": 0, "term": 1, "kind": "role", "data": {}}
    page = {"events": [event, {**event, "kind": "of-a-newer-node"}], "next_seq": 2, "has_more": False}

    def answer(asked: Asked) -> Scripted:
        if asked.path == "/v1/cluster":
            return Scripted(200, {"nodes": [{"id": "n1", "url": node.url}]})
        return Scripted(200, page)

    with fake_service(answer) as node:
        refused = run("events", "--node", "n1", "--kind", "foo", url=node.url)
        assert (refused.exit_code, node.asked) == (2, [])
        assert "'foo' is not one of" in refused.stderr
        assert all(repr(kind) in refused.stderr for kind in KINDS)
        unknown = run("events", "--node", "n9", url=node.url)
        assert (unknown.exit_code, "must be one of n1, got 'n9'" in unknown.stderr) == (2, True)
        shown = run("events", "--node", "n1", "--kind", "role", url=node.url)
        assert (shown.exit_code, len(shown.output.splitlines())) == (0, 1)
        assert len(run("events", "--node", "n1", url=node.url).output.splitlines()) == 2


def test_a_log_without_a_schema_has_no_list_of_them() -> None:
    with answering(Scripted(200, {"schemas": []})) as node:
        shown = run("schema", "list", url=node.url)
        assert (shown.exit_code, shown.output) == (0, "log default has no schema\n")
        assert json.loads(run("schema", "list", "--json", url=node.url).output) == {"schemas": []}


def test_a_term_without_watermarks_is_reported() -> None:
    with answering(Scripted(200, {"99": {}})) as node:
        shown = run("watermarks", "--term", "99", url=node.url)
        assert shown.exit_code == 0
        assert shown.output.startswith("the leader of default keeps no watermarks of term 99")
        assert json.loads(run("watermarks", "--term", "99", "--json", url=node.url).output) == {"99": {}}


def test_a_number_that_is_none_is_named_in_plain_words() -> None:
    for arguments, words in (
        (["trim", "abc"], "'abc' is not a whole number."),
        (["cursors", "set", "etl", "3.5"], "'3.5' is not a whole number."),
        (["read", "--give-up-s", "soon"], "'soon' is not a number."),
    ):
        result = CliRunner().invoke(cli, arguments)
        assert result.exit_code == 2
        assert words in result.stderr


def test_a_difference_of_the_whole_schema_has_a_place(capsys: pytest.CaptureFixture[str]) -> None:
    difference = {"path": "", "kind": "format_changed", "detail": "The format was json, it is avro."}
    document = {"columns": [], "version": 1, "key_columns": [], "differences": [difference]}
    _show_check({**document, "records": 0, "mismatches": [], "widened": []})
    assert "not compatible with version 1: /: The format was json, it is avro.\n" in capsys.readouterr().out
