"""Claims of Arrow messages: compressed or many ones are found by their metadata."""

import random

import pyarrow as pa
import pytest

from storage.format.arrow_messages import are_plain_batches, is_plain_stream
from storage.format.batch import FIRST_CHAIN, EncodedBody, stamp
from storage.format.checksum import crc32c
from storage.format.records import BODY_SCHEMA

LOOKS_COMPRESSED = b"\x28\xb5\x2f\xfd\x04\x22\x4d\x18\xff\xff\xff\xffCLB1" * 100
KINDS = ("zstd", "lz4")


def stream(compression: str | None = None, messages: int = 1) -> bytes:
    values = pa.array([LOOKS_COMPRESSED, None], pa.binary())
    rows = pa.RecordBatch.from_arrays(
        [
            pa.nulls(2, BODY_SCHEMA.field(0).type),
            pa.nulls(2, pa.binary()),
            values,
            pa.nulls(2, BODY_SCHEMA.field(3).type),
        ],
        schema=BODY_SCHEMA,
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, BODY_SCHEMA, options=pa.ipc.IpcWriteOptions(compression=compression)
    ) as writer:
        for _ in range(messages):
            writer.write_batch(rows)
    return bytes(sink.getvalue())


def batch(compression: str | None = None) -> bytes:
    _, message, *_ = pa.ipc.MessageReader.open_stream(stream(compression))
    data = bytes(message.serialize())
    data += bytes(-len(data) & 7)
    body = EncodedBody(data, 2, crc32c(data), None, False)
    stamped = stamp(
        body, log_id=1, base_index=0, term=1, timestamp_ms=0, offset=0, previous_chain=FIRST_CHAIN
    )
    return bytes(stamped.data)


def test_records_may_contain_the_marks_of_messages_and_of_compression() -> None:
    assert is_plain_stream(stream(), 64)
    assert are_plain_batches(batch() * 64, 64)


@pytest.mark.parametrize("compression", KINDS)
def test_one_compressed_message_is_found(compression: str) -> None:
    assert not is_plain_stream(stream(compression), 64)
    assert not are_plain_batches(batch() + batch(compression) + batch(), 64)


def test_many_messages_are_found() -> None:
    assert is_plain_stream(stream(messages=63), 64)
    assert not is_plain_stream(stream(messages=64), 64)
    assert not are_plain_batches(batch() * 65, 64)


def test_no_bytes_raise_or_hide_a_compressed_batch() -> None:
    chance = random.Random(1)
    for compression in (None, *KINDS):
        for whole, is_plain in (
            (stream(compression), is_plain_stream),
            (batch(compression), are_plain_batches),
        ):
            for _ in range(300):
                data = bytearray(whole[: chance.randrange(len(whole) + 1)])
                for _ in range(chance.randrange(4)):
                    if data:
                        data[chance.randrange(min(len(data), 600))] = chance.randrange(256)
                if is_plain(data, 64) and is_plain is is_plain_stream:
                    assert not _unpacks(data)


def _unpacks(data: bytearray) -> bool:
    """Return whether Arrow reads more bytes of columns from the stream than it has."""
    try:
        return any(rows.nbytes > len(data) for rows in pa.ipc.open_stream(bytes(data)))
    except (pa.ArrowException, OSError, ValueError):
        return False
