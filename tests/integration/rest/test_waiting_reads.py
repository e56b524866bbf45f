"""Reads that wait: long polls, the header Commitlog-Min-Index, event streams."""

import json
import threading
import time
import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.integration.rest.test_append_routes import refused
from tests.integration.rest.test_read_routes import RECORDS, indexes, read
from tests.support.cluster import Cluster, eventually


def test_an_event_stream_ends_when_its_log_is_deleted(filled: Cluster) -> None:
    log = f"/v1/logs/d{uuid.uuid4().hex}"
    assert filled.call("POST", "n1", "/v1/logs", json={"name": log.rsplit("/")[-1]}).status_code == 201
    url = f"{filled.url('n1')}{log}/records"
    with httpx.stream("GET", url, headers={"Accept": "text/event-stream"}, timeout=10) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("event: ")) == "event: epoch"
        assert filled.call("DELETE", "n1", log).status_code == 202
        rest = list(lines)
    assert rest[-3] == "event: error"
    assert json.loads(rest[-2].removeprefix("data: "))["code"] == "log-deleting"


def test_a_long_poll_ends_with_the_first_record(cluster: Cluster) -> None:
    follower = cluster.follower("other")
    value = uuid.uuid4().hex
    timer = threading.Timer(0.3, cluster.append, (cluster.leader("other"), value), {"log": "other"})
    timer.start()
    started = time.monotonic()
    answer = cluster.get(follower, "/v1/logs/other/records", params={"from": "latest", "wait_ms": 20_000})
    assert [record["value"] for record in answer.json()["records"]] == [value]
    assert 0.2 < time.monotonic() - started < 10
    timer.join()


def test_a_record_that_comes_while_a_read_waits_may_end_it_by_its_time(cluster: Cluster) -> None:
    late = {"records": [{"value": "late", "timestamp": 250_000_000_000_000}]}
    send = (cluster.leader("other"), "/v1/logs/other/records")
    timer = threading.Timer(0.3, lambda: cluster.call("POST", *send, json=late))
    timer.start()
    params = {"from": "latest", "until_timestamp": 240_000_000_000_000, "wait_ms": 3_000}
    answer = cluster.get(cluster.leader("other"), "/v1/logs/other/records", params=params)
    timer.join()
    assert answer.json()["records"] == []


@pytest.mark.parametrize("accept", ["application/json", "application/vnd.commitlog.batch"])
def test_a_read_from_a_time_to_come_returns_no_older_record(cluster: Cluster, accept: str) -> None:
    """The records that arrive while it waits are older, and then one is not."""
    leader, base_ms = cluster.leader("other"), 251_000_000_000_000  # later than those of other tests

    def send(timestamp: int) -> int:
        body = {"records": [{"value": "v", "timestamp": timestamp}]}
        first: int = cluster.call("POST", leader, "/v1/logs/other/records", json=body).json()["first_index"]
        return first

    def read_on(wait_ms: int) -> tuple[bool, int]:
        params = {"from_timestamp": wanted_ms, "wait_ms": wait_ms}
        headers = {"Accept": accept}
        answer = cluster.get(leader, "/v1/logs/other/records", params=params, headers=headers)
        assert answer.status_code == 200
        found = answer.json()["records"] if accept == "application/json" else answer.content
        return bool(found), int(answer.headers["commitlog-next-index"])

    wanted_ms = base_ms + send(1) * 1_000
    timer = threading.Timer(0.2, send, (1,))
    timer.start()
    any_found, next_index = read_on(700)
    timer.join()
    assert (any_found, next_index) == (False, send(1))  # after the older one
    timers = [threading.Timer(0.2, send, (1,)), threading.Timer(0.5, send, (wanted_ms,))]
    for timer in timers:
        timer.start()
    assert read_on(20_000) == (True, next_index + 3)
    for timer in timers:
        timer.join()


def test_a_long_poll_ends_empty(filled: Cluster) -> None:
    started = time.monotonic()
    page = read(filled, from_index=101, wait_ms=200)
    assert (page["records"], page["next_index"]) == ([], 101)
    assert 0.2 <= time.monotonic() - started < 5
    assert read(filled, from_index=101, wait_ms=50, consistency="local")["records"] == []


def test_min_index(filled: Cluster) -> None:
    headers = {"Commitlog-Min-Index": "100"}
    assert filled.get("n1", RECORDS, headers=headers).status_code == 200
    headers = {"Commitlog-Min-Index": "101"}
    answer = filled.get("n1", RECORDS, params={"wait_ms": 100}, headers=headers)
    problem = refused(answer, 504, "not-yet-replicated")
    assert problem["retryable"] is True
    assert f"requires index {headers['Commitlog-Min-Index']}; " in problem["detail"]
    started = time.monotonic()
    refused(filled.get("n1", RECORDS, params={"wait_ms": 0}, headers=headers), 504, "not-yet-replicated")
    assert time.monotonic() - started < 4  # 5 s is the default without `timeout_ms`


