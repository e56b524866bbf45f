"""The producer: batches, order, repeats and failures, against scripted nodes."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable

import pyarrow as pa
import pytest

from app.client import (
    ClientError,
    CommitlogClient,
    InvalidRequest,
    Problem,
    ProducerFailed,
    Record,
    RecordProducer,
    RecordRefused,
)
from app.client.batches import arrow_body, pack
from tests.unit.cli.fake_service import Asked, FakeService, Scripted, committed, fake_service


class Log:
    """Sequences of one producer, as a leader keeps them. refuse: an answer in place of the usual one."""

    def __init__(self, refuse: Callable[[Asked, int], Scripted | None] = lambda asked, attempt: None) -> None:
        self.expected = 0
        self.attempts: dict[int, int] = {}
        self._refuse = refuse
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Scripted:
        if asked.method != "POST":
            return Scripted(404, {"code": "not-found"})
        sequence = int(asked.query["producer_sequence"])
        with self._lock:
            self.attempts[sequence] = self.attempts.get(sequence, 0) + 1
            attempt = self.attempts[sequence]
        reported = self._refuse(asked, attempt)
        with self._lock:
            if reported is not None:
                return reported
            if sequence > self.expected and "producer_allow_gap" not in asked.query:
                document = {
                    "code": "sequence-gap",
                    "expected_sequence": self.expected,
                    "outcome": "not_applied",
                }
                return Scripted(409, document)
            self.expected = max(self.expected, sequence + 1)
            return Scripted(200, committed(first_index=sequence * 2, count=2))


def producing(service: FakeService, **options: object) -> RecordProducer:
    client = CommitlogClient(service.url, give_up_s=5.0)
    return RecordProducer(client, **{"linger_ms": 60_000.0, "max_batch_records": 2, **options})  # type: ignore[arg-type]


def test_records_are_batched_and_each_delivery_has_its_index() -> None:
    with fake_service(Log()) as service:
        with producing(service) as producer:
            sent = producer.send_many([b"a", "b", Record("c"), "d", "e"])
            assert [delivery.result(30) for delivery in sent[:4]] == [0, 1, 2, 3]
            assert not sent[4].done()  # it waits for a second record
        assert sent[4].result(0) == 4
        assert sorted(asked.query["producer_sequence"] for asked in service.appends()) == ["0", "1", "2"]
        assert {asked.query["producer_id"] for asked in service.appends()} == {producer.producer_id}


@pytest.mark.parametrize(
    "large",
    [
        Record("é" * 51),
        Record(b"v" * 60, key="k" * 41),
        Record("v", headers=[("name", "v" * 98)]),
    ],
)
def test_a_record_that_is_too_large_is_refused_and_the_others_are_sent(large: Record) -> None:
    with fake_service(Log()) as service, producing(service) as producer:
        producer.max_record_bytes = 100
        first = producer.send("é" * 50)
        with pytest.raises(ValueError, match=r"at most 100 bytes \(max_record_bytes\), got 10[1-3]"):
            producer.send(large)
        second = producer.send("b")
        assert (first.result(30), second.result(30)) == (0, 1)


@pytest.mark.parametrize(
    "bad",
    [
        {"linger_ms": -1},
        {"linger_ms": float("nan")},
        {"max_batch_records": 0},
        {"max_batch_bytes": 0},
        {"max_pending_bytes": 0},
        {"max_in_flight": 6},
    ],
)
def test_options_that_cannot_work_are_refused(bad: dict[str, float]) -> None:
    with fake_service(Log()) as service, pytest.raises(ValueError, match=f"{next(iter(bad))} must be"):
        producing(service, **bad)


def too_large(limit: int, name: str) -> Scripted:
    document = {"code": "too-large", "outcome": "not_applied", "limit": limit, "limit_name": name}
    return Scripted(413, document)


def test_a_record_above_the_limit_of_the_service_fails_alone() -> None:
    """Its neighbours are sent in their append, and the appends after it in order."""

    def refuse(asked: Asked, attempt: int) -> Scripted | None:
        return too_large(50, "max_record_bytes") if b"large" in asked.body else None

    large = "large" * 11
    log = Log(refuse)
    with fake_service(log) as service:
        producer = producing(service, max_in_flight=3)
        sent = producer.send_many([large, "b", large, large, "e", "f", "g", Record(large, timestamp=1)])
        for at in (0, 2, 3, 7):
            with pytest.raises(RecordRefused, match=r"50 bytes \(max_record_bytes\), got 55") as failed:
                sent[at].result(30)
            assert failed.value.outcome == "not_applied"
        assert [sent[at].result(30) for at in (1, 4, 5, 6)] == [0, 4, 5, 6]
        with pytest.raises(ValueError, match="at most 50 bytes"):
            producer.send(large)
        with pytest.raises(RecordRefused):  # once: a program that keeps no delivery is notified too
            producer.flush(30)
        assert producer.send_many(["i", "j"])[0].result(30) == 8
        producer.close()
    assert log.expected == 5


def test_a_record_is_not_refused_if_an_earlier_attempt_may_have_stored_it() -> None:
    """A node with another limit may have taken the append whose answer was lost."""

    def refuse(asked: Asked, attempt: int) -> Scripted | None:
        return Scripted(0) if attempt == 1 else too_large(50, "max_record_bytes")

    with fake_service(Log(refuse)) as service:
        producer = producing(service)
        sent = producer.send_many(["a", "large" * 11])
        for delivery in sent:
            with pytest.raises(InvalidRequest, match="too-large") as failed:
                delivery.result(30)
            assert failed.value.outcome == "unknown"
        with pytest.raises(InvalidRequest):
            producer.close()


def test_an_append_after_a_failed_one_has_the_outcome_of_all_its_attempts() -> None:
    waits = threading.Event()

    def refuse(asked: Asked, attempt: int) -> Scripted | None:
        if b"bad" in asked.body:
            waits.wait(30)
            return Scripted(422, {"code": "schema-mismatch", "outcome": "not_applied"})
        if asked.query["producer_sequence"] == "0" or attempt > 1:
            if attempt > 3:  # in a later call
                waits.set()
            return None
        return Scripted(0)

    with fake_service(Log(refuse)) as service:
        producer = producing(service, max_in_flight=2)
        assert producer.send_many(["a", "a"])[0].result(30) == 0
        bad = producer.send_arrow(pa.table({"value": ["bad"]}))[0]
        after = producer.send_arrow(pa.table({"value": ["b"]}))[0]
        with pytest.raises(InvalidRequest):
            bad.result(30)
        with pytest.raises(ProducerFailed) as failed:
            after.result(30)
        assert failed.value.outcome == "unknown"
        with pytest.raises(InvalidRequest):
            producer.close()


def test_a_table_with_a_record_above_the_limit_of_the_service_fails_alone() -> None:
    def refuse(asked: Asked, attempt: int) -> Scripted | None:
        values = pa.ipc.open_stream(asked.body).read_all()["value"].to_pylist()
        return too_large(5, "max_record_bytes") if "large!" in values else None

    with fake_service(Log(refuse)) as service:
        producer = producing(service)
        sent = producer.send_arrow(pa.table({"value": ["a", "b", "large!", "d", "e", "f"]}))
        assert [delivery.result(30) for delivery in (sent[0], sent[2])] == [0, 4]
        with pytest.raises(InvalidRequest, match="too-large"):
            sent[1].result(30)
        with pytest.raises(InvalidRequest):
            producer.close()


def test_an_append_above_another_limit_ends_the_producer() -> None:
    with fake_service(Log(lambda asked, attempt: too_large(1, "max_request_records"))) as service:
        producer = producing(service)
        sent = producer.send_many(["a", "b"])
        with pytest.raises(InvalidRequest, match="too-large"):
            sent[1].result(30)
        with pytest.raises(InvalidRequest):
            producer.close()


def test_a_record_waits_no_longer_than_linger() -> None:
    with fake_service(Log()) as service, producing(service, linger_ms=1.0) as producer:
        assert producer.send("a").result(30) == 0


def test_a_caller_that_gives_up_a_delivery_disturbs_no_other_record() -> None:
    arrived, answered = threading.Event(), threading.Event()

    def refuse(asked: Asked, attempt: int) -> Scripted | None:
        arrived.set()
        answered.wait(30)
        return None

    with fake_service(Log(refuse)) as service:
        producer = producing(service)
        first, second = producer.send("a"), producer.send("b")

        async def give_up() -> None:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await first

        assert arrived.wait(30)
        asyncio.run(give_up())
        answered.set()
        producer.flush(30)
        assert (first.result(0), second.result(0)) == (0, 1)
        producer.close()


def test_an_unexpected_error_after_the_encoding_leaves_the_outcome_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fake_service(Log()) as service:
        producer = producing(service)

        def fail(*_: object, **__: object) -> None:
            raise RuntimeError("the connection pool has failed")

        monkeypatch.setattr(producer._client, "append_body", fail)
        delivery = producer.send("a")
        with pytest.raises(ClientError, match="cannot be sent") as caught:
            producer.close()
        assert caught.value.outcome == "unknown"
        with pytest.raises(ClientError, match="cannot be sent"):
            delivery.result(0)


def test_appends_that_overtake_one_another_are_stored_in_order() -> None:
    late = threading.Event()

    def refuse(asked: Asked, attempt: int) -> Scripted | None:
        if asked.query["producer_sequence"] == "1" and attempt == 1:
            late.wait(30)  # 2, 3 and 4 arrive before it
        elif asked.query["producer_sequence"] == "4":
            late.set()
        return None

    log = Log(refuse)
    with fake_service(log) as service, producing(service, max_in_flight=4) as producer:
        sent = producer.send_many([str(number) for number in range(12)])
        producer.flush(60)
        assert [delivery.result(0) for delivery in sent] == list(range(12))
        assert log.expected == 6
        assert log.attempts[0] == 1  # the first append is sent alone: a log accepts any first sequence


def test_the_first_append_after_a_long_silence_is_sent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may have forgotten the producer, and then accepts any sequence as the first one."""
    second, overtaken = threading.Event(), []
    now_s = time.monotonic

    def refuse(asked: Asked, attempt: int) -> Scripted | None:
        if asked.query["producer_sequence"] == "1":
            overtaken.append(second.wait(0.5))
        elif asked.query["producer_sequence"] == "2":
            second.set()
        return None

    with fake_service(Log(refuse)) as service, producing(service, max_in_flight=4) as producer:
        producer.send_many(["a", "b"])
        producer.flush(60)
        monkeypatch.setattr(time, "monotonic", lambda: now_s() + 24 * 60 * 60)
        sent = producer.send_many(["c", "d", "e", "f"])
        producer.flush(60)
        assert [delivery.result(0) for delivery in sent] == [2, 3, 4, 5]
    assert overtaken == [False]


