"""Texts of refusals: each detail states more than its title, and names the value received."""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx

from app.api.http.messages import problem_response
from app.errors import NotLeader
from tests.support.in_process import node_in_process

LOG = "/v1/logs/default"


async def _problem(answer: httpx.Response, code: str) -> str:
    document: dict[str, Any] = answer.json()
    assert document["code"] == code
    assert document["detail"] != document["title"]
    return str(document["detail"])


def test_the_detail_of_a_refused_append_names_what_differs(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            post = node.client.post
            records = f"{LOG}/records"
            key = {"Idempotency-Key": "order-17"}
            assert (await post(records, json={"value": "once"}, headers=key)).status_code == 200
            reused = await post(records, json={"value": "twice"}, headers=key)
            assert "other records or conditions" in await _problem(reused, "idempotency-key-reused")

            first: dict[str, str | int] = {"producer_id": "p", "producer_epoch": 4, "producer_sequence": 9}
            assert (await post(records, json={"value": "a"}, params=first)).status_code == 200
            gap = await post(records, json={"value": "a"}, params={**first, "producer_sequence": 12})
            assert await _problem(gap, "sequence-gap") == (
                "the next sequence of this producer and epoch must be 10, got 12"
            )
            old = await post(records, json={"value": "a"}, params={**first, "producer_epoch": 3})
            assert await _problem(old, "producer-fenced") == (
                "the current epoch of this producer is 4, got 3"
            )

            assert (await post(f"{LOG}:fence", json={"token": "w"})).status_code == 200
            none = await post(records, json={"value": "a"})
            assert "no fencing_token" in await _problem(none, "fenced")
            other = await post(records, json={"value": "a"}, params={"fencing_token": "v"})
            assert "another one" in await _problem(other, "fenced")
            moved = await post(f"{LOG}:fence", json={"token": "v", "match_token": None})
            assert "match_token" in await _problem(moved, "fenced")

    asyncio.run(run())


def test_an_unsupported_type_or_encoding_is_answered_with_the_supported_ones(tmp_path: Path) -> None:
    """RFC 9110, section 15.5.16."""

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            post = node.client.post
            packed = {"Content-Type": "application/json", "Content-Encoding": "br"}
            for path, known in (("records", "gzip, zstd, identity"), ("records:stream", "identity")):
                lines = {**packed, "Content-Type": "application/x-ndjson"}
                answer = await post(f"{LOG}/{path}", content=b"{}", headers=lines)
                await _problem(answer, "unsupported-media-type")
                assert (answer.headers["accept-encoding"], "accept" in answer.headers) == (known, False)
            answer = await post(f"{LOG}:fence", content=b"{}", headers=packed)
            assert answer.headers["accept-encoding"] == "gzip, zstd, identity"

            text = {"Content-Type": "text/plain"}
            answer = await post(f"{LOG}/records", content=b"a", headers=text)
            await _problem(answer, "unsupported-media-type")
            assert answer.headers["accept"].startswith("application/json, application/x-ndjson, ")
            assert "accept-encoding" not in answer.headers
            answer = await post(f"{LOG}:fence", content=b"{}", headers=text)
            assert answer.headers["accept"] == "application/json"

    asyncio.run(run())


def test_an_append_without_records_is_a_fault_of_the_body(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            lines = {"Content-Type": "application/x-ndjson"}
            answer = await node.client.post(f"{LOG}/records", content=b"\n", headers=lines)
            detail = "must contain at least one record"
            assert await _problem(answer, "invalid-request") == f"the body: {detail}"
            assert answer.json()["errors"] == [{"pointer": "", "detail": detail}]

    asyncio.run(run())


def test_a_refused_type_is_named(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            answer = await node.client.get(f"{LOG}/records", headers={"Accept": "text/csv"})
            assert (await _problem(answer, "not-acceptable")).endswith(", got 'text/csv'")

    asyncio.run(run())


def test_a_stream_is_refused_with_the_types_of_a_stream(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            for given, received in (
                ("text/plain", "got 'text/plain'"),
                ("application/json", "got 'application/json'"),
            ):
                answer = await node.client.post(
                    f"{LOG}/records:stream", content=b"{}", headers={"Content-Type": given}
                )
                assert await _problem(answer, "unsupported-media-type") == (
                    "Content-Type must be one of application/x-ndjson, application/vnd.apache.arrow.stream, "
                    f"application/vnd.commitlog.batch, {received}"
                )

    asyncio.run(run())


def test_the_default_log_cannot_be_deleted_in_the_configuration_either(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            answer = await node.client.delete(LOG)
            assert "always exists" in await _problem(answer, "invalid-request")

    asyncio.run(run())


def test_the_page_of_a_problem_has_no_markup_of_docstrings(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            page = (await node.client.get("/problems/index-mismatch")).text
            assert "<code>match_index</code>" in page
            assert "`" not in page
            text = re.sub("<[^>]*>", "", page)
            assert "  " not in text

    asyncio.run(run())


def test_a_log_in_classic_mode_is_not_created_with_learners(tmp_path: Path) -> None:
    """They were accepted and shown, but acknowledged records as any slave does."""

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            asked = {"name": "x", "replication": "classic", "learners": ["n1"]}
            answer = await node.client.post("/v1/logs", json=asked)
            detail = "a log in classic mode has no learners: each slave counts"
            assert answer.json()["errors"][-1] == {"pointer": "/learners", "detail": detail}

    asyncio.run(run())


def test_a_change_of_the_members_of_a_classic_log_is_refused_by_any_node(tmp_path: Path) -> None:
    """The call was passed to the master. While that waited, the answer was 503, to be repeated."""

    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            await node.client.post("/v1/logs", json={"name": "x", "replication": "classic"})
            for method, path in (("POST", "n1:promote"), ("DELETE", "n1")):
                answer = await node.client.request(method, f"/v1/cluster/members/{path}?log=x")
                detail = "the replicas of a log in classic mode cannot be changed: create another log"
                assert answer.json()["errors"] == [{"pointer": "/query/log", "detail": detail}]

    asyncio.run(run())


def test_an_append_is_counted_however_it_is_refused(tmp_path: Path) -> None:
    """Overload (429) and limits (413) of appends are what an operator looks for in the metric."""

    async def run() -> None:
        async with node_in_process(
            tmp_path, limits={"max_request_bytes": 500, "max_record_bytes": 500}
        ) as node:
            meter, records = node.broker.meter, f"{LOG}/records"

            async def counted(status: int, path: str = records, **given: Any) -> None:
                before = dict(meter.answers)
                assert (await node.client.post(path, **given)).status_code == status
                changed = {key: count - before.get(key, 0) for key, count in meter.answers.items()}
                assert {key: more for key, more in changed.items() if more} == {
                    ("POST", "/v1/logs/{log}/records", status): 1
                }

            await counted(200, json={"value": "a"})
            await counted(404, "/v1/logs/none/records", json={"value": "a"})
            await counted(413, content=b"x" * 501)
            await counted(415, content=b"x", headers={"Content-Type": "image/png"})
            node.framework.state.appends.in_flight._max_requests = 0
            await counted(429, json={"value": "a"})

    asyncio.run(run())


def test_a_repeated_append_adds_no_records_to_the_metrics(tmp_path: Path) -> None:
    async def run() -> None:
        async with node_in_process(tmp_path) as node:
            for replayed in (False, True):
                answer = await node.client.post(
                    f"{LOG}/records", json={"value": "once"}, headers={"Idempotency-Key": "order-17"}
                )
                assert answer.json()["replayed"] is replayed
                assert (node.broker.meter.appended_records, node.broker.meter.appended_bytes) == (1, 4)

    asyncio.run(run())


def test_a_refusal_of_a_follower_has_the_base_url_of_the_leader_as_a_header() -> None:
    """Once, also where the headers of the log name it."""
    url = b"http://127.0.0.1:8102"
    refusal = NotLeader("n2", url.decode())
    for of_log in ([], [(b"commitlog-term", b"7"), (b"commitlog-leader", url)]):
        answer = problem_response(refusal, instance="/", request_id=b"r", headers=of_log)
        assert [value for name, value in answer.headers if name == b"commitlog-leader"] == [url]
    unknown = problem_response(NotLeader(None), instance="/", request_id=b"r")
    assert b"commitlog-leader" not in dict(unknown.headers)