def test_a_follower_reads_what_was_acknowledged(cluster: Cluster) -> None:
    """R-08: linearizable is the default, at any node."""
    leader = cluster.leader()
    others = [node for node in cluster.ids if node != leader]
    for _ in range(20):
        value = uuid.uuid4().hex
        made = cluster.append(leader, value).json()
        for node in others:
            page = read(cluster, node, from_index=made["first_index"], limit=1)
            assert [record["value"] for record in page["records"]] == [value]


def events_of(lines: Iterator[str]) -> Iterator[tuple[str, str | None, dict[str, Any]]]:
    """(event, id, data) as a browser would see them."""
    fields: dict[str, str] = {}
    for line in lines:
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
        elif fields:
            yield fields["event"], fields.get("id"), json.loads(fields["data"])
            fields = {}


def test_an_event_stream(cluster: Cluster) -> None:
    leader = cluster.leader("other")
    made = cluster.append(leader, "one", "two", log="other").json()
    start = made["first_index"]
    with (
        httpx.Client(timeout=20) as client,
        client.stream(
            "GET",
            cluster.url(cluster.follower("other")) + "/v1/logs/other/records",
            params={"from_index": 0},
            headers={"Accept": "text/event-stream", "Last-Event-ID": str(start - 1)},
        ) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = events_of(answer.iter_lines())
        name, _, epoch = next(events)
        assert name == "epoch"
        assert epoch["term"] == made["term"]
        assert epoch["end_index"] is None
        name, event_id, ping = next(events)
        assert (name, event_id) == ("ping", None)
        assert ping["committed_index"] >= made["last_index"]
        name, event_id, batch = next(events)
        assert (name, event_id) == ("batch", str(batch["next_index"] - 1))
        assert [record["value"] for record in batch["records"]] == ["one", "two"]
        cluster.append(leader, "three", log="other")
        name, event_id, batch = next(events)
        assert [record["value"] for record in batch["records"]] == ["three"]


def test_a_bounded_event_stream_ends(filled: Cluster) -> None:
    answer = filled.get(
        "n1", RECORDS, params={"until_index": 8, "limit": 4}, headers={"Accept": "text/event-stream"}
    )
    events = [event for event in events_of(iter(answer.text.splitlines())) if event[0] == "batch"]
    assert [indexes(data) for _, _, data in events] == [[1, 2, 3, 4], [5, 6, 7]]
    assert [event_id for _, event_id, _ in events] == ["4", "7"]


def test_event_streams_at_one_index_go_on_under_the_next_leader(
    cluster: Cluster, own_logs: list[str]
) -> None:
    """All of them, and none misses a record or gets it twice, also one that reads nothing for a time."""
    name = f"s{uuid.uuid4().hex}"
    own_logs.append(name)
    assert cluster.call("POST", "n1", "/v1/logs", json={"name": name}).status_code == 201
    leader = cluster.leader(name)
    to = cluster.follower(name)
    node = next(node for node in cluster.ids if node not in (leader, to))
    seen: list[list[tuple[str, Any]]] = [[] for _ in range(5)]
    last = 20

    def receive(number: int) -> None:
        url = f"{cluster.url(node)}/v1/logs/{name}/records"
        with httpx.stream("GET", url, headers={"Accept": "text/event-stream"}, timeout=20) as answer:
            for kind, _, data in events_of(answer.iter_lines()):
                if kind == "epoch":
                    seen[number].append((kind, data["term"]))
                elif kind == "batch":
                    seen[number] += [(record["value"], record["term"]) for record in data["records"]]
                if seen[number] and seen[number][-1][0] == str(last):
                    return
                if number == 0:
                    time.sleep(0.03)

    def appended(value: int) -> bool:
        key = {"Idempotency-Key": str(value)}
        return cluster.append(to, str(value), log=name, headers=key).status_code == 200

    def transferred() -> bool:
        transfer = {"to": to, "log": name}
        answer = cluster.call("POST", node, "/v1/cluster/leader:transfer", json=transfer)
        return answer.status_code == 200 or answer.json()["code"] == "already-leader"

    threads = [threading.Thread(target=receive, args=(number,)) for number in range(len(seen))]
    for thread in threads:
        thread.start()
    for value in range(last + 1):
        if value == last // 2:
            eventually(transferred, what="the lead is transferred")
        eventually(partial(appended, value), what="the append is committed")
    for thread in threads:
        thread.join(20)
    assert all(each == seen[0] for each in seen)
    epochs = [term for kind, term in seen[0] if kind == "epoch"]
    assert epochs == sorted(set(epochs))
    assert len(epochs) >= 2
    records = [(value, term) for value, term in seen[0] if value != "epoch"]
    assert [int(value) for value, _ in records] == list(range(last + 1))
    current = None
    for kind, term in seen[0]:
        current = term if kind == "epoch" else current
        assert term == current
