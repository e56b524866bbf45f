"""`commitlog up` and `serve`: real nodes, started, killed, started again, and gone in the end."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import psutil

from tests.e2e.processes import commitlog, free_port, processes_of, up, wait_until


def test_a_cluster_lives_through_the_death_of_a_node_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with up(folder) as cluster:
        nodes = cluster.ready["nodes"]
        assert [node["id"] for node in nodes] == ["n1", "n2", "n3"]
        assert [cluster.pid(node["id"]) for node in nodes] == [node["pid"] for node in nodes]
        port = int(nodes[0]["url"].rsplit(":", 1)[1])
        config = tomllib.loads((folder / "cluster.toml").read_text())
        assert [node["listen"] for node in config["nodes"]] == [f"127.0.0.1:{port + k}" for k in range(3)]
        assert [node["peer_listen"] for node in config["nodes"]] == [
            f"127.0.0.1:{port + 1000 + k}" for k in range(3)
        ]
        assert [Path(node["data"]) for node in config["nodes"]] == [
            folder / f"n{k}" / "data" for k in (1, 2, 3)
        ]

        first = commitlog("append", "before", "--json", "-e", cluster.endpoint)
        leader = json.loads(first.stdout)["leader"]
        os.kill(cluster.pid(leader), signal.SIGKILL)
        after = commitlog("append", "after", "--json", "-e", cluster.endpoint)
        assert after.returncode == 0, after.stderr
        assert json.loads(after.stdout)["term"] > json.loads(first.stdout)["term"]
        assert cluster.process.stderr is not None
        assert f"{leader} was ended by SIGKILL" in cluster.process.stderr.readline()
        assert not (folder / leader / "pid").exists()

        config_file = str(folder / "cluster.toml")
        serve = [sys.executable, "-m", "app.cli.main", "serve", "--config", config_file, "--node", leader]
        with subprocess.Popen(serve, stderr=subprocess.DEVNULL) as again:
            wait_until(lambda: "down" not in roles(cluster.endpoint), f"{leader} is back")
            read = commitlog("read", "--json", "-e", cluster.endpoint)
            assert [record["value"] for record in json.loads(read.stdout)["records"]] == ["before", "after"]
            again.terminate()
            assert again.wait(20) == 0
        cluster.process.terminate()
        assert cluster.process.wait(20) == 0
    assert processes_of(folder) == []


def roles(endpoint: str) -> list[str]:
    status = commitlog("status", "--json", "-e", endpoint)
    return (
        [node["role"] for node in json.loads(status.stdout)["nodes"]] if status.returncode == 0 else ["down"]
    )


def test_nodes_end_with_their_parent_however_it_ends(tmp_path: Path) -> None:
    with up(tmp_path, nodes=1) as cluster:
        node = psutil.Process(cluster.pid("n1"))
        cluster.process.kill()
        wait_until(
            lambda: not node.is_running() or node.status() == psutil.STATUS_ZOMBIE, "the node has ended"
        )


def test_a_folder_continues_with_its_cluster(tmp_path: Path) -> None:
    with up(tmp_path, nodes=1) as cluster:
        assert commitlog("append", "kept", "-e", cluster.endpoint).returncode == 0
        identity = tomllib.loads((tmp_path / "cluster.toml").read_text())["cluster"]["id"]
    with up(tmp_path, nodes=1) as cluster:
        tail = commitlog("tail", "-n", "1", "--json", "-e", cluster.endpoint)
        assert json.loads(tail.stdout)["value"] == "kept"
    assert tomllib.loads((tmp_path / "cluster.toml").read_text())["cluster"]["id"] == identity
    other = commitlog("up", "--nodes", "3", "--data", str(tmp_path), "--port", str(free_port()), "--no-spark")
    assert other.returncode == 1
    assert "holds a cluster with the nodes n1:" in other.stderr


def test_a_log_that_is_created_later_becomes_tables_too(tmp_path: Path) -> None:
    with up(tmp_path, nodes=1, spark=True) as cluster:
        at = ("-e", cluster.endpoint)
        assert commitlog("append", "first", *at).returncode == 0
        assert commitlog("tables", "--wait", "1", "--timeout-ms", "60000", *at, timeout_s=90).returncode == 0
        assert commitlog("logs", "create", "orders", *at).returncode == 0
        (schema := tmp_path / "orders.ddl").write_text("id BIGINT NOT NULL")
        assert commitlog("schema", "set", str(schema), "--log", "orders", *at).returncode == 0
        appended = json.loads(commitlog("append", '{"id": 17}', "--log", "orders", "--json", *at).stdout)
        wait = ("--wait", str(appended["last_index"]), "--table", "records", "--timeout-ms", "60000")
        waited = commitlog("tables", *wait, "--log", "orders", *at, timeout_s=90)
        assert waited.returncode == 0, waited.stderr + (tmp_path / "spark" / "log").read_text()
        assert Path(cluster.ready["tables"], "orders", "records", "_delta_log").is_dir()


def test_taken_ports_and_wrong_configurations_are_reported_in_one_line(tmp_path: Path) -> None:
    with up(tmp_path / "one", nodes=1) as cluster:
        port = cluster.ready["endpoints"][0].rsplit(":", 1)[1]
        second = commitlog(
            "up", "--nodes", "1", "--data", str(tmp_path / "two"), "--port", port, "--no-spark"
        )
    assert second.returncode == 1
    assert second.stderr.startswith(f"commitlog: ports {port}, ")
    assert second.stderr.count("\n") == 1
    config = tmp_path / "wrong.toml"
    config.write_text("[cluster]\nid = 'c'\nnonsense = 1\n")
    served = commitlog("serve", "--config", str(config), "--node", "n1")
    assert served.returncode == 2
    assert "Traceback" not in served.stderr


def test_a_folder_that_is_in_use_or_cannot_be_used_stays_as_it_is(tmp_path: Path) -> None:
    arguments = ["--no-spark", "--port", str(free_port())]
    with (tmp_path / "cluster.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        refused = commitlog("up", "--data", str(tmp_path), *arguments)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"commitlog: a cluster runs in {tmp_path}: stop it, or use another folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["cluster.lock"]
    refused = commitlog("up", "--data", "/proc/none", *arguments)
    assert (refused.returncode, len(refused.stderr.splitlines())) == (1, 1)
