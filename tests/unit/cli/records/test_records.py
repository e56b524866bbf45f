"""Formats of `append --file` and `read`: what one writes, the other reads, to the byte."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from app.cli.main import cli
from app.cli.records.output import CSV_COLUMNS, emitter, record_line
from app.client import CommitlogClient
from app.client.batches import arrow_stream
from tests.unit.cli.fake_service import Asked, Scripted, committed, fake_service, problem

RECORD = {"index": 4, "term": 1, "offset": 0, "timestamp": 1_730_000_000_000, "type": "data", "headers": []}


def append(*arguments: str, stdin: bytes = b"") -> tuple[Result, list[dict[str, Any]]]:
    """Run an append, and return its result and the records that arrived."""
    with fake_service(lambda asked: Scripted(200, committed(0, asked.body.count(b"\n")))) as node:
        result = CliRunner().invoke(cli, ["append", *arguments, "-e", node.url], input=stdin)
    return result, [json.loads(line) for asked in node.appends() for line in asked.body.splitlines()]


def test_binary_standard_input_is_lines_of_bytes() -> None:
    result, records = append("-k", "k", stdin=b"\xff\xfe\r\nabc")
    assert result.exit_code == 0, result.output
    assert records == [{"value_base64": "//4=", "key": "k"}, {"value": "abc", "key": "k"}]


def test_raw_input_is_one_record() -> None:
    result, records = append("--format", "raw", "-k", "k", stdin=b"a\nb\n")
    assert result.exit_code == 0, result.output
    assert records == [{"value": "a\nb\n", "key": "k"}]


def test_a_csv_file_with_a_value_column_has_records(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    row = {**RECORD, "key": "a\rb", "value": "v,1\nw", "headers": [["h", "x"], ["b", {"base64": "AP8="}]]}
    binary = {**RECORD, "key": None, "value_base64": "AP8="}
    early = {**RECORD, "key": "\r", "value": "\r\n", "timestamp": -62_135_596_800_000}
    with file.open("wb") as out:
        emit = emitter("csv", out)
        for record in (row, binary, {**RECORD, "value": ""}, early):
            emit(record)
    assert file.read_bytes().startswith(",".join(CSV_COLUMNS).encode() + b"\n4,")
    result, records = append("--file", str(file))
    assert result.exit_code == 0, result.output
    time = {"timestamp": RECORD["timestamp"]}
    headers = [["h", "x"], ["b", {"base64": "AP8="}]]
    assert records == [
        {"value": "v,1\nw", "key": "a\rb", "headers": headers, **time},
        {"value_base64": "AP8=", **time},
        {"value": "", **time},
        {"value": "\r\n", "key": "\r", "timestamp": early["timestamp"]},
    ]


@pytest.mark.parametrize(
    ("format_name", "content", "text"),
    [
        (
            "ndjson",
            '{"value": "a"}\n{"value": "b"\n',
            "line 2 is not JSON: Expecting ',' delimiter at column 14",
        ),
        ("csv", 'key,value\nk,a\nk,"b\n', "line 3 is not CSV: unexpected end of data"),
    ],
)
def test_a_malformed_line_is_named_by_its_number(format_name: str, content: str, text: str) -> None:
    result, records = append("--format", format_name, stdin=content.encode())
    assert (result.exit_code, records) == (2, [])
    assert text in result.stderr


@pytest.mark.parametrize(
    "fields",
    [
        {"errors": [{"pointer": "/1/value", "detail": "Expected `str | null`, got `int`"}]},
        {"detail": "/1: a record may have at most 1048576 bytes, got 2000000"},
        {"record": 1, "detail": "record 1, /id: Expected an integer"},
    ],
)
def test_a_refused_record_is_named_by_its_place_in_the_input(fields: dict[str, Any]) -> None:
    refusal = problem("invalid-request", 422, "not_applied", retryable=False, **fields)
    answers = iter([Scripted(200, committed(0, 2)), refusal])
    with fake_service(lambda asked: next(answers) if asked.method == "POST" else Scripted(404)) as node:
        command = ["append", "--batch", "2", "--skip", "1", "-e", node.url]
        result = CliRunner().invoke(cli, command, input=b"s\na\nb\nc\nd\n")
    assert (
        "it is record 5 of the input; 2 records of earlier appends are stored; continue with --skip 3"
        in result.stderr
    )


def test_an_output_that_is_no_file_is_written_as_it_is(tmp_path: Path) -> None:
    """A device that is replaced by a file is lost to every program."""
    pipe, link, target = tmp_path / "pipe", tmp_path / "link.ndjson", tmp_path / "target.ndjson"
    os.mkfifo(pipe)
    link.symlink_to(target)
    page = {"records": [{**RECORD, "value": "v"}], "next_index": 5, "has_more": False, "committed_index": 4}
    with fake_service(lambda asked: Scripted(200, page)) as node, ThreadPoolExecutor(1) as thread:
        reading = thread.submit(pipe.read_bytes)
        written = CliRunner().invoke(cli, ["read", "--format", "ndjson", "-o", str(pipe), "-e", node.url])
        linked = CliRunner().invoke(cli, ["read", "-o", str(link), "-e", node.url])
        missing = CliRunner().invoke(cli, ["read", "-o", str(tmp_path / "no" / "a.csv"), "-e", node.url])
    assert (written.exit_code, linked.exit_code) == (0, 0), written.output + linked.output
    assert json.loads(reading.result())["value"] == "v"
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert json.loads(target.read_bytes())["value"] == "v"
    assert missing.stderr == f"commitlog: No such file or directory: {tmp_path / 'no' / 'a.csv'}\n"


def test_rows_without_a_value_column_become_objects(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,ann\n2,\n")
    result, records = append("--file", str(tmp_path / "a.csv"), "--key-column", "id")
    assert result.exit_code == 0, result.output
    assert records == [
        {"value": '{"id":"1","name":"ann"}', "key": "1"},
        {"value": '{"id":"2","name":""}', "key": "2"},
    ]
    parquet.write_table(pa.table({"id": [1], "at": [None]}), tmp_path / "b.parquet")
    assert append("--file", str(tmp_path / "b.parquet"))[1] == [{"value": '{"id":1,"at":null}'}]


def test_lines_of_own_objects_are_stored_as_they_are_with_a_field_as_the_key(tmp_path: Path) -> None:
    file = tmp_path / "orders.ndjson"
    file.write_text('{"id": "a", "total": 1.50, "value": 7}\n\n{"total":2,"id":12}\n{"id":null}\n')
    result, records = append("--file", str(file), "--key-column", "id")
    assert result.exit_code == 0, result.output
    assert records == [
        {"value": '{"id": "a", "total": 1.50, "value": 7}', "key": "a"},
        {"value": '{"total":2,"id":12}', "key": "12"},
        {"value": '{"id":null}'},
    ]
    result, records = append("--file", str(file), "--key-column", "order")
    assert (result.exit_code, records) == (2, [])
    assert "line 1 has no field 'order'; fields: id, total, value" in result.stderr


def test_an_object_that_is_not_a_record_names_the_option_for_own_objects(tmp_path: Path) -> None:
    (tmp_path / "orders.jsonl").write_text('{"id": "a"}\n')
    result, records = append("--file", str(tmp_path / "orders.jsonl"))
    assert (result.exit_code, records) == (2, [])
    assert "line 1 is not a record object" in result.stderr
    assert "--key-column" in result.stderr


def test_a_struct_or_a_list_as_value_or_key_is_json(tmp_path: Path) -> None:
    table = pa.table({"value": [{"a": 1, "b": None}, None], "key": [["é"], [None]]})
    parquet.write_table(table, tmp_path / "a.parquet")
    result, records = append("--file", str(tmp_path / "a.parquet"))
    assert result.exit_code == 0, result.output
    assert records == [{"value": '{"a":1,"b":null}', "key": '["é"]'}, {"value": None, "key": "[null]"}]


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_append_reads_the_files_that_read_writes(tmp_path: Path, suffix: str) -> None:
    header = pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))
    table = pa.table(
        {
            "index": pa.array([4, 6], pa.int64()),
            "term": pa.array([1, 1], pa.int64()),
            "offset": pa.array([0, 64], pa.int64()),
            "timestamp": pa.array([1_730_000_000_001_000] * 2, pa.timestamp("us", tz="UTC")),
            "key": pa.array([b"k", None], pa.binary()),
            "value": pa.array([None, b"\xff"], pa.binary()),
            "headers": pa.array([[], [{"name": "h", "value": b"x"}]], header),
            "type": ["data", "data"],
        }
    )
    file = tmp_path / f"a.{suffix}"
    if suffix == "parquet":
        parquet.write_table(table, file)
    else:
        with pa.ipc.new_stream(file, table.schema) as writer:
            writer.write(table)
    result, records = append("--file", str(file))
    assert result.exit_code == 0, result.output
    assert records == [
        {"value": None, "key": "k", "timestamp": 1_730_000_000_001},
        {"value_base64": "/w==", "headers": [["h", "x"]], "timestamp": 1_730_000_000_001},
    ]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.parquet", b"nonsense", "parquet"),
        ("a.arrow", b"nonsense", "arrow"),
        ("a.csv", b"\xff\xfe,b\n", "UTF-8"),
        ("a.csv", b"value,key\nv\n", "line 2"),
        ("a.csv", b"value,colour\nv,red\n", "colour"),
        ("a.csv", b"value,timestamp\nv,soon\n", "line 2"),
        ("a.csv", b"a,b,a\n1,2,3\n", "'a' occurs twice"),
        ("a.csv", b"value\nv\n\n", "line 3 is blank"),
        ("a.csv", b"value,value_base64\nv,QQ==\n", "line 2: a row may have one of value and value_base64"),
        ("a.csv", b"value,value_json\nv,1\n", "line 2: a row may have one of value, value_json"),
        ("a.csv", b"value,key,key_base64\nv,k,QQ==\n", "line 2: a row may have one of key and key_base64"),
        ("a.csv", b'value,headers\nv,"{""ab"": ""x""}"\n', "line 2: headers must be a list"),
        ("a.csv", b'value,headers\nv,"[""ab""]"\n', "line 2: a header must be a pair"),
        ("a.csv", b'value,headers\nv,"[[""a"",null]]"\n', "line 2: a header must be a pair"),
        ("a.arrow", 2 * arrow_stream(pa.table({"value": ["v"]})), "the Arrow stream ends at byte"),
        ("a.arrow", arrow_stream(pa.table([["v"], ["w"]], ["value", "value"])), "'value' occurs twice"),
        ("a.arrow", arrow_stream(pa.table({"value": ["v"], "headers": [[b"ab"]]})), "pair"),
        ("a.arrow", arrow_stream(pa.table({"value": ["v"], "timestamp": [1.5]})), "whole milliseconds"),
        ("a.ndjson", b"\xff\n", "line 1"),
        ("a.txt", b"PAR1\n", "--format parquet"),
        ("a.csv", b"", "columns"),
        ("a.txt", b"", "empty"),
    ],
)
def test_wrong_content_is_a_usage_error_in_one_line(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    (tmp_path / name).write_bytes(content)
    result, records = append("--file", str(tmp_path / name))
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stderr.startswith("commitlog: ")
    assert records == []


def test_a_failure_in_the_middle_reports_what_is_stored() -> None:
    reported = [Scripted(200, committed(0, 2)), problem("forbidden", 403, "not_applied", retryable=False)]
    with fake_service(lambda asked: Scripted(404) if asked.method == "GET" else reported.pop(0)) as node:
        arguments = ["append", "--batch", "2", "--skip", "1", "-e", node.url]
        result = CliRunner().invoke(cli, arguments, input=b"a\nb\nc\nd\n")
    assert result.exit_code == 1
    assert "2 records of earlier appends are stored; continue with --skip 3" in result.stderr
    assert [json.loads(line)["value"] for line in node.appends()[0].body.splitlines()] == ["b", "c"]


def test_a_record_that_cannot_be_encoded_is_part_of_the_report() -> None:
    """JSON may name half of a surrogate pair, which has no form in UTF-8."""
    lines = b'{"value":"a"}\n{"value":"b"}\n{"value":"c"}\n{"value":"\\ud800"}\n'
    result, records = append("--ndjson", "--batch", "2", stdin=lines)
    assert (result.exit_code, len(records)) == (2, 2)
    assert "one of 2 records cannot be sent" in result.stderr
    assert "surrogates not allowed; 2 records of earlier appends are stored; continue with --skip 2" in (
        result.stderr
    )


def test_an_append_whose_outcome_is_unknown_is_part_of_the_report() -> None:
    """Its records may be stored; --skip alone would lead the user to store them again."""
    reported = [Scripted(200, committed(0, 2)), problem("internal", 500, "unknown", retryable=False)]
    with fake_service(lambda asked: Scripted(404) if asked.method == "GET" else reported.pop(0)) as node:
        arguments = ["append", "--batch", "2", "-e", node.url]
        result = CliRunner().invoke(cli, arguments, input=b"a\nb\nc\nd\n")
    assert result.exit_code == 6
    assert "continue with --skip 2; the append in progress may have stored the next 2 too" in result.stderr


def test_an_interrupted_append_reports_what_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    append, count = CommitlogClient.append, 0

    def interrupted(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return append(*arguments, **options)

    monkeypatch.setattr(CommitlogClient, "append", interrupted)
    with fake_service(lambda asked: Scripted(200, committed(0, 1))) as node:
        arguments = ["append", "--batch", "1", "-e", node.url]
        result = CliRunner().invoke(cli, arguments, input=b"a\nb\nc\n")
    assert result.exit_code == 6
    assert "interrupted; 2 records of earlier appends are stored; continue with --skip 2" in result.stderr
    assert result.stderr.endswith("; the append in progress may have stored the next 1 too\n")


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_an_interrupted_append_of_values_is_in_doubt(
    option: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(CommitlogClient, "append", interrupted)
    result = CliRunner().invoke(cli, ["append", "a", "b", "-e", "http://127.0.0.1:1", *option])
    assert (result.exit_code, result.stdout) == (6, "")
    assert "interrupted; the append in progress may have stored its records" in result.stderr
    if option:
        assert json.loads(result.stderr)["outcome"] == "unknown"


def test_text_marks_bytes_headers_and_escapes_control_characters() -> None:
    record = {**RECORD, "key": None, "value_base64": "AP8=", "headers": [["h", {"base64": "AA=="}]]}
    assert record_line(record).endswith("Z  -  base64:AP8=  {h=base64:AA==}")
    shown = record_line({**RECORD, "key": "k", "value": "a\x1b[31m\r\n\x9b"})
    assert shown.endswith("k  a\\x1b[31m\\r\\n\\x9b")
    long = {**RECORD, "key": "k", "value": "v" * 500, "type": "control"}
    assert len(record_line(long)) > 500
    assert len(record_line(long, 80)) == 80
    assert record_line(long, 80).endswith("… [control]")


def pages_of(asked: Asked) -> Scripted:
    """A log of 5 000 records with keys k0 to k9, in pages of at most 700 indexes."""
    query = asked.query
    if asked.path.endswith("/tail"):
        return Scripted(200, {"begin_index": 0, "end_index": 4_999, "committed_index": 4_999})
    first = 5_000 - int(query["last"]) if "last" in query else int(query.get("from_index", 0))
    first = 4_000 if "from_timestamp" in query else first
    until = min(int(query.get("until_index", 5_000)), 5_000)
    records: list[dict[str, Any]] = []
    index = first
    while index < min(until, first + 700) and len(records) < int(query["limit"]):
        if query.get("key") in (None, f"k{index % 10}"):
            records.append({**RECORD, "index": index, "key": f"k{index % 10}", "value": "v"})
        index += 1
    more = {"next_index": index, "has_more": index < until, "committed_index": 4_999}
    return Scripted(200, {"records": records, **more})


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--last", "2", "--key", "k5"], [4_985, 4_995]),
        (["--last", "300", "--key", "k5"], list(range(2_005, 5_000, 10))),
        (["--last", "2"], [4_998, 4_999]),
        (["--last", "2", "--until-index", "20"], [18, 19]),
        (["--last", "900", "--until-index", "1000"], list(range(100, 1_000))),
        (["--last", "900", "--include-control"], list(range(4_100, 5_000))),
        (["--last", "2000"], list(range(3_000, 5_000))),
        (["--last", "2", "--until", "2026-01-31", "--key", "k5"], [3_985, 3_995]),
        (["--last", "2", "--until", "2026-01-31"], [3_998, 3_999]),
        (["--limit", "200", "--key", "k0"], list(range(0, 2_000, 10))),
        (["--all"], list(range(5_000))),
        (["--from-index", "4990", "--key", "k0"], [4_990]),
    ],
)
def test_limits_count_the_records_that_match(arguments: list[str], found: list[int]) -> None:
    with fake_service(pages_of) as node:
        result = CliRunner().invoke(cli, ["read", *arguments, "--format", "ndjson", "-e", node.url])
        document = CliRunner().invoke(cli, ["read", *arguments, "--json", "-e", node.url])
    assert [json.loads(line)["index"] for line in result.stdout.splitlines()] == found
    assert [record["index"] for record in json.loads(document.stdout)["records"]] == found


def test_the_last_control_records_before_a_time_are_not_those_after_it() -> None:
    """Record 5 is a control record of that time, and the next data record is 7."""

    def answer(asked: Asked) -> Scripted:
        query = asked.query
        if asked.path.endswith("/tail"):
            return Scripted(200, {"begin_index": 0, "end_index": 9, "committed_index": 9})
        shown = range(10) if query.get("include") == "control" else (0, 1, 2, 3, 4, 7, 8, 9)
        first = 5 if "from_timestamp" in query else int(query["from_index"])
        until = min(int(query.get("until_index", 10)), 5 if "until_timestamp" in query else 10)
        found = [index for index in shown if first <= index < until][: int(query["limit"])]
        records = [{**RECORD, "index": index, "key": None, "value": "v"} for index in found]
        return Scripted(
            200, {"records": records, "next_index": until, "has_more": False, "committed_index": 9}
        )

    arguments = ["--last", "2", "--until", "2026-01-31", "--include-control", "--format", "ndjson"]
    with fake_service(answer) as node:
        result = CliRunner().invoke(cli, ["read", *arguments, "-e", node.url])
    assert [json.loads(line)["index"] for line in result.stdout.splitlines()] == [3, 4]


def test_a_failed_read_leaves_no_file(tmp_path: Path) -> None:
    reported = problem("log-not-found", 404, "not_applied", retryable=False)
    with fake_service(lambda _: reported) as node:
        output = ["-o", str(tmp_path / "a.parquet"), "-e", node.url]
        assert CliRunner().invoke(cli, ["read", "--all", *output]).exit_code == 4
    assert list(tmp_path.iterdir()) == []
    with fake_service(pages_of) as node:
        output = ["-o", str(tmp_path / "a.csv"), "-e", node.url]
        assert CliRunner().invoke(cli, ["read", "--limit", "3", *output]).exit_code == 0
    assert (
        (tmp_path / "a.csv").read_text().splitlines()[3].startswith("2,1,0,2024-10-27T03:33:20.000Z,data,k2,")
    )


def test_an_empty_json_document_is_complete() -> None:
    page = {"records": [], "next_index": 0, "has_more": False, "committed_index": -1}
    with fake_service(lambda _: Scripted(200, page)) as node:
        result = CliRunner().invoke(cli, ["read", "--all", "--json", "-e", node.url])
    assert json.loads(result.stdout) == page


@pytest.mark.parametrize(
    "arguments", [["tail", "-f"], ["read", "--all"], ["read", "--all", "--format", "arrow", "-o", "FILE"]]
)
def test_a_log_that_is_created_again_between_two_pages_is_not_continued(
    tmp_path: Path, arguments: list[str]
) -> None:
    """Its indexes are of other records."""
    pages = 0

    def answer(asked: Asked) -> Scripted:
        nonlocal pages
        pages += asked.path.endswith("/records")
        if pages > 2 or not asked.path.endswith("/records"):
            return problem("log-not-found", 404, "not_applied", retryable=False)
        last = {"has_more": "read" in arguments and pages == 1, "committed_index": 9, "next_index": pages}
        page = {"records": [{**RECORD, "index": pages - 1, "key": None, "value": f"v{pages}"}], **last}
        return Scripted(200, page, {"Commitlog-Log-Id": "a" if pages == 1 else "b"})

    file = str(tmp_path / "a.arrow")
    with fake_service(answer) as node:
        named = [file if each == "FILE" else each for each in arguments]
        result = CliRunner().invoke(cli, [*named, "-e", node.url])
    assert result.exit_code == 1, result.output
    assert "its id is b, not a" in result.stderr
    assert "v2" not in result.stdout
