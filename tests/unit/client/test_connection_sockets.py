"""The sockets of a client: a slow network, and a process that forks."""

import asyncio
import json
import os
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from app.client import (
    AsyncCommitlogClient,
    ClientError,
    CommitlogClient,
    ConditionFailed,
    Consumer,
    RecordProducer,
)
from app.client.connection import ClusterConnection
from storage.units import KIB, MIB
from tests.unit.cli.fake_service import Asked, Scripted, fake_service, problem

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server whose connections `serve` handles, each in a thread."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * KIB)

        def accept() -> None:
            while True:
                try:
                    taken, _ = server.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(taken,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def head_of(taken: socket.socket) -> bytes:
    found = b""
    while b"\r\n\r\n" not in found:
        if not (byte := taken.recv(1)):
            return b""  # the client has closed the connection
        found += byte
    return found


def test_a_large_body_may_take_longer_than_the_connection_to_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a network that carries nothing for that time is an error."""
    monkeypatch.setattr("app.client.connection._CONNECT_TIMEOUT_S", 0.5)
    body = os.urandom(8 * MIB)
    received = []

    def serve(taken: socket.socket) -> None:
        with taken:
            head_of(taken)
            found = bytearray()
            while len(found) < len(body):
                found += taken.recv(256 * KIB)
                time.sleep(0.03)  # a slow network
            received.append(bytes(found))
            taken.sendall(ANSWER)

    with listener(serve) as url:
        connection = ClusterConnection([url], give_up_s=0.0, learns_nodes=False)
        assert connection.call("POST", "/v1/logs/a/records", body=body).status == 200
        connection.close()
    assert received == [body]


def in_child(act: Callable[[], str]) -> str:
    """Return what a forked process returns."""
    source, target = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks in a process with threads
        child = os.fork()
    if child == 0:
        try:
            os.write(target, act().encode())
        finally:
            os._exit(0)
    os.close(target)
    with os.fdopen(source, "rb") as file:
        found = file.read().decode()
    os.waitpid(child, 0)
    return found


def test_a_forked_process_has_connections_of_its_own() -> None:
    """On a shared one, a process could read the answer to the append of the other."""
    peers: list[int] = []

    def serve(taken: socket.socket) -> None:
        with taken:
            while True:
                if not head_of(taken):
                    return
                peers.append(taken.getpeername()[1])
                taken.sendall(ANSWER)

    with listener(serve) as url:
        connection = ClusterConnection([url], give_up_s=0.0, learns_nodes=False)

        def call() -> str:
            return str(connection.call("GET", "/v1/cluster").status)

        assert [call(), in_child(call), call()] == ["200", "200", "200"]
        connection.close()
    assert peers[0] == peers[2] != peers[1]


def test_a_producer_of_another_process_refuses_records() -> None:
    """Its threads do not exist after a fork: the record would never be sent, and a flush would not return."""
    producer = RecordProducer(CommitlogClient("http://127.0.0.1:1", give_up_s=0.0))

    def attempt() -> str:
        errors = []
        for call in (lambda: producer.send("v"), lambda: producer.flush(0.1), producer.close):
            try:
                call()
            except (RuntimeError, ClientError, TimeoutError) as error:
                errors.append(str(error))
        return "; ".join(errors)

    reported = in_child(attempt)
    producer.close()
    text = "the producer belongs to another process; create one after the fork"
    assert reported == f"{text}; {text}"


def test_an_asyncio_client_of_another_process_has_threads_of_its_own() -> None:
    """The idle threads of the first process do not exist after a fork: a call would wait for them."""
    with fake_service(lambda asked: Scripted(200, {"next_index": 7})) as service:
        client = AsyncCommitlogClient(service.url, give_up_s=0.0)

        async def call() -> str:
            return str((await asyncio.wait_for(client.tail(), 2.0))["next_index"])

        def in_new_loop() -> str:
            try:
                return asyncio.run(call())
            except TimeoutError:
                return "no answer"

        assert [in_new_loop(), in_child(in_new_loop), in_new_loop()] == ["7", "7", "7"]
        asyncio.run(client.close())


def test_a_consumer_is_another_reader_after_a_fork() -> None:
    """Two processes that move one cursor read the same records: one of them is refused."""
    kept: list[dict[str, object]] = []  # every position of the cursor; their number is its version

    def keep(asked: Asked) -> Scripted:
        if not asked.path.endswith("/cursors/etl"):
            return Scripted(404, {"code": "not-found"})
        if asked.method == "PUT":
            if kept and asked.headers.get("if-match") != f'"{len(kept)}"':
                return problem("cursor-moved", 412, "not_applied", retryable=False)
            kept.append({"name": "etl", **json.loads(asked.body)})
        elif not kept:
            return problem("cursor-not-found", 404, "not_applied", retryable=False)
        return Scripted(200, kept[-1], {"ETag": f'"{len(kept)}"'})

    with fake_service(keep) as service:
        consumer = Consumer(CommitlogClient(service.url, give_up_s=0.0), "etl", start=0)

        def commit(index: int) -> str:
            try:
                consumer.commit(index)
            except ConditionFailed as error:
                return error.code
            return "moved"

        assert [in_child(lambda: commit(20)), commit(10)] == ["moved", "cursor-moved"]
        assert [position["index"] for position in kept] == [0, 20]


def test_threads_that_call_at_the_same_time_keep_their_connections(caplog: pytest.LogCaptureFixture) -> None:
    peers: set[int] = set()
    all_call = threading.Barrier(32)  # as many as the calls of an asyncio client

    def serve(taken: socket.socket) -> None:
        with taken:
            while head_of(taken):
                peers.add(taken.getpeername()[1])
                all_call.wait(30)
                taken.sendall(ANSWER)

    with listener(serve) as url:
        connection = ClusterConnection([url], give_up_s=0.0, learns_nodes=False)
        for _ in range(2):
            callers = [threading.Thread(target=connection.call, args=("GET", "/v1/logs")) for _ in range(32)]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
        connection.close()
    assert len(peers) == 32
    assert caplog.messages == []
