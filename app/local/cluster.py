"""A cluster of real processes on this machine: its folders, its configuration file, start and stop.

DIR/cluster.toml           configuration of every node
DIR/cluster.lock           held while a cluster runs here
DIR/tables                 the Delta tables, if a job writes them
DIR/nK/{pid,log,data/}     node K: REST on port + K - 1, peers on port + 1000 + K - 1, all on 127.0.0.1;
                           classic: n1 accepts slaves on port + 2000
"""

import fcntl
import json
import time
import tomllib
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TextIO

from app.client import ClientError, CommitlogClient, Problem
from app.local.processes import ChildProcess

PEER_PORT_DISTANCE = 1_000
HA_PORT_DISTANCE = 2_000  # where n1 accepts the slaves of a classic log
LOCK = "cluster.lock"
READY_TIMEOUT_S = 60.0
STOP_GRACE_S = 10.0
POLL_S = 0.05


class ClusterError(Exception):
    """The cluster cannot be created or does not start; the message states the reason and the log file."""


class FolderInUse(ClusterError):
    """Another process runs a cluster in the folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"a cluster runs in {folder}: stop it, or use another folder")


@dataclass(frozen=True)
class LocalNode:
    """Addresses and files of one node of a local cluster."""

    id: str
    port: int
    peer_port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def data(self) -> Path:
        return self.folder / "data"


class LocalCluster:
    """Nodes n1 ... nN below `folder`. No process is left running once `stop` or `with` has ended.

    An existing cluster in the folder is started again: same id, same nodes.
    """

    def __init__(self, folder: Path, *, nodes: int, port: int, replication: str = "raft") -> None:
        self.folder = folder.resolve()
        self.config = self.folder / "cluster.toml"
        self.tables = self.folder / "tables"
        self.replication = replication
        self.nodes = [
            LocalNode(f"n{k}", port + k - 1, port + PEER_PORT_DISTANCE + k - 1, self.folder / f"n{k}")
            for k in range(1, nodes + 1)
        ]
        self._children: dict[str, ChildProcess] = {}
        self._reported: set[int] = set()
        self._lock: TextIO | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    def node(self, node_id: str) -> LocalNode:
        return next(node for node in self.nodes if node.id == node_id)

    def pid(self, node_id: str) -> int:
        return self._children[node_id].pid

    # --- its life ---

    def start(self) -> None:
        """Write the configuration and start every node; `wait_ready` returns when they serve.

        Raises ClusterError when the folder cannot be used, or is in use.
        """
        try:
            self._take_folder()
            self._write_config()
            for node in self.nodes:
                self.start_node(node.id)
        except BlockingIOError as error:
            raise FolderInUse(self.folder) from error
        except OSError as error:
            raise ClusterError(f"{self.folder} cannot be used: {error.strerror}") from error

    def start_node(self, node_id: str) -> None:
        """Start one node, which must not be running."""
        node = self.node(node_id)
        node.folder.mkdir(exist_ok=True)
        arguments = ["serve", "--config", str(self.config), "--node", node_id]
        self._children[node_id] = ChildProcess(
            "app.cli.main", arguments, log=node.folder / "log", pid_file=node.folder / "pid"
        )

    def kill_node(self, node_id: str) -> None:
        """Send SIGKILL: no clean stop."""
        child = self._children[node_id]
        self._reported.add(child.pid)
        child.kill()

    def stop(self) -> None:
        """End every node cleanly, all at once; kill those that do not end."""
        for child in self._children.values():
            self._reported.add(child.pid)
            child.terminate()
        deadline = time.monotonic() + STOP_GRACE_S
        for child in self._children.values():
            child.end(max(0.1, deadline - time.monotonic()))
        if self._lock is not None:
            self._lock.close()

    @staticmethod
    def runs_in(folder: Path) -> bool:
        """Return whether a cluster runs in the folder. It may start or stop at any time."""
        try:
            with (folder / LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass  # no cluster has run here, or the start reports the error
        return False

    def _take_folder(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = (self.folder / LOCK).open("w", encoding="utf-8")
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def fallen(self) -> list[tuple[str, str]]:
        """Return the nodes that ended by themselves since the last call: (id, ChildProcess.ending)."""
        fallen = []
        for node_id, child in self._children.items():
            if child.exit_code is not None and child.pid not in self._reported:
                self._reported.add(child.pid)
                child.wait(0)
                fallen.append((node_id, child.ending()))
        return fallen

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until every node serves and a leader confirms reads. Raises ClusterError."""
        deadline = time.monotonic() + timeout_s
        with CommitlogClient(self.urls, give_up_s=0) as client:
            waiting = list(self.nodes)
            while waiting:
                obstacles = {node.id: _obstacle(client, node) for node in waiting}
                waiting = [node for node in waiting if obstacles[node.id] is not None]
                self._check_alive()
                if waiting and time.monotonic() > deadline:
                    late = ", ".join(node.id for node in waiting)
                    logs = ", ".join(str(node.folder / "log") for node in waiting)
                    reason = obstacles[waiting[0].id]
                    raise ClusterError(f"{late} not ready after {timeout_s:.0f} s: {reason}; see {logs}")
                if waiting:
                    time.sleep(POLL_S)

    def _check_alive(self) -> None:
        for node_id, words in self.fallen():
            raise ClusterError(f"{node_id} {words}")

    # --- its configuration ---

    def _write_config(self) -> None:
        cluster_id = f"local-{uuid.uuid4().hex[:12]}"
        if self.config.exists():
            cluster_id = self._checked_id(tomllib.loads(self.config.read_text("utf-8")))
        tables = [f"[cluster]\nid = {_quoted(cluster_id)}\n"]
        for node in self.nodes:
            tables.append(
                f"[[nodes]]\nid = {_quoted(node.id)}\n"
                f'listen = "127.0.0.1:{node.port}"\nurl = {_quoted(node.url)}\n'
                f'peer_listen = "127.0.0.1:{node.peer_port}"\npeer_address = "127.0.0.1:{node.peer_port}"\n'
                f"data = {_quoted(str(node.data))}\n"
            )
        log = f'[[logs]]\nname = "default"\nreplication = {_quoted(self.replication)}\n'
        if self.replication == "classic":
            ha_port = self.nodes[0].port + HA_PORT_DISTANCE
            log += f'master = "{self.nodes[0].id}"\nha_listen = "127.0.0.1:{ha_port}"\n'
        tables.append(log)
        tables.append(f"[tables]\npath = {_quoted(str(self.tables))}\n")
        self.config.write_bytes("\n".join(tables).encode())  # a path that is not text fails before

    def _checked_id(self, document: dict[str, Any]) -> str:
        """Return the id of the cluster in this folder. Raises ClusterError when its settings differ."""
        there = [node["id"] for node in document.get("nodes", [])]
        wanted = [node.id for node in self.nodes]
        if there != wanted:
            raise ClusterError(
                f"{self.folder} holds a cluster with the nodes {', '.join(there)}: "
                "use the same --nodes, or another folder"
            )
        modes = [log["replication"] for log in document.get("logs", []) if log["name"] == "default"]
        if modes != [self.replication]:
            raise ClusterError(
                f"{self.folder} holds a cluster whose log is in {modes[0]} mode: use another folder"
            )
        return str(document["cluster"]["id"])


def _quoted(text: str) -> str:
    """Return a TOML basic string: JSON's quoting of unescaped Unicode is a subset of it."""
    return json.dumps(text, ensure_ascii=False)


def _obstacle(client: CommitlogClient, node: LocalNode) -> str | None:
    """Return the reason for which a node does not serve, None for one that serves and whose leader confirms
    reads."""
    try:
        client.connection.once("GET", node.url, "/readyz")
        client.connection.once("GET", node.url, f"/v1/logs/{client.log}/tail")
    except ClientError as error:
        logs = error.document.get("logs", {}) if isinstance(error, Problem) else {}
        if late := [name for name, is_ready in logs.items() if not is_ready]:
            subject = f"the logs {', '.join(late)} have" if len(late) > 1 else f"the log {late[0]} has"
            state = "are" if len(late) > 1 else "is"
            return f"{subject} no leader or {state} in repair (docs/operations.md, section 7)"
        return str(error)
    return None
