"""Formats: decoding inverts encoding, a cut or flipped bit is found, and the bytes stay what they are."""

import datetime
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import CorruptBatch, CorruptFile, InvalidRecords, PartialBatch
from storage.format.batch import (
    FIRST_CHAIN,
    AppendMark,
    Batch,
    EncodedBody,
    decode_batch,
    follows_chain,
    log_id_of,
    marks_of,
    stamp,
)
from storage.format.checksum import crc32c
from storage.format.epoch_file import Epoch, decode_epochs, encode_epochs, epoch_of
from storage.format.records import (
    BODY_SCHEMA,
    LONE_VALUE_MAX_BYTES,
    MAX_TIMESTAMP_MS,
    MIN_TIMESTAMP_MS,
    READ_SCHEMA,
    RecordColumns,
    control_value,
    decode_body,
    encode_body,
    encode_control,
    read_columns,
)
from storage.format.segment_format import DamagedIndex, SegmentIndex, index_name, segment_name, segment_offset
from storage.log.checkpoint import Checkpoint, CheckpointFile, SnapshotFile
from storage.log.hard_state import MAGIC, HardState, HardStateFile, decode_hard_state, encode_hard_state
from storage.log.slots import SLOT_SIZE_BYTES, decode_slot, encode_slot
from tests.support.memory_files import MemoryFiles, PowerCut

GOLDEN = Path(__file__).parents[2] / "golden"
INT64 = st.integers(0, 2**63 - 1)

optional_bytes = st.none() | st.binary(max_size=40)
records = st.lists(
    st.tuples(
        optional_bytes,
        optional_bytes,
        st.none() | st.integers(MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS),
        st.none() | st.lists(st.tuples(st.text(max_size=8), st.binary(max_size=8)), max_size=3),
    ),
    min_size=1,
    max_size=20,
)
marks = st.lists(
    st.builds(
        AppendMark,
        st.integers(0, 2**32 - 1),
        st.integers(1, 2**32 - 1),
        st.none() | st.text(max_size=255),
        st.none() | st.text(max_size=255),
        INT64,
        INT64,
        st.booleans(),
        st.binary(min_size=16, max_size=16),
    ),
    max_size=5,
)
epochs = st.lists(st.builds(Epoch, INT64, INT64, st.text(max_size=30), INT64, INT64, INT64), max_size=10)


def columns_of(
    rows: list[tuple[bytes | None, bytes | None, int | None, list[tuple[str, bytes]] | None]],
) -> RecordColumns:
    columns = RecordColumns()
    for value, key, timestamp_ms, headers in rows:
        columns.add(value, key, timestamp_ms, headers)
    return columns


def sample(*, appends: bool = True) -> Batch:
    """One batch that uses every part of the format."""
    rows = columns_of([(b"v", b"k", 1_385_000_000_000, [("n", b"h")]), (None, None, None, None)])
    return stamped(encode_body(rows), appends=appends)


def stamped(body: EncodedBody, *, appends: bool = True) -> Batch:
    return stamp(
        body,
        log_id=log_id_of("cluster", "default"),
        base_index=42,
        term=7,
        timestamp_ms=1_730_000_000_001,
        offset=10_240,
        previous_chain=b"\1\2\3\4\5\6\7\x08",
        marks=[AppendMark(0, 1, "key", "p1", 3, 9, True, bytes(range(16)))] if appends else (),
    )


@given(records, marks, INT64, INT64)
def test_a_batch_is_read_as_it_was_packed(rows, appends, term, log_id) -> None:
    columns = columns_of(rows)
    batch = stamp(
        encode_body(columns),
        log_id=log_id,
        base_index=1_000,
        term=term,
        timestamp_ms=5_000,
        offset=8_000,
        previous_chain=FIRST_CHAIN,
        marks=appends,
    )
    assert batch.size_bytes == len(batch.data)
    assert batch.size_bytes % 8 == 0
    decoded = decode_batch(batch.data, log_id=log_id)
    assert decoded == batch
    assert bytes(decoded.data) == batch.data
    assert marks_of(decoded) == tuple(appends)
    assert follows_chain(decoded, FIRST_CHAIN)
    assert not follows_chain(decoded, b"\1" * 8)
    assert decode_body(decoded.header, decoded.body, untrusted=True).schema == BODY_SCHEMA
    table = read_columns(decoded)
    table.validate(full=True)
    assert table.schema == READ_SCHEMA
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    for place, (row, (value, key, timestamp_ms, headers)) in enumerate(
        zip(table.to_pylist(), rows, strict=True)
    ):
        time = epoch + datetime.timedelta(milliseconds=5_000 if timestamp_ms is None else timestamp_ms)
        assert row == {
            "index": 1_000 + place,
            "term": term,
            "offset": 8_000,
            "timestamp": time,
            "key": key,
            "value": value,
            "headers": None if headers is None else [{"name": n, "value": v} for n, v in headers],
            "type": "data",
        }
    assert columns.size_bytes == sum(
        len(value or b"") + len(key or b"") + sum(len(n.encode()) + len(v) for n, v in headers or ())
        for value, key, _, headers in rows
    )
    stamps = [5_000 if ms is None else ms for _, _, ms, _ in rows]
    assert batch.header.max_timestamp_us == max(stamps) * 1000


