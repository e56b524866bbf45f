"""`commitlog tables`, `verify` and `bench`: what is asked of whom, and what is shown."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app.cli import bench
from app.cli.bench import _shown
from app.cli.main import cli
from tests.support.delta_files import DeltaFiles
from tests.unit.cli.fake_service import Asked, Scripted, fake_service, problem
from tests.unit.cli.test_client import closed_url
from tests.unit.cli.test_commands import answering, run

TABLE = {"name": "entries", "path": "/t/entries", "version": 3, "lag_records": 1_234, "lag_ms": 56}
TABLE |= {"materialized_index": 7_890}


def test_tables_show_version_and_lag() -> None:
    others = dict.fromkeys(("materialized_index", "lag_records", "lag_ms"))
    events = {"name": "events", "path": "/t/events", "version": 9, **others}
    newer = {**TABLE, "committed_ms": 1_730_000_000_001, "of_a_newer_node": True}  # fields may be added
    with answering(Scripted(200, {"tables": [newer, events]})) as node:
        shown = run("tables", url=node.url).output
        for text in ("entries", "7,890", "1,234", "56", "events", "9", "2024-10-27T03:33:20.001Z"):
            assert text in shown
        assert "catalog" not in shown
        assert node.asked[-1].path == "/v1/logs/default/tables"


def test_tables_show_their_names_in_a_catalog(tmp_path: Path) -> None:
    named = {**TABLE, "catalog_name": "cat.stream.default_entries"}
    with answering(
        Scripted(200, {"tables": [named, {**TABLE, "name": "events", "catalog_name": None}]})
    ) as node:
        shown = run("tables", url=node.url).output
        assert "name in the catalog" in shown
        assert "cat.stream.default_entries" in shown
        assert '"catalog_name": "cat.stream.default_entries"' in run("tables", "--json", url=node.url).output
    DeltaFiles(tmp_path / "default" / "entries").create()
    (tmp_path / "default" / "_catalog_names.json").write_text('{"entries": "cat.default.entries"}')
    assert "cat.default.entries" in run("tables", "--tables", str(tmp_path), url="http://127.0.0.1:1").output


def test_tables_show_a_failed_job_with_its_reason(tmp_path: Path) -> None:
    job = {"state": "failed", "updated_ms": 1_730_000_060_000, "error": "full\x1b[2J", "of_a_newer_node": 1}
    job["failed_ms"] = 1_730_000_000_001
    since = "The Spark job of default has failed since 2024-10-27T03:33:20.001Z: full\\x1b[2J"
    for tables in ([TABLE], []):
        with answering(Scripted(200, {"tables": tables, "job": job})) as node:
            assert since in run("tables", url=node.url).output
            assert json.loads(run("tables", "--json", url=node.url).output)["job"]["error"] == job["error"]
    older = {**job, "failed_ms": None, "error": None}
    with answering(Scripted(200, {"tables": [TABLE], "job": older})) as node:
        shown = run("tables", url=node.url).output
        assert "has failed (reported 2024-10-27T03:34:20.000Z): the lines that it printed have the" in shown
    with answering(Scripted(200, {"tables": [TABLE], "job": {**older, "state": "stopped"}})) as node:
        shown = run("tables", url=node.url).output
        assert "Spark job of default: stopped, reported 2024-10-27T03:34:20.000Z" in shown
    DeltaFiles(tmp_path / "default" / "entries").create()
    (tmp_path / "progress.json").write_text(json.dumps({**job, "logs": {"default": job, "other": {}}}))
    folder = ("tables", "--tables", str(tmp_path))
    assert since in run(*folder, url="http://127.0.0.1:1").output
    jobs = json.loads(run(*folder, "--json", url="http://127.0.0.1:1").output)["jobs"]
    assert jobs == {"default": {name: job[name] for name in ("state", "updated_ms", "error", "failed_ms")}}


def test_a_folder_shows_the_tables_of_all_logs_or_of_one(tmp_path: Path) -> None:
    def shown(*arguments: str) -> tuple[int, str]:
        result = run("tables", "--tables", str(tmp_path), *arguments, url="http://127.0.0.1:1")
        return result.exit_code, result.output

    assert shown() == (0, f"{tmp_path} contains no Delta tables; they are in its folders LOG/TABLE\n")
    for log in ("default", "orders"):
        DeltaFiles(tmp_path / log / "entries").create()
    of_all, of_one = shown()[1], shown("--log", "orders")[1]
    assert ("default/entries" in of_all, "orders/entries" in of_all) == (True, True)
    assert ("default/entries" in of_one, "orders/entries" in of_one) == (False, True)
    assert shown("--log", "other") == (4, f"commitlog: {tmp_path} contains no Delta tables of log other\n")
    of_its_folder = run(
        "tables", "--tables", str(tmp_path / "orders"), "--log", "orders", url="http://127.0.0.1:1"
    )
    assert (of_its_folder.exit_code, "entries" in of_its_folder.output) == (0, True)


def test_a_job_that_was_killed_does_not_look_as_if_it_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last report stays, as does that of a job which cannot write it because the disk is full."""
    job = {"state": "running", "updated_ms": 1_730_000_000_000, "error": None, "failed_ms": None}
    words = (
        "The Spark job of default has not reported for 3,600 s, since 2024-10-27T03:33:20.000Z, when it was"
    )
    DeltaFiles(tmp_path / "default" / "entries").create()
    (tmp_path / "progress.json").write_text(json.dumps({**job, "logs": {"default": {}}}))
    for now_ms, state, is_silent in (
        (1_730_003_600_000, "running", True),
        (1_730_003_600_000, "stopped", False),
        (1_730_000_005_000, "running", False),
    ):
        monkeypatch.setattr(time, "time_ns", lambda now_ms=now_ms: now_ms * 1_000_000)
        with answering(Scripted(200, {"tables": [TABLE], "job": {**job, "state": state}})) as node:
            shown = run("tables", url=node.url).output
            assert (words in shown, f"Spark job of default: {state}" in shown) == (is_silent, not is_silent)
    folder = ("tables", "--tables", str(tmp_path))
    assert words not in run(*folder, url="http://127.0.0.1:1").output
    monkeypatch.setattr(time, "time_ns", lambda: 1_730_003_600_000_000_000)
    assert words in run(*folder, url="http://127.0.0.1:1").output


