"""Real nodes for tests: processes on 127.0.0.1 with free ports. Tests await conditions and never sleep."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import httpx

from tests.support.forked_node import SERVE, ForkedNode

T = TypeVar("T")
C = TypeVar("C", bound="Cluster")
START_TIMEOUT_S = 30.0
_POLL_S = 0.02


def eventually(condition: Callable[[], T | None], *, what: str, timeout_s: float = 15.0) -> T:
    """Return the first true result of `condition`; fail after `timeout_s`. A refused connection counts as
    false."""
    deadline = time.monotonic() + timeout_s
    last: object = None
    while time.monotonic() < deadline:
        try:
            result = condition()
            if result:
                return result
            last = result
        except httpx.TransportError as error:
            last = error
        time.sleep(_POLL_S)
    raise AssertionError(f"{what}: not within {timeout_s} s; last seen: {last!r}")


def free_ports(count: int) -> list[int]:
    """Return ports that were free a moment ago, all different, outside the range of ephemeral ports."""
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < count:
            port = random.SystemRandom().randrange(12_000, 32_000)
            door = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                door.bind(("127.0.0.1", port))
                found.append(port)
    return found


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return f'"{value}"' if isinstance(value, str | Path) else str(value)


def configuration(
    cluster_id: str,
    nodes: Sequence[Mapping[str, object]],
    logs: Sequence[Mapping[str, object]] = (),
    sections: Mapping[str, Mapping[str, object]] | None = None,
) -> str:
    """A configuration file of a cluster."""
    tables: list[tuple[str, Mapping[str, object]]] = [("[cluster]", {"id": cluster_id})]
    tables.extend(("[[nodes]]", node) for node in nodes)
    tables.extend(("[[logs]]", log) for log in logs)
    tables.extend((f"[{name}]", section) for name, section in (sections or {}).items())
    lines = []
    for title, table in tables:
        lines.append(title)
        lines.extend(f"{key} = {_toml(value)}" for key, value in table.items())
    return "\n".join(lines) + "\n"


class Cluster:
    """Nodes n1, n2, …; each in DATA/nK with its lines in DATA/nK.log.

    forked: start nodes from a process that has the imports (forked_node.py); pytest sets it.
    """

    forked = False

    def __init__(
        self,
        folder: Path,
        nodes: int = 3,
        *,
        logs: tuple[Mapping[str, object], ...] = (),
        sections: Mapping[str, Mapping[str, object]] | None = None,
        peer_addresses: Mapping[str, str] | None = None,
        cluster_id: str = "test",
        joining: int = 0,
    ) -> None:
        """sections: additional sections of the configuration. peer_addresses: of proxies in front of the peer
        listeners.

        joining: the last nodes, by number, that the others do not know; their own configuration has all
        nodes.
        """
        self.folder = folder
        self.ids = [f"n{number}" for number in range(1, nodes + 1)]
        ports = free_ports(2 * nodes)
        self.rest_ports = dict(zip(self.ids, ports[:nodes], strict=True))
        self.peer_ports = dict(zip(self.ids, ports[nodes:], strict=True))
        self.config = folder / "cluster.toml"
        self.joining = self.ids[nodes - joining :]
        self._processes: dict[str, subprocess.Popen[bytes] | ForkedNode] = {}
        self._client = httpx.Client(timeout=30.0)
        self._write(cluster_id, logs, sections or {}, peer_addresses or {})

    def _write(
        self,
        cluster_id: str,
        logs: tuple[Mapping[str, object], ...],
        sections: Mapping[str, Mapping[str, object]],
        peer_addresses: Mapping[str, str],
    ) -> None:
        nodes = []
        for node in self.ids:
            peer = f"127.0.0.1:{self.peer_ports[node]}"
            nodes.append(
                {
                    "id": node,
                    "listen": f"127.0.0.1:{self.rest_ports[node]}",
                    "url": self.url(node),
                    "peer_listen": peer,
                    "peer_address": peer_addresses.get(node, peer),
                    "data": self.folder / node,
                }
            )
        known = [node for node in nodes if node["id"] not in self.joining]
        self.config.write_text(configuration(cluster_id, known, logs, sections))
        for node_id in self.joining:
            path = self.folder / f"{node_id}.toml"
            path.write_text(configuration(cluster_id, nodes, logs, sections))

    # --- processes ---------------------------------------------------------------------------------------

    def start(self, *nodes: str) -> None:
        """Start nodes (all, if none is named); `wait_ready` waits for them."""
        for node in nodes or self.ids:
            assert node not in self._processes
            self._processes[node] = self._spawn(self.command(node), self.folder / f"{node}.log")

    def _spawn(self, command: list[str], log: Path) -> "subprocess.Popen[bytes] | ForkedNode":
        if self.forked and command[: len(SERVE)] == SERVE:
            return ForkedNode(command[len(SERVE) :], log)
        with log.open("ab") as lines:
            return subprocess.Popen(command, stdout=lines, stderr=lines)

    def command(self, node: str) -> list[str]:
        """Return the command line of a node."""
        config = self.folder / f"{node}.toml" if node in self.joining else self.config
        return [*SERVE, "--config", str(config), "--node", node]

    def kill(self, node: str) -> None:
        """End a node by SIGKILL, and wait until it has ended."""
        process = self._processes.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait(10)

    def stop(self, node: str) -> int:
        """End a node by SIGTERM; return its exit code."""
        process = self._processes.pop(node)
        process.send_signal(signal.SIGTERM)
        return process.wait(20)

    def pause(self, node: str) -> None:
        os.kill(self._processes[node].pid, signal.SIGSTOP)

    def resume(self, node: str) -> None:
        os.kill(self._processes[node].pid, signal.SIGCONT)

    def pid(self, node: str) -> int:
        return self._processes[node].pid

    def wait_exit(self, node: str) -> int:
        """Wait until a node has ended by itself; return its exit code."""
        return self._processes.pop(node).wait(START_TIMEOUT_S)

    def close(self) -> None:
        self._client.close()
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.kill()
        for process in self._processes.values():
            process.wait(10)
        self._processes.clear()

    def lines(self, node: str) -> str:
        return (self.folder / f"{node}.log").read_text()

    @property
    def running(self) -> list[str]:
        return list(self._processes)

    # --- calls -------------------------------------------------------------------------------------------

    def url(self, node: str) -> str:
        return f"http://127.0.0.1:{self.rest_ports[node]}"

    def call(self, method: str, node: str, path: str, **options: Any) -> httpx.Response:
        return self._client.request(method, self.url(node) + path, **options)

    def exchange(self, request: bytes, timeout_s: float = 30) -> bytes:
        """Send bytes to n1; return all that comes back until it closes."""
        with socket.create_connection(("127.0.0.1", self.rest_ports["n1"]), timeout=timeout_s) as end:
            end.sendall(request)
            answer = b""
            while part := end.recv(65_536):
                answer += part
        return answer

    def get(self, node: str, path: str, **options: Any) -> httpx.Response:
        return self.call("GET", node, path, **options)

    def append(self, node: str, *values: str, log: str = "default", **options: Any) -> httpx.Response:
        """Append text records as one JSON request."""
        records = [{"value": value} for value in values]
        return self.call("POST", node, f"/v1/logs/{log}/records", json={"records": records}, **options)

    def status(self, node: str, log: str = "default") -> dict[str, Any]:
        answer: dict[str, Any] = self.get(node, f"/v1/logs/{log}/status").json()
        return answer

    def values(self, node: str, log: str = "default", **params: Any) -> list[str]:
        """Return the values of all data records, page by page."""
        found: list[str] = []
        start: dict[str, Any] = {"from": "earliest"}
        while True:
            answer = self.get(node, f"/v1/logs/{log}/records", params={**start, **params})
            assert answer.status_code == 200, answer.text
            page = answer.json()
            found.extend(record["value"] for record in page["records"])
            if not page["has_more"]:
                return found
            start = {"from_index": page["next_index"]}

    # --- conditions --------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Start every node that does not run, and wait until all are ready: whole again for the next test."""
        missing = [node for node in self.ids if node not in self.running]
        if missing:
            self.start(*missing)
        self.wait_ready()

    def wait_ready(self, *nodes: str) -> None:
        for node in nodes or self.ids:

            def ready(node: str = node) -> bool:
                assert self._processes[node].poll() is None, f"{node} has ended:\n{self.lines(node)}"
                return self.get(node, "/readyz").status_code == 200

            eventually(ready, what=f"{node} is ready", timeout_s=START_TIMEOUT_S)

    def leader(self, log: str = "default", timeout_s: float = 15.0) -> str:
        """Return the node that leads, once it reports this and every running node agrees."""

        def agreed() -> str | None:
            seen = [self.status(node, log) for node in self.running]
            leaders = {(status["leader"], status["term"]) for status in seen}
            if len(leaders) != 1 or seen[0]["leader"] not in self.running:
                return None
            # A node without a copy of the log passes the call on: two answers may name one node.
            leading = {status["node"] for status in seen if status["role"] == "leader"}
            return seen[0]["leader"] if leading == {seen[0]["leader"]} else None

        return eventually(agreed, what="one leader", timeout_s=timeout_s)

    def follower(self, log: str = "default") -> str:
        leader = self.leader(log)
        return next(node for node in self.running if node != leader)

    def wait_even(self, log: str = "default") -> None:
        """Wait until every running node holds and has committed the same end."""

        def even() -> bool:
            seen = [self.status(node, log) for node in self.running]
            ends = {(status["end_index"], status["committed_index"]) for status in seen}
            return len(ends) == 1 and len(set(next(iter(ends)))) == 1

        eventually(even, what="all nodes hold the same")


def running(folder: Path, nodes: int = 3, **options: Any) -> contextlib.AbstractContextManager[Cluster]:
    """A started and ready cluster, ended at the end."""
    return serving(Cluster(folder, nodes, **options))


@contextlib.contextmanager
def serving(cluster: C) -> Iterator[C]:
    """The cluster, started and ready; ended at the end."""
    try:
        cluster.start()
        cluster.wait_ready()
        yield cluster
    finally:
        cluster.close()
