"""The end of a program of the tests: its exit code, and no traceback for a closed pipe."""

import os
import select
import sys
from collections.abc import Callable
from typing import NoReturn

READER_GONE = 141  # as shells report SIGPIPE


def run_program(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and exit with its code, READER_GONE when the reader of standard output has closed the pipe.

    `main` ends by the BrokenPipeError of its next line, so it still ends the processes that it started.
    """
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        if not _reader_gone():
            raise  # another pipe, or a connection
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is flushed at the exit
        code = READER_GONE
    sys.exit(code)


def _reader_gone() -> bool:
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))
