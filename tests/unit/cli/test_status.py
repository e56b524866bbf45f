"""`commitlog status`: nodes that are silent, refuse, contradict each other or have certificates that end."""

import json
import time

import pytest
from click.testing import CliRunner, Result
from rich.console import Console
from rich.table import Table

from app.cli.context import print_table
from app.cli.main import cli
from app.cli.status import status_table
from tests.unit.cli.fake_service import Asked, Scripted, fake_service, problem
from tests.unit.cli.test_client import closed_url

LEADER = {"node": "n1", "role": "leader", "term": 3, "begin_index": 0, "end_index": 9, "committed_index": 9}


def run(*arguments: str, url: str) -> Result:
    return CliRunner().invoke(cli, [*arguments, "--endpoint", url])


def test_status_shows_a_silent_node_as_down() -> None:
    dead = closed_url()

    def answer(asked: Asked) -> Scripted:
        if asked.path == "/v1/cluster":
            return Scripted(200, {"nodes": [{"id": "n1", "url": node.url}, {"id": "n2", "url": dead}]})
        peer = {"id": "n2", "state": "COMPARE", "watermark": 5, "pending": 0, "lag_bytes": 1_024}
        return Scripted(200, {**LEADER, "peers": [peer]})

    with fake_service(answer) as node:
        table = run("status", url=node.url)
        document = run("status", "--json", url=node.url)
    assert table.exit_code == 0
    assert "leader" in table.output
    assert "1,024 B" in table.output
    silent = json.loads(document.output)["nodes"][1]
    assert silent["role"] == "down"
    assert silent["reason"].startswith(f"{dead} does not answer (")
    assert "n2: " + silent["reason"] in " ".join(table.output.split())


def test_status_shows_since_when_a_peer_does_not_answer_and_no_lag() -> None:
    def answer(asked: Asked) -> Scripted:
        if asked.path == "/v1/cluster":
            return Scripted(
                200, {"nodes": [{"id": "n1", "url": node.url}, {"id": "n2", "url": closed_url()}]}
            )
        peer = {"id": "n2", "state": "APPEND", "watermark": 9, "pending": 0, "lag_bytes": None}
        return Scripted(200, {**LEADER, "peers": [{**peer, "unreachable_since_ms": 1_730_000_000_000}]})

    with fake_service(answer) as node:
        shown = run("status", url=node.url).output
    assert "no answer since 2024-10-27T03:33:20.000Z" in shown
    assert "unknown" in shown
    assert "APPEND" not in shown


def test_status_takes_the_state_of_a_replica_from_the_newest_leader() -> None:
    """A former master that is cut off reports its slaves as disconnected until it is reached again."""
    former = [{"id": "n2", "state": "DISCONNECTED"}, {"id": "n3", "state": "DISCONNECTED"}]
    views = [
        {**LEADER, "role": "master", "term": 4, "node": "n2", "peers": [{"id": "n3", "state": "TRANSFER"}]},
        {**LEADER, "role": "slave", "term": 4, "node": "n3", "peers": []},
        {**LEADER, "role": "master", "term": 3, "node": "n1", "peers": former},
        {"node": "n4", "role": "down"},
    ]
    for shown in (views, views[::-1]):
        columns = status_table("default", shown).columns
        assert sorted(str(cell) for cell in columns[6].cells) == ["", "", "", "TRANSFER"]
        assert sorted(str(cell) for cell in columns[1].cells) == ["down", "former master", "master", "slave"]


@pytest.mark.parametrize(("listed", "noted"), [("n1", False), ("n4", True)])
def test_status_names_a_leader_that_the_file_of_the_node_lacks(listed: str, noted: bool) -> None:
    """Its row is missing, and the others would look like a log without a leader."""
    follower = {**LEADER, "node": "n2", "role": "follower", "leader": "n1", "peers": []}
    views = [follower, {"node": listed, "role": "down"}, {"node": "n3", "role": "candidate", "leader": None}]
    caption = status_table("default", views).caption
    assert (caption is not None and "the leader n1 is not in the list of nodes" in str(caption)) == noted


