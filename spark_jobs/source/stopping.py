"""The end of the process in which Spark plans a stream."""

import sys
from types import TracebackType


def end_quietly() -> None:
    """Let this process end without a traceback, if Spark has closed its connection.

    Call it where Spark stops a reader. A query that is stopped closes the connection; PySpark takes that for
    an error, and fails when it reports the error over the same connection.
    """
    if isinstance(sys.exception(), EOFError):
        sys.excepthook = _report


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, BrokenPipeError):
        sys.__excepthook__(kind, error, trace)
