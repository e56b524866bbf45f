"""Kill -9, restart, forwarding, and clients that come, go and hurry: on real processes."""

import concurrent.futures
import json
import random
import socket
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.test_append_routes import refused
from tests.support.cluster import Cluster, eventually, running

RECORDS = "/v1/logs/default/records"


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster that a test may break."""
    with running(tmp_path, 3) as cluster:
        yield cluster


@pytest.mark.rule("R-07", "D-28")
def test_the_leader_is_killed_and_everything_goes_on(own: Cluster) -> None:
    leader = own.leader()
    kept = [f"before-{number}" for number in range(20)]
    for value in kept:
        assert own.append(leader, value).status_code == 200
    key = {"Idempotency-Key": uuid.uuid4().hex}
    first = own.append(leader, "keyed", headers=key).json()
    own.kill(leader)
    started = time.monotonic()
    survivor = own.running[0]
    # The survivor forwards, waits for the election, and answers within the request's own time.
    answer = own.append(survivor, "after", params={"timeout_ms": 20_000}, headers={"Idempotency-Key": "after"})
    assert answer.status_code == 200, answer.text
    assert time.monotonic() - started < 15
    assert answer.json()["term"] > first["term"]
    again = own.append(own.running[1], "keyed", headers=key).json()
    assert (again["replayed"], again["first_index"], again["timestamp"]) == (
        True,
        first["first_index"],
        first["timestamp"],
    )
    for node in own.running:
        assert own.values(node) == [*kept, "keyed", "after"]

    own.start(leader)
    own.wait_ready(leader)
    own.wait_even()
    logs = [own.get(node, RECORDS, params={"include": "control"}).json()["records"] for node in own.ids]
    assert logs[0] == logs[1] == logs[2]
    epochs = [own.get(node, "/v1/logs/default/epochs").text for node in own.ids]
    assert epochs[0] == epochs[1] == epochs[2]
    assert len(json.loads(epochs[0])["epochs"]) >= 2
    files = [(own.folder / node / "logs" / "default" / "epochs").read_bytes() for node in own.ids]
    assert files[0] == files[1] == files[2]


@pytest.mark.rule("R-11")
def test_all_nodes_are_killed_and_nothing_is_lost(own: Cluster) -> None:
    values = [f"v{number}" for number in range(50)]
    for value in values:
        assert own.append(own.ids[0], value).status_code == 200
    for node in own.ids:
        own.kill(node)
    own.start()
    own.wait_ready()
    for node in own.ids:
        assert own.values(node) == values


def test_a_clean_stop_ends_with_zero_and_keeps_all(own: Cluster) -> None:
    assert own.append(own.ids[0], "kept").status_code == 200
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        leader = own.leader()
        poll = pool.submit(own.get, leader, RECORDS, params={"from": "latest", "wait_ms": 30_000})
        eventually(lambda: own.status(leader), what="the poll is under way")
        started = time.monotonic()
        assert own.stop(leader) == 0
        assert time.monotonic() - started < 10
        assert poll.result(10).status_code == 200
    for node in list(own.running):
        assert own.stop(node) == 0
    own.start()
    own.wait_ready()
    assert own.values(own.ids[2]) == ["kept"]
    events = own.get(leader, "/v1/logs/default/events").json()["events"]
    kinds = [event["kind"] for event in events]
    assert (kinds.count("start"), kinds.count("stop")) == (2, 1)
    assert "critical" not in own.lines(leader)


@pytest.mark.rule("R-04")
def test_without_a_majority_nothing_is_acknowledged(own: Cluster) -> None:
    leader = own.leader()
    for node in own.ids:
        if node != leader:
            own.kill(node)
    unknown = own.append(leader, "lonely", params={"timeout_ms": 300})
    assert unknown.status_code in (503, 504)
    problem = unknown.json()
    assert problem["outcome"] in ("unknown", "not_applied")
    assert problem["retryable"] is True

    def refuses() -> bool:
        return own.append(leader, "refused", params={"timeout_ms": 200}).json()["code"] == "no-leader"

    eventually(refuses, what="the leader has stood down")
    answer = own.append(leader, "refused", params={"timeout_ms": 200})
    problem = answer.json()
    assert (answer.status_code, problem["outcome"]) == (503, "not_applied")
    assert int(answer.headers["retry-after"]) >= 1
    stale = own.get(leader, RECORDS)
    assert (stale.status_code, stale.json()["code"]) == (503, "read-index-unavailable")
    assert own.get(leader, RECORDS, params={"consistency": "committed"}).status_code == 200
    assert own.get(leader, "/readyz").status_code == 503
    assert own.get(leader, "/healthz").status_code == 200


def test_a_forward_that_is_lost_is_unknown(own: Cluster) -> None:
    """The leader hangs with the append in its hands: who forwarded it cannot say what became of it."""
    leader, follower = own.leader(), own.follower()
    assert own.append(follower, "warm").status_code == 200
    own.pause(leader)
    try:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(own.append, follower, "hanging", params={"timeout_ms": 500})
            answer = waiting.result(20)
    finally:
        own.resume(leader)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (504, "quorum-timeout")
    assert (problem["first_index"], problem["outcome"], problem["retryable"]) == (None, "unknown", True)


@pytest.mark.rule("R-07")
def test_each_node_is_killed_in_turn_under_load(own: Cluster) -> None:
    """Every acknowledged value is there once, and only once, whatever dies."""
    acknowledged: list[str] = []
    stop = False

    def client(number: int) -> None:
        chance = random.Random(number)
        count = 0
        with httpx.Client(timeout=30) as http:
            while not stop:
                value = f"{number}-{count}"
                count += 1
                while not stop:  # with a key every refusal and every lost answer may be tried again
                    node = chance.choice(own.ids)
                    try:
                        answer = http.post(
                            own.url(node) + RECORDS,
                            content=value,
                            headers={"Content-Type": "application/octet-stream", "Idempotency-Key": value},
                        )
                    except httpx.TransportError:
                        continue
                    assert answer.status_code in (200, 409, 421, 503, 504), answer.text
                    if answer.status_code == 200:
                        acknowledged.append(value)
                        break
                    assert answer.json()["retryable"] is True

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        clients = [pool.submit(client, number) for number in range(6)]
        try:
            for node in own.ids:
                count = len(acknowledged)
                eventually(lambda count=count: len(acknowledged) > count + 50, what="appends go on")
                own.kill(node)
                count = len(acknowledged)
                eventually(lambda count=count: len(acknowledged) > count + 50, what="appends go on")
                own.start(node)
                own.wait_ready(node)
        finally:
            stop = True
        for each in clients:
            each.result(30)
    own.leader()
    own.wait_even()
    for node in own.ids:
        values = own.values(node, limit=10_000)
        assert len(values) == len(set(values))
        assert set(acknowledged) <= set(values)


def test_many_clients_at_once(cluster: Cluster) -> None:
    before = len(cluster.values(cluster.ids[0], log="quiet", limit=100_000))
    expected = [f"{client}-{number}" for client in range(16) for number in range(25)]

    def client(number: int) -> None:
        with httpx.Client(timeout=30) as http:
            for count in range(25):
                answer = http.post(
                    cluster.url(cluster.ids[number % 3]) + "/v1/logs/quiet/records",
                    content=f"{number}-{count}",
                    headers={"Content-Type": "application/octet-stream"},
                )
                assert answer.status_code == 200, answer.text

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(client, range(16)))
    found = cluster.values(cluster.ids[0], log="quiet", limit=100_000)[before:]
    assert sorted(found) == sorted(expected)
    for number in range(16):  # each client's own order
        mine = [value for value in found if value.startswith(f"{number}-")]
        assert mine == [f"{number}-{count}" for count in range(25)]


def test_clients_that_disconnect_disturb_nobody(cluster: Cluster) -> None:
    """DESIGN §4: an answer to a client that has gone must never reach replication."""
    leader = cluster.leader()
    term = cluster.status(leader)["term"]
    address = ("127.0.0.1", cluster.rest_ports[leader])
    whole = (
        b"POST /v1/logs/default/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
        b"Content-Length: 4\r\n\r\ngone"
    )
    for number in range(60):
        with socket.create_connection(address) as door:
            door.sendall(whole if number % 3 else whole[: -number % 40 - 1])
            if number % 2:
                door.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
    made = cluster.append(leader, "still here")
    assert made.status_code == 200
    assert made.json()["term"] == term
    assert cluster.leader() == leader
    assert "failed" not in cluster.lines(leader)


def test_pipelined_and_awkward_requests(cluster: Cluster) -> None:
    leader = cluster.leader()
    head = b"POST /v1/logs/default/records HTTP/1.1\r\nHost: x\r\nContent-Type: application/octet-stream\r\n"
    with socket.create_connection(("127.0.0.1", cluster.rest_ports[leader])) as door:
        door.settimeout(10)
        door.sendall(
            head + b"Content-Length: 1\r\n\r\na"
            b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
            + head
            + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
            + head
            + b"Content-Length: 1\r\nConnection: close\r\n\r\nb"
        )
        data = b""
        while part := door.recv(65536):
            data += part
    assert data.count(b"HTTP/1.1 200 OK") == 4
    with socket.create_connection(("127.0.0.1", cluster.rest_ports[leader])) as door:
        door.settimeout(10)
        door.sendall(head + b"Content-Length: 3\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n")
        assert door.recv(1024).startswith(b"HTTP/1.1 100")
        door.sendall(b"abc")
        data = b""
        while part := door.recv(65536):
            data += part
    assert data.startswith(b"HTTP/1.1 200 OK")


def test_a_stranger_cannot_join(cluster: Cluster) -> None:
    """A node of another cluster at a peer's address is refused, and the cluster goes on."""
    with socket.create_connection(("127.0.0.1", cluster.peer_ports["n1"])) as door:
        door.settimeout(10)
        hello = b'{"protocol":1,"cluster":"other","from":"n2","to":"n1","version":"0"}'
        door.sendall(len(hello).to_bytes(4, "little") + hello)
        answer = b""
        while part := door.recv(4096):
            answer += part
    assert b"refused" in answer
    with socket.create_connection(("127.0.0.1", cluster.peer_ports["n1"])) as door:
        door.settimeout(10)
        door.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert door.recv(4096) == b""
    assert cluster.append("n1", "fine").status_code == 200


