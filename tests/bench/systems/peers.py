"""Clusters of three servers of other systems on this machine, for comparisons in one run.

`fetch_peers` takes etcd from the Debian package and NATS from the Go module, once, into .cache/bench.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

START_TIMEOUT_S = 60
NATS = "github.com/nats-io/nats-server/v2@v2.15.2"
CACHE = Path(__file__).parents[3] / ".cache" / "bench"
NATSPUB = Path(__file__).parent / "natspub"


@dataclass(frozen=True)
class Peers:
    """Binaries of other systems; None: not compared."""

    etcd: Path | None = None
    nats: Path | None = None


def fetch_peers() -> Peers:
    """Return the binaries, fetched where they are missing; a peer that cannot be fetched is left out."""
    CACHE.mkdir(parents=True, exist_ok=True)
    etcd, nats = CACHE / "usr" / "bin" / "etcd", CACHE / "nats-server"
    if not etcd.exists() and shutil.which("apt-get"):
        subprocess.run(["apt-get", "-qq", "download", "etcd-server"], cwd=CACHE)
        for package in CACHE.glob("etcd-server*.deb"):
            subprocess.run(["dpkg", "-x", package.name, "."], cwd=CACHE, check=True)
    if not nats.exists():
        subprocess.run(["go", "install", NATS], env={**os.environ, "GOBIN": str(CACHE)})
    return Peers(etcd if etcd.exists() else None, nats if nats.exists() else None)


def build_natspub(folder: Path) -> Path:
    """Build the load generator for NATS."""
    binary = folder / "natspub"
    subprocess.run(["go", "build", "-o", str(binary), "."], cwd=NATSPUB, check=True)
    return binary


def version_of(binary: Path) -> str:
    """Return the first line that names the version of a server."""
    out = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout
    return out.splitlines()[0].rpartition(" ")[2].lstrip("v")


@contextlib.contextmanager
def running_etcd(binary: Path, port: int) -> Iterator[tuple[list[str], list[int]]]:
    """Start three members, which sync every write; give the URLs of their HTTP gateways, and process ids."""
    with tempfile.TemporaryDirectory(prefix="bench-etcd-") as folder:
        urls = [f"http://127.0.0.1:{port + k}" for k in range(3)]
        peers = [f"http://127.0.0.1:{port + 10 + k}" for k in range(3)]
        cluster = ",".join(f"m{k}={url}" for k, url in enumerate(peers))
        commands = [
            [
                str(binary), "--name", f"m{k}", "--data-dir", f"{folder}/m{k}",
                "--quota-backend-bytes", "8000000000",
                "--listen-client-urls", urls[k], "--advertise-client-urls", urls[k],
                "--listen-peer-urls", peers[k], "--initial-advertise-peer-urls", peers[k],
                "--initial-cluster", cluster, "--initial-cluster-state", "new",
            ]
            for k in range(3)
        ]  # fmt: skip
        with running_servers(commands, [port, port + 1, port + 2]) as pids:
            yield urls, pids


@contextlib.contextmanager
def running_nats(binary: Path, port: int) -> Iterator[tuple[list[str], list[int]]]:
    """Start three servers whose JetStream syncs before each acknowledgement; give URLs and process ids."""
    with tempfile.TemporaryDirectory(prefix="bench-nats-") as folder:
        routes = ", ".join(f"nats://127.0.0.1:{port + 10 + k}" for k in range(3))
        commands = []
        for k in range(3):
            config = Path(folder) / f"{k}.conf"
            config.write_text(
                f"server_name: n{k}\nlisten: 127.0.0.1:{port + k}\n"
                f'jetstream {{ store_dir: "{folder}/{k}", max_file: 40G, sync_interval: always }}\n'
                f"cluster {{ name: c, listen: 127.0.0.1:{port + 10 + k}, routes: [{routes}] }}\n"
            )
            commands.append([str(binary), "-c", str(config)])
        with running_servers(commands, [port, port + 1, port + 2]) as pids:
            yield [f"nats://127.0.0.1:{port + k}" for k in range(3)], pids


@contextlib.contextmanager
def running_servers(commands: list[list[str]], ports: list[int]) -> Iterator[list[int]]:
    """Start servers, wait until all ports are open, and give the process ids; end them by SIGTERM."""
    servers = [
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for command in commands
    ]
    try:
        for port in ports:
            _wait_for(port)
        yield [server.pid for server in servers]
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait(START_TIMEOUT_S)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return
