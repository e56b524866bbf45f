"""Tables of the logs at a node: their location in the settings, and what the node keeps of them."""

import asyncio
import gc
import json
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from app.api.http.log_call import Served
from app.api.routes import tables
from app.api.tables import known_jobs
from app.api.tables.known_jobs import KnownJobs
from app.api.tables.known_tables import KnownTables
from app.api.tables.points import AtQuery
from app.api.tables.progress import table_object
from app.errors import LogDeleting, Repairing
from app.log.contract import Durability
from app.node.hosted_log import HostedLog
from app.settings.model import LogSettings, Replication
from app.tables.catalog import LogTables, TableState
from app.tables.job_reports import JobReport, JobReports
from tests.support.event_loop import until
from tests.support.in_process import node_in_process


@pytest.mark.parametrize("url", ["s3://bucket/t", "dbfs:/t", "file:/t", "abfss://c@a.dfs.core.windows.net/t"])
def test_a_url_is_no_folder_of_this_machine(url: str) -> None:
    """`dbfs:/t` was read as a folder below that of the process, and found empty."""
    assert KnownTables(url).root == url
    assert KnownTables("t").root == str(Path.cwd() / "t")


def hosted(name: str) -> HostedLog:
    settings = LogSettings(
        name=name, replication=Replication.RAFT, durability=Durability.FSYNC, replicas=("n1",)
    )
    return HostedLog(settings, 7)


def test_nothing_is_kept_of_the_tables_of_logs_that_the_node_does_not_serve(tmp_path: Path) -> None:
    """The files of a table in memory are some hundred bytes each, and logs may come and go for years."""
    known, logs = KnownTables(str(tmp_path)), [hosted(f"log-{number}") for number in range(5)]
    for log in logs:
        log.driver = cast(Any, SimpleNamespace())
        assert asyncio.run(known.query(log, LogTables.all)) == []
        log.driver = log.driver if log is logs[0] else None  # the others are deleted, or moved away
    assert [*known._logs] == [logs[0], logs[-1]]


def test_a_call_that_ends_leaves_the_tables_to_its_thread() -> None:
    """Its client has disconnected. The thread still reads what the next call would change."""
    begun, ends, reads = threading.Event(), threading.Event(), []

    def read(number: int, _: LogTables) -> None:
        reads.append(number)
        begun.set()
        assert ends.wait(60)
        reads.append(number)

    async def run() -> None:
        known, log = KnownTables("/t"), hosted("a")
        first, second = (asyncio.create_task(known.query(log, partial(read, each))) for each in (1, 2))
        await until(begun.is_set)
        first.cancel()
        await asyncio.wait((first,))
        asyncio.get_running_loop().call_soon(ends.set)
        await second

    asyncio.run(run())
    assert reads == [1, 1, 2, 2]


def test_a_read_that_fails_after_its_call_has_ended_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio logged its traceback: an exception that was never retrieved."""
    begun, ends = threading.Event(), threading.Event()

    def fail(_: LogTables) -> None:
        begun.set()
        assert ends.wait(60)
        raise OSError("stale file handle")

    async def run() -> None:
        known, log = KnownTables("/t"), hosted("a")
        call = asyncio.create_task(known.query(log, fail))
        await until(begun.is_set)
        call.cancel()
        await asyncio.wait((call,))
        ends.set()
        del call  # it refers to the read
        assert await known.query(log, lambda _: 1) == 1
        gc.collect()

    asyncio.run(run())
    assert [record.getMessage() for record in caplog.records] == ["tables: stale file handle"]


def test_a_folder_that_does_not_answer_delays_no_report_and_holds_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The metrics and the list of logs have the reports too: they must not wait for a network file system."""
    answers, reads = threading.Event(), []
    failed = {"a": JobReport("failed", 9, "full", 7)}

    def read(_: JobReports) -> dict[str, JobReport]:
        reads.append(len(reads))
        if len(reads) == 2:
            assert answers.wait(60)
        return failed if len(reads) < 3 else {}

    async def run() -> None:
        known = KnownJobs("/t")
        monkeypatch.setattr(known_jobs, "_JOBS_WAIT_S", 60.0)
        assert await known.last() == failed
        monkeypatch.setattr(known_jobs, "_JOBS_WAIT_S", 0.0)
        for _ in range(3):
            assert await known.last() == failed
        monkeypatch.setattr(known_jobs, "_JOBS_WAIT_S", 60.0)
        answers.set()
        assert await known.last() == failed
        assert len(reads) == 2
        assert await known.last() == {}

    monkeypatch.setattr(JobReports, "read", read)
    asyncio.run(run())
    assert asyncio.run(KnownJobs(None).last()) == {}


def test_a_folder_that_does_not_answer_keeps_no_node_from_its_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop waited for the thread, and the process stayed until it was killed: after one scrape."""
    stopped, begun, ended = threading.Event(), [], []

    def hang(of: object) -> Any:
        begun.append(type(of))
        ended.append(stopped.wait(3))

    async def call() -> None:
        await KnownJobs("/t").last()
        tasks = [asyncio.create_task(KnownTables("/t").query(hosted("log"), hang))]
        await until(lambda: len(begun) == len(tasks) + 1)

    monkeypatch.setattr(known_jobs, "_JOBS_WAIT_S", 0.0)
    monkeypatch.setattr(JobReports, "read", hang)
    asyncio.run(call())
    assert (begun, ended) == ([JobReports, LogTables], [])
    stopped.set()


@pytest.mark.parametrize("deleting", [False, True])
def test_a_call_that_waits_for_tables_ends_when_its_log_is_repaired_or_deleted(
    deleting: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read the files of the next log through the one that had ended, and a good log was repaired."""
    log, driver = hosted("log"), cast(Any, SimpleNamespace(log=None))
    log.driver = driver
    state = TableState("entries", "/t/log/entries", 1, 5, None)

    async def query(*_: object) -> TableState:
        return state

    async def described(here: Served, _: TableState) -> dict[str, Any]:
        here.hosted.driver, here.hosted.deleting = None, deleting
        return {"materialized_index": 5}

    here = Served(cast(Any, None), log, driver)
    known = SimpleNamespace(query=query)
    call = cast(
        Any,
        SimpleNamespace(request=SimpleNamespace(app=SimpleNamespace(state=SimpleNamespace(tables=known)))),
    )
    expected = LogDeleting if deleting else Repairing
    with monkeypatch.context() as patched:
        patched.setattr(tables, "table_object", described)
        with pytest.raises(expected):
            asyncio.run(tables._cut(call, here, AtQuery.model_validate({"timestamp": 1})))
    with pytest.raises(expected):
        asyncio.run(table_object(here, state))


def test_the_lists_of_logs_show_that_a_spark_job_has_failed(tmp_path: Path) -> None:
    """They showed a log as serving, as if all was well with it."""
    logs = {"default": {"error": "full", "failed_ms": 7}, "deleted": {}}
    document = {"state": "running", "updated_ms": 9, "logs": logs}

    async def run() -> None:
        async with node_in_process(tmp_path, tables={"path": str(tmp_path)}) as node:

            async def shown(path: str) -> list[str | None]:
                found = (await node.client.get(path)).json()["logs"]
                return [each.get("tables_job") for each in found if each["name"] == "default"]

            lists = ("/v1/logs", "/ui/overview.json", "/ui/led.json")
            assert [await shown(path) for path in lists] == [[None]] * 3
            (tmp_path / "progress.json").write_text(json.dumps(document))
            assert [await shown(path) for path in lists] == [["failed"]] * 3

    asyncio.run(run())
