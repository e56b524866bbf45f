"""The REST listener: many clients that connect at once to a busy node are accepted together."""

import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
import uvicorn
import uvloop
from starlette.types import ASGIApp

from app import serve
from app.node.broker import Broker
from app.serve import ACCEPTED_IN_A_TURN, Front, bind
from app.settings.file import load
from storage.errors import Exhausted
from tests.support.cluster import free_ports

CLIENTS = 8 * ACCEPTED_IN_A_TURN
WAKE_UPS = 5


class Accepted(asyncio.Protocol):
    def __init__(self, made: list[asyncio.Protocol]) -> None:
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.append(self)


def test_a_turn_of_the_loop_accepts_many_connections() -> None:
    async def turns() -> int:
        made: list[asyncio.Protocol] = []
        loop, (port,) = asyncio.get_running_loop(), free_ports(1)
        doors = bind(f"127.0.0.1:{port}")
        servers = [
            await loop.create_server(lambda: Accepted(made), sock=door, backlog=4096) for door in doors
        ]
        clients = [socket.create_connection(("127.0.0.1", port)) for _ in range(CLIENTS)]
        count = 0
        async with asyncio.timeout(20):
            while len(made) < CLIENTS:
                await asyncio.sleep(0)
                count += 1
        for server in servers:
            server.close()
        for each in (*clients, *doors):
            each.close()
        return count

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(turns()) < CLIENTS // 2


def test_an_address_in_use_is_an_error_before_anything_is_opened() -> None:
    (port,) = free_ports(1)
    doors = bind(f"127.0.0.1:{port}")
    doors[0].listen()
    with pytest.raises(OSError, match=f"in use: '127.0.0.1:{port}'"):
        bind(f"127.0.0.1:{port}")
    with pytest.raises(OSError, match=r"no-such-host\.invalid:1"):
        bind("no-such-host.invalid:1")
    for door in doors:
        door.close()


