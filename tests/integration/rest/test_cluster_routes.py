"""Everything that is not records: views of the cluster, health, pages, and what no route answers."""

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.integration.rest.test_append_routes import refused
from tests.support.cluster import Cluster, eventually, running

LOG = "/v1/logs/default"


def test_status_of_leader_and_follower(cluster: Cluster) -> None:
    leader, follower = cluster.leader(), cluster.follower()
    cluster.append(leader, "x")
    cluster.wait_even()
    status = cluster.status(leader)
    assert list(status) == [
        "log", "node", "replication", "role", "term", "leader", "begin_index", "end_index", "committed_index",
        "next_index", "end_offset", "durability", "peers", "learners", "master", "epoch", "sync_state_set",
        "confirm_offset",
    ]  # fmt: skip
    assert (status["role"], status["leader"], status["node"]) == ("leader", leader, leader)
    assert [peer["id"] for peer in status["peers"]] == [node for node in cluster.ids if node != leader]
    for peer in status["peers"]:
        assert list(peer) == ["id", "url", "state", "watermark", "pending", "lag_bytes"]
        assert (peer["state"], peer["watermark"], peer["lag_bytes"]) == ("APPEND", status["end_index"], 0)
    other = cluster.status(follower)
    assert (other["role"], other["leader"], other["peers"]) == ("follower", leader, [])


def test_epochs(cluster: Cluster) -> None:
    for node in cluster.ids:
        epochs = cluster.get(node, f"{LOG}/epochs").json()["epochs"]
        assert list(epochs[0]) == [
            "epoch", "term", "leader", "start_index", "start_offset", "end_index", "end_offset", "started_ms",
        ]  # fmt: skip
        assert epochs[0]["start_index"] == 0
        assert (epochs[-1]["end_index"], epochs[-1]["end_offset"]) == (None, None)
        one = cluster.get(node, f"{LOG}/epochs/{epochs[0]['epoch']}").json()
        assert one == epochs[0]
        refused(cluster.get(node, f"{LOG}/epochs/999999"), 404, "epoch-not-found")


@pytest.mark.rule("D-24")
def test_watermarks_come_from_the_leader(cluster: Cluster) -> None:
    made = cluster.append(cluster.leader(), "x", params={"acks": "all"}).json()
    for node in cluster.ids:
        marks = cluster.get(node, f"{LOG}/watermarks").json()
        assert list(marks) == [str(made["term"])]
        assert sorted(marks[str(made["term"])]) == cluster.ids
        assert min(marks[str(made["term"])].values()) >= made["last_index"]
    assert cluster.get(cluster.follower(), f"{LOG}/watermarks", params={"term": 999}).json() == {}
    no_forward = {"Commitlog-No-Forward": "1"}
    stays = cluster.get(cluster.follower(), f"{LOG}/watermarks", headers=no_forward)
    assert refused(stays, 421, "not-leader")["leader_url"] == stays.headers["commitlog-leader"]


@pytest.mark.rule("D-22")
def test_events_record_start_roles_and_watermarks(cluster: Cluster) -> None:
    leader = cluster.leader()
    cluster.append(leader, "move")

    def journal() -> dict[str, Any] | None:
        answer: dict[str, Any] = cluster.get(leader, f"{LOG}/events").json()
        kinds = [event["kind"] for event in answer["events"]]
        return answer if {"start", "role", "term", "epoch", "watermarks"} <= set(kinds) else None

    answer = eventually(journal, what="an event in the journal")
    events = answer["events"]
    assert list(events[0]) == ["seq", "node", "log", "timestamp", "kind", "term", "data"]
    assert [event["seq"] for event in events] == list(range(len(events)))
    assert answer["next_seq"] == len(events)
    page = cluster.get(leader, f"{LOG}/events", params={"from_seq": 1, "limit": 2}).json()
    assert ([event["seq"] for event in page["events"]], page["next_seq"], page["has_more"]) == (
        [1, 2],
        3,
        True,
    )
    late = cluster.get(
        leader, f"{LOG}/events", params={"from_seq": page["next_seq"] + 100_000, "wait_ms": 30}
    )
    assert late.json()["events"] == []


