"""Controllers on processes of their own, and a group of two brokers (`conf/controller.toml`)."""

from pathlib import Path

import pytest

from app.settings import load
from tests.support.cluster import Cluster, eventually

WAIT_S = 60.0


def test_the_configuration_that_we_ship_is_sound() -> None:
    settings = load(Path("conf/controller.toml"), "n1")
    assert settings.controllers == ("c1", "c2", "c3")
    assert settings.brokers == ("n1", "n2")
    assert settings.logs[0].replicas == ("n1", "n2")


@pytest.mark.rule("C-01", "C-10", "C-12")
def test_brokers_find_their_controllers_which_keep_no_logs(tmp_path: Path) -> None:
    cluster = Cluster(
        tmp_path,
        4,
        logs=({"name": "default", "replication": "controller"},),
        sections={"controller": {"nodes": ["n3", "n4"]}},
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
        roles = {node: cluster.status(node, "__controller")["role"] for node in cluster.ids}
        assert sorted(roles.values()) == ["follower", "leader", "learner", "learner"]
        assert (roles["n1"], roles["n2"]) == ("learner", "learner")
    finally:
        cluster.close()
