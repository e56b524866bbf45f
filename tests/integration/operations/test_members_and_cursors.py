"""Members, transfers, fences and cursors over REST, with real processes (R-09, R-10)."""

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from app.client import CommitlogClient, ConditionFailed
from app.client.operations import Operations
from tests.support.cluster import Cluster, eventually


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("operations"), 3)
    try:
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.close()


class Writer:
    """Append one record after the other until `stop` is set; every answer counts."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.acknowledged: list[str] = []
        self.refused: list[str] = []
        self._cluster = cluster
        self._node = node
        self._end = Event()
        self._thread = Thread(target=self._run)

    def __enter__(self) -> "Writer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        with httpx.Client(timeout=30.0) as client:
            number = 0
            while not self._end.is_set():
                value, number = f"w{number}", number + 1
                answer = client.post(
                    f"{self._cluster.url(self._node)}/v1/logs/default/records",
                    json={"records": [{"value": value}]},
                    headers={"Idempotency-Key": value},
                )
                (self.acknowledged if answer.status_code == 200 else self.refused).append(value)

    def wait_for(self, count: int) -> None:
        goal = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= goal, what=f"{count} more appends")


def transfer(cluster: Cluster, node: str, **body: Any) -> httpx.Response:
    return cluster.call("POST", node, "/v1/cluster/leader:transfer", json=body)


@pytest.mark.rule("R-09")
def test_the_lead_moves_under_load_and_no_append_is_refused(cluster: Cluster) -> None:
    with Writer(cluster, cluster.follower()) as writer:
        for _ in range(3):
            writer.wait_for(5)
            target = cluster.follower()
            answer = transfer(cluster, cluster.follower(), to=target)
            assert answer.status_code == 200, answer.text
            assert answer.json()["leader"] == target
            assert cluster.leader() == target
            writer.wait_for(5)
    assert writer.refused == []
    stored = cluster.values("n1")
    assert [value for value in stored if value.startswith("w")] == writer.acknowledged


def test_a_transfer_that_cannot_be_is_refused(cluster: Cluster) -> None:
    leader = cluster.leader()
    assert transfer(cluster, "n1", to=leader).json()["code"] == "already-leader"
    failed = transfer(cluster, "n2", to="n9")
    assert (failed.status_code, failed.json()["code"]) == (409, "transfer-failed")
    assert transfer(cluster, "n1", to=leader, more=1).status_code == 422
    assert transfer(cluster, "n1", log="none").json()["code"] == "log-not-found"


@pytest.mark.rule("R-09")
def test_a_planned_stop_hands_over_first(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 3)
    try:
        cluster.start()
        cluster.wait_ready()
        leader = cluster.leader()
        with Writer(cluster, cluster.follower()) as writer:
            writer.wait_for(5)
            term = cluster.status(leader)["term"]
            assert cluster.stop(leader) == 0
            writer.wait_for(5)
        assert writer.refused == []
        assert cluster.status(cluster.leader())["term"] == term + 1
        votes = cluster.get(cluster.leader(), "/v1/logs/default/events").json()["events"]
        assert [event["data"] for event in votes if event["kind"] == "role"][-1]["role"] == "leader"
    finally:
        cluster.close()


@pytest.mark.rule("R-10")
@pytest.mark.parametrize("named", [False, True], ids=["all replicas", "replicas named"])
def test_a_node_joins_is_promoted_and_another_leaves_while_appends_continue(
    tmp_path: Path, named: bool
) -> None:
    """named: the configuration of the joining node counts it among the replicas of the log."""
    logs = ({"name": "default", "replicas": ["n1", "n2", "n3"]},) if named else ()
    cluster = Cluster(tmp_path, 4, joining=1, logs=logs)
    try:
        cluster.start("n1", "n2", "n3")
        cluster.wait_ready("n1", "n2", "n3")
        leader = cluster.leader()
        other = next(node for node in ("n1", "n2", "n3") if node != leader)
        with Writer(cluster, other) as writer:
            writer.wait_for(5)
            cluster.start("n4")
            member = {
                "id": "n4",
                "url": cluster.url("n4"),
                "peer_address": f"127.0.0.1:{cluster.peer_ports['n4']}",
            }
            twice = {**member, "peer_address": f"127.0.0.1:{cluster.peer_ports[leader]}"}
            refused = cluster.call("POST", other, "/v1/cluster/members", json=twice)
            assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, "/peer_address")
            added = cluster.call("POST", other, "/v1/cluster/members", json=member)
            assert added.status_code == 200, added.text
            assert {each["id"]: each["voter"] for each in added.json()["members"]}["n4"] is False
            eventually(lambda: cluster.status("n4")["role"] == "learner", what="n4 is a learner")
            eventually(lambda: promoted(cluster, other), what="n4 has caught up")
            eventually(lambda: voters(cluster, "n4") == ["n1", "n2", "n3", "n4"], what="n4 knows it votes")
            cluster.wait_ready("n4")
            gone = cluster.call("DELETE", other, f"/v1/cluster/members/{leader}")
            assert gone.status_code == 200, gone.text
            assert {each["id"]: each["voter"] for each in gone.json()["members"]}[leader] is False
            left = [node for node in cluster.ids if node != leader]
            eventually(lambda: voters(cluster, "n4") == left, what="the old leader has left")
            eventually(lambda: cluster.status("n4")["leader"] in left, what="another one leads")
            writer.wait_for(5)
        assert writer.refused == []
        cluster.kill(leader)
        cluster.wait_even()
        stored = cluster.values("n4")
        assert [value for value in stored if value.startswith("w")] == writer.acknowledged
        assert cluster.call("POST", "n4", "/v1/cluster/members/n9:promote").status_code == 404
        again = cluster.call("POST", "n4", "/v1/cluster/members", json=member)
        assert again.status_code == 200
        cluster.kill("n4")
        cluster.start("n4")
        eventually(lambda: voters(cluster, "n4") == left, what="n4 knows its group after a restart")
    finally:
        cluster.close()


def promoted(cluster: Cluster, node: str) -> bool:
    answer = cluster.call("POST", node, "/v1/cluster/members/n4:promote")
    if answer.status_code == 409:
        assert answer.json()["code"] in ("not-caught-up", "change-in-progress")
        return False
    assert answer.status_code == 200, answer.text
    return True


def voters(cluster: Cluster, node: str) -> list[str]:
    members = cluster.get(node, "/v1/cluster/members").json()["members"]
    return sorted(member["id"] for member in members if member["voter"])


def test_the_command_line_moves_the_lead_and_lists_members(cluster: Cluster) -> None:
    runner = CliRunner()
    target = cluster.follower()
    place = ["--endpoint", cluster.url("n1"), "--json"]
    moved = runner.invoke(cli, ["leader", "transfer", "--to", target, *place])
    assert (moved.exit_code, json.loads(moved.output)["leader"]) == (0, target), moved.output
    assert cluster.leader() == target
    failed = runner.invoke(cli, ["leader", "transfer", "--to", "n9", *place])
    assert failed.exit_code == 1
    listed = runner.invoke(cli, ["members", "list", *place])
    assert [member["id"] for member in json.loads(listed.output)["members"]] == cluster.ids
    for listing in (["members", "list"], ["members"]):
        assert "n1" in runner.invoke(cli, [*listing, *place[:2]]).output
    nobody = runner.invoke(cli, ["members", "promote", "n9", *place])
    assert nobody.exit_code == 4


def test_bench_reports_its_rate(cluster: Cluster) -> None:
    arguments = ["bench", "--seconds", "0.3", "--in-flight", "4", "--records", "2", "--size", "100"]
    result = CliRunner().invoke(cli, [*arguments, "--endpoint", cluster.url("n2"), "--json"])
    assert result.exit_code == 0, result.output
    figures = json.loads(result.stdout)
    assert figures["appends"] > 0
    assert figures["p50_ms"] <= figures["p99_ms"] <= figures["max_ms"]
    assert figures["refused"] == {}
    nobody = CliRunner().invoke(cli, ["bench", "--endpoint", "http://127.0.0.1:1", "--give-up-s", "0.1"])
    assert nobody.exit_code == 5


def test_a_log_in_the_body_does_not_become_every_log(cluster: Cluster) -> None:
    """The log of these calls is a parameter of the query; without it they are for every log."""
    for method, path in (
        ("POST", "n2:promote"),
        ("POST", "n2:demote"),
        ("POST", "n2:clean"),
        ("DELETE", "n2"),
    ):
        answer = cluster.call(method, "n1", f"/v1/cluster/members/{path}", json={"log": "other"})
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/log"), answer.text
    assert cluster.call("POST", "n1", "/v1/cluster/members/n2:promote", json={}).status_code == 200


def test_the_client_keeps_cursors_and_fences(cluster: Cluster) -> None:
    with CommitlogClient(cluster.url("n2")) as client:
        operations = Operations(client)
        first = operations.move_cursor("reader", 3, fence=True, if_match="")
        assert operations.cursor("reader") == first
        assert first in operations.cursors()
        second = operations.move_cursor("reader", 4, fence=True, if_match=first.version, holder="r-1")
        assert (first.holder, second.holder) == (None, "r-1")
        assert operations.cursor("reader") == second
        with pytest.raises(ConditionFailed):
            operations.move_cursor("reader", 5, if_match=first.version)
        assert operations.drop_cursor("reader", if_match=second.version).index == 4
        operations.set_fence("a", match_token=None)
        with pytest.raises(ConditionFailed):
            client.append(["x"])
        operations.set_fence(None)


def test_a_fence_admits_only_its_token(cluster: Cluster) -> None:
    def fence(node: str, **body: Any) -> httpx.Response:
        return cluster.call("POST", node, "/v1/logs/default:fence", json=body)

    assert fence("n1", token="a", match_token=None).status_code == 200
    assert cluster.append("n2", "x").json()["code"] == "fenced"
    params = {"fencing_token": "a"}
    assert cluster.append("n2", "x", params=params).status_code == 200
    assert fence("n2", token="b", match_token="z").json()["code"] == "fenced"
    assert fence("n3", token="b", match_token="a").status_code == 200
    assert cluster.append("n2", "x", params=params).json()["code"] == "fenced"
    assert fence("n3", token="b", more="a").status_code == 422
    assert fence("n3").status_code == 422
    lifted = fence("n1", token=None)
    assert (lifted.status_code, lifted.json()["token"]) == (200, None)
    assert cluster.append("n2", "x").status_code == 200


def test_a_cursor_moves_by_its_version(cluster: Cluster) -> None:
    path = "/v1/logs/default/cursors/etl"

    def move(node: str, index: int, **headers: str) -> httpx.Response:
        return cluster.call("PUT", node, path, json={"index": index, "fence": True}, headers=headers)

    assert cluster.get("n1", path).json()["code"] == "cursor-not-found"
    made = move("n1", 5, **{"If-None-Match": "*"})
    assert made.json() == {"log": "default", "name": "etl", "index": 5, "fence": True}
    version = made.headers["etag"].strip('"')
    exists = move("n2", 6, **{"If-None-Match": "*"}).json()
    assert (exists["code"], exists["detail"]) == (
        "cursor-moved",
        f"cursor 'etl' exists, at version {version}",
    )
    moved = move("n3", 7, **{"If-Match": made.headers["etag"]})
    assert moved.status_code == 200
    stale = move("n1", 8, **{"If-Match": made.headers["etag"]})
    assert (stale.status_code, stale.json()["code"]) == (412, "cursor-moved")
    found = cluster.get("n2", path)
    assert (found.json()["index"], found.headers["etag"]) == (7, moved.headers["etag"])
    for node in cluster.ids:
        held = cluster.get(node, path, headers={"If-None-Match": found.headers["etag"]})
        assert (held.status_code, held.content, held.headers["etag"]) == (304, b"", found.headers["etag"])
        assert cluster.get(node, path, headers={"If-None-Match": made.headers["etag"]}).json() == found.json()
    for strange in ('"x"', '"999999"', 'W/"1"', ""):
        assert move("n1", 8, **{"If-Match": strange}).json()["code"] == "cursor-moved"
    listed = move("n1", 8, **{"If-Match": f'"999999", {moved.headers["etag"]}'})
    assert (listed.status_code, listed.json()["index"]) == (200, 8)
    assert move("n2", 9, **{"If-Match": "*"}).status_code == 200
    assert cluster.call("DELETE", "n3", path).status_code == 200
    assert cluster.get("n1", path).status_code == 404
    assert cluster.call("DELETE", "n3", path).status_code == 404
    gone = move("n1", 1, **{"If-Match": "*"}).json()
    assert gone["detail"] == "cursor 'etl' does not exist; the call requires a version of it"


def test_a_read_starts_at_a_cursor(cluster: Cluster) -> None:
    first = cluster.append("n1", "before").json()["first_index"]
    cluster.append("n1", "at the cursor")
    made = cluster.call("PUT", "n2", "/v1/logs/default/cursors/start", json={"index": first + 1})
    assert made.status_code == 200
    for node in cluster.ids:
        found = cluster.get(node, "/v1/logs/default/records", params={"cursor": "start"})
        assert [record["value"] for record in found.json()["records"]] == ["at the cursor"]
        missing = cluster.get(node, "/v1/logs/default/records", params={"cursor": "nobody"})
        assert (missing.status_code, missing.json()["code"]) == (404, "cursor-not-found")


@pytest.mark.parametrize("path", ["/v1/logs/default:fence", "/v1/logs", "/v1/cluster/leader:transfer"])
def test_a_body_without_the_content_type_of_json_is_refused(cluster: Cluster, path: str) -> None:
    for headers in ({"Content-Type": "text/plain"}, {}):
        answer = cluster.call("POST", "n1", path, content=b'{"token": null}', headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported-media-type")