def test_the_reports_about_all_logs_of_a_folder_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With thousands of logs the file has megabytes."""
    names = [f"log-{number}" for number in range(5)]
    for log in names:
        DeltaFiles(tmp_path / log / "entries").create()
    logs = {log: {"error": "full", "failed_ms": 7} for log in names}
    (tmp_path / "progress.json").write_text(json.dumps({"state": "failed", "updated_ms": 9, "logs": logs}))
    opened, really_open = [], os.open

    def counted(path: str, *how: int) -> int:
        opened.append(str(path))
        return really_open(path, *how)

    monkeypatch.setattr(os, "open", counted)
    shown = run("tables", "--tables", str(tmp_path), "--json", url="http://127.0.0.1:1").output
    assert list(json.loads(shown)["jobs"]) == names
    assert opened.count(str(tmp_path / "progress.json")) == 1


def test_a_wait_and_a_point_are_asked_of_the_service() -> None:
    with answering(Scripted(200, TABLE)) as node:
        assert run("tables", "--wait", "42", url=node.url).exit_code == 0
        asked = node.asked[-1]
        assert (asked.path, asked.query["index"]) == ("/v1/logs/default/tables/entries:wait", "42")
    cut = {"index": 42, "tables": {"entries": 3, "epochs": 1}, "exact": False}
    with answering(Scripted(200, cut)) as node:
        shown = run("tables", "--at-timestamp", "1730000000000", url=node.url).output
        assert node.asked[-1].query == {"timestamp": "1730000000000"}
        assert "entries: and later versions" in " ".join(shown.split())


def test_log_and_table_are_compared_by_a_job_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[Any] = []

    def become(program: str, arguments: list[str]) -> None:
        became.append((program, arguments))
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", become)
    options = ["verify", "--tables", "--log", "a", "--json", "-e", "http://127.0.0.1:1,http://127.0.0.1:2"]
    assert CliRunner().invoke(cli, options).exit_code == 0
    job = [
        "-P",
        "-m",
        "spark_jobs.verify",
        "--endpoint",
        "http://127.0.0.1:1,http://127.0.0.1:2",
        "--log",
        "a",
        "--give-up-s",
        "10.0",
        "--json",
    ]
    assert became == [(sys.executable, [sys.executable, *job])]
    assert CliRunner().invoke(cli, [*options, "--deep"]).exit_code == 2


def test_dead_letters_are_replayed_by_a_job_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[Any] = []

    def become(_: str, arguments: list[str]) -> None:
        became.append(arguments[4:])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", become)
    options = ["schema", "replay", "--log", "a", "-e", "http://127.0.0.1:1"]
    assert CliRunner().invoke(cli, options).exit_code == 0
    given = ["--tables", "T", "--version", "2", "--json", "--give-up-s", "3"]
    assert CliRunner().invoke(cli, [*options, *given]).exit_code == 0
    log = ["--endpoint", "http://127.0.0.1:1", "--log", "a"]
    assert became == [
        [*log, "--tables", "commitlog-data/tables", "--give-up-s", "10.0"],
        [*log, "--json", "--tables", "T", "--version", "2", "--give-up-s", "3.0"],
    ]


def test_a_catalog_is_passed_to_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[Any] = []

    def become(_: str, arguments: list[str]) -> None:
        became.append(arguments)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", become)
    assert CliRunner().invoke(cli, ["materialize", "--catalog", "cat.stream", "--once"]).exit_code == 0
    (arguments,) = became
    assert arguments[arguments.index("--catalog") + 1] == "cat.stream"


def _bench_service(refusal: Scripted) -> Any:
    cluster = {"id": "c", "logs": ["default"], "limits": {}, "nodes": []}
    status = {"log": "default", "leader": "n1"}

    def reply(asked: Asked) -> Scripted:
        if asked.method == "POST":
            return refusal
        return Scripted(200, cluster if asked.path.endswith("/cluster") else status)

    return fake_service(reply)


def test_a_bench_whose_appends_are_refused_for_good_ends_at_once_with_the_reason() -> None:
    with _bench_service(problem("schema-mismatch", 422, "not_applied", retryable=False)) as node:
        begun = time.monotonic()
        result = run("bench", "--seconds", "60", "--in-flight", "4", url=node.url)
    assert time.monotonic() - begun < 30
    assert result.exit_code == 5
    assert result.stderr == "commitlog: no append was acknowledged; schema-mismatch: 4\n"
    assert "None" not in result.stdout
    assert "MiB per s" in result.stdout


def test_an_interrupted_bench_leaves_no_append_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends that outlived their session ended with a traceback each."""

    async def interrupt(*_: Any) -> None:
        await asyncio.sleep(0)  # the appends begin
        raise asyncio.CancelledError

    async def left_behind() -> int:
        with pytest.raises(asyncio.CancelledError):
            await bench._run(f"{closed_url()}/append", b"{}", {}, 60.0, 4)
        return len(asyncio.all_tasks()) - 1

    monkeypatch.setattr(bench, "person_watches", lambda: True)
    monkeypatch.setattr(bench, "_show", interrupt)
    assert asyncio.run(left_behind()) == 0


