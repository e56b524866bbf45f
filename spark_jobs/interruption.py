"""SIGTERM and Ctrl-C: while a job starts, which takes seconds, there is nothing to finish yet."""

import os
import signal
import threading
from collections.abc import Mapping
from typing import Final

STOPPED: Final = 0  # exit code of a job that runs until a signal


def end_at_once(exit_codes: Mapping[int, int]) -> None:
    """Let each of these signals end this process at once, with its exit code and one sentence.

    Call it before the imports of Spark. A job that finishes its work at a signal calls `finish_at_signals`
    when Spark has started. The JVM ends with this process, because its standard input closes.
    """

    def end(number: int, _: object) -> None:
        os.write(2, f"stopped by {signal.Signals(number).name}\n".encode())
        os._exit(exit_codes[number])  # a raised exception would become a traceback of Py4J

    for number in exit_codes:
        signal.signal(number, end)


def finish_at_signals(stop: threading.Event) -> None:
    """Let SIGTERM and Ctrl-C set `stop` from now on."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
