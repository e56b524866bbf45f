"""A node that is lost for good is replaced in the logs that it kept (R-10, C-03)."""

from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner

from app.cli.main import cli
from tests.support.cluster import Cluster, eventually

WAIT_S = 45.0  # a node that starts on a busy machine takes its time


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """n1 to n3 keep the logs `elected` and `led`. n3 is lost; n4, which their file does not name, joins."""
    nodes = Cluster(tmp_path_factory.mktemp("replicas"), 4, joining=1)
    try:
        nodes.start("n1", "n2", "n3")
        eventually(
            lambda: all(nodes.get(node, "/readyz").status_code == 200 for node in ("n1", "n2", "n3")),
            what="the nodes are ready",
            timeout_s=90,
        )
        for name, replication in (("elected", "controller"), ("led", "raft")):
            created = nodes.call("POST", "n1", "/v1/logs", json={"name": name, "replication": replication})
            assert created.status_code == 201, created.text
        eventually(lambda: in_sync(nodes) == ["n1", "n2", "n3"], what="all are in sync", timeout_s=WAIT_S)
        for name in ("elected", "led"):
            appended(nodes, name, "before")
        nodes.kill("n3")
        nodes.start("n4")
        place = ["--url", nodes.url("n4"), "--peer-address", f"127.0.0.1:{nodes.peer_ports['n4']}"]
        eventually(
            lambda: commitlog(nodes, "members", "add", "n4", *place) == 0, what="n4 joins", timeout_s=WAIT_S
        )
        yield nodes
    finally:
        nodes.close()


def commitlog(nodes: Cluster, *arguments: str) -> int:
    result = CliRunner().invoke(cli, [*arguments, "--endpoint", nodes.url("n1"), "--json"])
    return result.exit_code


def log_settings(nodes: Cluster, name: str, node: str = "n1") -> dict[str, Any]:
    log: dict[str, Any] = nodes.get(node, f"/v1/logs/{name}").json()
    return log


def in_sync(nodes: Cluster) -> list[str]:
    return sorted(log_settings(nodes, "elected").get("sync_state_set") or ())


def appended(nodes: Cluster, name: str, value: str, node: str = "n1") -> int:
    """Append, again and again if need be; the index."""

    def index() -> int | None:
        answer = nodes.append(node, value, log=name, headers={"Idempotency-Key": value})
        assert answer.status_code == 200 or answer.json()["retryable"], answer.text
        return answer.json()["first_index"] + 1 if answer.status_code == 200 else None

    return eventually(index, what=f"{value} is acknowledged", timeout_s=WAIT_S) - 1


@pytest.mark.rule("C-03", "C-08", "C-12")
@pytest.mark.timeout(180)
def test_a_lost_node_is_replaced_in_controller_mode(cluster: Cluster) -> None:
    eventually(lambda: in_sync(cluster) == ["n1", "n2"], what="n3 left the set", timeout_s=WAIT_S)
    change = ["logs", "change", "elected", "--replicas", "n1,n2,n4", "--wait-s", "40"]
    eventually(lambda: commitlog(cluster, *change) == 0, what="n4 is a replica", timeout_s=WAIT_S)
    log = log_settings(cluster, "elected")
    assert (log["replicas"], log["leaving"]) == (["n1", "n2", "n4"], [])
    assert in_sync(cluster) == ["n1", "n2", "n4"]
    index = appended(cluster, "elected", "after")
    held = cluster.values("n4", log="elected", consistency="local")
    assert held == ["before", "after"]
    assert cluster.status("n4", "elected")["committed_index"] >= index
    for node in ("n1", "n2"):  # until the new copy is the only one
        left = [each for each in log_settings(cluster, "elected")["replicas"] if each != node]
        changed = cluster.call("PATCH", "n4", "/v1/logs/elected", json={"replicas": left})
        assert changed.status_code == 200, changed.text
        eventually(
            lambda left=left: (
                in_sync(cluster) == sorted(left) and not log_settings(cluster, "elected")["leaving"]
            ),  # type: ignore[misc]
            what=f"{node} has left",
            timeout_s=WAIT_S,
        )
    appended(cluster, "elected", "alone", "n2")
    assert cluster.values("n1", log="elected") == ["before", "after", "alone"]
    eventually(lambda: not (cluster.folder / "n1/logs/elected/vote").exists(), what="its copy is removed")
    refused = cluster.call("DELETE", "n1", "/v1/cluster/members/n4", params={"log": "elected"})
    assert refused.status_code in (409, 422), refused.text


@pytest.mark.timeout(120)
def test_the_metadata_of_a_lost_node_are_cleaned(cluster: Cluster) -> None:
    at = cluster.running[0]
    created = cluster.call(
        "POST",
        at,
        "/v1/logs",
        json={"name": "cleaned", "replication": "controller", "replicas": ["n3", "n4"]},
    )
    assert created.status_code == 201, created.text
    alive = cluster.call("POST", at, "/v1/cluster/members/n4:clean", params={"log": "cleaned"})
    assert (alive.status_code, alive.json()["code"]) == (409, "node-alive")
    done = cluster.call("POST", at, "/v1/cluster/members/n3:clean")
    assert done.status_code == 200, done.text
    assert "cleaned" in done.json()["logs"]
    assert log_settings(cluster, "cleaned", at)["replicas"] == ["n4"]
    nobody = cluster.call("POST", at, "/v1/cluster/members/n3:clean")
    assert nobody.status_code == 404


@pytest.mark.rule("R-10")
@pytest.mark.timeout(180)
def test_a_lost_node_is_replaced_in_raft_mode(cluster: Cluster) -> None:
    change = ["logs", "change", "led", "--replicas", "n1,n2,n4", "--wait-s", "40"]
    eventually(lambda: commitlog(cluster, *change) == 0, what="n4 is a voter", timeout_s=WAIT_S)
    for node in ("n1", "n2", "n4"):
        eventually(
            lambda node=node: log_settings(cluster, "led", node)["replicas"] == ["n1", "n2", "n4"],  # type: ignore[misc]
            what="the members are known",
        )
    appended(cluster, "led", "after")
    assert cluster.values("n4", log="led") == ["before", "after"]


@pytest.mark.rule("C-03")
@pytest.mark.timeout(180)
def test_a_lost_node_that_returns_removes_its_copy(cluster: Cluster) -> None:
    """It was taken out of the log while it was down, and knows older metadata when it starts."""
    at = cluster.running[0]
    left = [each for each in log_settings(cluster, "elected", at)["replicas"] if each != "n3"]
    assert cluster.call("PATCH", at, "/v1/logs/elected", json={"replicas": left}).status_code == 200
    eventually(
        lambda: not log_settings(cluster, "elected", at)["leaving"], what="n3 is taken out", timeout_s=WAIT_S
    )
    folder = cluster.folder / "n3/logs/elected"
    assert (folder / "vote").exists()
    cluster.start("n3")
    eventually(lambda: not (folder / "vote").exists(), what="its copy is removed", timeout_s=90)
    eventually(lambda: cluster.get("n3", "/readyz").status_code == 200, what="n3 is ready", timeout_s=90)
    before = cluster.values(at, log="elected")
    assert cluster.values("n3", log="elected") == before
    appended(cluster, "elected", "by-way-of-n3", "n3")
    cluster.kill("n2")
    appended(cluster, "led", "by-the-new-members")
