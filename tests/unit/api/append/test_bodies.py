"""Bodies of an append: what a client writes is what is stored, in every type; what is wrong is refused."""

import base64
import gzip
import json
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from app.api.append.bodies import read_append
from app.api.append.call import AppendCall, AppendHead, media_type_of
from app.api.append.json_bodies import (
    _lines_one_by_one,
    add_record,
    compact_json,
    decode_append,
    decode_lines,
    plain_lines,
    records_of,
)
from app.api.append.parameters import AppendParameters, parse_append_query, parse_idempotency_key
from app.api.http.compression import unpack
from app.errors import CommitlogError, InvalidBody, InvalidRequest, TooLarge, UnsupportedMediaType
from app.log.contract import APPEND_MAX_BYTES, Acks, AppendRequest
from app.log.producers import Producer
from app.settings.model import Limits
from storage.format.records import RecordColumns

LIMITS = Limits()
SMALL = Limits(max_record_bytes=100, max_request_bytes=10_000, max_request_records=5)


def read(
    body: bytes,
    content_type: bytes = b"application/json",
    headers: dict[bytes, bytes] | None = None,
    parameters: AppendParameters | None = None,
    limits: Limits = LIMITS,
) -> AppendRequest:
    heads = {b"content-type": content_type, **(headers or {})}
    head = AppendHead("default", "/v1/logs/default/records", b"", list(heads.items()))
    return read_append(AppendCall(head, body, b"id", parameters=parameters), limits)


def columns(body: bytes, content_type: bytes = b"application/json", **options: Any) -> RecordColumns:
    records = read(body, content_type, **options).records
    assert isinstance(records, RecordColumns)
    return records


texts = st.text(st.characters(exclude_categories=["Cs"]))
pairs = st.tuples(texts, texts | st.binary())


@st.composite
def record_objects(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[Any, ...]]:
    """A record as JSON, and what must be stored of it."""
    record: dict[str, Any] = {}
    kind = draw(st.sampled_from(["value", "value_base64", "tombstone"]))
    value: bytes | None = None
    if kind == "value":
        record["value"] = text = draw(texts)
        value = text.encode()
    elif kind == "value_base64":
        value = draw(st.binary())
        record["value_base64"] = base64.b64encode(value).decode()
    else:
        record["value"] = None
    key: bytes | None = None
    match draw(st.integers(0, 2)):
        case 1:
            record["key"] = text = draw(texts)
            key = text.encode()
        case 2:
            key = draw(st.binary())
            record["key_base64"] = base64.b64encode(key).decode()
    timestamp = draw(st.none() | st.integers(-62_135_596_800_000, 253_402_300_799_999))
    if timestamp is not None:
        record["timestamp"] = timestamp
    headers = draw(st.lists(pairs, max_size=3))
    record["headers"] = [
        [name, content if isinstance(content, str) else {"base64": base64.b64encode(content).decode()}]
        for name, content in headers
    ]
    stored = [(name, content.encode() if isinstance(content, str) else content) for name, content in headers]
    return record, (value, key, timestamp, stored or None)


@given(st.lists(record_objects(), min_size=1, max_size=5), st.booleans())
def test_json_and_lines_store_the_same_records(
    records: list[tuple[dict[str, Any], tuple[Any, ...]]], ascii_only: bool
) -> None:
    objects = [record for record, _ in records]
    whole = json.dumps({"records": objects}, ensure_ascii=ascii_only).encode()
    lines = b"\n".join(json.dumps(record, ensure_ascii=ascii_only).encode() for record in objects)
    for got in (columns(whole), columns(lines, b"application/x-ndjson")):
        rows = list(zip(got.values, got.keys, got.timestamps_ms, got.headers, strict=True))
        assert rows == [stored for _, stored in records]


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(json_values, st.sampled_from([None, 2]), st.booleans())
def test_compact_json_has_the_same_content_in_one_spelling(
    value: Any, indent: int | None, ascii_only: bool
) -> None:
    compact = compact_json(json.dumps(value, indent=indent, ensure_ascii=ascii_only).encode())
    assert json.loads(compact) == value
    assert compact == compact_json(compact)
    assert compact == compact_json(json.dumps(value, ensure_ascii=not ascii_only).encode())


