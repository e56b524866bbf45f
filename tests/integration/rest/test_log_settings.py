"""PATCH /v1/logs/{log}: settings that a log has already."""

import pytest

from tests.support.cluster import Cluster, eventually

SETTINGS = ("durability", "retention", "min_in_sync_replicas", "unclean")
OF_MODE = {
    "raft": ("durability", "retention", "replicas", "learners", "preferred"),
    "controller": (*SETTINGS, "replicas", "learners", "preferred", "priorities", "in_sync_replicas"),
    "classic": SETTINGS,
}


@pytest.mark.parametrize("replication", ["raft", "controller", "classic"])
def test_a_change_to_what_is_set_keeps_the_etag(
    cluster: Cluster, own_logs: list[str], replication: str
) -> None:
    """It is 200 at every node, with and without If-Match; a real change is another ETag."""
    name = f"settings-{replication}"
    own_logs.append(name)
    made = cluster.call("POST", "n1", "/v1/logs", json={"name": name, "replication": replication})
    assert made.status_code == 201, made.text
    path = f"/v1/logs/{name}"
    eventually(
        lambda: all(cluster.get(node, path).status_code == 200 for node in cluster.ids),
        what="every node has the log",
    )
    first = cluster.get("n1", path)
    etag, settings = first.headers["etag"], {key: first.json()[key] for key in OF_MODE[replication]}
    for node in cluster.ids:
        for body in (*({key: value} for key, value in settings.items()), settings):
            for headers in ({}, {"If-Match": etag}):
                answer = cluster.call("PATCH", node, path, json=body, headers=headers)
                assert (answer.status_code, answer.headers["etag"]) == (200, etag), (node, body, answer.text)
                assert {key: answer.json()[key] for key in settings} == settings
        assert cluster.get(node, path).headers["etag"] == etag
    changed = cluster.call("PATCH", "n2", path, json={"durability": "replicated"}, headers={"If-Match": etag})
    assert changed.status_code == 200
    assert changed.headers["etag"] != etag


@pytest.mark.parametrize(("replication", "status"), [("raft", 422), ("controller", 200), ("classic", 422)])
def test_force_is_of_controller_mode(
    cluster: Cluster, own_logs: list[str], replication: str, status: int
) -> None:
    name = f"forced-{replication}"
    own_logs.append(name)
    made = cluster.call("POST", "n1", "/v1/logs", json={"name": name, "replication": replication})
    assert made.status_code == 201, made.text
    answer = cluster.call("PATCH", "n1", f"/v1/logs/{name}", json={"force": True, "durability": "fsync"})
    assert answer.status_code == status, answer.text
    if status == 422:
        assert answer.json()["errors"] == [{"pointer": "/force", "detail": "is of logs in controller mode"}]


def test_the_master_of_a_classic_log_is_not_a_preference(cluster: Cluster, own_logs: list[str]) -> None:
    own_logs.append("fixed")
    body = {"name": "fixed", "replication": "classic"}
    refused = cluster.call("POST", "n1", "/v1/logs", json={**body, "preferred": "n2"})
    assert cluster.call("POST", "n1", "/v1/logs", json=body).status_code == 201
    changed = cluster.call("PATCH", "n1", "/v1/logs/fixed", json={"preferred": "n2"})
    for answer in (refused, changed):
        assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/preferred")
    assert cluster.call("PATCH", "n1", "/v1/logs/fixed", json={"preferred": None}).status_code == 200
