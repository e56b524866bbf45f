"""The process of a stopped stream ends without a traceback, unless it has an error of its own."""

import subprocess
import sys

import pytest

PROGRAM = """
from spark_jobs.source.stopping import end_quietly
try:
    try:
        raise {cause}
    finally:
        end_quietly()
except Exception:
    raise {error}
"""


@pytest.mark.parametrize(
    ("cause", "error", "is_quiet"),
    [
        ("EOFError", "BrokenPipeError", True),
        ("EOFError", "ValueError", False),
        ("ValueError", "BrokenPipeError", False),
    ],
)
def test_only_the_report_of_a_closed_connection_is_left_out(cause: str, error: str, is_quiet: bool) -> None:
    program = PROGRAM.format(cause=cause, error=error)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert (done.stderr == "") is is_quiet
