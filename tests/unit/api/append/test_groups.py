"""Groups of appends: each member keeps its own limits, time, index and forwarding when the group fails."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from app.api.append.call import AppendCall, AppendHead
from app.api.append.group_answers import GroupAnswers
from app.api.append.groups import GROUP_MAX_BYTES, MEMBER_MAX_BYTES, AppendGroups
from app.api.append.handler import AppendHandler
from app.api.http.messages import Response
from app.errors import (
    CommitlogError,
    Fenced,
    LeaderPendingFull,
    LeaderTransferring,
    LogNotFound,
    NoLeader,
    NotLeader,
    QuorumTimeout,
    SchemaMismatch,
    StorageFull,
    TermChanged,
)
from app.log.contract import AppendRequest, AppendResult, Durability
from app.log.set_schema import REJECT
from app.node.replica.open_appends import OpenAppend
from app.settings.model import HttpSettings, Limits
from app.telemetry import Meter
from storage.format.records import RecordColumns

OCTETS = (b"content-type", b"application/octet-stream")
JSON = (b"content-type", b"application/json")


class Driver:
    """A driver whose turn is `settle`."""

    term, committed_index, leader_id = 3, 41, "n1"

    def __init__(self) -> None:
        self.queue: list[OpenAppend] = []
        self.refusal: CommitlogError | None = None
        self.state = SimpleNamespace(schemas=SimpleNamespace(newest=None))

    def append(self, request: AppendRequest, done: Any) -> OpenAppend:
        append = OpenAppend(request, done, 0)
        if self.refusal is not None:
            append.is_queued = False
            done(self.refusal)
        else:
            self.queue.append(append)
        return append

    def grow(self, append: OpenAppend, _size_bytes: int, _now_ms: int) -> bool:
        append.request.appends += append.is_queued
        return append.is_queued

    def take(self) -> list[OpenAppend]:
        """The queue enters the log."""
        taken, self.queue = self.queue, []
        for append in taken:
            append.is_queued = False
        return taken

    @property
    def values(self) -> list[list[bytes | None]]:
        return [columns(append).values for append in self.queue]


def columns(append: OpenAppend) -> RecordColumns:
    assert isinstance(append.request.records, RecordColumns)
    return append.request.records


def acknowledge(append: OpenAppend, first_index: int) -> None:
    last_index = first_index + append.request.records.count - 1
    count = append.request.records.count
    acks = append.request.acks
    append.done(
        AppendResult(first_index, last_index, count, 3, 0, 100, 7, 41, 42, "n1", acks, Durability.FSYNC)
    )


class Carrier:
    """Takes what another node leads."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.left_ms: list[int] = []

    def send(self, *given: Any) -> bool:
        self.bodies.append(given[3])
        self.left_ms.append(given[4])
        return True


