"""A node in this process: the broker, with uvicorn as its HTTP server.

    python -m app.serve --config conf/three_nodes.toml --node n1

Exit codes: 0 a clean stop (SIGTERM, SIGINT), 2 an invalid configuration, 1 any other failure: a folder that
is in use or damaged, an address in use, or a failed disk (R-11: at once).
"""

import asyncio
import contextlib
import errno
import gc
import importlib.abc
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final, cast

import click
import pyarrow as pa
import uvicorn
import uvloop

from app.api.access.hosts import KnownHosts
from app.api.access.tokens import Tokens
from app.errors import ConfigError
from app.listener import lost_connections
from app.listener.connection import Connection
from app.listener.listener import Listener
from app.listener.tls_handshakes import TlsHandshakes
from app.main import Application, build_app
from app.node.broker import Broker
from app.node.descriptors import DESCRIPTORS_MAX, descriptors_allowed, tls_room_size
from app.node.links.credentials import load_link_security, readable
from app.pauses import rest_s
from app.settings.addresses import split_address
from app.settings.file import load
from app.settings.model import LogFormat, SecuritySettings, Settings
from app.settings.private_files import check_private
from app.telemetry import Meter, configure_logging
from storage.errors import StorageError

logger = logging.getLogger(__name__)

ACCEPTED_IN_A_TURN: Final = 16  # client connections; each idle descriptor costs one call of accept for each
DATE_S: Final = 1.0  # between two updates of the header Date
EXIT_CLEAN: Final = 0
EXIT_FAILED: Final = 1
EXIT_CONFIG: Final = 2


def serve(
    config_path: str | Path,
    node_id: str,
    ready: Callable[[Settings], None] = lambda _: None,
    refused: Callable[[str], None] = logger.error,
) -> int:
    """Run the node `node_id` of a configuration file until a signal or a failure; return the exit code.

    ready: called once REST is served. refused: called with the reason if the node cannot start.
    """
    configure_logging()
    try:
        settings = load(config_path, node_id)
        configure_logging(settings.logging.level.upper(), as_json=settings.logging.format is LogFormat.JSON)
        check_security(settings.security)
    except ConfigError as error:
        refused(f"configuration refused: {error}")
        return EXIT_CONFIG
    keep_pandas_out()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_run(settings, ready, refused))


def new_event_loop() -> asyncio.AbstractEventLoop:
    loop = uvloop.new_event_loop()
    loop.set_exception_handler(lost_connections.report)
    return loop


