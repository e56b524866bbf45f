"""Nodes that were removed and still run: they know it, pass calls on at once, and may return (R-10)."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from app.cli.main import cli
from tests.support.cluster import Cluster, eventually, free_ports, running

AT_ONCE_S = 2.5  # a call that waits for a leader takes several


def voters(cluster: Cluster, node: str) -> list[str]:
    members = cluster.get(node, "/v1/cluster/members").json()["members"]
    return sorted(member["id"] for member in members if member["voter"])


def is_removed(cluster: Cluster, node: str) -> bool:
    return all(cluster.status(node, log)["role"] == "removed" for log in ("default", "__controller"))


def remove(cluster: Cluster, asked: str, node: str, **params: Any) -> None:
    """The logs change one after another: one of them may just elect a leader, and the call is repeated."""

    def removed() -> bool:
        answer = cluster.call("DELETE", asked, f"/v1/cluster/members/{node}", params=params)
        assert answer.status_code == 200 or answer.json()["retryable"], answer.text
        return answer.status_code == 200

    eventually(removed, what=f"{node} is removed")


def check_passes_calls_on(cluster: Cluster, node: str) -> None:
    """Reads, appends and the leader's own views, within AT_ONCE_S together."""
    begun = time.monotonic()
    appended = cluster.append(node, "by a removed node")
    assert appended.status_code == 200, appended.text
    index = appended.json()["first_index"]
    assert cluster.get(node, f"/v1/logs/default/records/{index}").json()["value"] == "by a removed node"
    for consistency in ("linearizable", "committed"):
        page = cluster.get(node, "/v1/logs/default/records", params={"last": 1, "consistency": consistency})
        assert page.json()["records"][0]["value"] == "by a removed node"
    assert cluster.get(node, "/v1/logs/default/tail").json()["committed_index"] >= index
    assert cluster.get(node, "/v1/logs/default/watermarks").status_code == 200
    assert node not in cluster.get(node, "/v1/logs/default").json()["replicas"]
    lines = cluster.call(
        "POST",
        node,
        "/v1/logs/default/records:stream",
        content=b'{"value": "streamed"}\n',
        headers={"Content-Type": "application/x-ndjson"},
    )
    assert json.loads(lines.text.splitlines()[0])["count"] == 1
    own = cluster.append(node, "x", headers={"Commitlog-No-Forward": "1"})
    assert (own.status_code, own.json()["code"]) == (421, "not-leader")
    assert own.json()["leader_url"] == cluster.url(own.json()["leader"])
    assert time.monotonic() - begun < AT_ONCE_S
    assert cluster.get(node, "/readyz").status_code == 200


@pytest.mark.rule("R-10")
def test_a_removed_node_knows_it_passes_calls_on_and_returns(tmp_path: Path) -> None:
    with running(tmp_path) as cluster:
        cluster.append("n1", "a")
        leader = cluster.leader()
        gone, left = cluster.follower(), [node for node in cluster.ids if node != cluster.follower()]
        remove(cluster, leader, gone)
        eventually(lambda: is_removed(cluster, gone), what="it learns of its removal")
        assert voters(cluster, gone) == left
        assert cluster.status(gone)["leader"] == leader
        check_passes_calls_on(cluster, gone)
        nodes = cluster.get(leader, "/ui/overview.json").json()["nodes"]
        assert [node["id"] for node in nodes if node["outside"]] == [gone]
        again = cluster.call("DELETE", gone, f"/v1/cluster/members/{gone}")
        assert (again.status_code, again.json()["code"]) == (404, "not-found")
        local = cluster.get(gone, "/v1/logs/default/tail", params={"consistency": "local"}).json()
        assert local["end_index"] < cluster.status(leader)["end_index"]
        check_new_logs_are_kept_by_members(cluster, gone, left)
        place = ["--endpoint", cluster.url(gone), "--json"]
        shown = json.loads(CliRunner().invoke(cli, ["status", *place]).output)["nodes"]
        assert {view["node"]: view["role"] == "removed" for view in shown} == {
            node: node == gone for node in cluster.ids
        }

        cluster.kill(gone)
        cluster.start(gone)
        cluster.wait_ready(gone)
        eventually(lambda: is_removed(cluster, gone), what="it learns it again after a restart")
        check_passes_calls_on(cluster, gone)

        for wiped in (False, True):
            if wiped:
                remove(cluster, leader, gone)
                cluster.kill(gone)
                shutil.rmtree(tmp_path / gone)
                cluster.start(gone)
                eventually(lambda: is_removed(cluster, gone), what="an empty node learns it")
            returns(cluster, leader, gone)
        remove(cluster, leader, gone)
        eventually(lambda: is_removed(cluster, gone), what="it learns of its removal")
        for node in left:
            cluster.kill(node)
        alone = cluster.get(gone, "/v1/cluster/members").json()["members"]
        assert [node["alive"] for node in alone] == [node["id"] == gone for node in alone]
        for node in left:
            cluster.start(node)
        for node in left:
            cluster.wait_ready(node)
        returns(cluster, cluster.leader(), gone)
        assert voters(cluster, leader) == cluster.ids
        cluster.wait_even()


