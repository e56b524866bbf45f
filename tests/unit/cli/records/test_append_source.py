"""Inputs of `append` and outputs of `read` that are not files: pipes, devices, lines without an end."""

import io
import json
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner

from app.cli.context import CommandFailed
from app.cli.main import cli
from app.cli.records import source as source_module
from app.cli.records.output import output_file
from app.cli.records.source import Source
from tests.e2e.processes import wait_until
from tests.unit.cli.fake_service import Scripted, committed, fake_service

RECORD = {"index": 4, "term": 1, "offset": 0, "timestamp": 1_730_000_000_000, "type": "data", "headers": []}
PAGE = {"records": [{**RECORD, "value": "v"}], "next_index": 5, "has_more": False, "committed_index": 4}


@pytest.mark.parametrize(
    ("form", "lines", "values"),
    [
        ("lines", [b"a\n", b"b\nc\n", b"d"], ["a", "b", "c", "d"]),
        ("ndjson", [b'{"value": "a"}\n', b'\n{"value": "b"}\n'], ["a", "b"]),
        ("ndjson", [b'{"value": "a"}\n\n \r\n', b'{"value": "b"}\n\n'], ["a", "b"]),
    ],
)
def test_lines_of_a_pipe_are_appended_while_its_writer_waits(
    form: str, lines: list[bytes], values: list[str]
) -> None:
    """`kubectl logs -f | commitlog append`: a line must not wait until 500 lines have arrived."""
    reading, writing = os.pipe()
    with (
        fake_service(lambda asked: Scripted(200, committed(0, asked.body.count(b"\n")))) as node,
        os.fdopen(reading, "rb") as stdin,
        ThreadPoolExecutor(1) as pool,
    ):
        arguments = ["append", "--format", form, "-e", node.url]
        running = pool.submit(CliRunner().invoke, cli, arguments, input=cast("Any", stdin))
        try:
            for number, line in enumerate(lines[:-1]):
                os.write(writing, line)
                wait_until(lambda count=number: len(node.appends()) > count, "an append", 10)  # type: ignore[misc]
            os.write(writing, lines[-1])
        finally:
            os.close(writing)
        result = running.result(timeout=10)
    assert result.exit_code == 0, result.output
    arrived = [json.loads(line)["value"] for asked in node.appends() for line in asked.body.splitlines()]
    assert arrived == values


def test_ctrl_c_while_a_pipe_is_quiet_leaves_no_outcome_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the usual end of `kubectl logs -f | commitlog append`: all appends have been answered."""

    def interrupted(_self: Source) -> Iterator[bytes]:
        yield b"a"
        raise KeyboardInterrupt

    monkeypatch.setattr(Source, "__iter__", interrupted)
    monkeypatch.setattr(Source, "is_dry", lambda *_, **__: True)
    with fake_service(lambda asked: Scripted(200, committed(0, 1))) as node:
        result = CliRunner().invoke(cli, ["append", "-e", node.url], input=b"")
    assert result.exit_code == 130
    assert "interrupted; 1 record of earlier appends is stored" in result.stderr
    assert len(node.appends()) == 1


def test_lines_that_are_there_are_one_append(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"x\n" * 100_000)  # longer than what one read returns
    with fake_service(lambda asked: Scripted(200, committed(0, asked.body.count(b"\n")))) as node:
        result = CliRunner().invoke(cli, ["append", "--file", str(file), "--batch", "10000", "-e", node.url])
    assert result.exit_code == 0, result.output
    assert [asked.body.count(b"\n") for asked in node.appends()] == [10_000] * 10


def test_a_pipe_that_does_not_block_is_read_to_its_end() -> None:
    """Another process may have set O_NONBLOCK for the standard input: an empty pipe is not its end."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    with os.fdopen(reading, "rb") as stdin, ThreadPoolExecutor(1) as pool:
        first, ended = threading.Event(), list[bytes]()

        def read() -> None:
            for line in Source(stdin):
                ended.append(line)
                first.set()

        running = pool.submit(read)
        try:
            os.write(writing, b"a\n")
            assert first.wait(10)
            with pytest.raises(TimeoutError):
                running.result(timeout=0.2)
            os.write(writing, b"b")
        finally:
            os.close(writing)
        running.result(timeout=10)
    assert ended == [b"a", b"b"]


@pytest.mark.parametrize("content", [b"", b"\n", b"a", b"a\n", b"a\r\nb", b"\n\na\n", b"ab\n" * 50_000])
def test_a_source_has_the_lines_of_its_file(content: bytes) -> None:
    assert list(Source(io.BytesIO(content))) == [line.removesuffix(b"\n") for line in io.BytesIO(content)]


@pytest.mark.parametrize(
    ("read", "message"),
    [(list, "line 2 has more than 1 MiB"), (Source.whole, "the input has more than 1 MiB")],
)
def test_an_input_without_line_ends_is_refused_before_it_fills_the_memory(
    read: Callable[[Source], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "RECORD_BYTES", 1 << 20)
    file = io.BytesIO(b"a\n" + bytes(8 << 20))
    with pytest.raises(CommandFailed, match=message):
        read(Source(file))
    assert file.tell() < 2 << 20


def test_a_dash_as_output_is_the_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with fake_service(lambda _: Scripted(200, PAGE)) as node:
        arguments = ["read", "--all", "--format", "ndjson", "-o", "-", "-e", node.url]
        result = CliRunner().invoke(cli, arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout)["value"] == "v"
    assert list(tmp_path.iterdir()) == []


def test_a_pipe_is_written_by_its_own_name() -> None:
    """/dev/stdout of a pipe is a link to a name that does not exist."""
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as read:
        with output_file(Path(f"/proc/self/fd/{writing}")) as file:
            file.write(b"a")
        os.close(writing)
        assert read.read() == b"a"