def test_a_folder_has_one_owner(own: Cluster) -> None:
    second = Cluster(own.folder, 1)  # other ports, the same folder
    try:
        second.start("n1")
        assert second.wait_exit("n1") == 1
    finally:
        second.close()
    assert "another process holds it" in own.lines("n1")
    assert own.append("n1", "fine").status_code == 200


def test_a_folder_of_another_node_is_refused(own: Cluster) -> None:
    for node in list(own.running):
        own.stop(node)
    n1, n2 = own.folder / "n1", own.folder / "n2"
    n1.rename(own.folder / "aside")
    n2.rename(n1)
    own.start("n1")
    assert own.wait_exit("n1") == 2
    assert "belongs to node 'n2'" in own.lines("n1").replace('\\"', '"')


def test_the_refusals_of_overload_say_when_to_come_again(tmp_path: Path) -> None:
    sections = {"limits": {"max_pending_requests": 1, "max_pending_bytes": 64}, "http": {"max_open_requests": 8}}
    with running(tmp_path, 1, sections=sections) as cluster:
        big = cluster.call(
            "POST", "n1", RECORDS, content=b"x" * 65, headers={"Content-Type": "application/octet-stream"}
        )
        refused(big, 503, "leader-pending-full")
        assert int(big.headers["retry-after"]) >= 1
        assert big.json()["retryable"] is True
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda number: cluster.append("n1", str(number)), range(200)))
        statuses = {answer.status_code for answer in answers}
        assert statuses <= {200, 429, 503}
        assert 200 in statuses
        for answer in answers:
            if answer.status_code != 200:
                assert answer.json()["code"] in ("rate-limited", "leader-pending-full")
                assert "retry-after" in answer.headers
