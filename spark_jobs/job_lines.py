"""Lines of a job that runs for long. In a file each one begins with its time; on a terminal it does not."""

import sys
import time
from contextlib import AbstractContextManager
from typing import TextIO

from app.client.retry_notices import notices_to


def line_of(text: str, stream: TextIO) -> str:
    """Return the line of a text on this stream, with the time in UTC unless it is a terminal."""
    if stream.isatty():
        return f"{text}\n"
    return f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n"


def warn(text: str) -> None:
    """Write a line to standard error: a failure after which the job continues."""
    sys.stderr.write(line_of(text, sys.stderr))


def waits_reported(*, as_json: bool) -> AbstractContextManager[None]:
    """Write why a call of the job waits to standard error; with --json that is for a problem document."""
    return notices_to((lambda _: None) if as_json else warn)