@pytest.mark.parametrize("number", ["1.0", "1e400", "-0", "12345678901234567890123", "0.10", "1E+2"])
def test_numbers_stay_as_they_are_written(number: str) -> None:
    assert columns(f'{{"value_json": [ {number} ]}}'.encode()).values == [f"[{number}]".encode()]


@given(st.binary(max_size=200))
def test_no_bytes_are_more_than_a_refusal(body: bytes) -> None:
    """Whatever comes in: a request or one of our refusals, never another error."""
    for content_type in (b"application/json", b"application/x-ndjson", b"application/octet-stream"):
        for encoding in ({}, {b"content-encoding": b"gzip"}, {b"content-encoding": b"zstd"}):
            try:
                request = read(body, content_type, headers=encoding)
            except CommitlogError as error:
                assert 400 <= error.http_status < 500  # noqa: PT017  # the point is that nothing else is raised
            else:
                assert request.records.count >= 1


@given(st.recursive(st.sampled_from(["1", '"a"', "null", "{}"]), lambda x: st.lists(x, max_size=3).map(str)))
def test_strange_json_is_refused(text: str) -> None:
    with pytest.raises(CommitlogError):
        read(text.encode())


def test_the_last_of_two_equal_fields_counts() -> None:
    assert columns(b'{"value": "a", "value": "b"}').values == [b"b"]


# --- limits ----------------------------------------------------------------------------------------------


def test_a_record_may_be_as_large_as_the_limit() -> None:
    assert columns(b"x" * 100, b"application/octet-stream", limits=SMALL).count == 1
    with pytest.raises(TooLarge):
        read(b"x" * 101, b"application/octet-stream", limits=SMALL)
    with pytest.raises(TooLarge):
        read(b"x" * 100, b"application/octet-stream", {b"commitlog-key": b"k"}, limits=SMALL)
    headers = json.dumps({"value": "x" * 90, "headers": [["name", "value--"]]}).encode()
    with pytest.raises(TooLarge, match="at most 100 bytes, got 101"):
        read(headers, limits=SMALL)


def test_an_append_that_no_batch_can_hold_is_refused() -> None:
    """`max_request_bytes` permits it, but a batch of the log has less room."""
    body = bytes(APPEND_MAX_BYTES)
    limits = Limits(max_request_bytes=2 * len(body), max_record_bytes=2 * len(body))
    with pytest.raises(TooLarge, match=f"an append may have {APPEND_MAX_BYTES}") as refused:
        read(body, b"application/octet-stream", limits=limits)
    assert refused.value.fields() == {"limit": APPEND_MAX_BYTES}