@given(records, records)
def test_columns_joined_are_the_columns_of_all(first, second) -> None:
    joined, whole = columns_of(first), columns_of(first + second)
    joined.extend(columns_of(second))
    assert joined.count == len(first) + len(second)
    assert joined.size_bytes == whole.size_bytes
    assert encode_body(joined) == encode_body(whole)
    table = decode_body(sample().header._replace(count=whole.count), encode_body(whole).data)
    assert encode_body(table) == encode_body(whole)  # a client's table is packed to the same bytes


@pytest.mark.parametrize("appends", [True, False])
def test_every_flipped_bit_of_a_batch_is_found(appends: bool) -> None:
    whole = bytes(sample(appends=appends).data)
    for place in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(CorruptBatch):
            decode_batch(damaged)


def test_every_cut_of_a_batch_is_found() -> None:
    whole = bytes(sample().data)
    for size in range(len(whole)):
        with pytest.raises(PartialBatch):
            decode_batch(whole[:size])
    assert decode_batch(whole + b"what follows").size_bytes == len(whole)


@settings(max_examples=300)
@given(st.binary(max_size=400))
def test_noise_is_not_a_batch(data: bytes) -> None:
    with pytest.raises(CorruptBatch):
        decode_batch(b"CLB1\1\0\0\0" + data)


def test_a_valid_batch_of_another_log_is_refused() -> None:
    batch = sample()
    assert decode_batch(batch.data, log_id=batch.header.log_id) == batch
    with pytest.raises(CorruptBatch, match="another log"):
        decode_batch(batch.data, log_id=log_id_of("cluster", "other"))


def test_a_batch_has_a_largest_size() -> None:
    huge = encode_body(columns_of([(bytes(64 * 1024 * 1024), None, None, None)]))
    with pytest.raises(ValueError, match="at most"):
        stamp(huge, log_id=1, base_index=0, term=0, timestamp_ms=0, offset=0, previous_chain=FIRST_CHAIN)


@pytest.mark.parametrize("timestamp_ms", [MIN_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS + 1])
def test_a_timestamp_no_reader_could_show_is_refused(timestamp_ms: int) -> None:
    columns = RecordColumns()
    with pytest.raises(InvalidRecords):
        columns.add(b"v", timestamp_ms=timestamp_ms)
    assert columns.count == columns.size_bytes == len(columns.keys) == 0


def test_a_body_that_disagrees_with_its_header_is_refused() -> None:
    batch = sample()
    with pytest.raises(CorruptBatch, match="number of records"):
        decode_body(batch.header._replace(count=3), batch.body)
    for body in (b"", bytes(64), bytes(batch.body)[:40]):
        with pytest.raises(CorruptBatch):
            decode_body(batch.header, body)


def control(value: bytes | dict[str, object]) -> Batch:
    columns = RecordColumns()
    if isinstance(value, bytes):
        columns.add(value)
    body = encode_body(columns) if isinstance(value, bytes) else encode_control(value)
    return stamp(
        body,
        log_id=1,
        base_index=9,
        term=4,
        timestamp_ms=77,
        offset=64,
        previous_chain=FIRST_CHAIN,
        control=True,
    )


def test_a_term_opens_an_epoch_and_other_batches_do_not() -> None:
    assert control_value(control({"kind": "term", "leader": "n1"})) == {"kind": "term", "leader": "n1"}
    assert epoch_of(control({"kind": "term", "leader": "n1"})) == Epoch(4, 4, "n1", 9, 64, 77)
    assert epoch_of(control({"kind": "fence", "token": None})) is None
    assert epoch_of(sample()) is None
    for bad in (b"", b"[]", b"{", control({"kind": "term"}).data[:5], b'{"kind":"term","leader":1}'):
        with pytest.raises(CorruptBatch):
            epoch_of(control(bytes(bad)))
    assert read_columns(control({})).column("type").to_pylist() == ["control"]


