"""Classic HA by real processes: appends at the master, reads at the slaves, synchronous and not."""

import json
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import free_port
from tests.support.cluster import Cluster, eventually, free_ports


def classic(folder: Path, *, sync_slaves: int = 1) -> Cluster:
    log = {
        "name": "default",
        "replication": "classic",
        "master": "n2",
        "sync_slaves": sync_slaves,
        "ha_listen": f"127.0.0.1:{free_ports(1)[0]}",
    }
    return Cluster(folder, 3, logs=(log,))


@pytest.mark.rule("H-01", "H-07", "H-08")
def test_a_classic_log_by_rest(tmp_path: Path) -> None:
    cluster = classic(tmp_path)
    try:
        cluster.start()
        cluster.wait_ready()
        answer = cluster.append("n1", "a", "b")  # forwarded
        assert answer.status_code == 200, answer.text
        assert (answer.json()["leader"], answer.json()["acks"]) == ("n2", "quorum")
        assert cluster.append("n1", "x", headers={"Commitlog-No-Forward": "1"}).json()["leader"] == "n2"
        cluster.wait_even()
        for node in cluster.ids:
            assert cluster.values(node) == ["a", "b"]
            assert cluster.values(node, consistency="committed") == ["a", "b"]
        roles = {node: cluster.status(node) for node in cluster.ids}
        assert [roles[node]["role"] for node in cluster.ids] == ["slave", "master", "slave"]
        assert {roles[node]["master"] for node in cluster.ids} == {"n2"}
        assert sorted(roles["n2"]["sync_state_set"]) == cluster.ids
        assert roles["n1"]["confirm_offset"] == roles["n2"]["end_offset"]
        logs = {node: cluster.get(node, "/v1/logs/default").json() for node in cluster.ids}
        assert [(log["master"], log["epoch"]) for log in logs.values()] == [("n2", 1)] * 3
        assert sorted(logs["n2"]["sync_state_set"]) == cluster.ids
        assert logs["n1"]["sync_state_set"] is None  # a slave does not know
        assert cluster.get("n3", "/v1/logs/default/watermarks").json() == {"1": {"n1": 2, "n2": 2, "n3": 2}}

        seen = cluster.get("n2", "/v1/logs/default/ha-status").json()
        assert (seen["role"], seen["acks_needed"], seen["waits_for"], seen["link"]) == (
            "master",
            1,
            None,
            None,
        )
        assert [(slave["id"], slave["state"]) for slave in seen["slaves"]] == [
            ("n1", "TRANSFER"),
            ("n3", "TRANSFER"),
        ]
        assert [(slave["gap_bytes"], slave["in_sync"]) for slave in seen["slaves"]] == [(0, True)] * 2
        link = cluster.get("n1", "/v1/logs/default/ha-status").json()["link"]
        assert (link["state"], link["reported_offset"]) == ("TRANSFER", seen["end_offset"])
        metrics = cluster.get("n2", "/metrics").text
        assert 'commitlog_ha_gap_bytes{log="default",peer="n1"} 0.0' in metrics
        assert 'commitlog_leading{log="default"} 1.0' in metrics  # or every such log would alert
        assert 'commitlog_leading{log="default"} 0.0' in cluster.get("n1", "/metrics").text
        assert 'commitlog_ha_connections_refused_total{limit="replica"} 0.0' in metrics

        cluster.kill("n1")
        cluster.kill("n3")
        late = cluster.append("n2", "c", params={"timeout_ms": 1_000})
        assert late.status_code == 504
        problem = late.json()
        assert (problem["code"], problem["outcome"], problem["first_index"]) == (
            "flush-slave-timeout",
            "applied",
            3,
        )
        assert cluster.append("n2", "d", params={"acks": "leader"}).status_code == 202
        assert cluster.values("n2", consistency="local") == ["a", "b", "c", "d"]
        cluster.start("n1", "n3")
        cluster.wait_ready("n1", "n3")
        cluster.wait_even()
        assert cluster.values("n3") == ["a", "b", "c", "d"]

        cluster.kill("n2")  # slaves still answer reads of what they have, and none becomes master
        assert cluster.values("n1", consistency="committed") == ["a", "b", "c", "d"]
        refused = cluster.append("n1", "e", params={"timeout_ms": 1_000})
        assert refused.status_code in (503, 504)
        assert cluster.status("n1")["role"] == "slave"
        cluster.start("n2")
        cluster.wait_ready("n2")

        def appended() -> bool:
            return cluster.append("n3", "f").status_code == 200

        eventually(appended, what="the master is back")
        cluster.wait_even()
        assert cluster.status("n2")["term"] == 1  # the same master goes on with its epoch
        assert cluster.values("n1")[:4] == ["a", "b", "c", "d"]
        assert [cluster.stop(node) for node in cluster.ids] == [0, 0, 0]
    finally:
        cluster.close()


@pytest.mark.rule("R-08", "H-08")
def test_a_linearizable_read_at_a_slave_shows_no_more_than_its_master_would(tmp_path: Path) -> None:
    cluster = classic(tmp_path, sync_slaves=2)
    try:
        cluster.start()
        cluster.wait_ready()
        assert cluster.append("n2", "a").status_code == 200
        cluster.wait_even()
        cluster.kill("n3")
        assert cluster.append("n2", "b", params={"timeout_ms": 1_000}).status_code == 504
        # n1 holds it, by the master's word it is not committed: one slave of two has it
        eventually(lambda: cluster.values("n1", consistency="committed") == ["a", "b"], what="n1 holds b")
        for node in ("n1", "n2"):
            assert cluster.values(node) == ["a"]
            assert cluster.get(node, "/v1/logs/default/tail").json()["committed_index"] == 1
        assert cluster.get("n1", "/v1/logs/default/records/2").status_code == 416
        cluster.start("n3")
        waiting = cluster.get("n1", "/v1/logs/default/records?from_index=2&wait_ms=20000").json()
        assert [record["value"] for record in waiting["records"]] == ["b"]
    finally:
        cluster.close()


@pytest.mark.rule("H-01")
def test_commitlog_up_in_classic_mode(tmp_path: Path) -> None:
    port = free_port(2)
    command = [sys.executable, "-m", "app.cli.main", "up", "--nodes", "2", "--no-spark"]
    command += ["--replication", "classic", "--data", str(tmp_path / "data"), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as up:
        try:
            assert up.stdout is not None
            line = up.stdout.readline()
            assert json.loads(line)["ready"], line
            url = f"http://127.0.0.1:{port + 1}/v1/logs/default"
            answer = httpx.post(f"{url}/records", json={"records": [{"value": "a"}]}, timeout=20)
            assert (answer.status_code, answer.json()["leader"]) == (200, "n1")
            deadline = time.monotonic() + 10
            while httpx.get(f"{url}/status").json()["committed_index"] < 1:
                assert time.monotonic() < deadline
            assert httpx.get(f"{url}/status").json()["role"] == "slave"
        finally:
            up.terminate()
            assert up.wait(20) == 0
