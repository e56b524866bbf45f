"""Trims, retention and the comparison of replicas, on real nodes."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner

from app.cli.main import cli
from storage.format.batch import decode_batch, stamp
from storage.format.records import RecordColumns, encode_body, read_columns
from tests.integration.rest.test_append_routes import refused
from tests.support.cluster import Cluster, eventually, running
from tests.support.damage import log_folder, overwrite, segments

OLD, SMALL = "old", "small"
STORAGE = {"segment_max_bytes": 20_000, "mark_interval_bytes": 5_000, "tail_cache_bytes": 0}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose logs may be trimmed; retention looks often."""
    logs = (
        {"name": "trimmed"},
        {"name": "compared"},
        {"name": "planted"},
        {"name": "damaged"},
        {"name": OLD, "retention_ms": 60_000},
        {"name": SMALL, "retention_bytes": 30_000},
    )
    sections = {"storage": STORAGE, "retention": {"check_interval_ms": 100}}
    with running(tmp_path_factory.mktemp("kept"), 3, logs=logs, sections=sections) as cluster:
        yield cluster


def fill(cluster: Cluster, log: str, count: int, **record: Any) -> list[int]:
    """Append records one by one; return their indexes."""
    indexes = []
    for number in range(count):
        body = {"records": [{"value": f"{number}-{'v' * 1_000}", **record}]}
        answer = cluster.call("POST", "n1", f"/v1/logs/{log}/records", json=body)
        assert answer.status_code == 200, answer.text
        indexes.append(answer.json()["first_index"])
    return indexes


def trim(cluster: Cluster, node: str, **body: Any) -> httpx.Response:
    return cluster.call("POST", node, "/v1/logs/trimmed:trim", json=body)


def begins(cluster: Cluster, log: str) -> list[int]:
    return [cluster.status(node, log)["begin_index"] for node in cluster.ids]


def test_a_trim_reaches_every_replica_and_never_passes_a_fence(kept: Cluster) -> None:
    indexes = fill(kept, "trimmed", 60)
    cursor = "/v1/logs/trimmed/cursors/__entries"
    answer = kept.call("PUT", "n2", cursor, json={"index": indexes[20], "fence": True})
    assert answer.status_code == 200, answer.text
    problem = refused(trim(kept, "n3", until_index=indexes[30]), 409, "not-materialized")
    assert (problem["cursor"], problem["index"]) == ("__entries", indexes[20])
    assert f"must be at most {indexes[20]}" in problem["detail"]
    follower = kept.follower("trimmed")
    answer = trim(kept, follower, until_index=indexes[20])
    assert (answer.status_code, answer.json()) == (
        200,
        {"log": "trimmed", "begin_index": indexes[20], "until_index": indexes[20]},
    )
    eventually(lambda: begins(kept, "trimmed") == [indexes[20]] * 3, what="all replicas are trimmed")
    for node in kept.ids:
        path = f"/v1/logs/trimmed/records/{indexes[19]}"
        assert refused(kept.get(node, path), 410, "index-trimmed")["begin_index"] == indexes[20]
        assert len(kept.values(node, log="trimmed")) == 40
        segments = list((kept.folder / node / "logs" / "trimmed").glob("*.log"))
        assert min(int(path.stem) for path in segments) > 0
    assert trim(kept, "n1", until_index=indexes[30], force=True).json()["begin_index"] == indexes[30]
    again = trim(kept, "n1", until_index=5)
    assert (again.status_code, again.json()["begin_index"]) == (200, indexes[30])
    next_index = kept.get("n1", "/v1/logs/trimmed/tail").json()["next_index"]
    refused(trim(kept, "n1", until_index=next_index + 1), 422, "invalid-request")
    everything = trim(kept, "n1", until_index=next_index, force=True)
    assert 0 < everything.json()["begin_index"] <= next_index
    status = kept.status("n1", "trimmed")  # the newest committed batch stays, be it the trim itself
    assert status["begin_index"] <= status["end_index"]


