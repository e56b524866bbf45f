"""Commands find the cluster while the node that they name is down: nodes are learned and remembered."""

import os
import time
from pathlib import Path

import pytest

from app.cli.context import failure_of
from app.client import CommitlogClient, NoAnswer, known_nodes
from tests.support.cluster import free_ports
from tests.unit.cli.fake_service import Asked, FakeService, Scripted, committed, fake_service
from tests.unit.cli.test_commands import run


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "state" / "nodes.json"
    monkeypatch.setenv("COMMITLOG_STATE", str(path))
    return path


def answer(asked: Asked) -> Scripted:
    return Scripted(200, {"logs": []}, {"Connection": "close"})  # so that a node that ends is gone


def closed() -> str:
    return f"http://127.0.0.1:{free_ports(1)[0]}"


def asked(node: FakeService) -> int:
    return len(node.asked)


def test_a_client_continues_at_a_node_that_it_has_learned() -> None:
    with fake_service(answer) as second:
        with fake_service(answer, [second.url]) as first:
            client = CommitlogClient(first.url, give_up_s=5)
            client.connection.call("GET", "/v1/logs")
        client.connection.call("GET", "/v1/logs")
        client.close()
        assert (asked(first), asked(second)) == (1, 1)
        assert client.endpoints == [first.url, second.url]


def test_a_command_finds_the_cluster_when_the_node_that_it_names_is_down() -> None:
    with fake_service(answer) as second:
        with fake_service(answer, [second.url]) as first:
            assert run("logs", url=first.url).exit_code == 0
        assert run("logs", url=first.url).exit_code == 0
        assert asked(second) == 1


@pytest.mark.parametrize("content", [b"", b"{", b'{"nodes": 7}', None])
def test_a_file_that_cannot_be_used_is_not_an_error(state: Path, content: bytes | None) -> None:
    if content is None:
        state.mkdir(parents=True)
    else:
        state.parent.mkdir()
        state.write_bytes(content)
    assert known_nodes.endpoints_of(["http://a"], "http://b") == ["http://a"]
    known_nodes.remember("http://a", ["http://a", "http://c"])
    expected = ["http://a"] if content is None else ["http://a", "http://c"]
    assert known_nodes.endpoints_of(["http://a"], "http://b") == expected


def test_the_oldest_clusters_are_forgotten() -> None:
    for number in range(known_nodes.MAX_CLUSTERS + 1):
        known_nodes.remember(f"http://{number}", [f"http://{number}.other"])
    assert known_nodes.endpoints_of(["http://0"], "") == ["http://0"]
    assert known_nodes.endpoints_of(["http://1"], "") == ["http://1", "http://1.other"]


def test_an_address_that_belongs_to_another_cluster_now_is_not_tried_for_the_earlier_one() -> None:
    """A command that names a node of the earlier cluster, which is down, would write to the other one."""
    known_nodes.remember("http://a", ["http://a", "http://b"])
    known_nodes.remember("http://localhost", ["http://a", "http://b"])
    known_nodes.remember("http://c", ["http://c"])
    assert known_nodes.endpoints_of(["http://a"], "") == ["http://a", "http://b"]
    known_nodes.remember("http://b", ["http://b"])
    assert known_nodes.endpoints_of(["http://a"], "") == ["http://a"]
    assert known_nodes.endpoints_of(["http://localhost"], "") == ["http://localhost"]
    assert known_nodes.endpoints_of(["http://c"], "") == ["http://c"]


def test_a_node_that_an_earlier_command_has_learned_gets_no_append_in_another_cluster() -> None:
    """No command has seen the other cluster, and the node that is named is down."""
    cluster = "ours"

    def of_cluster(asked: Asked) -> Scripted:
        nodes = [{"url": node.url} for node in (first, second)]
        document = {"id": cluster, "nodes": nodes} if asked.path == "/v1/cluster" else committed()
        return Scripted(200, document, {"Connection": "close"})

    with fake_service(of_cluster) as second:
        with fake_service(of_cluster) as first:
            assert run("append", "a", url=first.url).exit_code == 0
        assert run("append", "b", url=first.url).exit_code == 0
        assert len(second.appends()) == 1
        cluster = "theirs"
        refused = run("append", "c", "--give-up-s", "0.2", url=first.url)
        assert refused.exit_code == 5
        assert f"{second.url} belongs to the cluster theirs, not ours" in refused.output
        assert len(second.appends()) == 1


def test_a_job_gets_the_nodes_of_the_cluster_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job takes all of its endpoints as given."""
    cluster, became = "ours", []

    def become(_: str, arguments: list[str]) -> None:
        became.append(arguments[arguments.index("--endpoint") + 1])
        raise SystemExit(0)

    def of_cluster(asked: Asked) -> Scripted:
        nodes = [{"url": node.url} for node in (first, second)]
        return Scripted(200, {"id": cluster, "nodes": nodes, "logs": []}, {"Connection": "close"})

    monkeypatch.setattr(os, "execv", become)
    with fake_service(of_cluster) as second:
        with fake_service(of_cluster) as first:
            assert run("materialize", "--log", "orders-*", url=first.url).exit_code == 0
            assert run("logs", url=first.url).exit_code == 0
        for command in ("materialize",), ("schema", "replay"), ("verify", "--tables"):
            assert run(*command, url=first.url).exit_code == 0
        cluster = "theirs"
        assert run("materialize", url=first.url).exit_code == 0
    assert became == [f"{first.url},{second.url}"] * 4 + [first.url]


def test_a_refused_connection_is_reported_at_once_unless_the_caller_waits() -> None:
    began = time.monotonic()
    refused = run("status", "--give-up-s", "30", url=closed())
    assert (refused.exit_code, "commitlog up" in refused.output) == (5, True)
    with CommitlogClient(closed(), give_up_s=0.3) as client, pytest.raises(NoAnswer):
        client.connection.call("GET", "/v1/logs")
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("endpoints", "is_local"),
    [
        (["http://127.0.0.1:8101", "http://[::1]:8102", "http://localhost:8103"], True),
        (["http://127.0.0.1:8101", "http://n2.example:8101"], False),
        (["https://10.0.0.1"], False),
    ],
)
def test_a_local_cluster_is_proposed_only_where_a_command_calls_one(
    endpoints: list[str], is_local: bool
) -> None:
    failure = failure_of(NoAnswer("no node answers", sent=False), endpoints, writes=False)
    assert "check the address of --endpoint" in failure.message
    assert ("`commitlog up`" in failure.message) == is_local


def test_a_lost_connection_is_described_in_one_clause() -> None:
    answers = iter([Scripted(200, {"logs": []})])
    with (
        fake_service(lambda _: next(answers, Scripted(0))) as node,
        CommitlogClient(node.url, give_up_s=0) as client,
    ):
        client.connection.call("GET", "/v1/logs")
        with pytest.raises(NoAnswer) as lost:
            client.connection.call("GET", "/v1/logs")
        assert str(lost.value).endswith("(Remote end closed connection without response)")