def test_status_of_a_log_that_no_member_has_is_not_found_though_a_removed_node_cannot_know() -> None:
    def answer(asked: Asked) -> Scripted:
        if asked.path == "/v1/cluster":
            urls = {"n1": node.url, "n2": node.url.replace("127.0.0.1", "localhost")}
            return Scripted(200, {"nodes": [{"id": name, "url": url} for name, url in urls.items()]})
        if asked.headers["host"].startswith("localhost"):
            return problem("log-not-found", 404, "not_applied", retryable=False)
        return problem("no-leader", 503, "not_applied", retryable=True)

    with fake_service(answer) as node:
        assert run("status", url=node.url).exit_code == 4


def test_status_names_a_certificate_that_ends_soon() -> None:
    now_ms = time.time_ns() // 1_000_000
    ends = {"tls_certificate": now_ms + 86_400_000, "tls_ca": now_ms + 90 * 86_400_000, "peer_tls_ca": 0}

    def answer(asked: Asked) -> Scripted:
        if asked.path == "/v1/cluster":
            return Scripted(200, {"nodes": [{"id": "n1", "url": node.url}]})
        found = [{"name": name, "end_ms": end_ms} for name, end_ms in ends.items()]
        return Scripted(200, {"node": "n1", "role": "leader", "peers": [], "certificates": found})

    with fake_service(answer) as node:
        shown = run("status", url=node.url).output
    assert "n1: tls_certificate ends at " in shown
    refused = "ended at 1970-01-01T00:00:00Z, connections with it are refused: replace it"
    assert any(line.startswith(f"n1: peer_tls_ca {refused}") for line in shown.splitlines())
    assert "n1: tls_ca" not in shown


def test_status_names_the_contradictions_of_configuration_files() -> None:
    text = "the nodes differ in `replicas`: n2 has raft (n2, n3), n1 has raft (n1)"

    def answer(asked: Asked) -> Scripted:
        if asked.path == "/v1/cluster":
            return Scripted(200, {"nodes": [{"id": "n1", "url": node.url}]})
        return Scripted(200, {**LEADER, "peers": [], "conflicts": [text]})

    with fake_service(answer) as node:
        shown = run("status", url=node.url).output
    assert " ".join(shown.split()).endswith(f"n1: {text}")


def test_the_contradictions_are_shown_as_they_are_while_the_status_is_watched() -> None:
    """`--watch` prints the table with rich's markup, of which `[controller]` and `[/]` would be parts."""
    text = "the nodes differ in `[controller] nodes`: n2 has raft (n2), n[/] has raft (\x1b[31m)"
    console = Console(width=200)
    with console.capture() as captured:
        console.print(status_table("__controller", [{**LEADER, "peers": [], "conflicts": [text]}]))
    shown = " ".join(captured.get().split())
    assert shown.endswith("n1: " + text.replace("\x1b", "\\x1b"))


def test_status_of_an_unknown_log_is_not_found() -> None:
    def answer(asked: Asked) -> Scripted:
        if asked.path == "/v1/cluster":
            return Scripted(200, {"nodes": [{"id": "n1", "url": node.url}]})
        return problem("log-not-found", 404, "not_applied", retryable=False)

    with fake_service(answer) as node:
        assert run("status", "--log", "nope", url=node.url).exit_code == 4


def test_status_of_a_log_that_no_node_has_open_names_the_nodes_that_repair_it() -> None:
    """The one copy of a log is damaged; a node without a copy cannot reach one."""

    def answer(asked: Asked) -> Scripted:
        if asked.path == "/v1/cluster":
            urls = {"n1": node.url, "n2": node.url.replace("127.0.0.1", "localhost")}
            return Scripted(200, {"nodes": [{"id": name, "url": url} for name, url in urls.items()]})
        code = "no-leader" if asked.headers["host"].startswith("localhost") else "repairing"
        return problem(code, 503, "not_applied", retryable=True)

    with fake_service(answer) as node:
        shown = run("status", "--json", url=node.url)
    assert shown.exit_code == 5
    roles = {view["node"]: view["role"] for view in json.loads(shown.stdout)["nodes"]}
    assert roles == {"n1": "repairing", "n2": "no-leader"}


def test_a_narrow_terminal_shows_the_whole_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At 40 columns the table showed three letters of a URL."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "40")
    url = "http://node-1.example:8101"
    table = Table(*(f"column {number}" for number in range(6)), "url", box=None)
    table.add_row(*"abcdef", url)
    print_table(table)
    shown = capsys.readouterr().out
    assert "…" not in shown
    cells = [line.split() for line in shown.splitlines()]
    assert url in "".join(words[-1] for words in cells if words)
