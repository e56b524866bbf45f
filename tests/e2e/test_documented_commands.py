"""Every command of every README and page of docs/, in order, on the cluster that the README starts.

Blocks marked sh, bash, shell or console count. What cannot run here is in SKIPPED, with the reason.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.e2e.processes import free_port

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)```(?:sh|bash|shell|console)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
PLACEHOLDERS = re.compile(
    r"\bFILE\b|\bHOST\b|\bDIR\b|\bURLS?\b|\bNAME\b|\.example\b|…|\.\.\.|/var/|/etc/|/srv/|/backup"
)
COMMAND_TIMEOUT_S = 120
PORTS = re.compile(r"\b(8|9)(10[1-9])\b")
SKIPPED = {  # by the first words of a command
    "make": "installs, or runs everything: tests/e2e/test_demo.py, tests/spark/session",
    "source .venv/bin/activate": "the test has the commands on its PATH",
    "python -m spark_jobs": "starts Spark: tests/spark/notebooks/test_notebook.py runs its main",
    "python -m tests": "benchmarks and simulators: tests/bench, tests/simulation",
    "spark-submit": "starts Spark: tests/spark/session",
    "JAVA_HOME": "starts Spark: tests/spark/session",
    "commitlog demo": "tests/e2e/test_demo.py",
    "commitlog materialize": "starts Spark: tests/spark/materialize",
    "commitlog doctor": "reports on this machine: tests/unit/cli",
    "databricks": "needs a workspace",
    "docker": "needs a container runtime",
    "podman": "needs a container runtime",
    "kubectl": "needs a Kubernetes cluster",
    "systemctl": "needs root",
    "sudo": "needs root",
    "pip": "installs packages",
    "git": "changes the checkout",
    "curl -sO": "downloads",
}
FOLLOWS = {  # commands that run until they are ended, and what they print first
    "commitlog up": '"nodes"',
    "commitlog serve": "",
    "commitlog tail -f": "hello",
    "commitlog status --watch": "n1",
    "curl -sN": "event: batch",
}
WAITS = "wait_ms=10000"  # a read that waits for the next append
MAY_BE_REFUSED = {"match_index=3": "index-mismatch"}  # the page describes it


@dataclass
class Terminal:
    """The shells of a reader: one folder, and the processes that still run."""

    folder: Path
    port: int
    variables: list[str] = field(default_factory=list)
    following: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def translated(self, command: str) -> str:
        """The command with the ports of this test, without Spark, and in a short time."""
        command = PORTS.sub(
            lambda m: str(self.port + (1_000 if m[1] == "9" else 0) + int(m[2]) - 101), command
        )
        if command.startswith("commitlog up"):
            running = [other for other in self.following if other.startswith("commitlog up")]
            base = self.port + 20 * len(running)  # one cluster at a time, or with another --port
            command = command.partition("#")[0] + f" --no-spark --port {base}"
        command = command.replace("bench --seconds 5", "bench --seconds 1")
        return command

    def start(self, command: str) -> "subprocess.Popen[str]":
        script = "\n".join([*self.variables, self.translated(command)])
        return subprocess.Popen(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that `end` ends what the shell has started too
        )

    @property
    def environment(self) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("COMMITLOG_")},
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "HOME": str(self.folder / "home"),
            "XDG_STATE_HOME": str(self.folder / "home"),
            "PYTHONPATH": str(ROOT),
            "COMMITLOG_ENDPOINT": self.endpoint,
            "PYTHONUNBUFFERED": "1",
        }

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def follow(self, command: str, first: str) -> None:
        """Start a command that does not end, and wait for its first output."""
        process = self.start(command)
        self.following[command] = process
        assert process.stdout is not None
        while first:
            line = process.stdout.readline()
            assert line, (
                f"{command}: ended without {first!r}\n{process.stderr.read() if process.stderr else ''}"
            )
            if first in line:
                break

    def run(self, command: str) -> str:
        process = self.start(command)
        if WAITS in command:
            subprocess.run(
                ["bash", "-c", "commitlog append awaited"],
                cwd=self.folder,
                env=self.environment,
                check=True,
                capture_output=True,
            )
        out, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
        assert process.returncode == 0, f"{command}: exit code {process.returncode}\n{out}\n{err}"
        return out

    def end(self, command: str) -> None:
        process = self.following.pop(command)
        os.killpg(process.pid, 15)
        process.communicate(timeout=COMMAND_TIMEOUT_S)

    def close(self) -> None:
        for command in reversed(list(self.following)):
            self.end(command)


def pages() -> list[Path]:
    """The README first: its commands start the cluster."""
    found = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return sorted((ROOT / name for name in found.stdout.split()), key=lambda path: path != ROOT / "README.md")


def commands_of(page: Path) -> Iterator[str]:
    """The commands of a page, in order. Blocks with placeholders need values of the reader."""
    for match in FENCE.finditer(page.read_text()):
        block = "\n".join(line.removeprefix(match[1]).removeprefix("$ ") for line in match[2].splitlines())
        if not PLACEHOLDERS.search(block):
            yield from split(block)


def split(block: str) -> Iterator[str]:
    """Commands with their continued lines and here-documents, without comments of a whole line."""
    lines = iter(block.splitlines())
    for line in lines:
        command = line
        while command.endswith("\\"):
            command += "\n" + next(lines)
        if marker := re.search(r"<<'(\w+)'", command):
            for more in lines:
                command += "\n" + more
                if more == marker[1]:
                    break
        if command.strip() and not command.startswith("#"):
            yield command


def is_skipped(command: str) -> bool:
    return any(re.match(rf"{re.escape(words)}(?![\w-])", command) for words in SKIPPED)


def refusal(output: str) -> str | None:
    """The problem code of an answer, None for another one."""
    try:
        answer = json.loads(output)
    except ValueError:
        return None
    return str(answer["code"]) if isinstance(answer, dict) and "outcome" in answer else None


def test_commands_are_found_whole() -> None:
    block = "# c\nA=1\nx a \\\n  b  # d\n\ncat > f <<'END'\n# kept\nEND\ny\n"
    assert list(split(block)) == ["A=1", "x a \\\n  b  # d", "cat > f <<'END'\n# kept\nEND", "y"]
    assert is_skipped("make demo  # all")
    assert not is_skipped("maker")
    assert refusal('{"code": "fenced", "outcome": "not_applied"}') == "fenced"
    assert refusal("n1 leads") is None


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    wrapper = tmp_path / "bin" / "commitlog"
    wrapper.parent.mkdir()
    (tmp_path / "home").mkdir()
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -m app.cli.main "$@"\n')
    wrapper.chmod(0o755)
    opened = Terminal(tmp_path, free_port(60))
    try:
        yield opened
    finally:
        opened.close()


def test_every_command_of_the_pages_works_in_order(terminal: Terminal) -> None:
    first = ""
    for page in pages():
        for command in commands_of(page):
            run_command(terminal, command, page)
            first = first or next(iter(terminal.following), "")
    # the cluster of the README starts again with its folder, without the node that was removed
    terminal.end(first)
    terminal.follow(first, FOLLOWS["commitlog up"])
    terminal.run("commitlog append again")
    assert '"again"' in terminal.run("commitlog tail -n 1 --json")


def run_command(terminal: Terminal, command: str, page: Path) -> None:
    if is_skipped(command):
        return
    if re.fullmatch(r"[A-Z_]+=\S+", command):
        terminal.variables.append(terminal.translated(command))
        return
    words = next((words for words in FOLLOWS if command.startswith(words)), None)
    if words is not None:
        terminal.follow(command, FOLLOWS[words])
        if not command.startswith("commitlog serve") and len(terminal.following) > 1:
            terminal.end(command)
        return
    code = refusal(terminal.run(command))
    allowed = [code for words, code in MAY_BE_REFUSED.items() if words in command]
    assert code is None or code in allowed, f"{page.name}: {command}: {code}"
