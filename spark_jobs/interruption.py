"""SIGTERM and Ctrl-C: a program that has nothing to finish ends at once, and leaves nothing."""

import atexit
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from spark_jobs.scratch_folder import make_scratch, remove_scratch

STOPPED: Final = 0  # exit code of a job that runs until a signal
INTERRUPTED: Final[Mapping[int, int]] = {
    signal.SIGINT: 130,
    signal.SIGTERM: 143,
}  # of a job with an end (docs/api.md §7)


def end_at_once(exit_codes: Mapping[int, int]) -> None:
    """Let each of these signals end this process at once, with its exit code and one sentence.

    Call it before the imports of Spark. A job that finishes its work at a signal calls `finish_at_signals`
    when Spark has started. From now on, the temporary files of this process and of the JVM are in a folder
    that is removed at the end, if one can be made; those of jobs that were killed are removed now.
    """
    folder: Path | None = None
    with suppress(OSError):  # the session will refuse to start, in one sentence (machine.py)
        folder = make_scratch("commitlog-job-")
        os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        atexit.register(remove_scratch, folder)

    def end(number: int, _: object) -> None:
        os.write(2, f"stopped by {signal.Signals(number).name}\n".encode())
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # other threads would report that the JVM is away
        for child in _children():  # the JVM would log the end of its tasks
            with suppress(OSError):  # it has ended
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        if folder is not None:
            remove_scratch(folder)
        os._exit(exit_codes[number])  # a raised exception would become a traceback of Py4J

    for number in exit_codes:
        signal.signal(number, end)


def finish_at_signals(stop: threading.Event, received: Callable[[int], None] = lambda _: None) -> None:
    """Let SIGTERM and Ctrl-C set `stop` from now on. received: called first, with the number."""

    def finish(number: int, _: object) -> None:
        received(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, finish)


def _children() -> list[int]:
    found: list[int] = []
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # the thread has ended
            found += map(int, (thread / "children").read_text("utf-8").split())
    return found
