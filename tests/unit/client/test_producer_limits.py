"""The producer at its limits: what the log remembers of it, and what waits in it, against scripted nodes."""

import threading
import time

import pytest

from app.client import CommitlogClient, Record, RecordProducer
from tests.unit.cli.fake_service import Asked, Scripted, committed, fake_service
from tests.unit.client.test_producer import Log, producing

REMEMBERED = 5  # appends of a producer


class RememberingLog:
    """Appends of one record each, as a leader keeps them: of a producer it remembers the last five.

    The answer of `lost` does not arrive; it is held back while other appends do.
    """

    def __init__(self, lost: int) -> None:
        self.stored: list[int] = []
        self._lost = lost
        self._overtaken = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, asked: Asked) -> Scripted:
        if asked.method != "POST":
            return Scripted(404, {"code": "not-found"})
        sequence = int(asked.query["producer_sequence"])
        with self._lock:
            is_repeat = sequence in self.stored[-REMEMBERED:]
            if not is_repeat and sequence != len(self.stored):
                return Scripted(
                    409,
                    {
                        "code": "sequence-gap",
                        "expected_sequence": len(self.stored),
                        "outcome": "not_applied",
                    },
                )
            if not is_repeat:
                self.stored.append(sequence)
            if sequence >= self._lost + REMEMBERED:
                self._overtaken.set()
        if sequence == self._lost and not is_repeat:
            self._overtaken.wait(0.5)
            return Scripted(0)
        return Scripted(200, committed(first_index=sequence, replayed=is_repeat))


def test_an_append_is_not_overtaken_by_more_appends_than_the_log_remembers() -> None:
    """Otherwise the log refuses the repeat of an append whose answer was lost, though it is stored."""
    log = RememberingLog(lost=2)
    with fake_service(log) as service:
        producer = producing(service, max_batch_records=1, max_in_flight=5)
        sent = producer.send_many([str(number) for number in range(30)])
        producer.close()
    assert [delivery.result(0) for delivery in sent] == list(range(30))
    assert log.stored == list(range(30))


def test_a_flush_does_not_wait_for_records_that_are_sent_after_it_began() -> None:
    later, answered = threading.Event(), threading.Event()

    def refuse(asked: Asked, attempt: int) -> Scripted | None:
        if asked.query["producer_sequence"] == "0":
            later.wait(30)
        else:
            answered.wait(30)
        return None

    with fake_service(Log(refuse)) as service:
        producer = producing(service, max_in_flight=1)
        first = producer.send_many(["a", "b"])
        flushed = threading.Thread(target=producer.flush)
        flushed.start()
        while not producer._urgent:
            time.sleep(0.001)
        producer.send_many(["c", "d"])
        later.set()
        flushed.join(5)
        was_flushed = not flushed.is_alive()
        answered.set()
        flushed.join(30)
        producer.close()
    assert was_flushed
    assert first[1].result(0) == 1


def test_the_headers_of_a_record_count_as_its_bytes() -> None:
    large = Record("v", headers=[("h", "x" * 600)])
    with fake_service(Log()) as service:
        producer = producing(service, max_batch_records=10, max_batch_bytes=1_000)
        producer.send_many([large, large])
        producer.close()
    assert len(service.appends()) == 2


def test_text_counts_as_the_bytes_of_its_encoding() -> None:
    with fake_service(Log()) as service:
        producer = producing(service, max_batch_records=10, max_batch_bytes=1_000)
        producer.send_many(["\N{GRINNING FACE}" * 150, "\N{GRINNING FACE}" * 150])
        producer.close()
    assert len(service.appends()) == 2


def test_a_buffer_that_its_owner_uses_again_is_stored_as_it_was() -> None:
    log = RememberingLog(lost=-1)
    buffer, key, header = bytearray(b"first"), bytearray(b"k-one"), bytearray(b"h-one")
    with fake_service(log) as service, producing(service, max_batch_records=10) as producer:
        headers = [("h", header)]
        producer.send(Record(buffer, key, headers))  # type: ignore[list-item]  # accepted, as bytes
        producer.send(buffer, key)
        buffer[:], key[:], header[:] = b"second", b"k-two", b"h-two"
        headers.append(("later", header))
    assert service.appends()[0].body.splitlines() == [
        b'{"value":"first","key":"k-one","headers":[["h","h-one"]]}',
        b'{"value":"first","key":"k-one"}',
    ]


@pytest.mark.parametrize("option", ["idempotency_key", "match_index", "producer_sequence", "ack"])
def test_an_option_that_no_append_of_a_producer_has_is_refused(option: str) -> None:
    """One key for all appends would make the log take the second one for a repeat of the first."""
    client = CommitlogClient("http://127.0.0.1:1")
    with pytest.raises(TypeError, match=f"{option}.*acks, fencing_token, timeout_ms"):
        RecordProducer(client, **{option: 1})


def test_a_producer_that_the_end_of_the_program_finds_open_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its threads do not run any more then: a wait for them in a finalizer would not end."""
    with fake_service(Log()) as service, producing(service) as producer:
        producer.send("x")
        with monkeypatch.context() as ending:
            ending.setattr("app.client.producer.sys.is_finalizing", lambda: True)
            for call in (producer.close, producer.flush):
                with pytest.raises(RuntimeError, match="the program ends without its producer"):
                    call()
