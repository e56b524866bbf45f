"""Authenticated frames: what arrives is what was sent, in order, or the connection ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.node.links.sealed_frames import MAC_BYTES, PAYLOAD_MAX_BYTES, ForgedFrame, Opener, Sealer

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def sealed(*payloads: bytes, key: bytes = KEY) -> list[bytes]:
    sealer = Sealer(key)
    return [b"".join(sealer.seal([payload])) for payload in payloads]


@given(st.lists(st.lists(st.binary(max_size=40), max_size=4), max_size=6), st.randoms(use_true_random=False))
def test_the_stream_arrives_however_it_is_cut(writes: list[list[bytes]], chance: object) -> None:
    sealer, opener = Sealer(KEY), Opener(KEY)
    wire = b"".join(b"".join(sealer.seal(buffers)) for buffers in writes)
    received, start = b"", 0
    while start < len(wire):
        end = start + chance.randint(1, 60)  # type: ignore[attr-defined]
        received += opener.feed(wire[start:end])
        start = end
    assert received == b"".join(b"".join(buffers) for buffers in writes)


def test_a_large_write_is_several_frames() -> None:
    data = bytes(range(256)) * 4_096
    parts = Sealer(KEY).seal([data[:100], data[100:]])
    assert len(parts) == 3 * (len(data) // PAYLOAD_MAX_BYTES)
    assert Opener(KEY).feed(b"".join(parts)) == data


def test_nothing_is_sent_for_nothing() -> None:
    assert Sealer(KEY).seal([b""]) == []


def test_every_flipped_bit_is_found() -> None:
    first, second = sealed(b"append 17", b"and so on")
    for place in range(len(first) * 8):
        changed = bytearray(first)
        changed[place // 8] ^= 1 << place % 8
        opener = Opener(KEY)
        try:
            assert opener.feed(bytes(changed) + second) == b""  # a longer frame: its end is awaited
        except ForgedFrame:
            continue
        with pytest.raises(ForgedFrame):
            opener.feed(bytes(PAYLOAD_MAX_BYTES + MAC_BYTES))


@pytest.mark.parametrize(
    "frames",
    [
        pytest.param(lambda a, b, c: a + a, id="repeated"),
        pytest.param(lambda a, b, c: b + a, id="moved"),
        pytest.param(lambda a, b, c: a + c, id="dropped"),
        pytest.param(lambda a, b, c: b"".join(sealed(b"x", key=OTHER_KEY)), id="of another key"),
        pytest.param(lambda a, b, c: a + b"\x01\x00\x00\x00!" + bytes(MAC_BYTES), id="injected"),
        pytest.param(lambda a, b, c: bytes(4), id="empty"),
        pytest.param(lambda a, b, c: (PAYLOAD_MAX_BYTES + 1).to_bytes(4, "little"), id="too long"),
    ],
)
def test_a_frame_that_is_not_the_next_one_is_refused(frames: object) -> None:
    with pytest.raises(ForgedFrame):
        Opener(KEY).feed(frames(*sealed(b"one", b"two", b"three")))  # type: ignore[operator]


def test_half_a_frame_gives_nothing() -> None:
    (frame,) = sealed(b"all or nothing")
    opener = Opener(KEY)
    assert opener.feed(frame[:-1]) == b""
    assert opener.feed(frame[-1:]) == b"all or nothing"
