"""Standard streams and arguments: closed, full, of another locale, and not text."""

import json
import subprocess
import sys

import pytest

from app.cli.context import printable
from tests.unit.cli.fake_service import Scripted, committed, fake_service
from tests.unit.cli.test_commands import run

PROGRAM = "from app.cli import run; run()"
ASCII = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
SNOWMAN = "\N{SNOWMAN}"


def commitlog(
    *arguments: str | bytes, redirected: str = "", variables: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the command line as a process. redirected: streams, as the shell writes them."""
    shell = ["sh", "-c", f'exec "$@" {redirected}', "sh"]
    command = [*shell, sys.executable, "-c", PROGRAM, *arguments]
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **(variables or {})}
    return subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)


def test_a_closed_output_is_no_failure() -> None:
    with fake_service(lambda _: Scripted(200, committed())) as node:
        for arguments in (["append", "v", "--json"], ["append", "v"]):
            done = commitlog(*arguments, "-e", node.url, redirected=">&-")
            assert (done.returncode, done.stderr) == (0, b"")
    assert commitlog("sim", "--help", redirected=">&- <&- 2>&-").returncode == 0


def test_a_closed_input_is_empty() -> None:
    done = commitlog("append", "-e", "http://127.0.0.1:1", redirected="<&-")
    assert (done.returncode, done.stderr.decode()) == (
        2,
        "commitlog: the input is empty; at least one record is required\n",
    )


def test_an_output_that_fails_after_an_append_leaves_the_outcome_open() -> None:
    """The records are stored: `not_applied` would lead a script to store them again."""
    with fake_service(lambda _: Scripted(200, committed())) as node:
        done = commitlog("append", "v", "--json", "-e", node.url, redirected=">/dev/full")
    assert done.returncode == 1
    assert json.loads(done.stderr)["outcome"] == "unknown"


def test_output_is_utf_8_in_every_locale() -> None:
    document = {"logs": [{"name": SNOWMAN, "replication": "raft", "durability": "fsync", "replicas": []}]}
    with fake_service(lambda _: Scripted(200, document)) as node:
        for arguments in (["logs", "--json"], ["logs"]):
            done = commitlog(*arguments, "-e", node.url, variables=ASCII)
            assert (done.returncode, done.stderr) == (0, b"")
            assert SNOWMAN in done.stdout.decode()


def test_an_argument_that_is_not_text_is_named() -> None:
    with fake_service(lambda _: Scripted(200, committed())) as node:
        done = commitlog("append", b"a\xff", "-e", node.url)
        assert node.appends() == []
    assert done.returncode == 2
    assert done.stderr.decode() == "Error: 'a\\udcff' is not text: surrogates not allowed\n"


def test_a_user_without_a_home_folder_needs_none() -> None:
    """As in a container that runs with the number of a user that it does not know."""
    program = (
        "import pathlib\n"
        "def home(_): raise RuntimeError('Could not determine home directory.')\n"
        f"pathlib.Path.home = classmethod(home); {PROGRAM}"
    )
    with fake_service(lambda _: Scripted(200, committed())) as node:
        command = [sys.executable, "-c", program, "append", "v", "-e", node.url]
        done = subprocess.run(command, env={"PATH": "/usr/bin:/bin"}, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("holder", ["[/]", "[red]x[/red]", ":smile: \x1b[2J\x9b2J\n"])
def test_a_reader_cannot_change_the_output_by_the_name_that_it_gives_itself(holder: str) -> None:
    cursor = {"log": "default", "name": "a", "index": 1, "fence": False, "version": "7", "holder": holder}
    expected = printable(holder)
    assert expected.isprintable()
    with fake_service(lambda _: Scripted(200, {"cursors": [cursor]})) as node:
        shown = run("cursors", "list", url=node.url)
    assert shown.exit_code == 0
    assert shown.output.rstrip().endswith(f" {expected}")
    with fake_service(lambda _: Scripted(200, cursor, {"ETag": '"7"'})) as node:
        one = run("cursors", "show", "a", url=node.url).output
    assert one == f"a: next index 1, no fence, version 7, moved by {expected}\n"
