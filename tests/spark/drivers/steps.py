"""The steps of a materializer that others can see, and drivers that stop or die at one of them.

A step is a commit of a table, by its version; a move of the log's cursor, by the new index; a state of the
progress file. Everything else that a driver does is undone by its death: a data file counts from the commit
that names it. The checkpoint of the streaming query is no step, since each start has a new one.

A driver is a process without a JVM, forked from one that has imported the job. So a death is SIGKILL, and a
pause is SIGSTOP, in the middle of the work of all its threads.
"""

import json
import os
import signal
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from app.client.operations import Operations
from spark_jobs.materialize import events, typed
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.materialize.progress import ProgressFile
from spark_jobs.run import FAILURES, materialize
from tests.spark.no_spark import no_spark

REACHED: Final = "reached"
"""Sent by a driver before it pauses."""
EVENTS_OF_A_BATCH: Final = 2  # of each node
CURRENT_EACH_S: Final = 0.5

Note = Callable[[str, Callable[[], Any]], Any]


def drive(config: MaterializeConfig, parent: Connection, before: str | None, after: str | None) -> None:
    """Materialize; send the steps in their order. before: step at which to pause. after: at which to die."""
    made: list[str] = []

    def note(step: str, make: Callable[[], Any]) -> Any:
        nonlocal before
        if step == before:
            before = None
            parent.send(REACHED)
            signal.raise_signal(signal.SIGSTOP)
        result = make()
        made.append(step)
        if step == after:
            signal.raise_signal(signal.SIGKILL)
        return result

    _observe(note)
    os.fsync = lambda _file: None  # a process that dies loses nothing that it has written
    events.MAX_EVENTS_PER_TRIGGER, typed.CURRENT_EACH_S = EVENTS_OF_A_BATCH, CURRENT_EACH_S
    try:
        materialize(config, spark=no_spark())
    except FAILURES as error:
        made.append(f"failed: {error}")
    parent.send(made)


def _observe(note: Note) -> None:
    """Let each step of this process be made by `note`."""
    link, move, replace = os.link, Operations.move_cursor, ProgressFile._replace

    def link_step(source: Path, name: Path) -> None:
        note(f"{name.parts[-3]} {int(name.stem)}", partial(link, source, name))

    def move_step(operations: Operations, name: str, index: int, **options: Any) -> Any:
        return note(f"cursor {index}", partial(move, operations, name, index, **options))

    def replace_step(file: ProgressFile, text: str) -> None:
        note(f"progress {json.loads(text)['state']}", partial(replace, file, text))

    os.link = link_step  # type: ignore[assignment]
    Operations.move_cursor = move_step  # type: ignore[method-assign, assignment]
    ProgressFile._replace = replace_step  # type: ignore[method-assign]
