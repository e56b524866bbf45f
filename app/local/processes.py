"""A child process with a pid file and a log file, which never outlives its parent."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from storage.units import MIB

FULL_BYTES = MIB  # with less free, a process may be unable to write even its log


class ChildProcess:
    """A Python module as a child process, in a separate session: a Ctrl-C reaches only the parent.

    Its output goes to `log`; `pid_file` holds its pid while it runs. It ends with its parent (child.py).
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        log: Path,
        pid_file: Path,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """environment: variables beside those of this process."""
        self.log = log
        self._pid_file = pid_file
        self._refusal: OSError | None = None  # of the removal of the pid file
        # -P: the current folder must not shadow installed packages
        command = [sys.executable, "-P", "-m", "app.local.child", str(os.getpid()), module, *arguments]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        pid_file.write_text(f"{self.pid}\n", "utf-8")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, None while the process runs; negative: the signal that ended it."""
        return self._process.poll()

    @property
    def running(self) -> bool:
        return self.exit_code is None

    def terminate(self) -> None:
        """Send SIGTERM, and do not wait."""
        if self.running:
            self._process.terminate()

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        if self.running:
            self._process.kill()
        self.wait(10)

    def wait(self, timeout_s: float) -> int | None:
        """Return its exit code, None when it still runs after `timeout_s`."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        try:
            if self._pid_file.exists() and self._pid_file.read_text("utf-8").strip() == str(self.pid):
                self._pid_file.unlink(missing_ok=True)  # unless another process uses its files by now
        except OSError as error:  # of a disk that fails; the other processes go on
            self._refusal = error
        return code

    def end(self, grace_s: float) -> None:
        """Send SIGTERM, then after `grace_s` SIGKILL to it and to everything it started."""
        self.terminate()
        if self.wait(grace_s) is None:
            os.killpg(self.pid, signal.SIGKILL)
            self.wait(10)

    def ending(self, lines: int = 1) -> str:
        """Return how it ended, and the last lines of its log or why there may be none. It must have ended."""
        assert self.exit_code is not None
        what = f"{describe_exit(self.exit_code)}; its log: {self.log}"
        last: list[str] = []
        try:
            free = shutil.disk_usage(self.log.parent).free
            if free < FULL_BYTES:
                what += f"; its disk is full ({free // 1024} KiB are free): remove files there"
            last = self.log.read_text("utf-8", "replace").splitlines()[-lines:]
        except FileNotFoundError:
            what += "; the log was removed"
        except OSError as error:
            self._refusal = error
        if self._refusal is not None:
            what += f"; its disk fails: {self._refusal.strerror}"
        return "\n".join([what, *(f"  {line}" for line in last)])


def describe_exit(code: int) -> str:
    """Return a description of an exit code."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


class StopRequested(BaseException):
    """SIGTERM, SIGINT or SIGHUP arrived: clean up and end. Not an Exception, so that it is not caught by
    accident."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.number = number


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """Raise StopRequested in the body at the first such signal, and ignore the ones that follow."""
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    stopping = False

    def stop(number: int, _: object) -> None:
        nonlocal stopping
        if not stopping:  # cleaning up must not be interrupted
            stopping = True
            raise StopRequested(signal.Signals(number))

    before = {number: signal.signal(number, stop) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
