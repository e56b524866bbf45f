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

from tests.support.cluster import Cluster, eventually, running

RECORDS = "/v1/logs/default/records"


@pytest.fixture(scope="module")
def breakable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    logs = [{"name": name} for name in ("killed", "lonely", "stopped", "turns")]
    with running(tmp_path_factory.mktemp("breakable"), 3, logs=tuple(logs)) as cluster:
        yield cluster


@pytest.fixture
def own(breakable: Cluster) -> Cluster:
    """A cluster that a test may break: whole again for the next one. Each test has a log of its own."""
    breakable.restore()
    return breakable


@pytest.mark.rule("R-07", "D-28")
def test_the_leader_is_killed_and_everything_continues(own: Cluster) -> None:
    log, records = "killed", "/v1/logs/killed/records"
    leader = own.leader(log)
    kept = [f"before-{number}" for number in range(20)]
    for value in kept:
        assert own.append(leader, value, log=log).status_code == 200
    key = {"Idempotency-Key": uuid.uuid4().hex}
    first = own.append(leader, "keyed", log=log, headers=key).json()
    own.kill(leader)
    started = time.monotonic()
    # The survivor forwards, waits for the election, and answers within the request's own time.
    after = {"Idempotency-Key": "after"}
    answer = own.append(own.running[0], "after", log=log, params={"timeout_ms": 20_000}, headers=after)
    assert answer.status_code == 200, answer.text
    assert time.monotonic() - started < 15
    assert answer.json()["term"] > first["term"]
    again = own.append(own.running[1], "keyed", log=log, headers=key).json()
    assert again["replayed"] is True
    assert again["first_index"] == first["first_index"]
    assert again["timestamp"] == first["timestamp"]
    for node in own.running:
        assert own.values(node, log=log) == [*kept, "keyed", "after"]

    own.start(leader)
    own.wait_ready(leader)
    own.wait_even(log)
    logs = [own.get(node, records, params={"include": "control"}).json()["records"] for node in own.ids]
    assert logs[0] == logs[1] == logs[2]
    epochs = [own.get(node, f"/v1/logs/{log}/epochs").text for node in own.ids]
    assert epochs[0] == epochs[1] == epochs[2]
    assert len(json.loads(epochs[0])["epochs"]) >= 2

    def written() -> bool:
        """A follower may know of a commit before its own sync, which brings the epoch file up to date."""
        files = [(own.folder / node / "logs" / log / "epochs").read_bytes() for node in own.ids]
        return files[0] == files[1] == files[2]

    eventually(written, what="the same epoch file everywhere")


@pytest.mark.rule("R-04", "R-11")
def test_without_a_majority_nothing_is_acknowledged_and_without_anybody_nothing_lost(own: Cluster) -> None:
    log, records = "lonely", "/v1/logs/lonely/records"
    values = [f"v{number}" for number in range(50)]
    for value in values:
        assert own.append(own.ids[0], value, log=log).status_code == 200
    leader = own.leader(log)
    for node in own.ids:
        if node != leader:
            own.kill(node)
    unknown = own.append(leader, "lonely", log=log, params={"timeout_ms": 300})
    assert unknown.status_code in (503, 504)
    assert unknown.json()["outcome"] in ("unknown", "not_applied")
    assert unknown.json()["retryable"] is True

    def refuses() -> bool:
        answer = own.append(leader, "lonely", log=log, params={"timeout_ms": 200})
        code: str = answer.json()["code"]
        return code == "no-leader"

    eventually(refuses, what="the leader has stood down")
    answer = own.append(leader, "refused", log=log, params={"timeout_ms": 200})
    assert (answer.status_code, answer.json()["outcome"]) == (503, "not_applied")
    assert int(answer.headers["retry-after"]) >= 1
    stale = own.get(leader, records)
    assert (stale.status_code, stale.json()["code"]) == (503, "read-index-unavailable")
    assert own.get(leader, records, params={"consistency": "committed"}).status_code == 200
    assert own.get(leader, "/readyz").status_code == 503
    assert own.get(leader, "/healthz").status_code == 200

    own.kill(leader)
    own.start()
    own.wait_ready()
    for node in own.ids:
        found = own.values(node, log=log)
        assert found[:50] == values
        assert set(found[50:]) <= {"lonely"}  # of unknown outcome; what was refused is never there