def test_a_failure_ends_the_producer_and_every_record_has_an_outcome() -> None:
    def refuse(asked: Asked, attempt: int) -> Scripted | None:
        if asked.query["producer_sequence"] == "1":
            return Scripted(422, {"code": "invalid-request", "outcome": "not_applied", "retryable": False})
        return None

    with fake_service(Log(refuse)) as service:
        producer = producing(service, max_in_flight=3)
        sent = []
        with contextlib.suppress(ProducerFailed):  # a later record may be refused already
            for number in range(40):
                sent.append(producer.send(str(number)))
        with pytest.raises(InvalidRequest):
            producer.flush(60)
        assert [delivery.result(30) for delivery in sent[:2]] == [0, 1]
        with pytest.raises(InvalidRequest):
            sent[2].result(30)
        for delivery in sent[4:]:
            with pytest.raises(ProducerFailed) as failed:
                delivery.result(30)
            assert failed.value.outcome == "not_applied"
        with pytest.raises(ProducerFailed, match="invalid-request"):
            producer.send("x")
        with pytest.raises(InvalidRequest):
            producer.close()


def test_a_given_epoch_ends_the_fence_of_an_instance_whose_clock_was_ahead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fence(asked: Asked, _attempt: int) -> Scripted | None:
        if int(asked.query["producer_epoch"]) >= 4_000:
            return None
        document = {"code": "producer-fenced", "current_epoch": 4_000, "outcome": "not_applied"}
        return Scripted(409, document)

    monkeypatch.setattr(time, "time_ns", lambda: 3_000_000_000)
    with fake_service(Log(fence)) as service:
        producer = producing(service, producer_id="p")
        producer.send("a")
        with pytest.raises(Problem) as refused:
            producer.close()
        assert refused.value.code == "producer-fenced"
        with producing(service, producer_id="p") as producer:
            producer.epoch = refused.value.document["current_epoch"] + 1
            delivery = producer.send("a")
        assert delivery.result(0) == 0