def test_a_node_that_was_removed_joins_again_at_another_address(tmp_path: Path) -> None:
    """Its machine was replaced. The others must not call the address that the log named before."""
    cluster = Cluster(tmp_path, 4, joining=1)
    try:
        cluster.start()
        cluster.wait_ready("n1", "n2", "n3")
        returns(cluster, "n1", "n4")
        remove(cluster, "n1", "n4")
        cluster.kill("n4")
        shutil.rmtree(tmp_path / "n4")
        old, cluster.peer_ports["n4"] = cluster.peer_ports["n4"], free_ports(1)[0]
        file = tmp_path / "n4.toml"
        file.write_text(file.read_text().replace(f":{old}", f":{cluster.peer_ports['n4']}"))
        cluster.start("n4")
        returns(cluster, "n1", "n4")
        cluster.wait_ready("n4")
        listed = cluster.get("n2", "/v1/cluster/members").json()["members"]
        places = {member["id"]: member["peer_address"] for member in listed}
        assert places["n4"] == f"127.0.0.1:{cluster.peer_ports['n4']}"
    finally:
        cluster.close()


def check_new_logs_are_kept_by_members(cluster: Cluster, gone: str, left: list[str]) -> None:
    """A removed node gets no replica, and does not report that a log is missing that it cannot know."""
    created = cluster.call("POST", left[0], "/v1/logs", json={"name": "new"})
    assert (created.status_code, created.json()["replicas"]) == (201, left), created.text
    assert cluster.get(gone, "/v1/logs/new").json()["replicas"] == left
    listed = [log["name"] for log in cluster.get(gone, "/v1/logs").json()["logs"]]
    assert listed == ["default", "new"]
    shown, members = (cluster.get(node, "/v1/cluster").json() for node in (gone, left[0]))
    assert (shown["logs"], shown["nodes"]) == (["default", "new"], members["nodes"])
    refused = [
        cluster.get(gone, "/v1/logs/new/tail"),
        cluster.call("POST", gone, "/v1/logs", json={"name": "other"}),
        cluster.call("DELETE", left[0], "/v1/logs/new"),
    ]
    assert [answer.status_code for answer in refused] == [503, 503, 202]
    assert "was removed" in refused[0].json()["detail"]


def returns(cluster: Cluster, asked: str, node: str) -> None:
    member = {
        "id": node,
        "url": cluster.url(node),
        "peer_address": f"127.0.0.1:{cluster.peer_ports[node]}",
    }
    added = cluster.call("POST", asked, "/v1/cluster/members", json=member)
    assert added.status_code == 200, added.text

    def promoted() -> bool:
        answer = cluster.call("POST", asked, f"/v1/cluster/members/{node}:promote")
        assert answer.status_code in (200, 409), answer.text
        return answer.status_code == 200

    eventually(promoted, what=f"{node} is a voter again")
    for log in ("default", "__controller"):
        eventually(lambda log=log: cluster.status(node, log)["role"] == "follower", what=f"{node} follows")
