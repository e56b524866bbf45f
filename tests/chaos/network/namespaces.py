"""Each node in a network namespace of its own, the nodes behind one switch in user space (switch.py).

The process that opens this network must be in namespaces of its own (`isolation()` returns the command):
network, mounts and processes. All that is made here ends with that process, however it ends.
"""

import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from tests.chaos.network.switch import mac_of
from tests.fault.links import Addresses, Link

REST_PORT, PEER_PORT = 8101, 9101
NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
_PROBE = "ip link add probe0 type veth peer name probe1 && mount -t tmpfs none /mnt"
_TIMEOUT_S = 10


def isolation() -> list[str]:
    """The words before a command that run it in new namespaces; empty: this machine does not allow it."""
    if not all(shutil.which(tool) for tool in ("unshare", "nsenter", "ip", "mount")):
        return []
    for privilege in ([], ["--user", "--map-root-user"]):
        prefix = ["unshare", *privilege, *NAMESPACES]
        try:
            probed = subprocess.run([*prefix, "sh", "-c", _PROBE], capture_output=True, timeout=_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if probed.returncode == 0:
            return prefix
    return []


def raise_loopback() -> None:
    """A new network namespace has 127.0.0.1 only after this."""
    _run("ip link set lo up")


class SwitchedNetwork:
    """tests.fault.links.Network . Peers and forwarded calls pass the switch, clients of the test do not.

    Node k is 198.18.0.k to the others, and 198.19.k.2 to the clients of the test; those that follow the
    cluster's own list of its nodes reach it by the first name too, past the switch.
    """

    name = "namespaces and a switch"

    def __init__(self, ids: Sequence[str], seed: int) -> None:
        self.ids = ids
        self._seed = seed
        self._numbers = {node: number for number, node in enumerate(ids, start=1)}
        self._homes: dict[str, subprocess.Popen[bytes]] = {}
        self._switch: subprocess.Popen[str] | None = None

    async def open(self) -> None:
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        for node in self.ids:
            self._homes[node] = subprocess.Popen(["unshare", "--net", "sleep", "infinity"])
        for node, home in self._homes.items():
            _wait_for_own_network(home.pid)
            self._connect(node, home.pid)
        command = [sys.executable, "-m", "tests.chaos.network.switch", str(self._seed), *self.ids]
        self._switch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._expect_ok()

    def _connect(self, node: str, home: int) -> None:
        number = self._numbers[node]
        _run(f"ip link add port-{node} type veth peer name peers netns {home}")
        _run(f"ip link add client-{node} type veth peer name clients netns {home}")
        _run(f"ip link set port-{node} up")
        _run(f"ip addr add 198.19.{number}.1/30 dev client-{node}")
        _run(f"ip link set client-{node} up")
        _run(f"ip route add 198.18.0.{number}/32 via 198.19.{number}.2 dev client-{node}")
        inside = [
            "ip link set lo up",
            f"ip link set peers address {mac_of(number)} up",
            f"ip addr add 198.18.0.{number}/24 dev peers",
            f"ip addr add 198.19.{number}.2/30 dev clients",
            "ip link set clients up",
        ]
        inside += [
            f"ip neigh replace 198.18.0.{other} lladdr {mac_of(other)} dev peers nud permanent"
            for other in self._numbers.values()
            if other != number
        ]
        for line in inside:
            _run(f"nsenter --target {home} --net {line}")

    async def close(self) -> None:
        if self._switch is not None:
            assert self._switch.stdin is not None
            self._switch.stdin.close()
            await asyncio.to_thread(self._switch.wait, _TIMEOUT_S)
        for node, home in self._homes.items():
            for side in ("port", "client"):
                _run(f"ip link delete {side}-{node}")
            home.kill()
            await asyncio.to_thread(home.wait, _TIMEOUT_S)

    def addresses(self, viewer: str, node: str) -> Addresses:
        host = f"198.18.0.{self._numbers[node]}"
        peer = f"{host}:{PEER_PORT}"
        return Addresses(f"0.0.0.0:{REST_PORT}", f"http://{host}:{REST_PORT}", peer, peer)

    def client_url(self, node: str) -> str:
        return f"http://198.19.{self._numbers[node]}.2:{REST_PORT}"

    def inside(self, node: str, command: Sequence[str]) -> list[str]:
        return ["nsenter", "--target", str(self._homes[node].pid), "--net", *command]

    def set(self, links: Mapping[tuple[str, str], Link]) -> None:
        assert self._switch is not None
        assert self._switch.stdin is not None
        settings = {f"{source} {target}": asdict(link) for (source, target), link in links.items()}
        self._switch.stdin.write(json.dumps(settings) + "\n")
        self._switch.stdin.flush()
        self._expect_ok()

    def _expect_ok(self) -> None:
        assert self._switch is not None
        assert self._switch.stdout is not None
        assert self._switch.stdout.readline() == "ok\n", "the switch has ended"


def _run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, timeout=_TIMEOUT_S)
    assert done.returncode == 0, f"{command}: {done.stderr}"


def _wait_for_own_network(pid: int) -> None:
    """Wait until the process has left this one's network namespace."""
    own = Path("/proc/self/ns/net").readlink()
    for _ in range(_TIMEOUT_S * 100):
        if Path(f"/proc/{pid}/ns/net").readlink() != own:
            return
        time.sleep(0.01)
    raise AssertionError("unshare made no network namespace")
