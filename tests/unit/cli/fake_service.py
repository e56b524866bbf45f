"""A service with real sockets, scripted answers, and a list of the requests."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit


@dataclass(frozen=True)
class Asked:
    """A request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Scripted:
    """An answer. status 0: the connection is closed without one."""

    status: int
    document: Any = None
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeService:
    """One node. `answer` decides; `asked` keeps every request, in order.

    others: URLs of other nodes, which it names to a client that asks for the cluster; what asks for it is not
    in `asked`.
    """

    url: str
    answer: Callable[[Asked], Scripted]
    others: Sequence[str] = ()
    asked: list[Asked] = field(default_factory=list)

    def cluster(self) -> Scripted:
        nodes = [{"url": url} for url in (self.url, *self.others)]
        return Scripted(200, {"nodes": nodes}, {"Connection": "close"})

    def appends(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.method == "POST"]


@contextmanager
def fake_service(
    answer: Callable[[Asked], Scripted],
    others: Sequence[str] = (),
    certificate: tuple[Path, Path] | None = None,
) -> Iterator[FakeService]:
    """A node on a free port for the length of a `with`. certificate: with its key; None: without TLS."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            place = urlsplit(self.path)
            query = {name: values[-1] for name, values in parse_qs(place.query).items()}
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, place.path, query, headers, body)
            discovers = place.path == "/v1/cluster"
            if not discovers:
                service.asked.append(asked)
            reported = service.cluster() if discovers and service.others else service.answer(asked)
            if reported.status == 0:
                self.close_connection = True
                return
            data = json.dumps(reported.document).encode()
            self.send_response(reported.status)
            for name, value in {**reported.headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

        def log_message(self, *_: object) -> None:
            """Tests read `asked`; nothing is printed."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    scheme = "http" if certificate is None else "https"
    service = FakeService(f"{scheme}://127.0.0.1:{server.server_address[1]}", answer, others)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def committed(first_index: int = 0, count: int = 1, term: int = 1, replayed: bool = False) -> dict[str, Any]:
    """An append's answer (docs/api.md §2)."""
    return {
        "log": "default",
        "first_index": first_index,
        "last_index": first_index + count - 1,
        "count": count,
        "term": term,
        "first_offset": 0,
        "next_offset": 128,
        "timestamp": 1_730_000_000_000,
        "committed_index": first_index + count - 1,
        "next_index": first_index + count,
        "leader": "n1",
        "acks": "quorum",
        "durability": "fsync",
        "replayed": replayed,
    }


def problem(code: str, status: int, outcome: str, *, retryable: bool, **more: Any) -> Scripted:
    """A refusal (docs/api.md §2)."""
    document = {"code": code, "status": status, "title": code, "detail": f"{code} it is", "outcome": outcome}
    return Scripted(status, {**document, "retryable": retryable, **more})
