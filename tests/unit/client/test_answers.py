"""Answers that are not of the service, and records that have no form in a request."""

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from app.client import ClientError, CommitlogClient, NoAnswer, Problem, Record, Unavailable
from app.client.batches import arrow_body
from app.client.client import document_of
from app.client.connection import AVOID_S, LEARN_EACH_S, ClusterConnection, HttpAnswer
from app.client.data_frames import append_frame, read_frame
from app.client.errors import problem_of
from app.client.operations import Operations
from app.client.records import ndjson
from app.client.tables import Tables
from tests.unit.cli.fake_service import Asked, Scripted, committed, fake_service, problem

ROWS = pa.table({"value": ["same"] * 4})
TABLE = {"name": "entries", "path": "/", "version": 0}
TABLE |= dict.fromkeys(("materialized_index", "lag_records", "lag_ms"), 0)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_a_refusal_that_names_its_target(status: int) -> None:
    answer = Scripted(status, {}, {"Location": "https://other/v1"})
    with fake_service(lambda _: answer) as node, CommitlogClient(node.url, give_up_s=0.0) as client:
        for call in (lambda: client.append(["x"]), lambda: Operations(client).delete_log("a")):
            with pytest.raises(Problem, match="redirects to https://other/v1") as caught:
                call()
            assert caught.value.outcome == "not_applied"


def test_an_answer_that_nothing_has_changed_is_no_redirect() -> None:
    with fake_service(lambda _: Scripted(304, {})) as node, CommitlogClient(node.url) as client:
        answer = client.connection.once("GET", node.url, "/v1/logs/a/schemas", headers={"If-None-Match": "*"})
        assert answer.status == 304


def test_a_call_is_repeated_after_a_proxy_could_not_reach_its_node() -> None:
    def answer(asked: Asked) -> Scripted:
        return Scripted(502, "bad gateway") if len(node.asked) == 1 else Scripted(200, committed())

    with fake_service(answer, others=["http://127.0.0.1:1"]) as node, CommitlogClient(node.url) as client:
        client.append(["x"])
    keys = {asked.headers["idempotency-key"] for asked in node.appends()}
    assert (len(node.appends()), len(keys)) == (2, 1)


@pytest.mark.parametrize("errors", [["text"], {"field": "text"}, "text", 5])
def test_errors_of_another_service_are_part_of_no_message(errors: Any) -> None:
    with (
        fake_service(lambda _: Scripted(400, {"detail": "no", "errors": errors})) as node,
        CommitlogClient(node.url, give_up_s=0.0) as client,
        pytest.raises(Problem, match=r"http-400: no$"),
    ):
        client.append(["x"])


def test_a_page_of_a_proxy_in_place_of_a_document_is_an_error_of_the_client() -> None:
    with (
        fake_service(lambda _: Scripted(200, ["<html>"])) as node,
        CommitlogClient(node.url, give_up_s=0.0) as client,
        pytest.raises(NoAnswer, match="not a JSON object"),
    ):
        Operations(client).delete_log("a")


@pytest.mark.parametrize(("answers", "avoided_s"), [(0, LEARN_EACH_S), (1, AVOID_S)])
def test_a_leader_that_never_answered_is_rarely_asked_again(answers: int, avoided_s: float) -> None:
    """Behind a proxy the client may reach no node: each attempt would cost the time limit of connections."""
    scripts = [Scripted(200, committed())] * answers
    times_s = [1.0]
    with fake_service(lambda _: scripts.pop() if scripts else Scripted(0)) as leader:
        named = {"Commitlog-Leader": leader.url}
        with fake_service(lambda _: Scripted(200, committed(), named)) as proxy:
            calls = ClusterConnection([proxy.url], clock=lambda: times_s[-1], learns_nodes=False)
            used = []
            for time_s in (*(1.0,) * (2 + answers), avoided_s + 1, avoided_s + 1.5):
                times_s.append(time_s)
                calls.call("POST", "/v1/logs/default/records", to_leader=True)
                used.append(calls.leader is not None)
            calls.close()
    assert used == [*(True,) * (1 + answers), False, False, True]


@pytest.mark.parametrize("url", ["", "None", "n2:8101"])
def test_a_url_that_is_none_is_not_learned(url: str) -> None:
    def answer(asked: Asked) -> Scripted:
        return Scripted(200, committed(), {"Commitlog-Leader": url})

    with fake_service(answer, others=[url]) as node, CommitlogClient(node.url) as client:
        client.append(["x"])
        client.append(["x"])
        assert client.endpoints == [node.url]


