"""Clusters of three real nodes for a benchmark, in the configurations that its rows need."""

import contextlib
import os
import ssl
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import httpx

from tests.bench.systems.slow_sync_node import DELAY_ENV
from tests.support.certificates import make_authority, make_certificate
from tests.support.cluster import Cluster, serving

SLOW_SYNC_MS = 2
TOKEN = "bench-token"  # of a cluster that lives for seconds


class Setup(StrEnum):
    """Configuration of a cluster."""

    FSYNC = "fsync"
    REPLICATED = "replicated"
    SLOW_DISK = "slow-disk"  # each fsync takes SLOW_SYNC_MS longer
    SECURE = "tokens+tls"  # TLS and a token at the REST listener


@dataclass(frozen=True)
class Nodes:
    """A running cluster. headers, environment: for a client."""

    leader: str
    follower: str
    pids: list[int]
    headers: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


class _SecureCluster(Cluster):
    def __init__(self, folder: Path) -> None:
        self.authority = make_authority(folder)
        certificate, key = make_certificate(self.authority, "node", "IP:127.0.0.1")
        (folder / "tokens").write_text(f"{TOKEN}\n")
        files = {"tls_ca": self.authority, "tls_certificate": certificate, "tls_key": key}
        super().__init__(folder, sections={"security": {**files, "tokens_file": folder / "tokens"}})
        context = ssl.create_default_context(cafile=self.authority)
        self._client = httpx.Client(timeout=30, verify=context, headers={"Authorization": f"Bearer {TOKEN}"})

    def url(self, node: str) -> str:
        return super().url(node).replace("http://", "https://")


class _SlowCluster(Cluster):
    def command(self, node: str) -> list[str]:
        return [
            sys.executable, "-m", "tests.bench.systems.slow_sync_node",
            "--config", str(self.config), "--node", node,
        ]  # fmt: skip


@contextlib.contextmanager
def running_nodes(setup: Setup, nodes: int = 3) -> Iterator[Nodes]:
    """Start a cluster on free ports, and end it by pid; its folder is removed."""
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as name:
        folder = Path(name)
        headers: list[str] = []
        environment: dict[str, str] = {}
        cluster: Cluster
        if setup is Setup.SECURE:
            cluster = _SecureCluster(folder)
            headers = [f"Authorization: Bearer {TOKEN}"]
            environment = {"SSL_CERT_FILE": str(cluster.authority)}
        elif setup is Setup.SLOW_DISK:
            os.environ[DELAY_ENV] = str(SLOW_SYNC_MS)
            cluster = _SlowCluster(folder)
        elif setup is Setup.REPLICATED:
            cluster = Cluster(folder, nodes, logs=({"name": "default", "durability": "replicated"},))
        else:
            cluster = Cluster(folder, nodes)
        with serving(cluster):
            leader = cluster.leader(timeout_s=30)
            follower = next((node for node in cluster.ids if node != leader), leader)
            pids = [cluster.pid(leader)] + [cluster.pid(node) for node in cluster.ids if node != leader]
            yield Nodes(cluster.url(leader), cluster.url(follower), pids, headers, environment)
