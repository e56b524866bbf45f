"""`commitlog up`: what it checks before it starts a cluster, and what it reports of one that is not ready."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from app.cli import up
from app.cli.context import CommandFailed
from app.local.cluster import ClusterError, LocalCluster
from tests.unit.cli.fake_service import Scripted, fake_service
from tests.unit.cli.test_client import closed_url


@pytest.mark.parametrize(
    ("taken", "sentence"),
    [
        ((8101,), "port 8101 is in use on 127.0.0.1: stop what uses it, or choose another --port"),
        (
            (8101, 9101),
            "ports 8101, 9101 are in use on 127.0.0.1: stop what uses them, or choose another --port",
        ),
    ],
)
def test_taken_ports_are_named(
    taken: tuple[int, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "port_is_free", lambda port: port not in taken)
    with pytest.raises(CommandFailed) as failed:
        up.check_ports(8101, 3)
    assert failed.value.message == sentence


def test_a_cluster_that_is_not_ready_in_time_names_the_logs_that_it_waits_for(tmp_path: Path) -> None:
    readiness = {"ready": False, "logs": {"default": False, "pay": True, "orders": False}, "failing": {}}
    with fake_service(lambda _: Scripted(503, readiness)) as node:
        cluster = LocalCluster(tmp_path, nodes=1, port=urlsplit(node.url).port or 0)
        with pytest.raises(ClusterError) as late:
            cluster.wait_ready(timeout_s=0.1)
    log = cluster.node("n1").folder / "log"
    assert str(late.value) == (
        "n1 not ready after 0 s: the logs default, orders have no leader or are in repair "
        f"(docs/operations.md, section 7); see {log}"
    )


def test_a_cluster_whose_node_is_silent_is_late_without_a_reason_of_logs(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, nodes=1, port=urlsplit(closed_url()).port or 0)
    with pytest.raises(ClusterError, match=r"^n1 not ready after 0 s: http.* does not answer .*; see "):
        cluster.wait_ready(timeout_s=0.1)