def test_an_invalid_trim_is_refused(kept: Cluster) -> None:
    refused(trim(kept, "n1"), 422, "invalid-request")
    refused(trim(kept, "n1", until_index=-1), 422, "invalid-request")
    refused(trim(kept, "n1", until_index=1, other=2), 422, "invalid-request")
    refused(kept.call("POST", "n1", "/v1/logs/none:trim", json={"until_index": 1}), 404, "log-not-found")


def test_retention_by_age_goes_by_the_records_time(kept: Cluster) -> None:
    now_ms = int(time.time() * 1000)
    old = fill(kept, OLD, 20, timestamp=now_ms - 120_000)
    young = fill(kept, OLD, 20, timestamp=now_ms + 600_000)

    def gone() -> bool:
        seen = begins(kept, OLD)  # a look between the two leaves the record of its own trim before the young
        return old[-1] < seen[0] <= young[0] and len(set(seen)) == 1

    eventually(gone, what="the old ones are gone")
    assert len(kept.values("n2", log=OLD)) == 20


def test_retention_by_size_keeps_the_newest(kept: Cluster) -> None:
    indexes = fill(kept, SMALL, 60)

    def small() -> bool:
        seen = begins(kept, SMALL)
        return seen[0] > indexes[30] and len(set(seen)) == 1

    eventually(small, what="the log is small")
    kept.wait_even(SMALL)
    values = kept.values(kept.follower(SMALL), log=SMALL)
    assert 15 <= len(values) <= 30

    def state() -> list[tuple[int, int]]:
        seen = [kept.status(node, SMALL) for node in kept.ids]
        return [(status["begin_index"], status["end_index"]) for status in seen]

    def stays() -> bool:
        before = state()
        time.sleep(0.5)  # several looks later: an idle log does not fill itself with trims
        return state() == before

    eventually(stays, what="the log is left alone")