class Bench:
    """The front of all appends here, and the groups of a node that leads one log."""

    def __init__(self, tracer: Any = None, **limits: int) -> None:
        self.now_ms = 1_000
        self.driver = Driver()
        self.carrier = Carrier()
        self.deleted = False
        self.hosted: Any = SimpleNamespace(
            name="default", leads=True, repair=None, leader_id="n1", driver=self.driver, serving=self.driver
        )
        broker: Any = SimpleNamespace(
            settings=SimpleNamespace(limits=Limits(**limits), http=HttpSettings()),
            node=SimpleNamespace(id="n1", url="http://n1"),
            nodes=SimpleNamespace(find=lambda id: SimpleNamespace(id=id, url=f"http://{id}")),
            clock=SimpleNamespace(monotonic_ms=lambda: self.now_ms),
            carrier=self.carrier,
            meter=Meter(),
            lookup=SimpleNamespace(find=self.find),
        )
        self.handler = AppendHandler(broker, tracer)
        self.groups = AppendGroups(self.handler)
        self.meter = broker.meter
        self.answers: dict[bytes, Any] = {}
        self.failing: set[bytes] = set()

    def find(self, name: str) -> Any:
        if self.deleted:
            raise LogNotFound(name)
        return self.hosted

    def send(
        self, name: bytes, body: bytes | None = None, *headers: tuple[bytes, bytes], query: bytes = b""
    ) -> None:
        """Begin an append. body: None: its name."""
        body = name if body is None else body
        head = AppendHead("default", "/v1/logs/default/records", query, headers or (OCTETS,))
        self.handler.in_flight.enter(len(body))
        self.groups.begin(AppendCall(head, body, name, len(body)), self)

    def answer(self, call: AppendCall, answer: Response) -> None:
        assert call.request_id not in self.answers
        if call.request_id in self.failing:
            raise OSError("the client has disconnected")
        self.answers[call.request_id] = json.loads(answer.body)

    def answer_in_group(self, call: AppendCall, answers: GroupAnswers, first_index: int, count: int) -> None:
        body = answers.body(first_index, count)
        self.answer(call, Response(answers.status, [], body))

    def indexes(self) -> dict[bytes, int]:
        return {name: answer["first_index"] for name, answer in self.answers.items()}

    def codes(self) -> dict[bytes, str]:
        return {name: answer["code"] for name, answer in self.answers.items()}

    @property
    def in_flight(self) -> tuple[int, int]:
        return self.handler.in_flight.requests, self.handler.in_flight.bytes


def test_plain_appends_that_wait_for_one_turn_are_one() -> None:
    bench = Bench()
    bench.send(b"a")
    bench.send(b"b", b'{"records":[{"value":"b1"},{"value":"b2"}]}', JSON)
    bench.send(b"c")
    assert bench.driver.values == [[b"a", b"b1", b"b2", b"c"]]
    [append] = bench.driver.take()
    assert append.request.appends == 3
    acknowledge(append, 20)
    assert bench.indexes() == {b"a": 20, b"b": 21, b"c": 23}
    assert bench.answers[b"b"]["last_index"] == 22
    assert bench.in_flight == (0, 0)
    assert bench.meter.answers == {("POST", "/v1/logs/{log}/records", 200): 3}
    assert (bench.meter.appended_records, sum(bench.meter.append_counts)) == (4, 3)


def test_a_group_that_is_refused_at_once_takes_no_member() -> None:
    bench = Bench()
    bench.driver.refusal = LeaderPendingFull()
    bench.send(b"a")
    bench.driver.refusal = None
    bench.send(b"b")
    bench.send(b"c")
    assert bench.codes() == {b"a": "leader-pending-full"}
    assert bench.driver.values == [[b"b", b"c"]]
    assert bench.in_flight == (2, 2)


def test_a_member_that_was_alone_is_not_tried_again() -> None:
    bench = Bench()
    bench.send(b"a")
    bench.driver.take()[0].done(Fenced())
    assert bench.codes() == {b"a": "fenced"}
    assert bench.driver.queue == []
    assert bench.in_flight == (0, 0)


def test_traced_appends_are_alone() -> None:
    tracer = SimpleNamespace(timed=lambda name, parent, done: done)
    bench = Bench(tracer=tracer)
    bench.send(b"a")
    bench.send(b"b")
    assert bench.driver.values == [[b"a"], [b"b"]]


@pytest.mark.parametrize("leads", [False, True])
def test_a_source_that_fails_leaves_the_limits_once(leads: bool) -> None:
    bench = Bench()
    bench.hosted.leads = leads
    bench.failing.add(b"a")
    bench.send(b"a", b"{", JSON, (b"commitlog-no-forward", b"1"))
    assert bench.in_flight == (0, 0)
    assert sum(bench.meter.answers.values()) == 1


def test_an_append_after_the_turn_begins_another_group() -> None:
    bench = Bench()
    bench.send(b"a")
    [first] = bench.driver.take()
    bench.send(b"b")
    bench.send(b"c")
    assert bench.driver.values == [[b"b", b"c"]]
    acknowledge(first, 1)  # while the later group waits: it stays the one that others join
    bench.send(b"d")
    assert bench.driver.values == [[b"b", b"c", b"d"]]


