"""Answers that are not whole, or not the answer of the call, from a server that is not a node."""

import gzip
import json
import socket
import threading
from contextlib import AbstractContextManager, suppress

import pytest

from app.client import CommitlogClient, InvalidAnswer, NoAnswer, Problem
from app.client.connection import ClusterConnection
from tests.unit.client.test_connection_sockets import head_of, listener

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def served(answer: bytes) -> AbstractContextManager[str]:
    """A server that gives each request the same answer, and ends its connection."""

    def serve(taken: socket.socket) -> None:
        with taken:
            if head_of(taken):
                taken.sendall(answer)

    return listener(serve)


@pytest.mark.parametrize("size", [b"1000000000000000", b"9" * 20, b"9" * 5_000])
def test_a_size_that_no_memory_has_is_an_error_of_the_client(size: bytes) -> None:
    with served(b"HTTP/1.1 200 OK\r\nContent-Length: " + size + b"\r\n\r\n{}") as url:
        client = CommitlogClient(url, give_up_s=0.0)
        with pytest.raises(InvalidAnswer, match="announced a response of") as caught:
            client.append(["x"])
        assert caught.value.outcome == "unknown"
        client.close()


@pytest.mark.parametrize("size", [b"F" * 15, b"F" * 30, b"-5"])
def test_a_chunk_of_an_impossible_size_is_an_error_of_the_client(size: bytes) -> None:
    with (
        served(CHUNKED + size + b"\r\n{}") as url,
        CommitlogClient(url, give_up_s=0.0) as client,
        pytest.raises(NoAnswer),
    ):
        client.tail()


def test_a_chunked_answer_is_read_whole() -> None:
    chunks = b'3\r\n{"a\r\n8\r\n": 12345\r\n1\r\n}\r\n0\r\n\r\n'
    with served(CHUNKED + chunks) as url:
        connection = ClusterConnection([url], give_up_s=0.0, learns_nodes=False)
        assert connection.call("GET", "/v1/cluster").json() == {"a": 12345}
        connection.close()


@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_answer_that_a_proxy_has_compressed_is_unpacked(is_chunked: bool) -> None:
    body = json.dumps({"a": list(range(1_000))}).encode()
    packed = gzip.compress(body)
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n"
    if is_chunked:
        answer = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(packed), packed)
    else:
        answer = head + b"Content-Length: %d\r\n\r\n" % len(packed) + packed
    with served(answer) as url:
        connection = ClusterConnection([url], give_up_s=0.0, learns_nodes=False)
        assert connection.call("GET", "/v1/logs/a/records").data == body
        connection.close()


def test_no_call_gets_the_answer_of_an_earlier_one_after_an_interim_response() -> None:
    """A proxy may send 1xx before the answer; the connection is not used for another call then."""

    called = threading.Event()

    def serve(taken: socket.socket) -> None:
        with taken, suppress(OSError):  # the client has closed it
            while head := head_of(taken):
                body = json.dumps({"path": head.split()[1].decode()}).encode()
                taken.sendall(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n")
                called.wait(30)  # the next call does not find the answer in its socket yet
                taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    with listener(serve) as url:
        connection = ClusterConnection([url], give_up_s=0.0, learns_nodes=False)
        for path in ("/a", "/b"):
            with pytest.raises(InvalidAnswer, match="interim response"):
                connection.once("GET", url, path)
            called.set()
        connection.close()


def test_a_list_of_nodes_that_is_too_deep_does_not_end_a_call() -> None:
    """The call has succeeded: what it would learn beside is left."""
    body = b"[" * 100_000
    with served(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body) as url:
        connection = ClusterConnection([url], give_up_s=0.0)
        assert connection.call("GET", "/v1/logs/a/tail").status == 200
        connection.close()


def test_a_call_is_repeated_wherever_its_answer_was_cut() -> None:
    """Python's parser takes the end of the connection for the end of the head: a part of it is no answer,
    and a part of its leader is no address."""
    body = b'{"a": 1}'
    whole = b"HTTP/1.1 200 OK\r\nServer: x\r\nCommitlog-Leader: http://127.0.0.1:65000\r\n"
    whole += b"Content-Length: %d\r\nConnection: close\r\n\r\n" % len(body) + body
    sizes = iter([each for cut in range(len(whole)) for each in (cut, len(whole))])

    def serve(taken: socket.socket) -> None:
        with taken:
            if head_of(taken):
                taken.sendall(whole[: next(sizes)])

    with listener(serve) as url:
        for _ in range(len(whole)):
            connection = ClusterConnection([url], learns_nodes=False, sleep=lambda _: None)
            answer = connection.call("POST", "/v1/logs/a/records", body=b"{}")
            assert (answer.data, connection.leader) == (body, "http://127.0.0.1:65000")
            connection.close()
    assert next(sizes, None) is None


@pytest.mark.parametrize("head", [b"HTTP/1.0 %s\r\n", b"HTTP/1.1 %s\r\nConnection: close\r\n"])
@pytest.mark.parametrize(
    ("status", "message"),
    [
        (b"403 Forbidden", "HTTP status 403"),
        (b"413 Content Too Large", "HTTP status 413"),
        (b"301 Moved Permanently\r\nLocation: https://n1", "redirects to https://n1"),
    ],
)
def test_a_refusal_of_a_proxy_without_a_body_is_final(head: bytes, status: bytes, message: str) -> None:
    """Its end is that of the connection: nothing was cut, and a repeat gets the same answer."""
    with served(head % status + b"\r\n") as url:
        connection = ClusterConnection([url], give_up_s=0.0, learns_nodes=False)
        with pytest.raises(Problem, match=message) as caught:
            connection.call("POST", "/v1/logs/a/cursors")
        assert (caught.value.status, caught.value.outcome) == (int(status[:3]), "not_applied")
        connection.close()


def test_a_size_that_is_named_twice_is_one() -> None:
    body = b'{"a": 1}'
    sizes = b"Content-Length: %08d\r\nContent-Length: %d\r\n" % (len(body), len(body))
    with served(b"HTTP/1.1 200 OK\r\n" + sizes + b"\r\n" + body) as url:
        connection = ClusterConnection([url], give_up_s=0.0, learns_nodes=False)
        assert connection.call("GET", "/v1/logs/a/tail").data == body
        connection.close()


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_an_answer_without_a_body_is_whole_and_keeps_its_connection(status: bytes) -> None:
    connections = []

    def serve(taken: socket.socket) -> None:
        connections.append(taken)
        with taken:
            while head_of(taken):
                taken.sendall(b"HTTP/1.1 " + status + b"\r\n\r\n")

    with listener(serve) as url:
        connection = ClusterConnection([url], give_up_s=0.0, learns_nodes=False)
        for _ in range(2):
            assert connection.call("GET", "/v1/logs/a/schemas").status == int(status[:3])
        connection.close()
    assert len(connections) == 1
