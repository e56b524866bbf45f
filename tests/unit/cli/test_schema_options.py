"""`commitlog schema set` and `check`: options that are not given keep their values."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from app.cli.context import counted
from app.cli.log_state import schema_samples
from app.cli.log_state.schema import _show_check
from app.cli.main import cli
from tests.unit.cli.fake_service import Asked, Scripted, fake_service, problem


def run(*arguments: str, url: str) -> Result:
    return CliRunner().invoke(cli, ["schema", *arguments, "--endpoint", url])


NEWEST = {
    "version": 3,
    "index": 7,
    "format": "json",
    "definition": "id BIGINT NOT NULL, shop STRING NOT NULL",
    "message": None,
    "key_columns": ["id", "shop"],
    "compatibility": "none",
    "on_invalid": "reject",
    "cluster_by": ["shop"],
    "columns": [],
}


KEPT = ("key_columns", "compatibility", "on_invalid", "cluster_by")


def schema_service(
    newest: Mapping[str, Any] | None, sent: list[Asked], refused: Scripted | None = None
) -> Callable[[Asked], Scripted]:
    """A log with this newest version, which sets what it is sent. refused: answer to a new version."""

    def answer(asked: Asked) -> Scripted:
        if "schema" not in asked.path:
            return Scripted(200, {"records": [], "next_index": 0, "has_more": False})
        if asked.method == "GET" and newest is None:
            return problem("schema-not-found", 404, "not_applied", retryable=False)
        if asked.method == "GET":
            return Scripted(200, newest)
        sent.append(asked)
        version = 1 if newest is None else newest["version"] + 1
        set_now = {"message": None, **json.loads(asked.body), "version": version, "index": 9, "columns": []}
        return refused or Scripted(200, set_now)

    return answer


@pytest.mark.parametrize(
    ("newest", "given", "expected"),
    [
        (None, [], {"compatibility": "backward", "on_invalid": "dead_letter", "key_columns": []}),
        (
            NEWEST,
            [],
            {name: NEWEST[name] for name in ("key_columns", "compatibility", "on_invalid", "cluster_by")},
        ),
        (
            NEWEST,
            ["--key", "id", "--compatibility", "backward", "--on-invalid", "dead_letter", "--cluster-by", ""],
            {
                "compatibility": "backward",
                "on_invalid": "dead_letter",
                "key_columns": ["id"],
                "cluster_by": [],
            },
        ),
        (
            {**NEWEST, "format": "protobuf", "message": "shop.Order"},
            ["--format", "protobuf"],
            {"format": "protobuf", "message": "shop.Order"},
        ),
        ({**NEWEST, "format": "protobuf", "message": "shop.Order"}, [], {"format": "json"}),
    ],
)
def test_an_option_that_is_not_given_keeps_its_value(
    tmp_path: Path, newest: dict[str, Any] | None, given: list[str], expected: dict[str, Any]
) -> None:
    (file := tmp_path / "a.ddl").write_text("id BIGINT NOT NULL, shop STRING NOT NULL")
    sent: list[Asked] = []
    with fake_service(schema_service(newest, sent)) as node:
        shown = run("set", str(file), *given, url=node.url)
    assert shown.exit_code == 0, shown.stderr
    [asked] = sent
    assert expected.items() <= json.loads(asked.body).items()
    condition = ("if-none-match", "*") if newest is None else ("if-match", '"3"')
    assert {name.lower(): value for name, value in asked.headers.items()}[condition[0]] == condition[1]
    kept = "--key id --key shop --compatibility none --on-invalid reject --cluster-by shop\n"
    assert (kept in shown.stdout) is (newest is not None and "--key" not in given)
    stored = (
        "Records that do not match are stored (--on-invalid dead_letter); in version 3 they were refused."
    )
    assert (stored in shown.stdout) is ("--on-invalid" in given)


def test_a_version_that_another_client_sets_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    (file := tmp_path / "a.ddl").write_text("id BIGINT NOT NULL, shop STRING NOT NULL")
    refused = problem("schema-changed", 412, "not_applied", retryable=False, version=4)
    with fake_service(schema_service(NEWEST, [], refused)) as node:
        shown = run("set", str(file), url=node.url)
        given = run("set", str(file), "--if-match", "2", url=node.url)
    assert (shown.exit_code, given.exit_code) == (3, 3)
    assert "It was 3 when this command began: run it again." in shown.stderr
    assert "when this command began" not in given.stderr


def test_a_token_that_may_not_read_the_schema_needs_all_options(tmp_path: Path) -> None:
    (file := tmp_path / "a.ddl").write_text("id BIGINT")
    every = ["--key", "", "--compatibility", "none", "--on-invalid", "reject", "--cluster-by", ""]

    def answer(asked: Asked) -> Scripted:
        if asked.method == "GET":
            return problem("forbidden", 403, "not_applied", retryable=False)
        return Scripted(200, {**NEWEST, **json.loads(asked.body)})

    with fake_service(answer) as node:
        refused = run("set", str(file), "--key", "id", url=node.url)
        done = run("set", str(file), *every, url=node.url)
    assert (refused.exit_code, done.exit_code) == (1, 0)
    assert "--compatibility, --on-invalid, --cluster-by would be kept" in refused.stderr


def test_other_key_columns_are_refused_with_the_way_to_keep_them(tmp_path: Path) -> None:
    (file := tmp_path / "a.ddl").write_text(str(NEWEST["definition"]))
    newest = {**NEWEST, "compatibility": "backward"}
    difference = {"path": "", "kind": "key_changed", "detail": "The key columns were (…), they are (…)."}
    extra = {"version": 3, "differences": [difference]}
    refusal = problem("schema-incompatible", 409, "not_applied", retryable=False, **extra)
    with fake_service(schema_service(newest, [], refusal)) as node:
        refused = run("set", str(file), "--key", "id", url=node.url)
        checked = run("check", str(file), "--key", "id", url=node.url)
        same = run("check", str(file), url=node.url)
    assert (refused.exit_code, checked.exit_code, same.exit_code) == (1, 1, 0), refused.stderr
    advice = "To keep them: without the option --key."
    assert advice in refused.stderr
    assert advice in checked.stdout


def test_one_record_is_singular(capsys: pytest.CaptureFixture[str]) -> None:
    assert [counted(number) for number in (0, 1, 2, 12_345)] == [
        "0 records",
        "1 record",
        "2 records",
        "12,345 records",
    ]
    mismatch = {"index": 4, "pointer": "/id", "reason": "required"}
    found = {"columns": [], "version": 1, "differences": [], "widened": [], "mismatches": [mismatch]}
    _show_check({**found, "records": 1})
    assert "1 record read, 1 does not match\n" in capsys.readouterr().out


def test_the_newest_records_are_read_page_after_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has as many bytes as the service allows: the newest records are on the last one."""

    def answer(asked: Asked) -> Scripted:
        first = int(asked.query.get("from_index", 0))
        records = [{"index": first, "value": json.dumps({f"f{first}": 1})}]
        more = {"next_index": first + 1, "has_more": first < 2, "committed_index": 2}
        return Scripted(200, {"records": records, **more})

    with fake_service(answer) as node:
        inferred = run("infer", "--last", "3", url=node.url)
        assert sorted(json.loads(inferred.stdout)["properties"]) == ["f0", "f1", "f2"]
        monkeypatch.setattr(schema_samples, "_VALUES_BYTES", 10)
        refused = run("infer", "--last", "3", url=node.url)
    assert (refused.exit_code, "lower --last" in refused.stderr) == (2, True)