@pytest.mark.parametrize(
    ("body", "headers", "query"),
    [
        (None, (OCTETS, (b"idempotency-key", b"k")), b""),
        (None, (OCTETS, (b"commitlog-key", b"k")), b""),
        (None, (OCTETS, (b"commitlog-timestamp", b"5")), b""),
        (None, (OCTETS,), b"match_index=4"),
        (None, (OCTETS,), b"match_term=4"),
        (None, (OCTETS,), b"fencing_token=t"),
        (None, (OCTETS,), b"producer_id=p&producer_epoch=1&producer_sequence=1"),
        (b'{"records":[{"value":"x"}],"match_index":4}', (JSON,), b""),
        (b'{"records":[{"value":"x"}],"producer":{"id":"p","epoch":0,"sequence":0}}', (JSON,), b""),
        (b"x" * (MEMBER_MAX_BYTES + 1), (OCTETS,), b""),
    ],
)
def test_an_append_with_something_of_its_own_is_alone(body: Any, headers: Any, query: bytes) -> None:
    bench = Bench()
    bench.send(b"a")
    bench.send(b"own", body, *headers, query=query)
    bench.send(b"b")
    assert [append.request.appends for append in bench.driver.queue] == [2, 1]
    assert bench.driver.values[0] == [b"a", b"b"]


def test_only_appends_with_the_same_acks_and_time_share_a_group() -> None:
    bench = Bench()
    for query in (b"", b"acks=leader", b"timeout_ms=7", b"acks=quorum", b"timeout_ms=7"):
        bench.send(b"%d" % len(bench.driver.queue), b"v", query=query)
    assert [append.request.appends for append in bench.driver.queue] == [2, 1, 2]


@pytest.mark.parametrize("body", [b"{", b'{"value":"a","x":1}', b'{"value":"%b"}' % (b"x" * 60)])
def test_an_invalid_body_is_refused_alone(body: bytes) -> None:
    bench = Bench(max_record_bytes=50)
    bench.send(b"a")
    bench.send(b"bad", body, JSON)
    assert list(bench.answers) == [b"bad"]
    bench.send(b"b")
    assert bench.driver.values == [[b"a", b"b"]]
    bench.send(b"large", b"x" * 51)
    assert bench.codes() == {b"bad": bench.answers[b"bad"]["code"], b"large": "too-large"}