@pytest.mark.parametrize(
    ("error", "advises"),
    [
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), True),
        (Exhausted("n1/node.json", "open", os.strerror(errno.ENFILE)), True),
        (OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE)), False),
    ],
)
def test_a_node_without_file_descriptors_for_its_start_names_the_limit(
    error: Exception, advises: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(_broker: Broker) -> None:
        raise error

    monkeypatch.setattr(serve, "_start", fails)
    file = tmp_path / "cluster.toml"
    ports = free_ports(2)
    file.write_text(
        f'[cluster]\nid = "c"\n[[nodes]]\nid = "n1"\nlisten = "127.0.0.1:{ports[0]}"\n'
        f'peer_listen = "127.0.0.1:{ports[1]}"\ndata = "{tmp_path}/n1"\n'
    )
    reasons: list[str] = []
    code = asyncio.run(serve._run(load(file, "n1"), lambda _: None, reasons.append))
    assert (code, len(reasons)) == (serve.EXIT_FAILED, 1)
    assert reasons[0].startswith(f"node cannot start: {error}")
    assert ("(ulimit -n, LimitNOFILE)" in reasons[0]) == advises


class CountingFront(Front):
    """Records for each time that it wakes up whether it has renewed the header Date."""

    def __init__(self) -> None:
        super().__init__(uvicorn.Config(app="unused", log_config=None), lambda: None)
        self.renewed: list[bool] = []
        self.has_counted = asyncio.Event()

    async def on_tick(self, counter: int) -> bool:
        before = self.server_state.default_headers
        ends = await super().on_tick(counter)
        self.renewed.append(self.server_state.default_headers is not before)
        if len(self.renewed) >= WAKE_UPS:
            self.has_counted.set()
        return ends


def test_a_listener_wakes_up_only_to_renew_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    async def wake_ups() -> list[bool]:
        front = CountingFront()
        running = asyncio.create_task(front.main_loop())
        async with asyncio.timeout(20):
            await front.has_counted.wait()
            front.leave()
            await running
        return front.renewed

    monkeypatch.setattr(serve, "DATE_S", 0.01)
    assert all(asyncio.run(wake_ups()))


def test_a_listener_ends_without_waiting_for_the_next_date(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        front = CountingFront()
        running = asyncio.create_task(front.main_loop())
        await asyncio.sleep(0)
        assert front.renewed == [True]
        front.leave()
        await asyncio.wait_for(running, 20)

    monkeypatch.setattr(serve, "DATE_S", 3_600)
    asyncio.run(run())


class OpeningBroker:
    """The opening of its logs does not end."""

    def __init__(self) -> None:
        self.failed: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self) -> None:
        await asyncio.Event().wait()


@pytest.mark.rule("R-11")
def test_a_node_whose_disk_fails_ends_at_once_although_it_has_logs_to_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end(reason: str) -> None:
        raise SystemExit(reason)

    async def run() -> None:
        broker = OpeningBroker()
        broker.failed.set_result("log default: the disk failed")
        async with asyncio.timeout(20):
            await serve._start(cast(Broker, broker))

    monkeypatch.setattr(serve, "_end_at_once", end)
    with pytest.raises(SystemExit, match="the disk failed"):
        asyncio.run(run())


def test_a_node_without_threads_reports_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(_broker: Broker) -> None:
        raise RuntimeError("can't start new thread")

    rest, peers = free_ports(2)
    config = tmp_path / "one.toml"
    config.write_text(
        f'[cluster]\nid = "c"\n[[nodes]]\nid = "n1"\nlisten = "127.0.0.1:{rest}"\n'
        f'peer_listen = "127.0.0.1:{peers}"\ndata = "{tmp_path / "data"}"\n'
    )
    reasons: list[str] = []
    monkeypatch.setattr(serve, "bind", lambda _address: [])
    monkeypatch.setattr(serve, "_start", refuse)
    code = asyncio.run(serve._run(load(config, "n1"), lambda _: None, reasons.append))
    assert (code, len(reasons)) == (1, 1)
    assert "can't start new thread: raise the limit of processes and threads" in reasons[0]


def test_a_node_does_not_import_pandas_or_parquet() -> None:
    """They take 40 MiB, and the first array of Arrow would import pandas where it is installed."""
    script = (
        "import sys, app.serve, pyarrow as pa; app.serve.keep_pandas_out(); "
        "pa.array([b'value'], pa.binary()); pa.scalar(1); "
        "print([name for name in ('pandas', 'pyarrow.parquet') if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"


@pytest.mark.parametrize(("node_id", "code", "reason"), [("n9", 2, "has no node 'n9'"), ("n1", 1, "in use")])
def test_a_node_that_cannot_start_reports_the_reason_as_json(
    tmp_path: Path, node_id: str, code: int, reason: str
) -> None:
    rest, peers = free_ports(2)
    config = tmp_path / "one.toml"
    config.write_text(
        f"""[cluster]
id = "c"
[[nodes]]
id = "n1"
listen = "127.0.0.1:{rest}"
peer_listen = "127.0.0.1:{peers}"
data = "{tmp_path / "data"}"
"""
    )
    doors = bind(f"127.0.0.1:{rest}")
    doors[0].listen()
    command = [sys.executable, "-m", "app.cli.main", "serve", "--config", str(config), "--node", node_id]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False, timeout=60)
    logged = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    for door in doors:
        door.close()
    assert (done.returncode, done.stdout) == (code, "")
    assert reason in json.loads(done.stderr)["detail"]
    assert (logged.returncode, logged.stdout) == (code, "")
    assert reason in logged.stderr
    assert "logger=app.serve" in logged.stderr


@pytest.mark.parametrize(("grace_ms", "grace_s"), [(250, 0.25), (0, 0.001)])
def test_times_of_a_listener_are_not_rounded_to_seconds(
    tmp_path: Path, grace_ms: int, grace_s: float
) -> None:
    """With 0 s for 900 ms no connection would be kept for a second request."""
    path = tmp_path / "node.toml"
    path.write_text(
        '[cluster]\nid = "c"\n[[nodes]]\nid = "n1"\nlisten = "127.0.0.1:1"\npeer_listen = "127.0.0.1:2"\n'
        f'data = "d"\n[http]\nidle_timeout_ms = 900\nshutdown_grace_ms = {grace_ms}\n'
    )
    settings = load(path, "n1")
    application = serve.Application(cast(ASGIApp, None), None, None)
    config = serve._front_config(settings, application, asyncio.Protocol)
    assert config.timeout_keep_alive == 0.9
    assert config.timeout_graceful_shutdown == grace_s
