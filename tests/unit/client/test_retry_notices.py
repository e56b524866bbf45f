"""Log lines of calls that are retried for long, and the end of a producer that is interrupted meanwhile."""

import json
import logging
import threading
from collections.abc import Callable
from contextlib import suppress

import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.client import ClientError, CommitlogClient, ProducerFailed, RecordProducer
from app.client import producer as producer_module
from app.client.connection import ClusterConnection
from app.client.retry_notices import RetryNotices
from spark_jobs.job_lines import waits_reported
from tests.unit.cli.fake_service import Scripted, committed, fake_service

CLOSED = "http://127.0.0.1:1"


class Clock:
    """Time that passes only while a call waits."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s


def _call(connection: ClusterConnection) -> None:
    connection.call("GET", "/v1/cluster")


def _first_good(connection: ClusterConnection) -> None:
    connection.first_good(lambda url: connection.once("GET", url, "/v1/cluster"))


@pytest.mark.parametrize("ask", [_call, _first_good])
def test_a_call_logs_why_it_waits_and_for_how_long(
    ask: Callable[[ClusterConnection], None], caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    connection = ClusterConnection([CLOSED], clock=clock, sleep=clock.sleep)
    with pytest.raises(ClientError):
        ask(connection)
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3  # after 2, 12 and 22 s of 30
    assert lines[0].startswith(f"{CLOSED} does not answer")
    assert lines[0].endswith(("; trying again for 28 s", "; trying again for 27 s"))


def test_a_call_that_soon_succeeds_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    answers = iter([Scripted(503, {"code": "no-leader", "retryable": True}), Scripted(200, {})])
    with fake_service(lambda _: next(answers)) as node:
        clock = Clock()
        _call(ClusterConnection([node.url], clock=clock, sleep=clock.sleep, learns_nodes=False))
    assert caplog.records == []


@pytest.mark.parametrize("as_json", [False, True])
def test_a_command_prints_why_it_waits_but_not_beside_a_problem_document(
    as_json: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    real = ClusterConnection.__init__

    def with_clock(self: ClusterConnection, *given: object, **options: object) -> None:
        real(self, *given, **{**options, "clock": clock, "sleep": clock.sleep})  # type: ignore[arg-type]

    monkeypatch.setattr(ClusterConnection, "__init__", with_clock)
    with fake_service(lambda _: Scripted(503, {"code": "no-leader", "retryable": True})) as node:
        arguments = ["logs", "list", "-e", node.url, *(["--json"] if as_json else [])]
        result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 5
    if as_json:
        assert json.loads(result.stderr)["code"] == "no-leader"
    else:
        assert result.stderr.startswith("commitlog: no-leader")
        assert "; trying again for 8 s\n" in result.stderr or "; trying again for 7 s\n" in result.stderr


def test_a_job_writes_a_line_with_its_time_but_none_beside_a_problem_document(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for as_json in (True, False):
        with waits_reported(as_json=as_json):
            RetryNotices(0.0, 30.0).failed(5.0, "no node answers")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("Z no node answers; trying again for 25 s")


def test_an_interrupted_producer_gives_up_what_does_not_leave_soon(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(producer_module, "INTERRUPT_S", 0.0)
    asked, ends = threading.Event(), threading.Event()

    def answer(_: object) -> Scripted:
        asked.set()
        ends.wait(10)
        return Scripted(0)

    with fake_service(answer) as node:
        client = CommitlogClient(node.url, give_up_s=0)
        with (
            suppress(KeyboardInterrupt),
            caplog.at_level(logging.WARNING, "app.client.producer"),
            RecordProducer(client, max_batch_records=1) as producer,
        ):
            first, second = producer.send("in flight"), producer.send("queued")
            assert asked.wait(10)
            raise KeyboardInterrupt
        with pytest.raises(ProducerFailed, match="interrupted"):
            second.result(0)
        assert not first.done()
        assert [record.getMessage() for record in caplog.records] == [
            "interrupted: 1 queued appends are not sent, 1 in flight may be stored"
        ]
        with pytest.raises(ProducerFailed):
            producer.send("later")
        ends.set()
        with pytest.raises(ClientError):
            first.result(10)


def test_an_interrupted_producer_still_sends_what_a_service_that_answers_takes() -> None:
    with (
        fake_service(lambda _: Scripted(200, committed(first_index=0))) as node,
        suppress(KeyboardInterrupt),
        RecordProducer(CommitlogClient(node.url), linger_ms=60_000) as producer,
    ):
        delivery = producer.send("queued")
        raise KeyboardInterrupt
    assert delivery.result(0) == 0