class _WithoutPandas(importlib.abc.MetaPathFinder):
    """Finder of modules that hides pandas, also where it is installed."""

    def find_spec(self, fullname: str, path: object, target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("a node does not use pandas", name=fullname)


def keep_pandas_out() -> None:
    """Make Arrow assume that pandas is not installed. It checks once, when it creates its first array.

    A node does not use pandas, which takes 40 MiB and stops the event loop for a third of a second.
    """
    finder = _WithoutPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(finder)


def check_security(security: SecuritySettings) -> None:
    """Raise ConfigError for a file that cannot be used, before a peer or a client sees this node."""
    Tokens.check(security.tokens_file)  # build_app loads it, and warns
    load_link_security(security)
    _tls_of_clients(security)
    authority = security.tls_ca
    if authority is not None:
        with readable(f"tls_ca {authority}"):
            ssl.create_default_context(cafile=authority)


def _tls_of_clients(security: SecuritySettings) -> ssl.SSLContext | None:
    """Return the TLS of the REST listener; None if it has none. Raises ConfigError."""
    certificate, key = security.tls_certificate, security.tls_key
    if certificate is None or key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    with readable(f"tls_certificate {certificate} and tls_key {key}"):
        context.load_cert_chain(certificate, key, password="")
        check_private("tls_key", key)
    return context


class Front(uvicorn.Server):
    """uvicorn without its own signal handlers: the node decides when it stops. Reports when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Begin to shut down."""
        self.should_exit = True
        self._leaving.set()

    async def main_loop(self) -> None:
        """Renew the header Date each second until `leave`. uvicorn's own loop also checks ten times a
        second whether it should end, which wakes an idle node."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest_s(DATE_S)):
                    await self._leaving.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _run(settings: Settings, ready: Callable[[Settings], None], refused: Callable[[str], None]) -> int:
    _raise_descriptor_limit()
    broker = Broker(settings)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        sockets = bind(settings.node.listen)
        await _start(broker)
    except ConfigError as error:
        refused(f"configuration refused: {error}")
        return EXIT_CONFIG
    except (StorageError, OSError) as error:
        refused(f"node cannot start: {error}{_files_advice(error)}")
        return EXIT_FAILED
    except RuntimeError as error:
        if "thread" not in str(error):
            raise
        refused(f"node cannot start: {error}: raise the limit of processes and threads (ulimit -u, TasksMax)")
        return EXIT_FAILED
    application = build_app(settings, broker)
    listener = Listener(
        settings.http,
        _connections_allowed(settings),
        broker.meter,
        application.lane,
        application.polls,
        KnownHosts.of(settings),
    )
    broker.tasks.keep("client-limits", listener.end_late_requests)
    protocol = _protocol_of(settings, listener, broker.meter)
    front = Front(_front_config(settings, application, protocol), lambda: ready(settings))
    _calm_collector()
    serving = loop.create_task(front.serve(sockets), name="front")
    stopping = loop.create_task(stop.wait(), name="signal")
    await asyncio.wait((serving, stopping, broker.failed), return_when=asyncio.FIRST_COMPLETED)
    if broker.failed.done():
        _end_at_once(broker.failed.result())
    stopping.cancel()
    if serving.done():
        logger.error("the HTTP server stopped unexpectedly")
        return EXIT_FAILED
    logger.info("stopping", extra={"node": settings.node.id})
    broker.begin_stop()
    front.leave()
    await asyncio.wait((serving, broker.failed), return_when=asyncio.FIRST_COMPLETED)
    if broker.failed.done():
        _end_at_once(broker.failed.result())
    try:
        await broker.stop()
    except (StorageError, TimeoutError) as error:
        logger.error("no clean stop: %s", error or "it took too long")
        return EXIT_FAILED
    return EXIT_CLEAN


async def _start(broker: Broker) -> None:
    """Start the node. It takes part in its first logs while it opens the others: a failure of one ends the
    process at once (R-11). Raises as Broker.start."""
    starting = asyncio.get_running_loop().create_task(broker.start(), name="start")
    await asyncio.wait((starting, broker.failed), return_when=asyncio.FIRST_COMPLETED)
    if broker.failed.done():
        _end_at_once(broker.failed.result())
    await starting


def _files_advice(error: Exception) -> str:
    """Return what to do about a start that has failed for want of file descriptors, else nothing."""
    if not any(os.strerror(number) in str(error) for number in (errno.EMFILE, errno.ENFILE)):
        return ""
    return f": raise the limit of open files (ulimit -n, LimitNOFILE) of {descriptors_allowed()}"


def _raise_descriptor_limit() -> None:
    """Allow as many descriptors as the system lets this process have, at most DESCRIPTORS_MAX.

    Each log has files open and each of its slaves a connection: hundreds of logs need more than the soft
    limit of 1 024 that most systems start with.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        logger.warning("the limit of open files remains %d: %s", soft, error)


def _connections_allowed(settings: Settings) -> int:
    """Limit of client connections: descriptors must remain for the logs' files and for other nodes."""
    return min(settings.http.max_connections, descriptors_allowed() // 4)


def _calm_collector() -> None:
    """Freeze long-lived objects (modules, routes, schemas) for the cycle collector.

    Hundreds of thousands of such objects made every full collection a pause of a tenth of a second, in which
    no heartbeat is sent. With many appends in flight the default thresholds collect permanently.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def bind(address: str) -> list[socket.socket]:
    """Bind the REST address before anything is opened. Raises OSError, which names it, when that fails.

    Return ACCEPTED_IN_A_TURN descriptors of one socket. The event loop accepts one connection of each in a
    turn: with one descriptor, hundreds of clients that connect at once to a busy node wait for hundreds of
    turns, and those that are connected already get all of its time.
    """
    host, port = split_address(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, address) from error
    return [listening, *(listening.dup() for _ in range(ACCEPTED_IN_A_TURN - 1))]


def _protocol_of(settings: Settings, listener: Listener, meter: Meter) -> Callable[..., asyncio.Protocol]:
    """Return the factory of a connection's protocol from uvicorn's arguments; with TLS if it is set."""
    context, timeout_ms = _tls_of_clients(settings.security), settings.http.head_timeout_ms
    protocol = partial(Connection, listener)
    if context is None:
        return protocol
    handshakes = TlsHandshakes(context, tls_room_size(), timeout_ms, lambda: listener.is_full, meter)
    return lambda **given: handshakes.accept(partial(protocol, **given))


def _front_config(
    settings: Settings, application: Application, protocol: Callable[..., asyncio.Protocol]
) -> uvicorn.Config:
    return uvicorn.Config(
        application.asgi,
        http=cast(type[asyncio.Protocol], protocol),  # uvicorn only calls it
        loop="uvloop",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=4096,
        # uvicorn's types want whole seconds; the event loop takes parts of them
        timeout_keep_alive=settings.http.idle_timeout_ms / 1000,  # type: ignore[arg-type]
        # with 0 uvicorn would cancel, and report as an error, also a stop without requests
        timeout_graceful_shutdown=max(1, settings.http.shutdown_grace_ms) / 1000,  # type: ignore[arg-type]
    )


def _end_at_once(reason: str) -> None:
    """Crash-only: nothing is flushed, so nothing is written after the failed write (R-11)."""
    logger.critical("node stops at once: %s", reason)
    logging.shutdown()
    os._exit(EXIT_FAILED)


@click.command()
@click.option(
    "--config",
    required=True,
    type=click.Path(path_type=Path),
    help="Configuration file of the cluster (TOML; see conf/).",
)
@click.option("--node", required=True, help="Id of the node that this process runs, for example n1.")
def main(config: Path, node: str) -> None:
    """Run one node in the foreground until SIGTERM.

    Exit codes: 0 clean stop, 2 invalid configuration, 1 any other error.
    """
    sys.exit(serve(config, node))


if __name__ == "__main__":
    main()