def test_the_table_of_verify_has_last_indexes_as_its_verdict() -> None:
    replicas = [
        {"node": "n1", "state": "same", "until_index": 22, "first_difference": None},
        {"node": "n2", "state": "unreachable", "until_index": 0, "first_difference": None},
    ]
    result = {
        "log": "default", "until_index": 22, "has_more": False, "equal": True, "complete": False,
        "first_difference": None, "groups": [], "replicas": replicas, "batches": 17, "bytes": 12_392,
    }  # fmt: skip

    def reply(asked: Asked) -> Scripted:
        return Scripted(200, result if asked.method == "POST" else {"committed_index": 21})

    with fake_service(reply) as node:
        shown = run("verify", url=node.url).stdout
    rows = [line.split() for line in shown.splitlines()]
    assert ["n1", "same", "21"] in rows
    assert ["n2", "unreachable"] in rows
    assert "no two replicas were compared: n1 holds 17 batches, 12,392 bytes, up to index 21" in shown


@pytest.mark.parametrize(
    ("begin", "holders", "begins"),
    [
        (15, "n1, n2, n3", "n3 begins later, at index 15"),
        (30, "n1, n2", "n3 begins later: nothing of it was compared"),
    ],
)
def test_verify_names_a_replica_that_begins_later(begin: int, holders: str, begins: str) -> None:
    def part(first: int, until: int) -> dict[str, object]:
        third = (min(max(first, begin), until), until)
        ranges = {"n1": (first, until), "n2": (first, until), "n3": third}
        replicas = [
            {"node": node, "state": "same", "from_index": at, "until_index": end, "first_difference": None}
            for node, (at, end) in ranges.items()
        ]
        return {
            "log": "default", "node": "n1", "from_index": first, "until_index": until, "has_more": until < 30,
            "deep": False, "equal": True, "complete": True, "first_difference": None, "groups": [],
            "replicas": replicas, "batches": 5, "bytes": 500,
        }  # fmt: skip

    parts = {None: part(0, 10), 10: part(10, 20), 20: part(20, 30)}

    def reply(asked: Asked) -> Scripted:
        if asked.method != "POST":
            return Scripted(200, {"committed_index": 29})
        return Scripted(200, parts[json.loads(asked.body).get("from_index")])

    with fake_service(reply) as node:
        shown = run("verify", url=node.url).stdout
        answer = json.loads(run("verify", "--json", url=node.url).stdout)
    assert f"\n{holders} hold the same 15 batches" in shown
    assert shown.endswith(f"up to index 29; {begins}\n")
    assert (answer["from_index"], answer["until_index"]) == (0, 30)
    assert [replica["from_index"] for replica in answer["replicas"]] == [0, 0, begin]


