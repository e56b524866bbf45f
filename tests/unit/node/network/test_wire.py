"""Raft's messages as bytes: decode inverts encode, and whatever is wrong with a frame is found."""

import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.controller.liveness import Report
from app.controller.messages import BrokerHeartbeat
from app.node.network.append_messages import CarriedAnswer, CarriedAnswers, CarriedAppend, CarriedAppends
from app.node.network.wire import CorruptFrame, decode, encode
from app.raft.messages import (
    Heartbeat,
    HeartbeatAnswer,
    PushAnswer,
    PushCode,
    PushRequest,
    PushType,
    RaftMessage,
    ReadIndexAnswer,
    ReadIndexRequest,
    VoteAnswer,
    VoteRequest,
)
from tests.unit.raft.support import LOG_ID, MemoryLog, log_of

TERMS = st.integers(0, 2**62)
INDEXES = st.integers(-1, 2**62)
NAMES = st.text(max_size=32)
PLAIN: st.SearchStrategy[RaftMessage] = st.one_of(
    st.builds(VoteRequest, TERMS, INDEXES, TERMS, st.booleans()),
    st.builds(VoteAnswer, TERMS, st.booleans(), st.booleans()),
    st.builds(Heartbeat, TERMS, NAMES, INDEXES, TERMS),
    st.builds(HeartbeatAnswer, TERMS, INDEXES),
    st.builds(
        PushAnswer,
        TERMS,
        st.sampled_from(PushType),
        st.sampled_from(PushCode),
        TERMS,
        TERMS,
        INDEXES,
        INDEXES,
        INDEXES,
        TERMS,
        INDEXES,
    ),
    st.builds(ReadIndexRequest, TERMS, TERMS),
    st.builds(ReadIndexAnswer, TERMS, TERMS, st.none() | INDEXES),
    st.builds(
        PushRequest,
        TERMS,
        st.sampled_from((PushType.COMPARE, PushType.COMMIT)),
        NAMES,
        INDEXES,
        TERMS,
        TERMS,
        INDEXES,
        TERMS,
        INDEXES,
    ),
)


def frame_of(message: RaftMessage, log_id: int = LOG_ID) -> bytes:
    return b"".join(encode(log_id, message))


def push_of(
    log: MemoryLog, first: int, last: int, kind: PushType = PushType.APPEND, term: int = 3
) -> PushRequest:
    batches = tuple(log.batches[first : last + 1])
    index = batches[0].base_index - 1
    return PushRequest(
        term, kind, "n1", 0, 4, 5, index, log.term_at(index) if index >= 0 else 0, 0, False, True, batches
    )


@given(st.integers(0, 2**64 - 1), PLAIN)
def test_decode_inverts_encode(log_id: int, message: RaftMessage) -> None:
    assert decode(memoryview(frame_of(message, log_id))) == (log_id, message)


@pytest.mark.parametrize("kind", [PushType.APPEND, PushType.TRUNCATE])
def test_batches_travel_as_they_are_stored(kind: PushType) -> None:
    log = log_of(1, 1, 2, 3)
    push = push_of(log, 1, 1 if kind is PushType.TRUNCATE else 3, kind)
    buffers = encode(LOG_ID, push)
    assert [buffer is batch.data for buffer, batch in zip(buffers[1:], push.batches, strict=True)] == [
        True
    ] * len(push.batches)
    frame = memoryview(b"".join(buffers))
    log_id, decoded = decode(frame)
    assert (log_id, decoded) == (LOG_ID, push)
    assert isinstance(decoded, PushRequest)
    assert all(
        isinstance(batch.data, memoryview) and batch.data.obj is frame.obj for batch in decoded.batches
    )