def test_a_sequence_that_the_log_has_lost_is_an_error() -> None:
    def refuse(asked: Asked, attempt: int) -> Scripted | None:
        if asked.query["producer_sequence"] == "1":
            return Scripted(409, {"code": "sequence-gap", "expected_sequence": 0, "outcome": "not_applied"})
        return None

    with fake_service(Log(refuse)) as service:
        producer = producing(service)
        sent = producer.send_many(["a", "b", "c", "d"])
        with pytest.raises(ClientError, match="sequence-gap"):
            producer.close()
        assert [delivery.result(0) for delivery in sent[:2]] == [0, 1]


def test_a_full_queue_leaves_before_its_time() -> None:
    with fake_service(Log()) as service, producing(service, max_pending_bytes=100) as producer:
        sent = [producer.send("x" * 40) for _ in range(3)]
        assert sent[0].result(0) == 0


def test_send_waits_while_too_much_is_pending() -> None:
    gate = threading.Event()

    def refuse(asked: Asked, attempt: int) -> Scripted | None:
        gate.wait(30)
        return None

    with fake_service(Log(refuse)) as service, producing(service, max_pending_bytes=200) as producer:
        producer.send_many(["a" * 40, "b" * 40])
        with pytest.raises(BlockingIOError):
            producer.send("c", wait=False)
        with pytest.raises(TimeoutError):
            producer.flush(0.01)
        gate.set()
        assert producer.send("c").append is not None  # waits for the first two