def test_tables_are_read_from_their_transaction_logs(tmp_path: Path) -> None:
    log = tmp_path / "default" / "entries" / "_delta_log"
    log.mkdir(parents=True)
    commits = [
        [{"metaData": {}}, {"add": {"path": "a", "size": 10, "stats": '{"numRecords": 3}'}}],
        [{"add": {"path": "b", "size": 20, "stats": '{"numRecords": 4}'}}, {"remove": {"path": "a"}}],
    ]
    for version, actions in enumerate(commits):
        lines = "\n".join(json.dumps(action) for action in actions)
        (log / f"{version:020d}.json").write_text(lines)
    result = CliRunner().invoke(cli, ["tables", "--tables", str(tmp_path), "--json"])
    table = json.loads(result.output)["tables"][0]
    assert (table["name"], table["version"], table["rows"], table["files"]) == ("default/entries", 1, 4, 1)
    assert "default/entries" in CliRunner().invoke(cli, ["tables", "--tables", str(tmp_path)]).output
    assert CliRunner().invoke(cli, ["tables", "--tables", str(tmp_path / "none")]).exit_code == 4


def test_bench_shows_refusals_by_code() -> None:
    assert [_shown(value) for value in ({}, {"rate-limited": 1_200, "no-leader": 1}, 1_234, "quorum")] == [
        "none",
        "rate-limited: 1,200, no-leader: 1",
        "1,234",
        "quorum",
    ]