# --- small files


@given(st.binary(max_size=2_048), st.integers(0, 2**64 - 1))
def test_a_slot_is_read_as_it_was_written(payload: bytes, sequence: int) -> None:
    slot = encode_slot(b"TEST", sequence, payload)
    assert len(slot) == SLOT_SIZE_BYTES
    assert decode_slot(b"TEST", slot) == (sequence, payload)
    assert decode_slot(b"ELSE", slot) is None


def test_every_cut_and_flipped_bit_of_a_slot_is_found() -> None:
    slot = encode_slot(b"TEST", 5, b"payload")
    used = len(slot.rstrip(b"\0"))
    for size in range(used):
        assert decode_slot(b"TEST", slot[:size]) is None
    for place in range(used * 8):
        damaged = bytearray(slot)
        damaged[place // 8] ^= 1 << place % 8
        assert decode_slot(b"TEST", damaged) is None
    with pytest.raises(ValueError, match="at most"):
        encode_slot(b"TEST", 1, bytes(2_049))


@given(INT64, st.none() | st.text(min_size=1, max_size=60))
def test_a_hard_state_is_read_as_it_was_written(term: int, voted_for: str | None) -> None:
    state = HardState(term, voted_for)
    assert decode_hard_state(encode_hard_state(state)) == state


@pytest.mark.parametrize("name", ["", "n" * 256])
def test_a_hard_state_that_cannot_be_kept_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="node id"):
        encode_hard_state(HardState(1, name))


