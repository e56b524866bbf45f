"""A node's process, forked from a server that has imported the node once.

It runs what `python -m app.serve` runs, in a process of its own, without the second of imports before it: the
suite starts hundreds of nodes. A ForkedNode is used like a subprocess.Popen.
"""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

SERVE = [sys.executable, "-m", "app.serve"]


@cache
def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["app.serve", __name__])
    return context


def _serve(arguments: Sequence[str], log: str) -> None:
    """In the new process: be the node."""
    lines = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(lines, 1)
    os.dup2(lines, 2)
    os.close(lines)
    from app.serve import main

    sys.argv = ["app.serve", *arguments]
    sys.exit(main())


class ForkedNode:
    """`python -m app.serve ARGUMENTS` with its output added to the file `log`."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        log.touch()
        self._process = _context().Process(target=_serve, args=(list(arguments), str(log)), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the process runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once the process has ended. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired(SERVE, timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