def verify(cluster: Cluster, node: str, **body: Any) -> dict[str, Any]:
    answer = cluster.call("POST", node, "/v1/logs/compared:verify", json=body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_equal_replicas_are_equal(kept: Cluster) -> None:
    indexes = fill(kept, "compared", 40)
    kept.wait_even("compared")  # a call compares what its node knows to be committed and durable
    for node in kept.ids:
        for deep in (False, True):
            result = verify(kept, node, deep=deep)
            assert (result["equal"], result["complete"], result["first_difference"]) == (True, True, None)
            assert [each["state"] for each in result["replicas"]] == ["same"] * 3
            assert result["until_index"] == indexes[-1] + 1
            assert result["has_more"] is False
    part = verify(kept, "n1", from_index=10, until_index=20)
    assert (part["from_index"], part["until_index"], part["equal"]) == (10, 20, True)
    path = "/v1/logs/compared:verify"
    past = {"until_index": indexes[-1] + 2}
    refused(kept.call("POST", "n1", path, json=past), 422, "invalid-request")
    refused(kept.call("POST", "n1", path, json={"from_index": 9, "until_index": 5}), 422, "invalid-request")


def plant(folder: Path, index: int) -> None:
    """Another record in the place of the one at `index`, with all checksums right: a replica that lies."""
    chain = b""
    for path in segments(folder):
        data, at = path.read_bytes(), 0
        while at < len(data):
            batch = decode_batch(memoryview(data)[at:])
            if batch.base_index == index:
                records = RecordColumns()
                value = read_columns(batch).column("value")[0].as_py()
                records.add(value.replace(b"v", b"w", 1))
                other = stamp(
                    encode_body(records),
                    log_id=batch.header.log_id,
                    base_index=index,
                    term=batch.term,
                    timestamp_ms=batch.timestamp_ms,
                    offset=batch.offset,
                    previous_chain=chain,
                )
                assert other.size_bytes == batch.size_bytes
                overwrite(path, at, bytes(other.data))
                return
            chain, at = batch.header.chain, at + batch.size_bytes
    raise AssertionError(f"index {index} is not in {folder}")


def test_a_planted_difference_is_found_and_named(kept: Cluster) -> None:
    log = "planted"
    indexes = fill(kept, log, 60)
    kept.wait_even(log)
    assert kept.stop("n2") == 0
    plant(log_folder(kept.folder / "n2", log), indexes[30])
    kept.start("n2")
    kept.wait_ready()
    kept.wait_even(log)
    for node, other in (("n1", "n2"), ("n2", "n1")):
        answer = kept.call("POST", node, f"/v1/logs/{log}:verify", json={}).json()
        assert (answer["equal"], answer["first_difference"]) == (False, indexes[30])
        assert sorted(answer["groups"][0]) == ["n1", "n3"]
        assert answer["groups"][1] == ["n2"]
        state = {replica["node"]: replica for replica in answer["replicas"]}
        assert state[other]["state"] == "differs"
        assert state[other]["first_difference"] == indexes[30]
    before = kept.call("POST", "n3", f"/v1/logs/{log}:verify", json={"until_index": indexes[30]})
    assert before.json()["equal"] is True

    def reported() -> list[Any]:
        events = kept.get("n1", f"/v1/logs/{log}/events").json()["events"]
        return [event["data"] for event in events if event["kind"] == "corruption"]

    (event,) = eventually(reported, what="an event in the journal")
    assert (event["found_by"], event["first_difference"]) == ("verify", indexes[30])
    # The difference is reported, and nothing is changed silently.
    assert kept.status("n2", log)["end_index"] == kept.status("n1", log)["end_index"]

    options = ["--endpoint", kept.url("n1"), "--log"]
    found = CliRunner().invoke(cli, ["verify", *options, log])
    assert found.exit_code == 1, found.output
    assert f"differ from index {indexes[30]} on: n1, n3 against n2" in found.output
    # A deep comparison computes the chain again: n2's does not match, which is damage, and is repaired.
    deep = kept.call("POST", "n1", f"/v1/logs/{log}:verify", json={"deep": True}).json()
    assert {replica["node"]: replica["state"] for replica in deep["replicas"]}["n2"] == "damaged"

    def mended() -> bool:
        return bool(kept.call("POST", "n1", f"/v1/logs/{log}:verify", json={}).json()["complete"])

    eventually(mended, what="n2 holds the same again", timeout_s=30)
    equal = CliRunner().invoke(cli, ["verify", "--deep", "--json", *options, log])
    assert equal.exit_code == 0, equal.output
    assert CliRunner().invoke(cli, ["trim", "5", *options, log]).exit_code == 0


def test_damage_of_the_replica_that_compares_is_reported(kept: Cluster) -> None:
    log = "damaged"
    fill(kept, log, 10)
    kept.wait_even(log)
    path, *_ = segments(log_folder(kept.folder / "n2", log))
    overwrite(path, 2_000, b"damaged")
    found = CliRunner().invoke(cli, ["verify", "--deep", "--endpoint", kept.url("n2"), "--log", log])
    assert found.exit_code == 1, found.output
    assert "damaged and under repair: n2" in found.output
    kept.wait_ready()  # n2 has repaired its copy
    again = CliRunner().invoke(cli, ["verify", "--deep", "--endpoint", kept.url("n2"), "--log", log])
    assert again.exit_code == 0, again.output


def test_a_replica_that_is_down_is_not_compared(kept: Cluster) -> None:
    fill(kept, "compared", 3)
    kept.kill("n3")
    try:
        options = ["--endpoint", kept.url("n1"), "--log", "compared", "--json"]
        found = CliRunner().invoke(cli, ["verify", *options])
        assert found.exit_code == 5
        answer = json.loads(found.stdout)
        assert (answer["equal"], answer["complete"]) == (True, False)
        assert answer["replicas"][-1] | {"until_index": 0} == {
            "node": "n3", "state": "unreachable", "from_index": 0, "until_index": 0, "first_difference": None,
        }  # fmt: skip
    finally:
        kept.start("n3")
        kept.wait_ready("n3")