@pytest.mark.parametrize("in_flight", [0, 6])
def test_a_window_that_the_log_cannot_repeat_is_refused(in_flight: int) -> None:
    with pytest.raises(ValueError, match="between 1 and 5"):
        RecordProducer(CommitlogClient("http://127.0.0.1:1"), max_in_flight=in_flight)


def test_bodies() -> None:
    rows = pa.ipc.open_stream(pack(["a", b"\xff", None], [None, "k", None], None).content).read_all()
    assert rows.to_pylist() == [
        {"value": b"a", "key": None},
        {"value": b"\xff", "key": b"k"},
        {"value": None, "key": None},
    ]
    assert pack(["a"], [None], [Record("a", timestamp=5)]).content == b'{"value":"a","timestamp":5}\n'
    table = pa.table({"value": [str(number) for number in range(10)]})
    parts = [pa.ipc.open_stream(body.content).read_all().num_rows for body in arrow_body(table, 4, 1 << 20)]
    assert parts == [4, 4, 2]


def test_a_producer_refuses_a_wrong_record_and_takes_the_next() -> None:
    with fake_service(Log()) as service, producing(service) as producer:
        for value, key in (({"a": 1}, None), ([1], None), ("v", 3)):
            with pytest.raises(TypeError, match="of a record must be text, bytes or None, got"):
                producer.send(value, key)  # type: ignore[arg-type]
        for bad in ("\ud800", Record("v", key="\udfff"), Record("v", headers=[("h", "\ud800")])):
            with pytest.raises(ValueError, match="surrogates not allowed"):
                producer.send(bad)
        with pytest.raises(TypeError, match="a header of a record must be a pair"):
            producer.send(Record("v", headers=["ab"]))  # type: ignore[list-item]
        sent = producer.send_many(["a", "b"])
        assert [delivery.result(30) for delivery in sent] == [0, 1]
