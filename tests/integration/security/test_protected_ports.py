"""Raw sockets at the peer and HA ports of nodes with a cluster secret: an outsider gets nothing."""

import contextlib
import json
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.node.links.handshake import MAGIC
from app.node.network import wire
from app.raft.messages import Heartbeat, VoteRequest
from storage.format.batch import log_id_of
from tests.support.cluster import Cluster, eventually, free_ports, serving

LOG_ID = log_id_of("test", "default")
TERMS = (7, 1 << 41, (1 << 63) - 2)


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


def hello(source: str, target: str) -> bytes:
    fields = {"protocol": 2, "cluster": "test", "from": source, "to": target, "version": "1"}
    return framed(json.dumps({**fields, "address": "127.0.0.1:1"}).encode())


def forged() -> bytes:
    """Bytes that depose a leader, or end the node, on a port without authentication."""
    messages = [
        message
        for term in TERMS
        for message in (VoteRequest(term, 1 << 40, term, transfer=True), Heartbeat(term, "n2", 1 << 40, 1))
    ]
    return b"".join(framed(b"".join(wire.encode(LOG_ID, message))) for message in messages)


def answer_of(port: int, data: bytes, timeout_s: float = 0.5) -> bytes:
    """Return all that a port answers before it closes, or within the time."""
    answer = b""
    with socket.create_connection(("127.0.0.1", port)) as end, contextlib.suppress(OSError):
        end.settimeout(timeout_s)
        end.sendall(data)
        while chunk := end.recv(65_536):
            answer += chunk
    return answer


class ProtectedCluster(Cluster):
    """Two nodes with a secret, and a log in each mode."""

    def __init__(self, folder: Path) -> None:
        secret = folder / "cluster.secret"
        secret.touch(mode=0o600)
        secret.write_text("# one line\nnobody guesses this secret\n")
        (self.classic_port,) = free_ports(1)
        logs = (
            {"name": "elected", "replication": "controller"},
            {
                "name": "plain",
                "replication": "classic",
                "master": "n1",
                "ha_listen": f"127.0.0.1:{self.classic_port}",
            },
        )
        super().__init__(folder, 2, logs=logs, sections={"security": {"cluster_secret_file": secret}})


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProtectedCluster]:
    with serving(ProtectedCluster(tmp_path_factory.mktemp("protected"))) as cluster:
        yield cluster


def test_logs_of_every_mode_are_replicated(cluster: ProtectedCluster) -> None:
    for log in ("default", "elected", "plain"):
        answer = cluster.append("n2", f"to {log}", log=log, params={"acks": "quorum"})
        assert answer.status_code == 200, answer.text
        for node in cluster.ids:
            eventually(
                lambda node=node, log=log: cluster.values(node, log) == [f"to {log}"],  # type: ignore[misc]
                what=f"{node} serves the record of {log}",
            )


@pytest.mark.parametrize("source", ["n2", "n9"])
def test_an_outsider_with_the_cluster_id_changes_nothing(cluster: ProtectedCluster, source: str) -> None:
    before = {node: cluster.status(node) for node in cluster.ids}
    for node in cluster.ids:
        assert answer_of(cluster.peer_ports[node], hello(source, node) + forged()) == b""
        assert answer_of(cluster.peer_ports[node], MAGIC + b"\x00\x02{}" + forged()) == b""
    for node in cluster.ids:
        after = cluster.status(node)
        assert (after["term"], after["leader"]) == (before[node]["term"], before[node]["leader"])
    assert cluster.append("n1", "still served").status_code == 200
    assert set(cluster.running) == {"n1", "n2"}
    members = cluster.get("n1", "/v1/cluster").json()
    assert "n9" not in json.dumps(members)


def test_the_port_of_a_classic_log_gives_and_takes_nothing(cluster: ProtectedCluster) -> None:
    for data in (bytes(8), struct.pack(">q", 1 << 40) * 64, b"CLHA\x01\x00\x00\x02" + bytes(8), MAGIC):
        assert answer_of(cluster.classic_port, data) == b""
    cluster.pause("n2")
    try:
        answer_of(cluster.classic_port, struct.pack(">q", 1 << 40) * 64)
        refused = cluster.append("n1", "forged", log="plain", params={"acks": "quorum", "timeout_ms": 300})
        assert refused.status_code in (503, 504), refused.text
    finally:
        cluster.resume("n2")


def test_connections_without_a_proof_are_bounded(cluster: ProtectedCluster) -> None:
    port = cluster.peer_ports["n2"]
    with contextlib.ExitStack() as stack:
        for _ in range(400):
            end = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            with contextlib.suppress(OSError):
                end.sendall(MAGIC + b"\x04")  # half a hello
        metrics = cluster.get("n2", "/metrics").text
        waiting = [line for line in metrics.splitlines() if "link_connections_waiting{" in line]
        assert [float(line.rpartition(" ")[2]) <= 256 for line in waiting] == [True, True]
        assert cluster.append("n1", "during the flood").status_code == 200
        cluster.kill("n1")
        cluster.start("n1")  # it reaches n2 although the room is full
        cluster.wait_ready("n1")