def test_logs(cluster: Cluster) -> None:
    logs = cluster.get(cluster.ids[0], "/v1/logs").json()["logs"]
    assert [log["name"] for log in logs] == ["default", "other", "quiet", "pair"]
    with_ends = cluster.get(cluster.ids[0], "/v1/logs", params={"ends": "true"}).json()["logs"]
    ends = [log.pop("ends") for log in with_ends]
    assert with_ends == logs
    tail = cluster.get(cluster.ids[0], "/v1/logs/quiet/tail", params={"consistency": "committed"}).json()
    assert ends[2]["committed_index"] == tail["committed_index"]
    assert (ends[2]["begin_index"], ends[2]["term"]) == (tail["begin_index"], tail["term"])
    assert ends[2]["events"] > 0
    one = cluster.get(cluster.ids[1], "/v1/logs/quiet").json()
    assert one == logs[2]
    assert re.fullmatch("[0-9a-f]{16}", one.pop("id"))
    assert one == {
        "name": "quiet",
        "replication": "raft",
        "replicas": cluster.ids,
        "durability": "replicated",
        "retention": None,
        "learners": [],
        "min_in_sync_replicas": 1,
        "unclean": False,
        "preferred": None,
        "priorities": {},
        "in_sync_replicas": None,
        "state": "created",
        "master": None,
        "epoch": None,
        "sync_state_set": None,
        "set_epoch": None,
        "leaving": [],
    }


def test_the_cluster(cluster: Cluster) -> None:
    seen = cluster.get(cluster.ids[2], "/v1/cluster").json()
    assert (seen["id"], seen["logs"]) == ("test", ["default", "other", "quiet", "pair"])
    assert [node["id"] for node in seen["nodes"]] == cluster.ids
    for node in seen["nodes"]:
        assert list(node) == ["id", "url", "peer_address", "voter", "alive", "version"]
        assert (node["voter"], node["alive"], node["url"]) == (True, True, cluster.url(node["id"]))
    assert seen["limits"]["max_record_bytes"] == 1024 * 1024
    assert seen["limits"]["idempotency_ms"] == 24 * 60 * 60 * 1000


def test_health_and_metrics(cluster: Cluster) -> None:
    assert cluster.get("n1", "/healthz").json() == {"status": "ok"}
    assert cluster.get("n1", "/readyz").json()["ready"] is True
    leader = cluster.leader()
    cluster.append(leader, "measured")
    lines = cluster.get(leader, "/metrics").text
    assert 'commitlog_leading{log="default"} 1.0' in lines
    assert re.search(r'commitlog_stored_bytes\{log="default"\} [1-9]', lines)
    assert re.search(r'commitlog_http_requests_total\{method="POST",route="[^"]+",status="200"\} \d', lines)
    assert re.search(r"commitlog_append_seconds_count [1-9]", lines)
    assert re.search(r'commitlog_watermark\{log="default",peer="n2"\} \d', lines)
    assert re.search(r"commitlog_wall_clock_timestamp_seconds \d", lines)


def test_the_page_of_the_api_needs_no_network(cluster: Cluster) -> None:
    page = cluster.get("n1", "/docs")
    assert page.headers["content-type"].startswith("text/html")
    assets = re.findall(r'(?:src|href)="([^"]+)"', page.text)
    assert len(assets) == 3
    for asset in assets:
        assert asset.startswith("/docs/")
        answer = cluster.get("n1", asset)
        assert answer.status_code == 200
        assert len(answer.content) > 500
    assert "http://" not in page.text
    assert "https://" not in page.text
    refused(cluster.get("n1", "/docs/../etc/passwd"), 404, "not-found")
    refused(cluster.get("n1", "/docs/no-such-page.html"), 404, "not-found")
    root = cluster.get("n1", "/")
    assert (root.status_code, root.headers["location"]) == (307, "/ui")


def test_the_name_of_a_log_is_refused_where_it_was_given(cluster: Cluster) -> None:
    """A parameter's pointer is `/query/NAME`, that of a field of the body its JSON pointer."""
    calls: list[tuple[str, str, dict[str, Any], str]] = [
        ("GET", "/v1/logs/BAD/tail", {}, "/path/log"),
        ("POST", "/v1/cluster/leader:transfer", {"json": {"to": "n1", "log": "BAD"}}, "/log"),
        ("POST", "/v1/cluster/members/n9:promote?log=BAD", {}, "/query/log"),
        ("POST", "/v1/cluster/members/n9:demote?log=BAD", {}, "/query/log"),
        ("POST", "/v1/cluster/members/n9:clean?log=BAD", {}, "/query/log"),
        ("POST", "/v1/cluster/members/n1:demote?log=default", {}, "/query/log"),
        ("DELETE", "/v1/cluster/members/n9?log=BAD", {}, "/query/log"),
    ]
    for method, path, options, pointer in calls:
        problem = cluster.call(method, "n1", path, **options).json()
        assert [error["pointer"] for error in problem["errors"]] == [pointer], (path, problem)


