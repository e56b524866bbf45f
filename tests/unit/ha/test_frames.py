"""The bytes of A-07, A-08, H-02, H-03, written down as hex, and what the decoders make of any other bytes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.ha.frames import (
    EPOCHS_MAX,
    TRANSFER_MAX_BYTES,
    Ack,
    ClassicFrame,
    ClassicReport,
    CorruptHaFrame,
    Decode,
    EpochStart,
    FrameSplitter,
    Handshake,
    HandshakeAnswer,
    History,
    Preface,
    TransferFrame,
    decode_classic,
    decode_from_master,
    decode_from_slave,
    decode_from_slave_by_number,
    decode_preface,
    decode_report,
    encode,
    encode_preface,
)

ADDRESS = b"127.0.0.1:10912"


def bytes_of(frame: Any) -> bytes:
    return b"".join(encode(frame))


GOLDEN: list[tuple[Any, str, Decode]] = [
    (
        Handshake("127.0.0.1:10912", sync_from_last_file=True, is_learner=False),
        "00000001 0001 0000 0000000f" + ADDRESS.hex() + "00" * 35,
        decode_from_slave,
    ),
    (
        Handshake("127.0.0.1:10912", sync_from_last_file=False, is_learner=True),
        "00000001 0000 0001 0000000f" + ADDRESS.hex() + "00" * 35,
        decode_from_slave,
    ),
    (
        Handshake("", is_learner=True, number=258),
        "00000001 0000 0001 0000000000000102",
        decode_from_slave_by_number,
    ),
    (Ack(0x1122334455667788), "00000002 1122334455667788", decode_from_slave),
    (
        HandshakeAnswer(300, 3, (EpochStart(1, 0), EpochStart(3, 256))),
        "00000001 00000018 000000000000012c 00000003 00000001 0000000000000000 00000003 0000000000000100",
        decode_from_master,
    ),
    (
        TransferFrame(256, 3, 200, 128, b"log"),
        "00000002 00000003 0000000000000100 00000003 00000000000000c8 0000000000000080 6c6f67",
        decode_from_master,
    ),
    (
        TransferFrame(256, 3, 200, 128),
        "00000002 00000000 0000000000000100 00000003 00000000000000c8 0000000000000080",
        decode_from_master,
    ),
    (ClassicReport(4096), "0000000000001000", decode_report),
    (ClassicFrame(4096, b"log"), "0000000000001000 00000003 6c6f67", decode_classic),
    (ClassicFrame(4096), "0000000000001000 00000000", decode_classic),
]


@pytest.mark.rule("A-07", "A-08", "H-02", "H-03")
@pytest.mark.parametrize(("frame", "text", "decode"), GOLDEN, ids=lambda value: type(value).__name__)
def test_the_bytes_are_those_of_the_protocol(frame: Any, text: str, decode: Decode) -> None:
    data = bytes.fromhex(text)
    assert bytes_of(frame) == data
    assert FrameSplitter(decode).feed(data) == [frame]


def test_a_preface_names_log_and_replica() -> None:
    preface = Preface(0x0102030405060708, replica=2, by_number=True)
    data = bytes.fromhex("434c4841 01 01 0002 0102030405060708")
    assert encode_preface(preface) == data
    assert decode_preface(memoryview(data)) == (preface, 16)
    assert all(decode_preface(memoryview(data[:size])) is None for size in range(16))


@pytest.mark.parametrize(
    ("in_doubt", "for_earlier", "flags"), [(False, False, "02"), (True, False, "07"), (True, True, "03")]
)
def test_a_history_names_the_end_of_a_log_and_whether_records_may_be_missing(
    in_doubt: bool, for_earlier: bool, flags: str
) -> None:
    preface = Preface(1, replica=2, history=History(300, 4, 5, b"12345678", in_doubt, for_earlier))
    data = bytes.fromhex(
        f"434c4841 01 {flags} 0002 0000000000000001"
        "000000000000012c 0000000000000004 0000000000000005 3132333435363738"
    )
    assert encode_preface(preface) == data
    assert decode_preface(memoryview(data)) == (preface, 48)


def test_a_history_for_an_earlier_version_may_leave_the_begin_out_and_shows_that() -> None:
    history = History(300, 4, 5, b"12345678", for_earlier=True, begin_index=3)
    data = encode_preface(Preface(1, replica=2, history=history))
    assert (data[5], len(data)) == (0x03, 48)
    read = History(300, 4, 5, b"12345678", in_doubt=True, for_earlier=True)
    assert decode_preface(memoryview(data)) == (Preface(1, replica=2, history=read), 48)


@pytest.mark.parametrize("in_doubt", [False, True])
def test_a_history_names_the_begin_of_a_log_that_lacks_records(in_doubt: bool) -> None:
    history = History(300, 4, 5, b"12345678", in_doubt, begin_index=3)
    preface = Preface(1, replica=2, history=history)
    data = encode_preface(preface)
    assert (data[5], data[48:]) == (0x0F if in_doubt else 0x0A, bytes.fromhex("0000000000000003"))
    assert decode_preface(memoryview(data)) == (preface, 56)
    assert all(decode_preface(memoryview(data[:size])) is None for size in range(56))
    for wrong in (-1, 5):  # the log ends before index 4
        with pytest.raises(CorruptHaFrame, match="from index"):
            decode_preface(memoryview(data[:48] + wrong.to_bytes(8, "big", signed=True)))


@pytest.mark.rule("A-07", "A-08")
@pytest.mark.parametrize("text", ["00", "0000", "00000002 1122", "00000001"])
def test_no_first_frame_passes_for_a_preface(text: str) -> None:
    with pytest.raises(CorruptHaFrame):
        decode_preface(memoryview(bytes.fromhex(text)))


OFFSETS = st.integers(0, 2**63 - 1)
EPOCHS = st.integers(1, 2**31 - 1)
STARTS = st.lists(st.tuples(EPOCHS, st.integers(0, 2**40)), max_size=20).map(
    lambda pairs: tuple(
        EpochStart(epoch, start)
        for epoch, start in zip(
            sorted({epoch for epoch, _ in pairs}), sorted(start for _, start in pairs), strict=False
        )
    )
)
FROM_SLAVE = st.one_of(
    st.builds(
        Handshake,
        st.text("abc.:[]0123", min_size=1, max_size=50),
        st.booleans(),
        st.booleans(),
    ),
    st.builds(Ack, OFFSETS),
)
FROM_MASTER = st.one_of(
    STARTS.map(lambda starts: HandshakeAnswer(2**41, 2**31 - 1, starts)),
    st.tuples(OFFSETS, OFFSETS, EPOCHS, OFFSETS, st.binary(max_size=100)).map(
        lambda each: TransferFrame(max(each[:2]), each[2], min(each[:2]), each[3], each[4])
    ),
)
STREAMS = st.one_of(
    st.tuples(st.lists(FROM_SLAVE), st.just(decode_from_slave)),
    st.tuples(st.lists(FROM_MASTER), st.just(decode_from_master)),
    st.tuples(st.lists(st.builds(ClassicFrame, OFFSETS, st.binary(max_size=100))), st.just(decode_classic)),
    st.tuples(st.lists(st.builds(ClassicReport, OFFSETS)), st.just(decode_report)),
)


@pytest.mark.rule("H-03")
@given(stream=STREAMS, sizes=st.lists(st.integers(1, 70), min_size=1))
def test_frames_come_whole_however_their_bytes_are_cut(stream: Any, sizes: list[int]) -> None:
    frames, decode = stream
    data = b"".join(bytes_of(frame) for frame in frames)
    reader, found, at = FrameSplitter(decode), [], 0
    for size in sizes * (len(data) // min(sizes) + 1):
        found += reader.feed(data[at : at + size])
        at += size
    assert found == frames
    assert reader.waiting_bytes == 0


@given(data=st.binary(max_size=300), by_number=st.booleans())
def test_any_bytes_are_frames_or_refused_and_never_more(data: bytes, by_number: bool) -> None:
    slave = decode_from_slave_by_number if by_number else decode_from_slave
    for decode in (slave, decode_from_master, decode_classic, decode_report):
        reader = FrameSplitter(decode)
        try:
            reader.feed(data)
        except CorruptHaFrame:
            continue
        assert reader.waiting_bytes <= len(data)


@pytest.mark.rule("H-03")
@pytest.mark.parametrize(
    ("text", "decode"),
    [
        ("00000000", decode_from_slave),  # READY is no frame
        ("00000003", decode_from_slave),
        ("00000001 0002 0000 00000001" + "61" * 50, decode_from_slave),  # a flag that is no flag
        ("00000001 0000 0000 00000033" + "61" * 50, decode_from_slave),  # an address past its field
        ("00000001 0000 0000 00000000" + "61" * 50, decode_from_slave),
        ("00000001 0000 0000 00000001" + "ff" * 50, decode_from_slave),
        ("00000002 ffffffffffffffff", decode_from_slave),  # an offset below zero
        ("00000001 0000 0000 0000000000000000", decode_from_slave_by_number),
        ("ffffffff", decode_from_master),
        ("00000001 00000001 0000000000000000 00000001", decode_from_master),  # a body of no entries' size
        ("00000001 7ffffffc 0000000000000000 00000001", decode_from_master),  # ... without a waiting client
        ("00000002 7fffffff 0000000000000000 00000001" + "00" * 16, decode_from_master),
        ("00000002 ffffffff 0000000000000000 00000001" + "00" * 16, decode_from_master),
        ("00000002 00000000 0000000000000000 00000001" + "00" * 7 + "01" + "00" * 8, decode_from_master),
        (  # epochs that fall
            "00000001 00000018 000000000000012c 00000003 00000003 0000000000000000 00000001 0000000000000100",
            decode_from_master,
        ),
        ("0000000000000000 7fffffff", decode_classic),
        ("8000000000000000 00000000", decode_classic),
        ("8000000000000000", decode_report),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".hex(), decode_from_slave),
        (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".hex(), decode_from_master),
    ],
)
def test_garbage_is_refused_at_once(text: str, decode: Decode) -> None:
    with pytest.raises(CorruptHaFrame):
        FrameSplitter(decode).feed(bytes.fromhex(text))


@pytest.mark.parametrize("wrong", ["end_offset", "next_index", "epoch"])
def test_a_history_below_zero_is_refused(wrong: str) -> None:
    numbers = {"end_offset": 100, "next_index": 5, "epoch": 3}

    def preface() -> bytes:
        return encode_preface(Preface(1, 2, history=History(**numbers, chain=bytes(8))))

    assert decode_preface(memoryview(preface())) is not None
    numbers[wrong] = -1
    with pytest.raises(CorruptHaFrame):
        decode_preface(memoryview(preface()))


@pytest.mark.rule("A-07")
def test_thousands_of_epochs_fit_into_one_handshake_byte_by_byte() -> None:
    answer = HandshakeAnswer(10_000_000, 20_000, tuple(EpochStart(n, n * 100) for n in range(1, 20_001)))
    reader = FrameSplitter(decode_from_master)
    data = bytes_of(answer) + bytes_of(TransferFrame(10_000_000, 20_000, 2_000_000, 0))
    frames = []
    for at in range(0, len(data), 1_000):
        frames += reader.feed(data[at : at + 1_000])
    assert frames[0] == answer
    assert isinstance(frames[1], TransferFrame)
    assert EPOCHS_MAX > 20_000


@pytest.mark.rule("H-03")
def test_the_buffer_is_recycled_and_the_largest_frame_gets_through() -> None:
    reader = FrameSplitter(decode_classic)
    for number in range(50):
        body = bytes([number]) * (TRANSFER_MAX_BYTES if number == 25 else 30_000)
        data = bytes_of(ClassicFrame(number, body))
        found = reader.feed(data[:-1]) + reader.feed(data[-1:])
        assert found == [ClassicFrame(number, body)]
        assert reader.waiting_bytes == 0


def test_an_address_that_has_no_room_is_refused_before_it_is_sent() -> None:
    assert len(bytes_of(Handshake("a" * 50))) == 62
    for address in ("", "a" * 51):
        with pytest.raises(ValueError, match="50 bytes"):
            encode(Handshake(address))