def test_a_body_may_be_larger_than_a_batch_that_can_hold_its_records() -> None:
    """In base64 and with escapes a record needs more bytes than in the log."""
    body = b'{"value_base64": "%s"}' % base64.b64encode(bytes(APPEND_MAX_BYTES * 4 // 5))
    assert len(body) > APPEND_MAX_BYTES
    limits = Limits(max_request_bytes=len(body), max_record_bytes=len(body))
    assert columns(body, limits=limits).packed_bytes > APPEND_MAX_BYTES // 2


def test_a_request_may_have_as_many_records_as_the_limit() -> None:
    for count, fits in ((5, True), (6, False)):
        whole = json.dumps({"records": [{"value": ""}] * count}).encode()
        lines = b'{"value":""}\n' * count
        for body, content_type in ((whole, b"application/json"), (lines, b"application/x-ndjson")):
            if fits:
                assert columns(body, content_type, limits=SMALL).count == count
            else:
                with pytest.raises(TooLarge):
                    read(body, content_type, limits=SMALL)


@given(st.binary(max_size=2_000), st.sampled_from([gzip.compress, zstandard.compress]))
def test_unpacking_inverts_packing(data: bytes, pack: Callable[[bytes], bytes]) -> None:
    encoding = b"gzip" if pack is gzip.compress else b"zstd"
    packed = pack(data)
    assert unpack(packed, encoding, len(data)) == data
    assert unpack(packed + pack(b"more"), encoding, len(data) + 4) == data + b"more"
    with pytest.raises(InvalidBody):
        unpack(packed[:-1], encoding, len(data))
    if data:
        with pytest.raises(TooLarge):
            unpack(packed, encoding, len(data) - 1)


def test_a_bomb_is_not_unpacked() -> None:
    bomb = bytes(64 * 1024 * 1024)
    for packed, encoding in ((gzip.compress(bomb), b"gzip"), (zstandard.compress(bomb), b"zstd")):
        with pytest.raises(TooLarge):
            unpack(packed, encoding, 1024)
    with pytest.raises(UnsupportedMediaType):
        unpack(b"", b"deflate", 1024)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_many_members_take_no_time_for_what_follows_them(encoding: str) -> None:
    """Each member must not copy the rest of the body: 16 MiB of empty ones would take minutes."""
    pack = gzip.compress if encoding == "gzip" else zstandard.compress
    assert unpack(pack(b"a") * 5_000, encoding.encode(), 5_000) == b"a" * 5_000
    begun_s = time.thread_time()
    with pytest.raises(InvalidBody, match="more than 10000"):
        unpack(pack(b"") * (4_000_000 // len(pack(b""))), encoding.encode(), 5_000)
    assert time.thread_time() - begun_s < 2


# --- conditions ------------------------------------------------------------------------------------------


def test_conditions_of_query_and_body_are_the_same() -> None:
    body = {
        "records": [{"value": "a"}],
        "match_index": 1,
        "match_term": 2,
        "fencing_token": "w",
        "producer": {"id": "p", "epoch": 3, "sequence": 4, "allow_gap": True},
    }
    query = (
        b"match_index=1&match_term=2&fencing_token=w&producer_id=p&producer_epoch=3&producer_sequence=4"
        b"&producer_allow_gap=true"
    )
    stated = read(json.dumps(body).encode())
    asked = read(b'{"records": [{"value": "a"}]}', parameters=parse_append_query(query))
    for request in (stated, asked):
        assert (request.match_index, request.match_term, request.fencing_token) == (1, 2, "w")
        assert request.producer == Producer("p", 3, 4, True)
    assert stated.digest == asked.digest
    with pytest.raises(InvalidRequest) as refusal:
        read(json.dumps(body).encode(), parameters=parse_append_query(query))
    pointers = [error["pointer"] for error in refusal.value.errors]
    assert pointers[::2] == ["/match_index", "/match_term", "/fencing_token", "/producer"]
    assert pointers[1::2] == [f"/query{name}" for name in (*pointers[:6:2], "/producer_id")]


def test_parameters_have_defaults_and_escapes() -> None:
    assert parse_append_query(b"") == AppendParameters()
    given_all = parse_append_query(b"acks=all&timeout_ms=60000&fencing_token=a%20b%2Bc+d")
    assert (given_all.acks, given_all.timeout_ms) == (Acks.ALL, 60_000)
    assert given_all.fencing_token == "a b+c d"
    with pytest.raises(InvalidRequest):
        parse_append_query(b"acks=all&acks=all")


@given(st.binary(max_size=100))
def test_no_query_is_more_than_a_refusal(query: bytes) -> None:
    try:
        parse_append_query(query)
    except InvalidRequest as error:
        assert error.errors  # noqa: PT017  # the point is that nothing else is raised


def test_idempotency_keys() -> None:
    assert parse_idempotency_key(None) is None
    assert parse_idempotency_key(b"~" * 255) == "~" * 255
    for wrong in (b"", b"a" * 256, b"a b", b"\x7f", "é".encode()):
        with pytest.raises(InvalidRequest):
            parse_idempotency_key(wrong)


def test_a_digest_is_of_the_content_not_of_its_spelling() -> None:
    key = {b"idempotency-key": b"k"}

    def digest(body: bytes, content_type: bytes = b"application/json", **headers: bytes) -> bytes:
        more = {name.replace("_", "-").encode(): value for name, value in headers.items()}
        return read(body, content_type, {**key, **more}).digest

    plain = digest(b'{"value": "abc", "key": "k", "timestamp": 5}')
    assert len(plain) == 16
    assert plain == digest(b'{"timestamp": 5, "key_base64": "aw==", "value_base64": "YWJj"}')
    assert plain == digest(b'{"value":"abc","key":"k","timestamp":5}\n', b"application/x-ndjson")
    assert plain == digest(b"abc", b"application/octet-stream", commitlog_key=b"k", commitlog_timestamp=b"5")
    others = [
        digest(b'{"value": "abc", "key": "k", "timestamp": 6}'),
        digest(b'{"value": "abck", "key": "", "timestamp": 5}'),
        digest(b'{"value": "abc", "timestamp": 5}'),
        digest(b'{"value": "abc", "key": "k"}'),
        digest(b'{"value": "abc", "key": "k", "timestamp": 5, "headers": [["a", "b"]]}'),
        digest(b'{"records": [{"value": "abc", "key": "k", "timestamp": 5}], "match_term": 1}'),
        digest(b'{"value": null}'),
        digest(b'{"value": ""}'),
    ]
    assert len({plain, *others}) == len(others) + 1


def test_media_types() -> None:
    assert media_type_of(b"Application/JSON ; charset=utf-8") == "application/json"
    for wrong in (b"", b"text/json"):
        with pytest.raises(UnsupportedMediaType):
            media_type_of(wrong)


def test_every_refusal_is_a_whole_problem_document() -> None:
    from app.errors import PROBLEMS, IndexMismatch

    assert len(PROBLEMS) > 25
    for code, problem in PROBLEMS.items():
        assert code == problem.code
        assert problem.__doc__
        assert 400 <= problem.http_status < 600
        if problem.http_status < 500:
            assert problem.outcome == "not_applied"
        always = problem.http_status in (421, 429, 503, 504) or code == "request-outstanding"
        assert problem.retryable is always
    document = IndexMismatch(42, 45).problem("/v1/logs/default/records", "r")
    assert msgspec.json.decode(msgspec.json.encode(document)) == {
        "type": "/problems/index-mismatch",
        "title": "The log is not at the expected index",
        "status": 412,
        "detail": "the append expects index 42, the log's next index is 45",
        "instance": "/v1/logs/default/records",
        "code": "index-mismatch",
        "retryable": False,
        "outcome": "not_applied",
        "request_id": "r",
        "expected_index": 42,
        "next_index": 45,
    }


@pytest.mark.parametrize("seed", range(60))
def test_lines_decoded_at_once_give_what_they_give_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    kinds = ('{"value":"a%d"}', '{"value":null,"key":"k\\u00e9"}', '{"value":"","timestamp":%d}', "", "  ")
    rare = (
        '{"value":"1"}{"value":"2"}',
        '{"value":"1"} {"value":"2"}',
        '{"value":\n"1"}{"value":"2"}',
        '{"value":"a}\n{b"}',
        '{"value":"a"}\r',
        '{"value_json":{"a": %d}}',
        '{"value_base64":"/w=="}',
        '{"value":"a","headers":[["n","v"]]}',
        "{",
        '{"value":1}',
        '{"value":"a","value":"b"}',
        '{"key":"k"}',
        '{"value":"\\ud800"}',
        '{"value":"%s"}',
    )
    lines = [
        chance.choice(kinds if chance.random() < 0.9 else rare) for _ in range(chance.choice((0, 1, 20)))
    ]
    body = "\n".join(
        line.replace("%d", str(number)).replace("%s", "x" * 300) for number, line in enumerate(lines)
    )
    limits = Limits(max_record_bytes=256, max_request_records=chance.choice((10, 100)))

    def outcome(decode: Any) -> Any:
        try:
            columns = decode(body.encode(), limits)
        except CommitlogError as error:
            return error.problem("", "")
        return {name: getattr(columns, name) for name in type(columns).__slots__}

    assert outcome(decode_lines) == outcome(_lines_one_by_one)


@pytest.mark.parametrize("seed", range(20))
def test_records_taken_at_once_give_what_they_give_one_by_one(seed: int) -> None:
    chance = random.Random(seed)
    kinds = ({"value": "a"}, {"value": None, "key": "k\u00e9"}, {"value": "", "timestamp": 5})
    rare = (
        {"value_json": {"a": 1}},
        {"value_base64": "/w=="},
        {"value": "a", "key_base64": "/w=="},
        {"value": "a", "headers": [["n", "v"]]},
        {"value": "a", "headers": []},
        {"value": "a", "value_json": 1},
        {"key": "k"},
        {"value": "x" * 300},
    )
    share = chance.choice((0.0, 0.1))
    records = [chance.choice(rare if chance.random() < share else kinds) for _ in range(20)]
    limits = Limits(max_record_bytes=256)

    def one_by_one() -> RecordColumns:
        found, decoded = RecordColumns(), decode_append(json.dumps({"records": records}).encode(), limits)
        assert isinstance(decoded.records, list)
        for position, record in enumerate(decoded.records):
            add_record(found, record, f"/records/{position}", limits)
        return found

    def outcome(decode: Callable[[], RecordColumns]) -> Any:
        try:
            columns = decode()
        except CommitlogError as error:
            return error.problem("", "")
        return {name: getattr(columns, name) for name in type(columns).__slots__}

    at_once = outcome(
        lambda: records_of(decode_append(json.dumps({"records": records}).encode(), limits), limits)
    )
    assert at_once == outcome(one_by_one)


@pytest.mark.parametrize(
    ("name", "value", "detail"),
    [
        ("Idempotency-Key", b"two words", "must have 1 to 255 visible ASCII characters, got 'two words'"),
        ("Idempotency-Key", b"k" * 256, "must have 1 to 255 visible ASCII characters, got 256 bytes"),
        ("Commitlog-Key", b"a\xff", "must be UTF-8, got 'a\xff'"),
        (
            "Commitlog-Timestamp",
            b"yesterday",
            "must be a whole number of milliseconds since 1970 UTC, within the years 1 to 9999, "
            "got 'yesterday'",
        ),
    ],
)
def test_the_refusal_of_a_header_shows_its_value(name: str, value: bytes, detail: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(b"v", b"application/octet-stream", headers={name.lower().encode(): value})
    assert refused.value.errors == [{"pointer": f"/headers/{name}", "detail": detail}]


@pytest.mark.parametrize("name", ["Commitlog-Key", "Commitlog-Timestamp"])
@pytest.mark.parametrize("media_type", [b"application/json", b"application/x-ndjson"])
def test_headers_of_a_raw_record_are_refused_beside_other_bodies(media_type: bytes, name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read(b'{"value":"v"}', media_type, headers={name.lower().encode(): b"1"})
    (error,) = refused.value.errors
    assert error["pointer"] == f"/headers/{name}"
    assert error["detail"].startswith("requires the Content-Type application/octet-stream; set `")


FEW = Limits(max_request_records=20, max_record_headers=30)
MANY = 60_000  # records or headers: more than are decoded in one call


@pytest.mark.parametrize("record", ["{}", '{"value":null}', '{"value":"a","headers":[["",""]]}'])
def test_a_body_of_very_many_records_is_not_decoded_to_its_end(record: str) -> None:
    """Millions of records fit a body of 15 MB, and would take gigabytes before they are counted."""
    body = '{{"records":[{}]}}'.format(",".join([record] * MANY))
    with pytest.raises(TooLarge, match="at most 20 records"):
        decode_append(body.encode(), FEW)
    with pytest.raises(CommitlogError):
        decode_lines("\n".join([record] * MANY).encode(), FEW)
    assert plain_lines(record.encode() * MANY, FEW) is None
    assert plain_lines(b'{"value":null}' + b"\n" * 21, FEW) is None  # each line break took 16 bytes


@pytest.mark.parametrize("count", [31, MANY])
def test_a_record_has_a_largest_number_of_headers(count: int) -> None:
    record = '{{"value":"a","headers":[{}]}}'.format(",".join(['["",""]'] * count))
    for decode in (
        lambda body: records_of(decode_append(body, FEW), FEW),
        lambda body: decode_lines(body, FEW),
    ):
        with pytest.raises(TooLarge, match="at most 30 headers"):
            decode(record.encode())
    with pytest.raises(TooLarge, match="at most 30 headers"):
        records_of(decode_append(f'{{"records":[{record}]}}'.encode(), FEW), FEW)


def test_a_body_with_very_many_brackets_is_decoded_like_any_other() -> None:
    records = [
        {"value": "[" * MANY, "key": "k", "headers": [["a", "b"], ["c", {"base64": "AA=="}]], "timestamp": 7},
        {"value_json": [[]] * MANY},
        {"value": None},
    ]
    limits = Limits()
    for decode in (
        lambda: records_of(decode_append(json.dumps({"records": records}).encode(), limits), limits),
        lambda: decode_lines("\n".join(map(json.dumps, records)).encode(), limits),
    ):
        columns = decode()
        assert columns.headers == [[("a", b"b"), ("c", b"\0")], None, None]
        assert columns.keys == [b"k", None, None]
        assert columns.values[2] is None
        assert [len(value or b"") for value in columns.values] == [MANY, 3 * MANY + 1, 0]
    wrong = [{"value": "[" * MANY, "headers": [["a"]]}]
    with pytest.raises(InvalidRequest) as refused:
        decode_append(json.dumps({"records": wrong}).encode(), limits)
    assert refused.value.problem("", "")["errors"][0]["pointer"] == "/records/0/headers/0"
