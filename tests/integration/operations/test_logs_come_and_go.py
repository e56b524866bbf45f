"""Logs that are created, changed and deleted while the cluster runs (docs/api.md §5), whatever their mode."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from storage.log.checkpoint import MAGIC
from storage.log.slots import decode_slot
from tests.support.cluster import Cluster, eventually, running

WAIT_S = 45.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running(tmp_path_factory.mktemp("logs"), 3) as cluster:
        yield cluster


def create(cluster: Cluster, node: str, **log: Any) -> httpx.Response:
    return cluster.call("POST", node, "/v1/logs", json=log)


def accepted(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def acts_as(cluster: Cluster, node: str, log: str, durability: str) -> None:
    """At once, but for `replicated`: each node first notes on its disk that records may be unsynced."""

    def shown() -> bool:
        return bool(accepted(cluster.get(node, f"/v1/logs/{log}/status"))["durability"] == durability)

    if durability == "replicated":
        eventually(shown, what=f"{node} has noted it", timeout_s=WAIT_S)
    assert shown()


def refused(answer: httpx.Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


@pytest.mark.parametrize("replication", ["raft", "controller", "classic"])
def test_a_new_log_is_known_everywhere_and_created_once(cluster: Cluster, replication: str) -> None:
    name = f"new-{replication}"
    log = {"name": name, "replication": replication, "replicas": 2, "retention": {"ms": 86_400_000}}
    answer = create(cluster, "n2", **log)
    assert answer.status_code == 201, answer.text
    assert answer.headers["location"] == f"/v1/logs/{name}"
    body = answer.json()
    assert (len(body["replicas"]), body["retention"]["ms"], body["state"]) == (2, 86_400_000, "created")
    for node in cluster.ids:  # at once, at a node that keeps no replica too
        assert cluster.get(node, f"/v1/logs/{name}").json()["id"] == body["id"]
        assert cluster.append(node, f"by {node}", log=name).status_code == 200
        assert name in [each["name"] for each in cluster.get(node, "/v1/logs").json()["logs"]]
    for node in cluster.ids:
        assert cluster.values(node, name) == [f"by {each}" for each in cluster.ids]
    again = create(cluster, "n3", **log)
    assert (again.status_code, again.json()["id"]) == (200, body["id"])
    refused(create(cluster, "n3", **{**log, "replicas": 3}), 409, "log-exists")


def test_invalid_logs_are_refused(cluster: Cluster) -> None:
    refused(create(cluster, "n1", name="Upper"), 422, "invalid-request")
    refused(create(cluster, "n1", name="__mine"), 422, "invalid-request")
    refused(create(cluster, "n1", name="a\n"), 422, "invalid-request")
    refused(create(cluster, "n1", name="a", replicas=9), 422, "invalid-request")
    for wrong in (
        {"replicas": ["n1", "n9"]},
        {"replicas": []},
        {"replication": "paxos"},
        {"durability": "x"},
    ):
        answer = create(cluster, "n1", name="a", **wrong)
        refused(answer, 422, "invalid-request")
        assert [error["pointer"] for error in answer.json()["errors"]] == [f"/{name}" for name in wrong]
    refused(create(cluster, "n1", name="a", colour="red"), 422, "invalid-request")
    refused(create(cluster, "n1", name="default", replicas=1), 409, "log-exists")
    assert create(cluster, "n1", name="default").status_code == 200
    refused(cluster.call("DELETE", "n1", "/v1/logs/default"), 422, "invalid-request")
    refused(cluster.call("DELETE", "n1", "/v1/logs/nowhere"), 404, "log-not-found")
    refused(cluster.append("n1", "x", log="__controller"), 403, "forbidden")


def test_settings_change_by_their_version(cluster: Cluster) -> None:
    first = create(cluster, "n1", name="changes")
    etag = first.headers["etag"]
    changed = cluster.call("PATCH", "n2", "/v1/logs/changes", json={"retention": {"bytes": 1_000_000}})
    assert changed.status_code == 200, changed.text
    assert changed.json()["retention"] == {"ms": None, "bytes": 1_000_000}
    assert changed.headers["etag"] != etag
    late = cluster.call(
        "PATCH", "n3", "/v1/logs/changes", json={"retention": None}, headers={"If-Match": etag}
    )
    refused(late, 412, "config-changed")
    strange = {"If-Match": '"another"'}
    never = cluster.call("PATCH", "n3", "/v1/logs/changes", json={"retention": None}, headers=strange)
    refused(never, 412, "config-changed")
    useless = {"min_in_sync_replicas": 5, "unclean": True}
    wrong = cluster.call("PATCH", "n2", "/v1/logs/changes", json=useless)
    refused(wrong, 422, "invalid-request")
    assert [each["pointer"] for each in wrong.json()["errors"]] == ["/min_in_sync_replicas", "/unclean"]
    right = cluster.call(
        "PATCH",
        "n3",
        "/v1/logs/changes",
        json={"retention": None},
        headers={"If-Match": changed.headers["etag"]},
    )
    assert right.json()["retention"] is None
    for bad in ({"replicas": 9}, {"replicas": []}, {"replicas": ["n1", "n9"]}, {"learners": ["n9"]}):
        refused(cluster.call("PATCH", "n3", "/v1/logs/changes", json=bad), 422, "invalid-request")
    same = cluster.call("PATCH", "n3", "/v1/logs/changes", json={"replicas": 3})
    assert (same.status_code, same.json()["replicas"]) == (200, cluster.ids), same.text
    floor = {"min_in_sync_replicas": 2}
    refused(cluster.call("PATCH", "n3", "/v1/logs/changes", json=floor), 422, "invalid-request")  # of Raft


@pytest.mark.parametrize("replication", ["raft", "controller"])
def test_a_changed_setting_is_carried_out_everywhere_when_the_answer_arrives(
    cluster: Cluster, replication: str
) -> None:
    name = f"options-{replication}"
    create(cluster, "n1", name=name, replication=replication)
    eventually(lambda: cluster.append("n1", "x", log=name).status_code == 200, what="it takes appends")
    for durability in ("replicated", "fsync"):
        answer = cluster.call("PATCH", "n1", f"/v1/logs/{name}", json={"durability": durability})
        assert answer.status_code == 200, answer.text
        for node in cluster.ids:
            assert cluster.get(node, f"/v1/logs/{name}").json()["durability"] == durability
            acts_as(cluster, node, name, durability)
        assert accepted(cluster.append("n2", "x", log=name))["durability"] == durability


def test_a_log_of_the_configuration_file_is_changed_and_stays_so_over_a_restart(cluster: Cluster) -> None:
    change = {"durability": "replicated", "retention": {"ms": 3_600_000}}
    accepted(cluster.call("PATCH", "n2", "/v1/logs/default", json=change))
    for node in cluster.ids:
        acts_as(cluster, node, "default", "replicated")
    assert accepted(cluster.append("n1", "x"))["durability"] == "replicated"
    cluster.kill("n3")
    cluster.start("n3")
    cluster.wait_ready("n3")
    now = accepted(cluster.get("n3", "/v1/logs/default"))
    assert (now["durability"], now["retention"]) == ("replicated", {"ms": 3_600_000, "bytes": None})
    acts_as(cluster, "n3", "default", "replicated")
    back = cluster.call("PATCH", "n3", "/v1/logs/default", json={"durability": "fsync", "retention": None})
    assert accepted(back)["durability"] == "fsync"


@pytest.mark.parametrize("replication", ["raft", "controller", "classic"])
def test_a_deleted_log_is_removed_everywhere_and_a_new_one_of_its_name_starts_empty(
    cluster: Cluster, replication: str
) -> None:
    name = f"gone-{replication}"
    old = create(cluster, "n1", name=name, replication=replication).json()["id"]
    assert cluster.append("n1", "old", log=name).status_code == 200
    answer = cluster.call("DELETE", "n2", f"/v1/logs/{name}")
    assert (answer.status_code, answer.json()["state"]) == (202, "deleting")

    def created() -> str | None:
        answer = create(cluster, "n3", name=name, replication=replication)
        if answer.status_code == 409:
            assert answer.json()["code"] == "log-deleting"
            return None
        assert answer.status_code == 201, answer.text
        found: str = answer.json()["id"]
        return found

    assert eventually(created, what="the name is free again", timeout_s=WAIT_S) != old
    assert cluster.append("n1", "new", log=name).status_code == 200
    assert cluster.values("n2", name) == ["new"]


@pytest.mark.rule("H-07")
@pytest.mark.parametrize("replication", ["raft", "classic"])
def test_a_node_that_slept_through_a_deletion_removes_its_copy_and_takes_part_in_the_next(
    cluster: Cluster, replication: str
) -> None:
    """A log that is created at run time needs not all of its replicas, also in classic mode."""
    name = f"slept-{replication}"

    def appended(value: str) -> bool:
        return cluster.append("n1", value, log=name, params={"timeout_ms": 20_000}).status_code == 200

    create(cluster, "n1", name=name, replication=replication)
    eventually(lambda: appended("old"), what="the log has a leader", timeout_s=WAIT_S)
    cluster.kill("n3")
    assert cluster.call("DELETE", "n1", f"/v1/logs/{name}").status_code == 202
    eventually(
        lambda: create(cluster, "n1", name=name, replication=replication).status_code == 201,
        what="the name is free: a dead node does not hold it",
        timeout_s=WAIT_S,
    )
    eventually(lambda: appended("new"), what="two replicas suffice", timeout_s=WAIT_S)
    cluster.start("n3")
    cluster.wait_ready("n3")
    eventually(
        lambda: cluster.get("n3", f"/v1/logs/{name}/records", params={"consistency": "committed"}).json()[
            "records"
        ],
        what="n3 has a copy of the new log",
        timeout_s=WAIT_S,
    )
    assert cluster.values("n3", name) == ["new"]


@pytest.mark.rule("R-07", "C-09")
def test_a_log_that_was_created_again_outlives_a_kill_before_the_next_checkpoint(tmp_path: Path) -> None:
    """The restarted node first knows the metadata of its last checkpoint: those of the earlier log."""
    with running(tmp_path, 1) as alone:
        checkpoint = tmp_path / "n1" / "logs" / "__controller" / "checkpoint"
        alone.wait_ready("n1")
        assert create(alone, "n1", name="again").status_code == 201
        assert alone.append("n1", "old", log="again").status_code == 200
        known = alone.status("n1", "__controller")["committed_index"]

        def is_saved() -> bool:
            found = decode_slot(MAGIC, checkpoint.read_bytes()) if checkpoint.exists() else None
            return found is not None and struct.unpack_from("<q", found[1])[0] >= known

        eventually(is_saved, what="a checkpoint of the metadata with the earlier log")
        assert alone.call("DELETE", "n1", "/v1/logs/again").status_code == 202
        eventually(
            lambda: create(alone, "n1", name="again").status_code == 201, what="the name is free again"
        )
        assert alone.append("n1", "new", log="again").status_code == 200
        alone.kill("n1")
        alone.start("n1")
        alone.wait_ready("n1")
        assert alone.values("n1", "again") == ["new"]


def test_the_command_line_creates_elects_and_deletes(cluster: Cluster) -> None:
    def run(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(cli, [*arguments, "--endpoint", cluster.url("n2"), "--json"])
        return result.exit_code, result.stdout

    assert run("logs", "create", "by-hand", "--replication", "controller", "--replicas", "n1,n2")[0] == 0
    assert cluster.append("n1", "x", log="by-hand").status_code == 200
    names = [log["name"] for log in json.loads(run("logs", "list")[1])["logs"]]
    assert "by-hand" in names

    def elected() -> bool:
        code, _ = run("elect", "--log", "by-hand", "--candidate", "n2")
        return code == 0

    eventually(elected, what="n2 is in sync, and elected", timeout_s=WAIT_S)
    eventually(
        lambda: cluster.get("n1", "/v1/logs/by-hand").json()["master"] == "n2",
        what="n1 knows of the election",
        timeout_s=WAIT_S,
    )
    assert run("elect", "--log", "by-hand", "--candidate", "n3")[0] == 1
    assert run("logs", "delete", "by-hand")[0] == 0
    assert run("logs", "delete", "nowhere")[0] == 4
    assert run("logs", "create", "UPPER")[0] == 2