def test_a_wider_type_is_reported_before_and_when_it_is_set(tmp_path: Path) -> None:
    (file := tmp_path / "a.ddl").write_text("id DECIMAL(20,0) NOT NULL, shop STRING NOT NULL")
    sent: list[Asked] = []
    with fake_service(schema_service({**NEWEST, "key_columns": []}, sent)) as node:
        outputs = [run(command, str(file), url=node.url).stdout for command in ("check", "set")]
        file.write_text("id BIGINT NOT NULL, shop STRING NOT NULL, note STRING")
        plain = run("check", str(file), url=node.url).stdout
        file.write_text("id DECIMAL(20,0) NOT NULL, shop INT NOT NULL")
        other_table = run("check", str(file), url=node.url).stdout
    for output in outputs:
        assert "Polars refuse tables with a wider type" in output
        assert "/id: The type was bigint, it is decimal(20,0)." in output
    assert "Type widening" not in plain + other_table


@pytest.mark.parametrize(("newest", "reach"), [(None, "all records"), (NEWEST, "the records after index 9")])
def test_the_first_version_applies_to_all_records(
    tmp_path: Path, newest: dict[str, Any] | None, reach: str
) -> None:
    (file := tmp_path / "a.ddl").write_text("id BIGINT NOT NULL, shop STRING NOT NULL")
    with fake_service(schema_service(newest, [])) as node:
        assert f"applies to {reach}\n" in run("set", str(file), url=node.url).stdout