def test_a_clean_stop_ends_with_zero_and_keeps_all(own: Cluster) -> None:
    log, kept, later = "stopped", f"kept {uuid.uuid4().hex}", f"later {uuid.uuid4().hex}"
    assert own.append(own.ids[0], kept, log=log).status_code == 200
    leader = own.leader(log)
    before = len(own.get(leader, f"/v1/logs/{log}/events").json()["events"])
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = {"from": "latest", "wait_ms": 30_000}
        poll = pool.submit(own.get, leader, f"/v1/logs/{log}/records", params=waiting)
        eventually(lambda: own.status(leader, log), what="the poll is under way")
        started = time.monotonic()
        assert own.stop(leader) == 0
        assert time.monotonic() - started < 10
        assert poll.result(10).status_code == 200
    assert own.append(own.running[0], later, log=log, params={"timeout_ms": 20_000}).status_code == 200
    own.start(leader)
    own.wait_ready(leader)
    assert own.values(leader, log=log)[-2:] == [kept, later]
    events = own.get(leader, f"/v1/logs/{log}/events", params={"from_seq": before}).json()["events"]
    kinds = [event["kind"] for event in events]
    assert kinds.index("stop") < kinds.index("start")
    assert "critical" not in own.lines(leader)


def test_a_forward_that_is_lost_is_unknown(own: Cluster) -> None:
    """The leader hangs while it has the append: the node that forwarded it cannot report the outcome."""
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
    log, records = "turns", "/v1/logs/turns/records"
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
                            own.url(node) + records,
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
    own.leader(log)
    own.wait_even(log)
    for node in own.ids:
        values = own.values(node, log=log, limit=10_000)
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


def test_clients_that_disconnect_disturb_no_other(cluster: Cluster) -> None:
    """docs/design.md: an answer to a client that has gone must never reach replication."""
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
                door.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0"
                )  # a reset, not an end
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


def test_an_unidentified_node_cannot_join(cluster: Cluster) -> None:
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


def test_a_folder_of_another_node_is_refused(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 2)
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "node.json").write_text('{"cluster":"test","node":"n2","format":1}')
    try:
        cluster.start("n1")
        assert cluster.wait_exit("n1") == 2
        assert "belongs to node 'n2'" in cluster.lines("n1")
    finally:
        cluster.close()


def test_the_refusals_of_overload_have_a_retry_after(tmp_path: Path) -> None:
    sections = {"limits": {"max_pending_requests": 1}, "http": {"max_open_appends": 8}}
    with running(tmp_path, 1, sections=sections) as cluster:
        with concurrent.futures.ThreadPoolExecutor(32) as pool:
            answers = list(pool.map(lambda number: cluster.append("n1", str(number)), range(300)))
        refusals = [answer for answer in answers if answer.status_code != 200]
        assert 0 < len(refusals) < len(answers)
        for answer in refusals:
            problem = answer.json()
            expected = {429: "rate-limited", 503: "leader-pending-full"}
            assert problem["code"] == expected[answer.status_code]
            assert (problem["retryable"], problem["outcome"]) == (True, "not_applied")
            assert int(answer.headers["retry-after"]) >= 1
        assert len(cluster.values("n1")) == len(answers) - len(refusals)


def test_a_body_that_does_not_come_is_not_waited_for(tmp_path: Path) -> None:
    for front in ("lane", "fastapi"):
        folder = tmp_path / front
        folder.mkdir()
        sections = {"http": {"body_timeout_ms": 200, "max_open_appends": 2, "append_front": front}}
        with running(folder, 1, sections=sections) as cluster:
            doors = [socket.create_connection(("127.0.0.1", cluster.rest_ports["n1"])) for _ in range(2)]
            try:
                for door in doors:
                    door.settimeout(10)
                    door.sendall(
                        b"POST /v1/logs/default/records HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n"
                        b"Content-Type: application/octet-stream\r\n\r\nhalf"
                    )
                for door in doors:
                    answer = b""
                    while not answer.endswith(b"}"):
                        part = door.recv(65536)
                        assert part, answer
                        answer += part
                    assert answer.startswith(b"HTTP/1.1 400 ")
                    assert b'"code":"invalid-body"' in answer
            finally:
                for door in doors:
                    door.close()
            assert cluster.append("n1", "there is room again").status_code == 200
            assert cluster.values("n1") == ["there is room again"]