def test_a_forwarded_answer_has_the_headers_of_the_leaders_own(cluster: Cluster) -> None:
    leader, follower = cluster.leader(), cluster.follower()
    log = "/v1/logs/default"
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", f"{log}/watermarks", {}),
        ("HEAD", f"{log}/watermarks", {}),
        ("PUT", f"{log}/cursors/forwarded", {"json": {"index": 0}}),
        ("GET", f"{log}/cursors/forwarded", {}),
        ("HEAD", f"{log}/cursors/forwarded", {}),
        ("GET", f"{log}/cursors/absent", {}),
        ("POST", f"{log}:trim", {"json": {"until_index": 0}}),
        ("POST", f"{log}:fence", {"json": {"token": None}}),
    ]
    for method, path, options in calls:
        own, forwarded = (cluster.call(method, node, path, **options) for node in (leader, follower))
        assert set(forwarded.headers) == set(own.headers), (method, path)
        if method != "HEAD":
            assert int(forwarded.headers["content-length"]) == len(forwarded.content) > 0
        else:
            assert forwarded.content == b""


def test_every_problem_has_a_page(cluster: Cluster) -> None:
    document = cluster.get("n1", "/v1/openapi.json").json()
    codes = document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]
    assert {"index-mismatch", "quorum-timeout", "invalid-json", "internal"} <= set(codes)
    for code in codes:
        page = cluster.get("n1", f"/problems/{code}")
        assert page.status_code == 200
        assert code in page.text
    for path in ("/problems", "/problems/"):
        listed = cluster.get("n1", path)
        assert (listed.status_code, listed.headers["x-frame-options"]) == (200, "DENY")
        assert sorted(re.findall('href="/problems/([^"]*)"', listed.text)) == codes
    refused(cluster.get("n1", "/problems/nothing"), 404, "not-found")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", f"{LOG}/records", "GET, HEAD, POST"),
        ("PUT", f"{LOG}/tail", "GET, HEAD"),
        ("PUT", "/v1/logs", "GET, HEAD, POST"),
        ("PUT", LOG, "DELETE, GET, HEAD, PATCH"),
        ("POST", "/healthz", "GET, HEAD"),
        ("OPTIONS", "/v1/cluster", "GET, HEAD"),
        ("POST", "/", "GET, HEAD"),
    ],
)
def test_methods_that_a_route_does_not_have(cluster: Cluster, method: str, path: str, allowed: str) -> None:
    answer = cluster.call(method, "n1", path)
    refused(answer, 405, "method-not-allowed")
    assert answer.headers["allow"] == allowed


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/v1",
        "/v1/logs/",
        f"{LOG}/records/",
        f"{LOG}/tail/",
        f"{LOG}/nothing",
        f"{LOG}:nothing",
        "/v1/logs/a%2Fb/records",
        "/openapi.json",
        "/redoc",
        "/%00",
    ],
)
def test_unknown_paths_are_not_found(cluster: Cluster, path: str) -> None:
    refused(cluster.get("n1", path), 404, "not-found")
    answer = cluster.call("POST", "n1", path, json={})
    refused(answer, 404, "not-found")


def test_request_ids(cluster: Cluster) -> None:
    for path in ("/healthz", "/nothing", f"{LOG}/tail"):
        given = cluster.get("n1", path, headers={"X-Request-Id": "my-id"})
        assert given.headers.get_list("x-request-id") == ["my-id"]
        first, second = cluster.get("n1", path), cluster.get("n1", path)
        assert first.headers["x-request-id"] != second.headers["x-request-id"]
        strange = cluster.get("n1", path, headers={"X-Request-Id": "a b"})
        assert strange.headers["x-request-id"] != "a b"