@settings(max_examples=300)
@given(st.data())
def test_a_cut_or_a_flipped_bit_in_a_push_never_gives_other_batches(data: st.DataObject) -> None:
    push = push_of(log_of(1, 1, 2), 0, 2)
    frame = bytearray(frame_of(push))
    if data.draw(st.booleans()):
        del frame[data.draw(st.integers(0, len(frame) - 1)) :]
    else:
        position = data.draw(st.integers(0, len(frame) - 1))
        frame[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        _, decoded = decode(memoryview(bytes(frame)))
    except CorruptFrame:
        return
    assert isinstance(decoded, PushRequest)
    assert decoded.batches == push.batches  # the damage was in a number of the head


@given(st.binary(max_size=300))
def test_noise_is_a_corrupt_frame(noise: bytes) -> None:
    with pytest.raises(CorruptFrame):
        decode(memoryview(noise + b"\xff"))


def test_a_batch_of_another_log_does_not_pass() -> None:
    with pytest.raises(CorruptFrame, match="another log"):
        decode(memoryview(frame_of(push_of(log_of(1), 0, 0), LOG_ID + 1)))


def test_batches_that_are_no_neighbours_do_not_pass() -> None:
    log = log_of(1, 1, 1)
    push = msgspec.structs.replace(push_of(log, 0, 0), batches=(log.batches[0], log.batches[2]))
    with pytest.raises(CorruptFrame, match="neighbours"):
        decode(memoryview(frame_of(push)))


@pytest.mark.parametrize(
    ("kind", "last", "term"),
    [
        (PushType.APPEND, 1, 0),  # batches newer than their leader's term
        (PushType.TRUNCATE, 2, 3),  # more than one
        (PushType.COMPARE, 1, 3),  # none allowed
        (PushType.COMMIT, 1, 3),
    ],
)
def test_batches_must_fit_their_push(kind: PushType, last: int, term: int) -> None:
    with pytest.raises(CorruptFrame, match="do not fit"):
        decode(memoryview(frame_of(push_of(log_of(1, 1, 1), 1, last, kind, term))))


def test_only_a_push_carries_batches() -> None:
    head = frame_of(Heartbeat(1, "n1", 0, 1))[16:]
    frame = struct.pack("<IIQ", len(head), 8, 1) + head + bytes(8)
    with pytest.raises(CorruptFrame, match="only a push"):
        decode(memoryview(frame))


@pytest.mark.parametrize("sizes", [(2**31, 0), (100, 1), (99, 0), (0, 99), (2**21, 0)])
def test_sizes_that_are_not_those_of_the_frame_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(CorruptFrame, match="sizes"):
        decode(memoryview(struct.pack("<IIQ", *sizes, 1) + bytes(100 if sizes[0] < 5_000 else 5_000)))


def test_the_form_on_the_wire_is_fixed() -> None:
    """Golden bytes: nodes of two versions talk to each other during an upgrade."""
    assert frame_of(Heartbeat(7, "n1", 41, 3), 1).hex() == (
        "08000000" + "00000000" + "0100000000000000" + "95" + "03" + "07" + "a26e31" + "29" + "03"
    )
    request = PushRequest(7, PushType.COMMIT, "n1", 41, 2, 9, 40, 6, 0)
    expected = "0f000000 00000000 0100000000000000 9c 05 07 04 a26e31 29 02 09 28 06 00 c2 c2"
    assert frame_of(request, 1).hex() == expected.replace(" ", "")
    without_syncs = "0e000000 00000000 0100000000000000 9b 05 07 04 a26e31 29 02 09 28 06 00 c2"
    assert decode(memoryview(bytes.fromhex(without_syncs))) == (1, request)  # of an earlier version


@given(st.binary(max_size=64), st.binary(max_size=64), st.integers(1, 60_000), st.integers(0, 2**53))
def test_appends_of_clients_come_back_as_they_were(head: bytes, body: bytes, left_ms: int, id_: int) -> None:
    appends = CarriedAppends((CarriedAppend(id_, left_ms, head, b"request-1", body),) * 3)
    answers = CarriedAnswers((CarriedAnswer(id_, 200, ((b"name", head),), body), CarriedAnswer(1, 0)))
    for message in (appends, answers):
        assert decode(memoryview(b"".join(encode(0, message)))) == (0, message)


@pytest.mark.parametrize("left_ms", [0, 60_001])
def test_an_append_with_an_impossible_time_limit_is_a_corrupt_frame(left_ms: int) -> None:
    frame = b"".join(encode(0, CarriedAppends((CarriedAppend(1, left_ms, b"", b"", b""),))))
    with pytest.raises(CorruptFrame):
        decode(memoryview(frame))


class OlderVote(msgspec.Struct, array_like=True, tag_field="kind", tag=2):
    """VoteAnswer of a version that does not name the voters."""

    term: int
    granted: bool
    pre_vote: bool = False
    group: None = None
    sound: bool = True


@pytest.mark.rule("R-10")
def test_a_vote_with_voters_and_one_of_an_older_version_are_both_read() -> None:
    vote = VoteAnswer(3, True, sound=False, voters=("n1", "n2"))
    older = msgspec.msgpack.decode(msgspec.msgpack.encode(vote), type=OlderVote)
    assert (older.term, older.granted, older.sound) == (3, True, False)
    newer = msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=VoteAnswer)
    assert newer == msgspec.structs.replace(vote, voters=())


def _framed(head: list[object]) -> memoryview:
    data = msgspec.msgpack.encode(head)
    return memoryview(struct.pack("<IIQ", len(data), 0, LOG_ID) + data)


@pytest.mark.rule("C-03")
def test_a_heartbeat_of_an_earlier_version_reports_space_and_later_fields_are_passed_over() -> None:
    """Versions are mixed during an upgrade: a field that one side lacks closes no connection."""
    report = Report("a", 1, 2, 3, 400, 300, electable=False, has_room=False)
    earlier = ["a", 1, 2, 3, 400, 300, False]
    whole = BrokerHeartbeat(5, 9, (msgspec.structs.replace(report, has_room=True),), 4)
    assert decode(_framed([32, 5, 9, [earlier], 4])) == (LOG_ID, whole)
    later = [32, 5, 9, [[*earlier, False, {"later": 1}]], 4, "later"]
    assert decode(_framed(later)) == (LOG_ID, BrokerHeartbeat(5, 9, (report,), 4))
