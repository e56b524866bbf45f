"""Each row is in its table once, wherever a driver dies or pauses between two of its steps (steps.py)."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import pytest

from app.tables.names import CURSOR
from spark_jobs.materialize.config import MaterializeConfig
from tests.spark.conftest import endpoints
from tests.spark.drivers.steps import REACHED, drive
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.typed.law import check_law, rows_of
from tests.spark.typed.test_typed import to_json

ENDS_WITHIN_S: Final = 60.0
CASES_AT_ONCE: Final = 4
BATCH_RECORDS: Final = 7
OPENING = (
    *(f"{name} 0" for name in ("entries", "epochs", "epoch_files")),
    *(f"{name} 0" for name in ("events", "watermarks", "sync_state_sets", "quarantine_truncated")),
    *("cursor 0", "progress running"),
)
FIRST_BATCH = (
    "entries 1",
    *("dead_letters 0", "records 0", "current 0", "records_v2 0", "current_v2 0"),
    *("dead_letters 1", "records 1", "current 1", "current_v2 1"),
    "cursor 6",
)
SECOND_BATCH = (
    "entries 2",
    *("dead_letters 2", "records_v2 1", "current 2", "current_v2 2"),
    "cursor 13",
)
EVENTS = ("watermarks", "sync_state_sets", "quarantine_truncated", "events")
BESIDE = (*(f"{name} {number}" for number in (1, 2) for name in EVENTS), "epochs 1", "epoch_files 1")
STEPS = (*OPENING, *FIRST_BATCH, *SECOND_BATCH, *BESIDE, "progress done")
"""All steps of a driver of `new_log` that ends with the log; those of one row in their order."""
LATE = ("cursor 13", "current 2", "current_v2 2")
"""Steps of a driver that follows the log: `current` comes after rows and cursor moves that it lacks."""
STATUSES: Final = threading.Lock()
"""Held to read exit codes: the start of a process reads those of all others, and of two reads one fails."""


def new_log() -> FakeLog:
    """A log whose two micro-batches give rows to each table."""
    log = FakeLog()
    log.open_term(1, "n1")
    log.set_schema("id INT NOT NULL, city STRING", key_columns=["id"])
    log.append(to_json(id=1, city="Bern"), key=b"a")
    log.append(to_json(id=2), key=b"d")
    log.append(to_json(id="x"), None, key=b"b")
    log.open_term(2, "n2")
    log.set_schema("id STRING NOT NULL", key_columns=["id"], compatibility="none")
    log.append(to_json(id="1"), to_json(id="2"), to_json(id=3), key=b"c")
    log.append(None, key=b"a")
    log.append(to_json(id="1"), key=b"c")
    return log


@contextmanager
def replicas_of(log: FakeLog) -> Iterator[Sequence[FakeReplica]]:
    """Run two replicas, whose journals have events for each derived table."""
    with FakeReplica(log, "n1") as first, FakeReplica(log, "n2") as second:
        first.peers = second.peers = [first, second]
        ends = {"begin_index": 0, "end_index": 5, "committed_index": 5}
        set_of_n1 = {"epoch": 1, "master": "n1", "members": ["n1"], "confirm_offset": 3}
        for number in (1, 2):  # of the batch
            first.event("watermarks", {"role": "leader", **ends, "peers": {"n1": 5, "n2": number}})
            first.event("sync_state_set", {**set_of_n1, "set_epoch": number})
            second.event("start", {})
            second.event("truncate", {"epoch": number, "receipt": f"receipts/{number}"})
            second.receipts[str(number)] = log.records[2 : 2 + number]
        yield [first, second]


class Drivers:
    """Starts drivers of the tables in a folder."""

    def __init__(self, replicas: Sequence[FakeReplica], tables: Path, *, follows: bool = False) -> None:
        """follows: the drivers follow the log, except for one that runs to its end."""
        self.tables = tables
        self.follow = follows
        self._ending = MaterializeConfig(
            endpoint=endpoints(replicas),
            tables=tables,
            available_now=True,
            max_records_per_trigger=BATCH_RECORDS,
            min_records_per_trigger=1,
            trigger="50 milliseconds",
            cursor_each_s=0.0,
        )
        self._config = replace(self._ending, available_now=not follows)
        self._processes = multiprocessing.get_context("forkserver")
        self._pipes: list[Connection] = []  # open while drivers may send

    def pause(self, before: str) -> BaseProcess:
        """Start a driver, and return it once it pauses before a step."""
        process, parent = self._start(self._config, before, None)
        assert parent.poll(ENDS_WITHIN_S), before
        assert parent.recv() == REACHED, before
        return process

    def kill(self, after: str) -> None:
        """Run a driver that is killed after a step."""
        process, _ = self._start(self._config, None, after)
        assert exit_code(process) == -signal.SIGKILL, after

    def run(self) -> list[str]:
        """Run a driver to the end of the log; return its steps."""
        process, parent = self._start(self._ending, None, None)
        made: list[str] = parent.recv()
        exit_code(process)
        return made

    def _start(
        self, config: MaterializeConfig, before: str | None, after: str | None
    ) -> tuple[BaseProcess, Connection]:
        parent, child = self._processes.Pipe()
        self._pipes.append(parent)
        process = self._processes.Process(target=drive, args=(config, child, before, after))
        with STATUSES:
            process.start()
        child.close()
        return process, parent


def exit_code(process: BaseProcess) -> int | None:
    """Return the exit code of a process, None if it does not end in time."""
    wait([process.sentinel], ENDS_WITHIN_S)
    with STATUSES:
        return process.exitcode


def contents(tables: Path) -> dict[str, list[str]]:
    """Return all rows of all tables."""
    return {folder.name: sorted(map(str, rows_of(folder))) for folder in (tables / "default").iterdir()}


def check_rows(log: FakeLog, folder: Path) -> None:
    """Check that `entries` has each record, and that each table has rows."""
    data = [each["index"] for each in log.records if each["type"] == "data"]
    assert [row["index"] for row in rows_of(folder / "entries")] == data
    check_law(log, folder, ("id",))
    assert all(contents(folder.parent).values())


@pytest.fixture
def driver_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fork drivers from a server of their own, which has imported what each of them needs. That of the other
    tests of this process may have imported a node, and a hundred drivers would import the rest each."""
    server = forkserver.ForkServer()
    server.set_forkserver_preload([drive.__module__, "pyarrow.acero", "pyarrow.dataset"])
    monkeypatch.setattr(forkserver, "connect_to_new_process", server.connect_to_new_process)
    yield
    server._stop()  # type: ignore[attr-defined]