@pytest.mark.parametrize("payload", [b"", bytes(9), bytes(11), b"\xff" * 10, bytes(8) + b"\2\0\xff\xff"])
def test_a_payload_that_is_not_a_hard_state_is_refused(payload: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        decode_hard_state(payload)


@pytest.mark.rule("R-01")
@pytest.mark.parametrize("seed", range(20))
def test_a_vote_that_was_saved_is_never_forgotten(seed: int) -> None:
    """The power fails before each operation in turn: there is the state before or the one being saved."""
    place = 0
    done = False
    while not done:
        files = MemoryFiles(Random(seed))
        vote = HardStateFile(files, "/data/vote")
        assert vote.load() == HardState()
        vote.save(HardState(4, "n1"))
        vote.save(HardState(5, None))
        files.power_cut_at = files.operations + place
        try:
            vote.save(HardState(5, "n2"))
            done = True
        except PowerCut:
            pass
        files.crash()
        found = HardStateFile(files, "/data/vote").load()
        assert found == HardState(5, "n2") or (not done and found == HardState(5, None))
        place += 1
    assert place > 3


@pytest.mark.rule("R-01")
def test_one_damaged_slot_costs_nothing_and_two_are_reported() -> None:
    files = MemoryFiles()
    vote = HardStateFile(files, "/data/vote")
    vote.load()
    for term in range(1, 5):
        vote.save(HardState(term, "n1"))
        whole = files.read("/data/vote")
        for place in (0, SLOT_SIZE_BYTES):
            files.open("/data/vote").pwrite(bytes(30), place)
            again = HardStateFile(files, "/data/vote")
            assert again.load() == HardState(term, "n1")
            again.save(HardState(term, "n1"))  # and the next save repairs it
            files.open("/data/vote").pwrite(whole, 0)
    files.open("/data/vote").pwrite(bytes(30), 0)
    files.open("/data/vote").pwrite(bytes(30), SLOT_SIZE_BYTES)
    with pytest.raises(CorruptFile):
        HardStateFile(files, "/data/vote").load()


def test_a_checkpoint_and_a_snapshot_are_read_as_they_were_saved() -> None:
    files = MemoryFiles()
    checkpoint = CheckpointFile(files, "/data/checkpoint")
    assert checkpoint.load() == Checkpoint()
    checkpoint.save(Checkpoint(41, 40))
    assert CheckpointFile(files, "/data/checkpoint").load() == Checkpoint(41, 40)
    snapshot = SnapshotFile(files, "/data/state")
    assert snapshot.load() is None
    for payload in (b"", b"state" * 1000):
        snapshot.save(payload)
        assert snapshot.load() == payload
    whole = files.read("/data/state")
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 16
        files.open("/data/state").pwrite(damaged, 0)
        with pytest.raises(CorruptFile):
            snapshot.load()
    for size in (0, 10, len(whole) - 1):
        files.open("/data/state").truncate(size)
        with pytest.raises(CorruptFile):
            snapshot.load()


@given(epochs)
def test_epochs_are_read_as_they_were_written(listed: list[Epoch]) -> None:
    assert decode_epochs(encode_epochs(listed)) == listed


def test_every_cut_and_flipped_bit_of_an_epoch_file_is_found() -> None:
    whole = encode_epochs([Epoch(1, 1, "n1", 0, 0, 5), Epoch(2, 2, "n2", 10, 900, 6)])
    for size in range(len(whole)):
        with pytest.raises(ValueError):  # noqa: PT011
            decode_epochs(whole[:size])
    for place in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(ValueError):  # noqa: PT011
            decode_epochs(damaged)


# --- the index


def test_a_segment_is_named_by_its_first_offset() -> None:
    assert segment_name(8_400) == "00000000000000008400.log"
    assert index_name(8_400) == "00000000000000008400.index"
    assert segment_offset(segment_name(2**63 - 1)) == 2**63 - 1
    for name in (
        "8400.log",
        "00000000000000008400.index",
        "0000000000000000840x.log",
        "manifest",
        "٣" * 20 + ".log",
    ):
        assert segment_offset(name) is None


def test_every_flipped_bit_of_an_index_entry_is_found() -> None:
    index = SegmentIndex()
    index.append(sample())
    whole = index.encoded(0, 1)
    entry = SegmentIndex(whole).entry(0)
    assert (entry.base_index, entry.last_index, entry.next_offset) == (42, 43, sample().next_offset)
    for place in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        with pytest.raises(DamagedIndex):
            SegmentIndex(bytes(damaged)).entry(0)


# --- golden bytes: a change here is a new format. The body's are Arrow's to choose: any will do

GOLDEN_BODY = EncodedBody(b"body" * 4, 2, crc32c(b"body" * 4), 1_385_000_000_000_000, False)
GOLDEN_BATCH = bytes(stamped(GOLDEN_BODY).data)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("batch.bin", GOLDEN_BATCH),
        ("hard_state.bin", encode_slot(MAGIC, 3, encode_hard_state(HardState(7, "n1")))[:64]),
        ("epochs.bin", encode_epochs([Epoch(7, 7, "n1", 40, 9_000, 1_730_000_000_000)])),
    ],
)
def test_the_bytes_on_disk_stay_what_they_are(name: str, data: bytes) -> None:
    assert (GOLDEN / name).read_bytes() == data


def test_the_header_of_the_golden_batch_reads_as_on_the_page() -> None:
    data = (GOLDEN / "batch.bin").read_bytes()
    assert data[:8] == b"CLB1\1\0\0\0"
    assert int.from_bytes(data[24:32], "little") == 42  # base_index
    assert int.from_bytes(data[40:48], "little") == 7  # term
    assert int.from_bytes(data[64:72], "little") == 10_240  # offset
    assert data[80:124] == bytes(44)


@pytest.mark.parametrize(
    "size_bytes", [*range(70), 1_000, 1_024, LONE_VALUE_MAX_BYTES, LONE_VALUE_MAX_BYTES + 1]
)
def test_a_single_value_is_encoded_as_arrow_encodes_it(size_bytes: int) -> None:
    for value in (Random(size_bytes).randbytes(size_bytes), b"\xff" * size_bytes, bytes(size_bytes)):
        alone = RecordColumns()
        alone.add(value)
        nulls = [pa.nulls(1, BODY_SCHEMA.field(column).type) for column in (0, 1, 3)]
        columns = [*nulls[:2], pa.array([value], pa.binary()), nulls[2]]
        by_arrow = encode_body(pa.RecordBatch.from_arrays(columns, schema=BODY_SCHEMA))
        bodies = [each._replace(data=bytes(each.data)) for each in (encode_body(alone), by_arrow)]
        assert bodies[0] == bodies[1]


def test_a_record_with_more_than_a_value_is_not_a_lone_value() -> None:
    others: list[dict[str, Any]] = [{"key": b""}, {"timestamp_ms": 0}, {"headers": []}]
    for other in others:
        records = RecordColumns()
        records.add(b"v", **other)
        assert records.lone_value is None
