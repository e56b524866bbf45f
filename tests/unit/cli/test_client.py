"""The client library against scripted nodes: retries never double, and errors state what is known."""

import contextlib
import itertools
import json
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pyarrow as pa
import pytest

from app.client import (
    ClientError,
    CommitlogClient,
    ConditionFailed,
    InvalidRequest,
    NoAnswer,
    NotFound,
    OutcomeUnknown,
    Problem,
    Record,
    Unavailable,
    connection,
    in_batches,
)
from app.client.errors import Untrusted, problem_of
from tests.support.certificates import make_authority, make_certificate
from tests.unit.cli.fake_service import Asked, Scripted, committed, fake_service, problem

CLOSED_PORTS = iter(random.SystemRandom().sample(range(10_200, 12_000), 1_800))
"""The system gives none of them to a process that asks for a free port."""


def closed_url() -> str:
    """An address without a listener, another one at each call."""
    for port in CLOSED_PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return f"http://127.0.0.1:{port}"
    raise AssertionError("no closed ports are left")


@pytest.mark.parametrize(
    "endpoint",
    [
        "127.0.0.1:8101",
        "localhost",
        "",
        "ftp://127.0.0.1:8101",
        "http://",
        "http://a:1,http://b:1",
        "http://a:1#b",
    ],
)
def test_an_endpoint_that_is_not_one_base_url_is_refused(endpoint: str) -> None:
    for given in (endpoint, ["http://127.0.0.1:8101", endpoint]):
        with pytest.raises(ValueError, match=f"a base URL such as http://127.0.0.1:8101, got '{endpoint}'"):
            CommitlogClient(given)


@pytest.mark.parametrize("token", ["a\nb", "a b", "t\u2014", "\x7f"])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(ValueError, match="token must consist of visible ASCII characters") as refused:
        CommitlogClient(token=token)
    assert token not in str(refused.value)


def test_a_page_of_a_proxy_is_one_line_of_the_error() -> None:
    error = problem_of(501, b"<html>\n  <title>Not here</title>\n</html>\n")
    assert str(error) == (
        "http-501: a proxy or another program has answered, not a commitlog node: "
        "<html> <title>Not here</title> </html>"
    )


def test_https_for_a_node_without_tls_sends_nothing_and_names_the_url() -> None:
    with (
        fake_service(lambda _: Scripted(200, committed())) as node,
        CommitlogClient(node.url.replace("http:", "https:"), give_up_s=60) as client,
        pytest.raises(Untrusted, match=f"does not use TLS; its URL is {node.url}") as refused,
    ):
        client.append(["a"])
    assert refused.value.outcome == "not_applied"


