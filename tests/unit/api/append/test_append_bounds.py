"""Bounds of the parameters, headers and lines of an append."""

from urllib.parse import quote

import pytest

from app.api.append.parameters import parse_append_query
from app.api.http.json_decoding import MAX_ORDINAL
from app.errors import InvalidRequest
from storage.format.records import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from tests.unit.api.append.test_bodies import columns


@pytest.mark.parametrize("timestamp_ms", [MIN_TIMESTAMP_MS, -1, 0, MAX_TIMESTAMP_MS])
def test_the_header_of_a_timestamp_takes_the_years_1_to_9999(timestamp_ms: int) -> None:
    def timestamps(given_ms: int) -> list[int | None]:
        headers = {b"commitlog-timestamp": b"%d" % given_ms}
        return columns(b"v", b"application/octet-stream", headers=headers).timestamps_ms

    assert timestamps(timestamp_ms) == [timestamp_ms]
    if timestamp_ms in (MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS):
        with pytest.raises(InvalidRequest, match="within the years 1 to 9999"):
            timestamps(timestamp_ms + (1 if timestamp_ms > 0 else -1))


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("timeout_ms", 1, 60_000),
        ("match_index", 0, MAX_ORDINAL),
        ("match_term", 0, MAX_ORDINAL),
        ("producer_id=p&producer_sequence=0&producer_epoch", 0, MAX_ORDINAL),
        ("producer_id=p&producer_epoch=0&producer_sequence", 0, MAX_ORDINAL),
    ],
)
def test_numbers_of_the_query_have_bounds(name: str, least: int, most: int) -> None:
    for value in (least, most):
        parse_append_query(f"{name}={value}".encode())
    for text in (str(least - 1), str(most + 1), "1" + "0" * 19, "9" * 5_000, "+1", "1_0", "\u0661", ""):
        with pytest.raises(InvalidRequest) as raised:
            parse_append_query(f"{name}={quote(text)}".encode())
        pointers = [error["pointer"] for error in raised.value.errors]
        assert pointers == [f"/query/{name.rpartition('&')[2]}"]


@pytest.mark.parametrize("name", ["fencing_token", "producer_epoch=0&producer_sequence=0&producer_id"])
def test_names_of_the_query_have_1_to_255_characters(name: str) -> None:
    for length in (1, 255):
        parse_append_query(f"{name}={'%C3%A9' * length}".encode())
    for length in (0, 256):
        with pytest.raises(InvalidRequest, match=f"must have 1 to 255 characters, got {length}"):
            parse_append_query(f"{name}={'%C3%A9' * length}".encode())


def test_blank_lines_are_no_records() -> None:
    body = b'\n{"value":"a"}\r\n \t\n\n{"value":"b"}\n\n'
    assert columns(body, b"application/x-ndjson").values == [b"a", b"b"]