@pytest.mark.usefixtures("driver_server")
def test_a_driver_that_ends_or_pauses_between_any_two_steps_leaves_each_row_once(tmp_path: Path) -> None:
    with replicas_of(new_log()) as replicas:
        assert set(Drivers(replicas, tmp_path / "undisturbed").run()) == set(STEPS)
        check_rows(replicas[0].log, tmp_path / "undisturbed" / "default")
    expected = contents(tmp_path / "undisturbed")
    due = [(step, False) for step in STEPS] + [(step, True) for step in LATE]

    def try_some(first: int) -> None:
        with replicas_of(new_log()) as replicas:
            for step, follows in due[first::CASES_AT_ONCE]:
                tables = tmp_path / f"{step} {follows}"
                try_step(step, replicas, Drivers(replicas, tables, follows=follows), expected)

    with ThreadPoolExecutor(CASES_AT_ONCE) as cases:
        for _ in cases.map(try_some, range(CASES_AT_ONCE)):
            pass


def try_step(
    step: str, replicas: Sequence[FakeReplica], drivers: Drivers, expected: Mapping[str, Sequence[str]]
) -> None:
    """A driver pauses before the step, so that the next one finds what it would after a death. That one makes
    the step and dies, and a third one ends the work. Then the first one continues, if it is one that ends."""
    log = new_log()
    for replica in replicas:
        replica.log = log
    paused = drivers.pause(step)
    try:
        drivers.kill(step)
        assert drivers.run()[-1] == "progress done", step
        assert contents(drivers.tables) == expected, step
        assert log.cursors[CURSOR]["index"] == log.next_index, step
        if not drivers.follow:
            assert paused.pid is not None
            os.kill(paused.pid, signal.SIGCONT)
            assert exit_code(paused) == 0, step
            assert contents(drivers.tables) == expected, step
    finally:
        paused.kill()
        exit_code(paused)