def test_a_node_without_a_replica_passes_every_call_on(cluster: Cluster) -> None:
    """n3 keeps no copy of `pair`."""
    pair = "/v1/logs/pair"
    assert cluster.get("n3", pair).json()["replicas"] == ["n1", "n2"]
    answer = cluster.append("n3", "through", log="pair")
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert made["leader"] in ("n1", "n2")
    page = cluster.get("n3", f"{pair}/records", params={"from_index": made["first_index"]})
    assert [record["value"] for record in page.json()["records"]] == ["through"]
    assert page.headers["commitlog-next-index"] == str(made["next_index"])
    for view in ("tail", "status", "epochs", "watermarks", "events", f"records/{made['first_index']}"):
        assert cluster.get("n3", f"{pair}/{view}").status_code == 200
    assert cluster.get("n3", f"{pair}/status").json()["node"] in ("n1", "n2")
    refused(cluster.get("n3", f"{pair}/records", params={"limit": 0}), 422, "invalid-request")
    refused(cluster.get("n3", f"{pair}/records/999999"), 416, "index-out-of-range")
    key = {"Commitlog-No-Forward": "1"}
    refused(cluster.get("n3", f"{pair}/tail", headers=key), 421, "not-leader")
    refused(cluster.append("n3", "x", log="pair", headers=key), 421, "not-leader")
    fence = cluster.call("POST", "n3", f"{pair}:fence", json={"token": None}, headers=key)
    refused(fence, 421, "not-leader")
    assert fence.json()["leader"] is None  # n3 does not know, and does not guess
    lines = {"Content-Type": "application/x-ndjson"}
    for leader in ("n1", "n2"):  # whichever replica is asked first
        moved = cluster.call(
            "POST", leader, "/v1/cluster/leader:transfer", json={"to": leader, "log": "pair"}
        )
        assert moved.status_code in (200, 409), moved.text
        streamed = cluster.call(
            "POST", "n3", f"{pair}/records:stream", content=b'{"value": "streamed"}', headers=lines
        )
        assert streamed.json()["leader"] == leader, streamed.text
    stream = cluster.get(
        "n3",
        f"{pair}/records",
        params={"from_index": made["first_index"], "until_index": made["next_index"]},
        headers={"Accept": "text/event-stream"},
    )
    assert "event: batch" in stream.text
    head = cluster.call("HEAD", "n3", f"{pair}/records", headers={"Accept": "text/event-stream"})
    assert (head.status_code, head.content) == (200, b"")
    assert cluster.get("n3", "/readyz").json()["logs"].keys() == {"default", "other", "quiet"}


def test_a_hung_leader_does_not_hang_who_asks_through_another(tmp_path: Path) -> None:
    with running(tmp_path, 3, sections={"http": {"leader_wait_ms": 500}}) as own:
        leader, follower = own.leader(), own.follower()
        own.pause(leader)
        try:
            started = time.monotonic()
            answer = own.get(follower, f"{LOG}/watermarks")
            assert time.monotonic() - started < 10
            assert answer.status_code in (200, 503)
        finally:
            own.resume(leader)


def test_tokens_guard_all_but_the_open_pages(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("writer write\nreader read\n")
    for front in ("lane", "fastapi"):
        folder = tmp_path / front
        folder.mkdir()
        sections = {"security": {"tokens_file": tokens}, "http": {"append_front": front}}
        with running(folder, 1, sections=sections) as own:
            bare = own.append("n1", "x")
            refused(bare, 401, "unauthenticated")
            assert bare.headers["www-authenticate"].startswith("Bearer")
            refused(own.get("n1", f"{LOG}/tail"), 401, "unauthenticated")
            refused(own.get("n1", "/nothing"), 401, "unauthenticated")
            refused(own.append("n1", "x", headers={"Authorization": "Bearer reader"}), 403, "forbidden")
            written = own.append("n1", "x", headers={"Authorization": "Bearer writer", "X-Request-Id": "a"})
            assert written.status_code == 200
            assert written.headers.get_list("x-request-id") == ["a"]
            reader = {"Authorization": "Bearer reader"}
            assert own.get("n1", f"{LOG}/tail", headers=reader).status_code == 200
            for path in ("/healthz", "/docs", "/v1/openapi.json", "/problems/fenced"):
                assert own.get("n1", path).status_code == 200
