"""Which bodies are decoded on the event loop: none that takes more than a few milliseconds."""

import time

import pyarrow as pa
import pytest

from app.api.append.bodies import IN_PLACE_BYTES, decodes_in_place, read_append
from app.api.append.call import AppendCall, AppendHead
from app.errors import CommitlogError
from app.media_types import ARROW_STREAM, JSON, NDJSON, OCTETS
from app.settings.model import Limits

PRODUCER = b"producer_id=a&producer_epoch=0&producer_sequence=0"


def call(body: bytes, media_type: str, *headers: tuple[bytes, bytes]) -> AppendCall:
    head = [(b"content-type", media_type.encode()), *headers]
    return AppendCall(AppendHead("x", "/v1/logs/x/records", PRODUCER, head), body, b"id")


def filled(one: bytes, size_bytes: int = IN_PLACE_BYTES, separator: bytes = b"\n") -> bytes:
    return separator.join([one] * (size_bytes // (len(one) + len(separator)) - 40))


def arrow(values: list[bytes], messages: int = 1, compression: str | None = None) -> bytes:
    rows = pa.record_batch({"value": pa.array(values, pa.binary())})
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        for _ in range(messages):
            writer.write_batch(rows)
    return bytes(sink.getvalue())


SLOW = {
    "lines": (filled(b'{"value":"x"}'), NDJSON),
    "headers of one record": (
        b'{"value":"x","headers":[' + filled(b'["a","b"]', separator=b",") + b"]}",
        JSON,
    ),
    "strings": (b'{"value_json":[' + filled(b'"\\u0041 "', separator=b",") + b"]}", JSON),
    "blank lines": (b'{"value":"x"}' + b"\n" * (IN_PLACE_BYTES - 100), NDJSON),
    "messages": (arrow([b"x"], 500), ARROW_STREAM),
    "unpacked": (arrow([bytes(1_000_000)] * 16, compression="zstd"), ARROW_STREAM),
    "unpacked by lz4": (arrow([bytes(50_000)] * 16, compression="lz4"), ARROW_STREAM),
    "large": (bytes(IN_PLACE_BYTES + 1), OCTETS),
}
USUAL = {
    "octets": (bytes(IN_PLACE_BYTES), OCTETS),
    "text": (filled(b'{"value":"%s"}' % (b"x" * 200)), NDJSON),
    "short lines": (filled(b'{"value":"x","key":"k"}', 40_000), NDJSON),
    "numbers": (b'{"value_json":[' + filled(b"1", separator=b",") + b"]}", JSON),
    "records": (b'{"records":[' + filled(b'{"value":"x"}', 40_000, b",") + b"]}", JSON),
    "columns": (arrow([b"x" * 10] * 5_000), ARROW_STREAM),
}


@pytest.mark.parametrize("name", SLOW)
def test_a_body_that_takes_long_is_decoded_in_a_thread(name: str) -> None:
    assert not decodes_in_place(call(*SLOW[name]))


@pytest.mark.parametrize("name", USUAL)
def test_a_usual_body_is_decoded_at_once_and_fast(name: str) -> None:
    assert decodes_in_place(call(*USUAL[name]))
    taken_s = []
    for _ in range(5):
        begun_s = time.thread_time()
        try:
            read_append(call(*USUAL[name]), Limits())
        except CommitlogError as error:
            pytest.fail(str(error))
        taken_s.append(time.thread_time() - begun_s)
    assert min(taken_s) < 0.1  # 0.015 on a quiet machine


def test_a_packed_body_is_decoded_in_a_thread() -> None:
    assert not decodes_in_place(call(b"x", OCTETS, (b"content-encoding", b"gzip")))
