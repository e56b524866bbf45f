"""Arrow bytes of clients: good ones in every shape; bad ones end in InvalidRecords, never in a crash."""

import datetime
import random
import struct
from typing import Any

import pyarrow as pa
import pytest

from storage.errors import BodyTooLarge, InvalidRecords
from storage.format.arrow_input import table_from_batches, table_from_stream
from storage.format.batch import FIRST_CHAIN, EncodedBody, stamp
from storage.format.checksum import crc32c
from storage.format.records import (
    BODY_SCHEMA,
    HEADERS_TYPE,
    RecordColumns,
    RecordTable,
    encode_body,
    encode_control,
)

LIMITS = {"max_records": 100, "max_bytes": 100_000, "max_record_bytes": 10_000, "max_record_headers": 50}


def read(data: bytes, **limits: int) -> RecordTable:
    return table_from_stream(data, **{**LIMITS, **limits})


def stream(columns: dict[str, Any], batches: int = 1, **options: Any) -> bytes:
    rows = pa.record_batch(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for _ in range(batches):
            writer.write_batch(rows)
    return sink.getvalue().to_pybytes()


def test_every_column_and_several_batches_become_one_table() -> None:
    when = datetime.datetime(2013, 1, 1, tzinfo=datetime.UTC)
    table = read(
        stream(
            {
                "headers": pa.array([[("a", b"1"), ("b", b"")], None], HEADERS_TYPE),
                "timestamp": pa.array([when, None], pa.timestamp("ms", "America/New_York")),
                "key": pa.array(["k", None], pa.large_string()),
                "value": pa.array(["ä", None], pa.string()),
            },
            batches=2,
        )
    )
    assert table.records.schema == BODY_SCHEMA
    assert table.count == 4
    assert table.size_bytes == 2 * (len("ä".encode()) + 1 + 3)
    assert table.records.to_pylist()[2] == {
        "timestamp": when,
        "key": b"k",
        "value": "ä".encode(),
        "headers": [{"name": "a", "value": b"1"}, {"name": "b", "value": b""}],
    }


def test_a_table_stays_what_it_was_when_it_is_packed() -> None:
    table = read(stream({"value": [b"a", None, b"c"]}))
    body = encode_body(table)
    assert body.count == 3
    assert body.max_timestamp_us is None
    assert pa.ipc.read_record_batch(pa.py_buffer(body.data), BODY_SCHEMA) == table.records
    assert 0 < table.packed_bytes <= len(body.data)


def test_columns_that_share_their_bytes_count_as_often_as_they_are_stored() -> None:
    """A client may let two columns refer to the same bytes of its stream; a batch contains them twice."""
    column = pa.array([b"x" * 100] * 100, pa.binary())
    data = stream({"key": column, "value": column})
    place, size = struct.Struct("<qq"), 100 * 100
    begins = [begin for begin in range(0, len(data), 8) if place.pack(begin, size) in data]
    of_key, of_value = (place.pack(begin, size) for begin in begins)
    table = read(data.replace(of_value, of_key))
    assert table.records.column(1).buffers()[2].address == table.records.column(2).buffers()[2].address
    assert table.packed_bytes >= 2 * size
    assert len(encode_body(table).data) <= table.packed_bytes + 1024  # and Arrow's metadata


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_buffers_are_unpacked_within_the_limit(codec: str) -> None:
    assert read(stream({"value": [b"x" * 5000] * 10}, compression=codec)).size_bytes == 50_000


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_bomb_is_refused_before_it_is_unpacked(codec: str) -> None:
    bomb = stream({"value": [b"\0" * 100_000_000]}, compression=codec)
    assert len(bomb) < 1_000_000
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(BodyTooLarge, match="unpacks"):
        read(bomb)
    assert pa.default_memory_pool().max_memory() == before


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_bomb_of_many_batches_is_refused_before_most_are_unpacked(codec: str) -> None:
    """Each batch is within the limit, but not all together: 100 of them are 10 MB."""
    bomb = stream({"value": [b"\0" * 100_000]}, batches=100, compression=codec)
    assert len(bomb) < 150_000
    with pytest.raises(BodyTooLarge, match="unpacks"):
        read(bomb)


def test_compressed_batches_of_one_record_are_within_the_limit() -> None:
    columns = {
        "value": pa.array([b"v" * 900], pa.large_binary()),
        "key": ["k" * 80],
        "headers": pa.array([[("a", b"1")]], HEADERS_TYPE),
        "timestamp": pa.array([1], pa.timestamp("ms")),
    }
    assert read(stream(columns, batches=100, compression="zstd")).count == 100


def test_a_claimed_size_beyond_all_memory_is_refused() -> None:
    data = bytearray(stream({"value": [b"\0" * 5000]}, compression="zstd"))
    at = data.rfind((5000).to_bytes(8, "little"))
    data[at : at + 8] = (1 << 60).to_bytes(8, "little")
    with pytest.raises(BodyTooLarge):
        read(bytes(data))


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no value": ({"key": [b"k"]}, "no column 'value'"),
    "unknown column": ({"value": [b"v"], "colour": ["red"]}, "unknown column 'colour'"),
    "number": ({"value": [1]}, "'value' is int64"),
    "dictionary": ({"value": pa.array(["a"]).dictionary_encode()}, "dictionary"),
    "view": ({"value": pa.array(["a"], pa.string_view())}, "string_view, .* polars with CompatLevel"),
    "fraction as time": ({"value": [b"v"], "timestamp": [1.5]}, "not a timestamp"),
    "lossy time": ({"value": [b"v"], "timestamp": pa.array([1], pa.timestamp("ns"))}, "lose data"),
    "time out of range": (
        {"value": [b"v"], "timestamp": pa.array([1 << 40], pa.timestamp("s"))},
        "1 to 9999",
    ),
    "time past 64 bits": (
        {"value": [b"v"], "timestamp": pa.array([1 << 60], pa.timestamp("s"))},
        "out of bounds|overflow",
    ),
    "header names": (
        {
            "value": [b"v"],
            "headers": pa.array(
                [[{"k": "a", "v": b"b"}]], pa.list_(pa.struct([("k", pa.string()), ("v", pa.binary())]))
            ),
        },
        "column 'headers'",
    ),
    "header without a name": (
        {"value": [b"v"], "headers": pa.array([[{"name": None, "value": b"b"}]], HEADERS_TYPE)},
        "without name or value",
    ),
    "header without content": (
        {"value": [b"v"], "headers": pa.array([[None]], HEADERS_TYPE)},
        "without name or value",
    ),
    "header name not UTF-8": (
        {
            "value": [b"v"],
            "headers": pa.array(
                [[{"name": b"\xff", "value": b"b"}]],
                pa.list_(pa.struct([("name", pa.binary()), ("value", pa.binary())])),
            ),
        },
        "UTF8|UTF-8",
    ),
    "no records": ({"value": pa.array([], pa.binary())}, "no records"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_column_is_named(case: str) -> None:
    columns, reason = REFUSED[case]
    with pytest.raises(InvalidRecords, match=reason):
        read(stream(columns))


def test_a_column_that_occurs_twice_is_refused() -> None:
    rows = pa.RecordBatch.from_arrays([pa.array([b"v"]), pa.array([b"w"])], ["value", "value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_batch(rows)
    with pytest.raises(InvalidRecords, match="twice"):
        read(sink.getvalue().to_pybytes())


def test_a_string_that_is_not_utf8_is_refused() -> None:
    text = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\2\0\0\0"), pa.py_buffer(b"\xff\xfe")]
    )
    with pytest.raises(InvalidRecords, match="UTF"):
        read(stream({"value": text}))


def test_limits_are_exact() -> None:
    record = stream({"value": [b"v" * 900], "key": [b"k" * 60], "headers": _headers(40)})
    assert read(record, max_record_bytes=1000, max_bytes=1000).size_bytes == 1000
    with pytest.raises(BodyTooLarge, match="a record may have at most 999 bytes, got 1000"):
        read(record, max_record_bytes=999)
    with pytest.raises(BodyTooLarge, match="more than 999 bytes"):
        read(record, max_bytes=999)
    assert read(stream({"value": [b""] * 50}, batches=2)).count == 100
    with pytest.raises(BodyTooLarge, match="100 records"):
        read(stream({"value": [b""] * 101}))
    with pytest.raises(BodyTooLarge, match="100 records"):
        read(stream({"value": [b""] * 51}, batches=2))


def _headers(size: int) -> pa.Array:
    return pa.array([[("n" * 10, b"v" * (size - 10))]], HEADERS_TYPE)


def test_a_count_without_rows_is_refused_before_anything_grows() -> None:
    data = stream({"value": pa.nulls(77_777)})
    claimed = data.replace((77_777).to_bytes(8, "little"), (1 << 40).to_bytes(8, "little"))
    assert claimed != data
    with pytest.raises(BodyTooLarge):
        read(claimed)


def _good_streams() -> list[bytes]:
    columns = {
        "value": pa.array([b"abc", None, b"d" * 100]),
        "key": pa.array(["k1", "k2", None]),
        "headers": pa.array([[("a", b"1")], None, []], HEADERS_TYPE),
        "timestamp": pa.array([1, None, 3], pa.timestamp("us", "UTC")),
    }
    return [
        stream(columns, batches=2),
        stream(columns, compression="zstd"),
        stream(columns, compression="lz4"),
    ]


def test_no_cut_stream_gives_more_than_whole_batches() -> None:
    for data in _good_streams():
        for size in range(len(data)):
            try:
                table = read(data[:size])
            except InvalidRecords:
                continue
            assert table.count in (3, 6)
            assert table.records.column(2).to_pylist() == [b"abc", None, b"d" * 100] * (table.count // 3)


@pytest.mark.parametrize("seed", range(4))
def test_noise_in_a_stream_is_refused_or_harmless(seed: int) -> None:
    """Any bytes give InvalidRecords, or a valid table within the limits that can be packed."""
    chance = random.Random(seed)
    streams = _good_streams()
    for _ in range(1500):
        data = bytearray(chance.choice(streams))
        for _ in range(chance.choice([1, 1, 1, 2, 8])):
            at = chance.randrange(len(data))
            data[at] = chance.choice([0, 1, 0x7F, 0x80, 0xFF, data[at] ^ (1 << chance.randrange(8))])
        try:
            table = read(bytes(data))
        except InvalidRecords:
            continue
        table.records.validate(full=True)
        assert 0 < table.count <= LIMITS["max_records"]
        assert table.size_bytes <= LIMITS["max_bytes"]
        assert encode_body(table).count == table.count


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff\xff\0\0\0\0", b"not arrow at all", b"{}", bytes(1000)])
def test_bytes_of_another_kind_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidRecords):
        read(data)


def test_a_damaged_schema_never_changes_what_is_read() -> None:
    """Among others the order of the bytes: the batches of a big-endian stream are not converted."""
    whole = stream({"value": [b"", None], "timestamp": pa.array([1 << 40, 1 << 48], pa.timestamp("us"))})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema([("value", pa.binary()), ("timestamp", pa.timestamp("us"))])):
        pass
    accepted = 0
    for bit in range(8 * (sink.tell() - 8)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        try:
            table = read(bytes(data))
        except InvalidRecords:
            continue
        found = pa.Table.from_batches([table.records])["timestamp"].cast(pa.timestamp("us"))
        times = pa.ipc.open_stream(bytes(data)).read_all()
        expected = times["timestamp"] if "timestamp" in times.schema.names else pa.nulls(2)
        assert found.to_pylist() == expected.cast(pa.timestamp("us")).to_pylist(), f"bit {bit}"
        accepted += 1
    assert accepted


def encoded(values: list[bytes]) -> EncodedBody:
    records = RecordColumns()
    for value in values:
        records.add(value)
    return encode_body(records)


def packed(values: list[bytes], *, control: bool = False) -> bytes:
    return stamped(encode_control({"kind": "fence"}) if control else encoded(values), control=control)


def stamped(body: EncodedBody, *, control: bool = False) -> bytes:
    batch = stamp(
        body,
        log_id=0,
        base_index=0,
        term=0,
        timestamp_ms=0,
        offset=0,
        previous_chain=FIRST_CHAIN,
        control=control,
    )
    return bytes(batch.data)


@pytest.mark.parametrize("rest", [b"\0", b"garbage", stream({"value": ["b"]})], ids=["zero", "text", "arrow"])
def test_bytes_after_the_end_of_a_stream_are_refused(rest: bytes) -> None:
    """A second stream would otherwise be lost, although the append is acknowledged."""
    first = stream({"value": ["a"]})
    size = len(first) + len(rest)
    with pytest.raises(InvalidRecords, match=f"ends at byte {len(first)} of {size}; send one stream"):
        read(first + rest)


def test_a_second_message_in_a_packed_batch_is_refused() -> None:
    """Its records would be lost: the header counts those of the first."""
    data = bytes(encoded([b"a"]).data) + bytes(encoded([b"b"]).data)
    body = EncodedBody(data, 1, crc32c(data), None, False)
    with pytest.raises(InvalidRecords, match="one Arrow message; bytes follow it"):
        table_from_batches(stamped(body), **LIMITS)


def test_a_bomb_of_many_packed_batches_is_refused() -> None:
    columns = {name: pa.nulls(1, BODY_SCHEMA.field(name).type) for name in BODY_SCHEMA.names}
    bomb = stream({**columns, "value": [b"\0" * 100_000]}, compression="zstd")
    _, message = pa.ipc.MessageReader.open_stream(bomb)
    data = message.serialize().to_pybytes()
    batch = stamped(EncodedBody(data, 1, crc32c(data), None, False))
    with pytest.raises(BodyTooLarge, match="unpacks"):
        table_from_batches(batch * 3, **LIMITS)


def test_packed_batches_become_one_table() -> None:
    table = table_from_batches(packed([b"a"]) + packed([b"b", b"c"]), **LIMITS)
    assert table.records.column(2).to_pylist() == [b"a", b"b", b"c"]
    assert table.size_bytes == 3


def test_packed_batches_are_not_trusted() -> None:
    good = packed([b"a"])
    for data in (b"", good[:-8], good + b"x", packed([], control=True), good[:128]):
        with pytest.raises(InvalidRecords):
            table_from_batches(data, **LIMITS)
    with pytest.raises(BodyTooLarge):
        table_from_batches(packed([b""] * 101), **LIMITS)
    with pytest.raises(BodyTooLarge):
        table_from_batches(packed([b"x" * 10_001]), **LIMITS)


def test_a_record_has_a_largest_number_of_headers() -> None:
    for count, fits in ((50, True), (51, False)):
        headers = pa.array([[{"name": "", "value": b""}] * count], BODY_SCHEMA.field("headers").type)
        rows = pa.record_batch({"value": pa.array([b"v"], pa.binary()), "headers": headers})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_batch(rows)
        data = sink.getvalue().to_pybytes()
        if fits:
            assert table_from_stream(data, **LIMITS).count == 1
        else:
            with pytest.raises(BodyTooLarge, match="record 0: a record may have at most 50 headers, got 51"):
                table_from_stream(data, **LIMITS)