@pytest.mark.parametrize("option", ["idempotency_key", "match_index", "producer_sequence"])
def test_a_frame_of_more_than_one_append_has_no_option_of_a_single_one(option: str) -> None:
    """The log would take the second append for a repeat of the first, and not store it."""
    options: dict[str, Any] = {option: "1" if option == "idempotency_key" else 1}
    with fake_service(lambda _: Scripted(200, committed())) as node, CommitlogClient(node.url) as client:
        with pytest.raises(ValueError, match=f"{option} is of one append.*max_records"):
            append_frame(client, ROWS, max_records=2, **options)
        assert node.appends() == []
        append_frame(client, ROWS, max_records=4, **options)
    assert len(node.appends()) == 1


def test_large_rows_at_the_end_of_a_table_are_divided_too() -> None:
    table = pa.table({"value": ["small"] * 1_000 + ["l" * 1_000] * 8})
    bodies = [pa.ipc.open_stream(body.content).read_all() for body in arrow_body(table, 10_000, 2_000)]
    assert pa.concat_tables(bodies)["value"].to_pylist() == table["value"].to_pylist()
    assert max(body.nbytes for body in bodies) <= 3_000


@pytest.mark.parametrize("record", [{"value": b"raw"}, {"key": bytearray(b"k")}, {"headers": [["a", b"h"]]}])
def test_bytes_in_a_mapping_are_refused(record: dict[str, Any]) -> None:
    """They would be stored as their base64."""
    with CommitlogClient("http://127.0.0.1:1") as client, pytest.raises(TypeError, match="Record"):
        client.append([record])


def test_a_decimal_in_a_mapping_is_a_number() -> None:
    with fake_service(lambda _: Scripted(200, committed())) as node, CommitlogClient(node.url) as client:
        client.append([{"value_json": {"price": Decimal("1.50")}}])
    assert node.appends()[0].body == b'{"value_json":{"price":1.50}}\n'
    with CommitlogClient("http://127.0.0.1:1") as client, pytest.raises(ValueError, match="NaN"):
        client.append([{"value_json": Decimal("NaN")}])


def test_every_error_of_a_damaged_document_is_one_of_the_client() -> None:
    with (
        fake_service(lambda _: Scripted(200, {"records": []})) as node,
        CommitlogClient(node.url, give_up_s=0.0) as client,
        pytest.raises(ClientError),
    ):
        client.read()


def stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("missing", ["end", "end of the batch", "Commitlog-Next-Index", "Commitlog-Has-More"])
def test_every_error_of_a_damaged_arrow_page_is_one_of_the_client(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other replicas are asked after one."""
    body = stream_of(ROWS)
    cut = {"end": body[:-100], "end of the batch": body[:-13]}.get(missing, body)
    headers = {"Commitlog-Next-Index": "4", "Commitlog-Has-More": "false"}
    headers.pop(missing, None)
    answer = HttpAnswer(200, headers, cut)
    with CommitlogClient("http://127.0.0.1:1") as client:
        monkeypatch.setattr(client.connection, "call", lambda *_, **__: answer)
        with pytest.raises(NoAnswer):
            client.read_arrow(0)


def test_a_document_that_is_too_deep_is_an_error_of_the_client() -> None:
    body = b"[" * 200_000
    with pytest.raises(NoAnswer):
        document_of(HttpAnswer(200, {}, body))
    assert problem_of(400, body).status == 400


def test_binary_content_with_zeros_is_not_larger_in_json_than_in_base64() -> None:
    """JSON escapes a zero with six characters: a batch of them would exceed the limit of a request."""
    with fake_service(lambda _: Scripted(200, committed())) as node, CommitlogClient(node.url) as client:
        client.append([Record(b"\0" * 300, key=b"\0" * 300)])
    body = node.appends()[0].body
    assert b'"value_base64":' in body
    assert b'"key_base64":' in body
    assert len(body) < 1_000


def test_a_frame_of_a_replica_that_stays_behind_is_an_error() -> None:
    class Behind(CommitlogClient):
        """Reads of a follower that no longer hears its leader; `calls` counts its pages."""

        calls = 0

        def tail(self, **_: Any) -> dict[str, Any]:
            return {"begin_index": 0, "committed_index": 9}

        def read_arrow(self, from_index: int, **_: Any) -> tuple[pa.Table, int, bool]:
            self.calls += 1
            assert self.calls < 100, "read again without a pause"
            return ROWS.slice(from_index), ROWS.num_rows, False

    with Behind("http://127.0.0.1:1", give_up_s=0.3) as client:
        with pytest.raises(NoAnswer, match=r"the record 4 for 0\.3 s; .* up to index 9"):
            read_frame(client, consistency="committed")
        assert read_frame(client, 0, 4, consistency="committed").num_rows == 4


@pytest.mark.parametrize("number", ["1e400", "-1E+400", "9" * 5_000])
def test_a_number_that_no_float_holds_is_appended_as_it_was_read(number: str) -> None:
    assert ndjson([{"value_json": Decimal(number)}]) == b'{"value_json":%s}\n' % str(Decimal(number)).encode()


@pytest.mark.parametrize(
    ("content", "growth"),
    [(b"text" * 1_000 + b"\0", 1), (b"\1\2\3" * 1_000, 4 / 3), (b"\0" * 1_000, 4 / 3)],
)
def test_binary_content_has_the_shorter_of_its_forms(content: bytes, growth: float) -> None:
    assert len(ndjson([Record(content)])) < growth * len(content) + 50


def test_a_table_whose_slices_share_their_bytes_is_not_divided_into_rows() -> None:
    """Each append would contain all of them."""
    values = pa.array([b"%05d" % number * 20 for number in range(1_000)], pa.binary()).dictionary_encode()
    assert len(list(arrow_body(pa.table({"value": values}), 10_000, 50_000))) <= 3


def test_an_address_that_belongs_to_another_cluster_by_now_gets_no_append() -> None:
    """A removed node is in the list until the next one; another cluster has a log of the same name."""

    def other(asked: Asked) -> Scripted:
        return Scripted(200, {"id": "theirs", "nodes": []} if asked.path == "/v1/cluster" else committed())

    with fake_service(other) as theirs:
        answers = [committed(), {"id": "ours", "nodes": [{"url": theirs.url}]}]

        def answer(asked: Asked) -> Scripted:
            return Scripted(200, answers.pop(0)) if answers else Scripted(0)

        with fake_service(answer) as ours, CommitlogClient(ours.url, give_up_s=0.2) as client:
            client.append(["x"])
            assert client.endpoints == [ours.url, theirs.url]
            with pytest.raises(NoAnswer):
                client.append(["y"])
    assert theirs.appends() == []


def test_a_leader_whose_address_is_of_another_cluster_at_the_next_call_gets_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No call to it has failed in between."""
    monkeypatch.setattr("app.client.connection.LEARN_EACH_S", 0.0)
    ids = {}

    def answer(asked: Asked) -> Scripted:
        if asked.path == "/v1/cluster":
            return Scripted(200, {"id": ids[asked.headers["host"]], "nodes": [{"url": leader.url}]})
        if asked.path.endswith(":wait"):
            late = problem("not-yet-materialized", 504, "not_applied", retryable=True)
            return Scripted(200, TABLE) if asked.headers["host"] in leader.url else late
        return Scripted(200, committed(), {"Commitlog-Leader": leader.url})

    with (
        fake_service(answer) as node,
        fake_service(answer) as leader,
        CommitlogClient(node.url) as client,
    ):
        ids.update({url.partition("//")[2]: "ours" for url in (node.url, leader.url)})
        client.append(["x"])
        client.append(["y"])
        assert Tables(client).wait(0, timeout_ms=0).name == "entries"
        assert len(leader.appends()) == 1
        ids[leader.url.partition("//")[2]] = "theirs"
        client.append(["z"])
        assert len(leader.appends()) == 1
        with pytest.raises(Unavailable):
            Tables(client).wait(0, timeout_ms=0)


def test_a_node_that_has_left_the_cluster_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("app.client.connection.LEARN_EACH_S", 0.0)
    others = ["http://127.0.0.1:1"]
    with (
        fake_service(lambda _: Scripted(200, committed()), others=others) as node,
        CommitlogClient(node.url) as client,
    ):
        client.append(["x"])
        assert client.endpoints == [node.url, *others]
        others[:] = ["http://127.0.0.1:2"]
        client.append(["y"])
        assert client.endpoints == [node.url, *others]