def test_a_file_of_other_authorities_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The advice to set SSL_CERT_FILE would not help: it is set."""
    served = make_certificate(make_authority(tmp_path), "node", "IP:127.0.0.1")
    (tmp_path / "other").mkdir()
    other = make_authority(tmp_path / "other")
    monkeypatch.setenv("SSL_CERT_FILE", str(other))
    with (
        fake_service(lambda _: Scripted(200, committed()), certificate=served) as node,
        CommitlogClient(node.url) as client,
        pytest.raises(
            Untrusted, match=f"names {other}, which does not have the certificate of its authority"
        ),
    ):
        client.append(["a"])


def test_an_expired_certificate_is_named_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = make_authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    expired = make_certificate(authority, "node", "IP:127.0.0.1", days=-1)
    with (
        fake_service(lambda _: Scripted(200, committed()), certificate=expired) as node,
        CommitlogClient(node.url) as client,
        pytest.raises(Untrusted, match=r"has expired .*; the node needs a new certificate, and a restart"),
    ):
        client.append(["a"])


def test_a_node_that_is_not_trusted_is_passed_over_and_nothing_else_is_an_error_at_once() -> None:
    with fake_service(lambda _: Scripted(200, {**committed(), "logs": []})) as node:
        without_tls = node.url.replace("http:", "https:")
        with CommitlogClient([without_tls, node.url]) as client:
            client.append(["a"])
            assert client.connection.first_good(lambda url: client.connection.once("GET", url, "/v1/logs"))
        with CommitlogClient([without_tls, without_tls], give_up_s=60) as client:
            with pytest.raises(Untrusted, match="does not use TLS"):
                client.tail()
            with pytest.raises(Untrusted, match="does not use TLS"):
                client.connection.first_good(client.status)


@pytest.mark.parametrize(
    ("refusal", "outcome"),
    [
        (problem("unauthenticated", 401, "not_applied", retryable=False), "unknown"),
        (problem("too-large", 413, "not_applied", retryable=False), "unknown"),
        (problem("index-mismatch", 412, "not_applied", retryable=False), "not_applied"),
        (problem("term-mismatch", 412, "not_applied", retryable=False), "not_applied"),
        (
            problem("schema-mismatch", 422, "not_applied", retryable=False),
            "unknown",
        ),  # a later schema may fit
        (
            problem("producer-fenced", 409, "not_applied", retryable=False),
            "unknown",
        ),  # a log forgets the appends of an older epoch
    ],
)
def test_a_refusal_after_a_lost_answer_is_the_outcome_only_where_it_decides_it(
    refusal: Scripted, outcome: str
) -> None:
    answers = iter([Scripted(0), refusal])
    with (
        fake_service(lambda _: next(answers)) as node,
        CommitlogClient(node.url) as client,
        pytest.raises(Problem) as refused,
    ):
        client.append(["a"])
    assert (refused.value.code, refused.value.outcome) == (refusal.document["code"], outcome)


def test_a_repeat_carries_the_same_key_and_body() -> None:
    answers = itertools.chain([Scripted(0), problem("quorum-timeout", 504, "unknown", retryable=True)])
    with (
        fake_service(lambda _: next(answers, Scripted(200, committed(3, 2, replayed=True)))) as node,
        CommitlogClient(node.url) as client,
    ):
        appended = client.append(["a", Record("b", key="k")])
    assert (appended.first_index, appended.count, appended.replayed) == (3, 2, True)
    assert len(node.appends()) == 3
    assert len({asked.headers["idempotency-key"] for asked in node.appends()}) == 1
    assert {asked.body for asked in node.appends()} == {b'{"value":"a"}\n{"value":"b","key":"k"}\n'}


def test_two_appends_never_share_a_key() -> None:
    with fake_service(lambda _: Scripted(200, committed())) as node, CommitlogClient(node.url) as client:
        client.append(["a"])
        client.append(["a"])
    first, second = (asked.headers["idempotency-key"] for asked in node.appends())
    assert first != second


def test_appends_go_to_the_leader_that_an_answer_names() -> None:
    with fake_service(lambda _: Scripted(200, committed())) as leader:
        named = {"Commitlog-Leader": leader.url}
        with (
            fake_service(lambda _: Scripted(200, committed(), named)) as follower,
            CommitlogClient(follower.url) as client,
        ):
            client.append(["first"])
            client.append(["second"])
    assert len(follower.appends()) == 1
    assert len(leader.appends()) == 1


def test_a_dead_leader_is_left_even_while_others_still_name_it() -> None:
    dead = closed_url()
    with (
        fake_service(lambda _: Scripted(200, committed(), {"Commitlog-Leader": dead})) as follower,
        CommitlogClient([follower.url], give_up_s=5) as client,
    ):
        for _ in range(3):
            client.append(["x"])
    assert len(follower.appends()) == 3


def test_a_silent_node_makes_place_for_the_next() -> None:
    with (
        fake_service(lambda _: Scripted(200, committed())) as node,
        CommitlogClient([closed_url(), node.url]) as client,
    ):
        assert client.append(["x"]).count == 1


def test_without_any_node_the_append_is_certainly_not_stored() -> None:
    with (
        CommitlogClient([closed_url(), closed_url()], give_up_s=0.2) as client,
        pytest.raises(NoAnswer, match="does not answer") as caught,
    ):
        client.append(["x"])
    assert caught.value.outcome == "not_applied"


def test_nodes_that_refuse_a_command_are_named_all() -> None:
    """A command also asks nodes that earlier commands have learned: the last one alone explains nothing."""
    urls = [closed_url() for _ in range(7)]
    with (
        CommitlogClient(urls, waits_for_start=False) as client,
        pytest.raises(NoAnswer) as caught,
    ):
        client.append(["x"])
    assert str(caught.value) == f"no node answers at {', '.join(urls[:5])} and 2 others (connection refused)"
    assert (caught.value.outcome, caught.value.refused) == ("not_applied", True)


@contextmanager
def node_that_ends_within_a_call() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def end() -> None:
            connection, _ = listener.accept()
            listener.close()
            with connection:
                connection.recv(1 << 16)

        node = Thread(target=end)
        node.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        node.join()


def test_a_lost_attempt_stays_in_doubt_when_all_nodes_refuse_afterwards() -> None:
    with (
        node_that_ends_within_a_call() as url,
        CommitlogClient([url, closed_url(), closed_url()], waits_for_start=False) as client,
        pytest.raises(ClientError) as caught,
    ):
        client.append(["x"])
    assert caught.value.outcome == "unknown"


@pytest.mark.parametrize("waits", [True, False])
def test_the_error_of_a_read_is_that_of_the_last_attempt(waits: bool) -> None:
    """A read has no outcome: the connection that was lost first is not the present state."""
    with (
        node_that_ends_within_a_call() as url,
        CommitlogClient([url], waits_for_start=waits, give_up_s=0.5) as client,
        pytest.raises(NoAnswer, match="does not answer"),
    ):
        client.read()


def test_a_node_that_answers_is_waited_for_and_its_refusal_is_the_error() -> None:
    """Two of three nodes are down, and the third one has no leader: it is not true that no node answers."""
    with (
        fake_service(lambda _: _NO_LEADER) as node,
        CommitlogClient(
            [closed_url(), node.url, closed_url()], waits_for_start=False, give_up_s=2.0
        ) as client,
        pytest.raises(Unavailable) as caught,
    ):
        client.append(["x"])
    assert caught.value.code == "no-leader"
    assert len(node.appends()) >= 3


_LOST = Scripted(0)
_APPLIED = problem("flush-slave-timeout", 504, "applied", retryable=True)
_NO_LEADER = problem("no-leader", 503, "not_applied", retryable=True)
_NO_TOKEN = problem("unauthenticated", 401, "not_applied", retryable=False)
_FENCED = problem("fenced", 412, "not_applied", retryable=False)


@pytest.mark.parametrize(
    ("first", "then", "outcome", "expected"),
    [
        (_LOST, _NO_LEADER, "unknown", NoAnswer),
        (_LOST, _NO_TOKEN, "unknown", Problem),
        (_LOST, _FENCED, "unknown", ConditionFailed),
        (_APPLIED, _NO_LEADER, "applied", Unavailable),
        (_APPLIED, _NO_TOKEN, "applied", Problem),
    ],
)
def test_a_doubtful_attempt_stays_doubtful_whatever_fails_after_it(
    first: Scripted, then: Scripted, outcome: str, expected: type[Exception]
) -> None:
    """A refusal is certain of its own attempt alone."""
    answers = iter([first])
    with (
        fake_service(lambda _: next(answers, then)) as node,
        CommitlogClient(node.url, give_up_s=0.3) as client,
        pytest.raises(expected) as caught,
    ):
        client.append(["x"])
    assert isinstance(caught.value, ClientError)
    assert caught.value.outcome == outcome


@pytest.mark.parametrize(
    ("code", "status", "outcome", "expected"),
    [
        ("index-mismatch", 412, "not_applied", ConditionFailed),
        ("log-not-found", 404, "not_applied", NotFound),
        ("invalid-request", 422, "not_applied", InvalidRequest),
        ("too-large", 413, "not_applied", InvalidRequest),
    ],
)
def test_an_error_that_no_repeat_can_fix_is_raised_at_once(
    code: str, status: int, outcome: str, expected: type[Exception]
) -> None:
    reported = problem(code, status, outcome, retryable=False)
    with (
        fake_service(lambda _: reported) as node,
        CommitlogClient(node.url) as client,
        pytest.raises(expected, match=f"{code}: {code} it is"),
    ):
        client.append(["x"])
    assert len(node.asked) == 1


@pytest.mark.parametrize(
    ("code", "outcome", "expected"),
    [("no-leader", "not_applied", Unavailable), ("term-changed", "unknown", OutcomeUnknown)],
)
def test_after_giving_up_the_error_reports_the_outcome_of_the_append(
    code: str, outcome: str, expected: type[Exception]
) -> None:
    reported = problem(code, 503, outcome, retryable=True)
    with (
        fake_service(lambda _: reported) as node,
        CommitlogClient(node.url, give_up_s=0.2) as client,
        pytest.raises(expected),
    ):
        client.append(["x"])
    assert len(node.asked) > 1


def test_a_repeat_of_an_append_in_flight_leaves_the_outcome_unknown() -> None:
    """The refusal is certain of the repeat alone: a program must not append the records with another key."""
    document = {"code": "request-outstanding", "outcome": "not_applied", "first_outcome": "unknown"}
    with (
        fake_service(lambda _: Scripted(409, {**document, "retryable": True})) as node,
        CommitlogClient(node.url, give_up_s=0.2) as client,
        pytest.raises(OutcomeUnknown) as raised,
    ):
        client.append(["x"], idempotency_key="k")
    assert raised.value.outcome == "unknown"


def test_an_answer_that_is_not_a_problem_document_is_still_an_error_with_a_message() -> None:
    with (
        fake_service(lambda _: Scripted(404, ["strange"])) as node,
        CommitlogClient(node.url) as client,
        pytest.raises(NotFound, match="strange"),
    ):
        client.status()


def test_a_good_status_without_the_answer_of_an_append_leaves_the_outcome_unknown() -> None:
    with (
        fake_service(lambda _: Scripted(200, {"first_index": 0})) as node,
        CommitlogClient(node.url, give_up_s=0.2) as client,
        pytest.raises(NoAnswer, match="no field 'last_index'") as caught,
    ):
        client.append(["x"])
    assert caught.value.outcome == "unknown"


def test_conditions_travel_as_parameters() -> None:
    with (
        fake_service(lambda _: Scripted(200, committed())) as node,
        CommitlogClient(node.url, log="flights") as client,
    ):
        client.append(
            ["x"], match_index=7, acks="all", producer_id="p", producer_sequence=0, producer_epoch=1
        )
    asked = node.appends()[0]
    assert asked.path == "/v1/logs/flights/records"
    assert asked.query == {
        "match_index": "7",
        "acks": "all",
        "timeout_ms": "5000",
        "producer_id": "p",
        "producer_sequence": "0",
        "producer_epoch": "1",
    }
    assert "idempotency-key" not in asked.headers


def test_arrow_appends_are_one_stream() -> None:
    table = pa.table({"value": [b"a", b"b"], "key": ["k", None]})
    with fake_service(lambda _: Scripted(200, committed(0, 2))) as node, CommitlogClient(node.url) as client:
        client.append_arrow(table)
    asked = node.appends()[0]
    assert asked.headers["content-type"] == "application/vnd.apache.arrow.stream"
    assert pa.ipc.open_stream(asked.body).read_all().equals(table)


def test_follow_continues_after_each_page_and_through_failures() -> None:
    def answer(asked: Asked) -> Scripted:
        index = int(asked.query["from_index"])
        if index == 2 and len(node.asked) == 2:
            return Scripted(0)
        records = [{"index": index}, {"index": index + 1}]
        return Scripted(200, {"records": records, "next_index": index + 2, "has_more": True})

    with fake_service(answer) as node, CommitlogClient(node.url) as client:
        indexes = [record["index"] for record in itertools.islice(client.follow(0), 6)]
    assert indexes == [0, 1, 2, 3, 4, 5]


def test_records_keep_bytes_that_are_not_text() -> None:
    record = Record(b"\xff", key=b"\x00k", headers=[("h", b"\xfe"), ("g", "v")], timestamp=5)
    assert json.loads(json.dumps(record.to_json())) == {
        "value_base64": "/w==",
        "key_base64": "AGs=",
        "headers": [["h", {"base64": "/g=="}], ["g", "v"]],
        "timestamp": 5,
    }
    assert Record(None).to_json() == {"value": None}


def test_batches_keep_order_and_obey_both_limits() -> None:
    records = [Record("v" * size) for size in (10, 10, 10, 5_000, 10)]
    by_count = list(in_batches(records, max_records=2))
    assert [len(batch) for batch in by_count] == [2, 2, 1]
    assert [record for batch in by_count for record in batch] == records
    assert [len(batch) for batch in in_batches(records, max_bytes=1_000)] == [3, 1, 1]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (Exception("a: unable to get local issuer certificate (_ssl.c:1006)"), "(_ssl.c:1006)"),
        (
            Exception("a", OSError(1, "[SSL: SSLV3_ALERT_BAD] sslv3 alert bad (_ssl.c:25)")),
            "[Errno 1] sslv3 alert bad (_ssl.c:25)",
        ),
        (Exception("a: Read timed out. (read timeout=5.0)"), "Read timed out. (read timeout=5.0)"),
        (Exception("('x', OSError(1, 'y: refused'))"), "refused"),
        (Exception("x", ConnectionResetError(104, "reset by peer")), "[Errno 104] reset by peer"),
        (Exception(), "Exception"),
    ],
)
def test_the_reason_of_a_network_error_is_one_whole_clause(error: Exception, reason: str) -> None:
    assert connection._reason(error).endswith(reason)
    assert connection._reason(error).count("(") == connection._reason(error).count(")")


@pytest.mark.parametrize("record", ["text", b"bytes", {"value": "v"}, Record("v")])
def test_one_record_without_a_list_is_refused_and_not_taken_apart(record: Any) -> None:
    """A text would be stored as one record for each of its characters."""
    with (
        fake_service(lambda _: Scripted(200, committed())) as node,
        CommitlogClient(node.url) as client,
        pytest.raises(TypeError, match=r"a list of records is required, got one \w+: \[record\]"),
    ):
        client.append(record)
    assert node.appends() == []


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (3, "the value of a record must be text, bytes or None, got int"),
        (Record(["a"]), "the value of a record must be text, bytes or None, got list"),  # type: ignore[arg-type]
        (Record("v", key=3), "the key of a record must be text, bytes or None, got int"),  # type: ignore[arg-type]
        (Record("v", headers=[("a", 3)]), "the value of a header must be text or bytes, got int"),  # type: ignore[list-item]
        (Record("v", headers={"ab": "v"}), "headers must be of the type tuple or list, got dict"),  # type: ignore[arg-type]
        (Record("v", headers=["ab"]), r"must be a pair \(name, value\), got 'ab'"),  # type: ignore[list-item]
        (Record("v", timestamp=1.5), "since 1970 UTC, must be a whole number, got float"),  # type: ignore[arg-type]
    ],
)
def test_a_record_that_cannot_be_is_explained(record: Any, reason: str) -> None:
    with CommitlogClient("http://127.0.0.1:1") as client, pytest.raises(TypeError, match=reason):
        client.append([record])
