"""Controllers on processes of their own, and a group of two brokers (`conf/controller.toml`)."""

import shutil
from pathlib import Path

import pytest

from app.cli.status import node_views
from app.client import CommitlogClient
from app.settings.file import load
from tests.support.cluster import Cluster, eventually

WAIT_S = 60.0


def test_the_configuration_that_we_ship_is_sound() -> None:
    settings = load(Path("conf/controller.toml"), "n1")
    assert settings.controllers == ("c1", "c2", "c3")
    assert settings.brokers == ("n1", "n2")
    assert settings.logs[0].replicas == ("n1", "n2")


@pytest.mark.rule("C-01", "C-03", "C-09", "C-10", "C-12")
def test_brokers_find_their_controllers_and_a_new_disk_gets_compacted_metadata(tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path,
        4,
        logs=({"name": "default", "replication": "controller"},),
        sections={"controller": {"nodes": ["n3", "n4"], "trim_after_records": 5}},
    )
    try:
        cluster.start()
        cluster.wait_ready()

        def in_sync() -> bool:
            log = cluster.get("n3", "/v1/logs/default").json()
            return sorted(log["sync_state_set"]) == ["n1", "n2"]

        eventually(in_sync, what="both brokers are in sync", timeout_s=WAIT_S)
        assert cluster.append("n4", "x").status_code == 200
        for node in cluster.ids:
            assert cluster.values(node) == ["x"]
        assert not (tmp_path / "n3" / "logs" / "default").exists()
        with CommitlogClient([cluster.url("n3")]) as client:
            assert [view["node"] for view in node_views(client)] == ["n1", "n2"]
        roles = {node: cluster.status(node, "__controller")["role"] for node in cluster.ids}
        assert sorted(roles.values()) == ["follower", "leader", "learner", "learner"]
        assert (roles["n1"], roles["n2"]) == ("learner", "learner")
        assert cluster.call("POST", "n1", "/v1/logs", json={"name": "other"}).status_code == 201
        for number in range(1, 12):
            change = {"retention": {"ms": 1_000_000 * number}}
            assert cluster.call("PATCH", "n1", "/v1/logs/other", json=change).status_code == 200
        eventually(
            lambda: all(cluster.status(node, "__controller")["begin_index"] > 0 for node in cluster.ids),
            what="the controllers' log is compacted everywhere",
            timeout_s=WAIT_S,
        )
        slave = next(node for node in ("n1", "n2") if cluster.status(node)["role"] == "slave")
        cluster.kill(slave)
        shutil.rmtree(tmp_path / slave)  # its disk, with its identity, is lost
        cluster.start(slave)
        cluster.wait_ready()
        eventually(in_sync, what="the new copy is in sync", timeout_s=WAIT_S)
        assert cluster.get(slave, "/v1/logs/other").json()["retention"]["ms"] == 11_000_000
        assert cluster.append(slave, "y").status_code == 200
        assert cluster.values(slave) == ["x", "y"]
    finally:
        cluster.close()