def test_a_group_is_limited_in_bytes() -> None:
    bench = Bench()
    for number in range(2 * GROUP_MAX_BYTES // MEMBER_MAX_BYTES):
        bench.send(b"%d" % number, b"x" * MEMBER_MAX_BYTES)
    assert all(columns(append).packed_bytes <= GROUP_MAX_BYTES for append in bench.driver.queue)
    assert len(bench.driver.queue) == 3


def test_a_log_whose_schema_rejects_records_has_no_groups() -> None:
    bench = Bench()
    bench.driver.state.schemas.newest = SimpleNamespace(record=SimpleNamespace(on_invalid=REJECT))
    bench.send(b"a")
    bench.send(b"b")
    assert bench.driver.values == [[b"a"], [b"b"]]


@pytest.mark.parametrize(
    "refusal", [LeaderPendingFull(), SchemaMismatch(1, 0, "/a", "is not a number"), Fenced(), StorageFull()]
)
def test_the_members_of_a_refused_group_are_tried_alone(refusal: CommitlogError) -> None:
    bench = Bench()
    bench.send(b"a")
    bench.send(b"b")
    bench.now_ms += 400
    [group] = bench.driver.take()
    group.done(refusal)
    assert bench.driver.values == [[b"a"], [b"b"]]
    assert [append.request.timeout_ms for append in bench.driver.queue] == [4_600, 4_600]
    one, other = bench.driver.take()
    acknowledge(one, 5)
    other.done(refusal)
    assert bench.answers[b"a"]["first_index"] == 5
    assert bench.answers[b"b"]["code"] == refusal.code
    assert bench.in_flight == (0, 0)


def test_a_group_that_is_refused_after_its_time_is_not_tried_again() -> None:
    bench = Bench()
    bench.send(b"a")
    bench.send(b"b")
    bench.now_ms += 5_000
    bench.driver.take()[0].done(LeaderTransferring())
    assert bench.driver.queue == []
    assert bench.codes() == {b"a": "leader-transferring", b"b": "leader-transferring"}
    assert bench.in_flight == (0, 0)


@pytest.mark.parametrize("refusal", [NotLeader("n2"), NoLeader()])
def test_the_members_of_a_group_that_lost_its_leader_are_forwarded(refusal: CommitlogError) -> None:
    """Also while the node still leads by its own account: its driver may be ending, and take no append."""
    bench = Bench()
    bench.send(b"a")
    bench.send(b"b")
    bench.send(b"stays", None, OCTETS, (b"commitlog-no-forward", b"1"))
    bench.now_ms += 100
    bench.driver.take()[0].done(refusal)
    assert bench.driver.queue == []
    assert (bench.carrier.bodies, bench.carrier.left_ms) == ([b"a", b"b"], [4_900, 4_900])
    assert list(bench.answers) == [b"stays"]
    assert bench.answers[b"stays"]["outcome"] == "not_applied"


@pytest.mark.rule("D-23")
@pytest.mark.parametrize("stays", [False, True])
def test_an_unknown_outcome_is_reported_as_unknown_whatever_has_changed_since(stays: bool) -> None:
    """The lead may be lost and the log deleted: neither makes it certain that nothing was applied."""
    headers = (OCTETS, (b"commitlog-no-forward", b"1")) if stays else (OCTETS,)
    for failure in (TermChanged(), QuorumTimeout(20)):
        bench = Bench()
        bench.send(b"a", None, *headers)
        bench.send(b"b", b'{"records":[{"value":"b1"},{"value":"b2"}]}', JSON)
        bench.send(b"c", None, *headers)
        [group] = bench.driver.take()
        bench.hosted.leads, bench.deleted = False, True
        group.done(failure)
        assert set(bench.codes().values()) == {failure.code}
        assert {answer["outcome"] for answer in bench.answers.values()} == {"unknown"}
        if isinstance(failure, QuorumTimeout):
            assert bench.indexes() == {b"a": 20, b"b": 21, b"c": 23}
        assert (bench.driver.queue, bench.carrier.bodies, bench.in_flight) == ([], [], (0, 0))


@pytest.mark.parametrize("failure", [None, QuorumTimeout(20)])
def test_a_member_whose_client_has_disconnected_harms_no_other(failure: CommitlogError | None) -> None:
    bench = Bench()
    for name in (b"a", b"b", b"c"):
        bench.send(name)
    bench.failing.add(b"b")
    [group] = bench.driver.take()
    if failure is None:
        acknowledge(group, 20)
    else:
        group.done(failure)
    assert bench.indexes() == {b"a": 20, b"c": 22}


def test_a_node_that_does_not_lead_has_no_groups() -> None:
    bench = Bench()
    bench.hosted.leads = False
    bench.send(b"a")
    assert (bench.driver.queue, bench.carrier.bodies) == ([], [b"a"])


def test_answers_keep_percent_signs_and_the_order_of_headers() -> None:
    headers = [(b"content-length", b"9"), (b"x", b"5%d"), (b"x-request-id", b"whole")]
    body = b'{"log":"a%b","first_index":7,"last_index":9,"count":3,"term":2,"leader":"%s"}'
    answers = GroupAnswers(Response(200, headers, body))
    assert answers.first_index == 7
    assert answers.body(8, 1) == (
        b'{"log":"a%b","first_index":8,"last_index":8,"count":1,"term":2,"leader":"%s"}'
    )
    assert answers.lines(70, b"mine") == b"content-length: 70\r\nx: 5%d\r\nx-request-id: mine\r\n"
