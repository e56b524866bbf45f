"""Counts of signs in texts, with and without numpy."""

import pytest

from app.schemas.json_text import count_sign


@pytest.mark.parametrize("length", [0, 1, 1_023, 1_024, 1_025, 50_001])
@pytest.mark.parametrize("sign", [b":", b"\n", b"{", b"\xff"])
def test_a_sign_is_counted_as_bytes_count_it(length: int, sign: bytes) -> None:
    text = (b'{"a": "\xc3\xbf:",\n' + sign + b"\x00")[::-1] * 4_000
    assert count_sign(text[:length], sign) == text[:length].count(sign)
