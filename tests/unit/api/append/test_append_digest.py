"""The digest of an append: two appends with one key are the same only if all of their content is."""

from typing import Any

import pyarrow as pa
import pytest

from app.api.append.append_digest import append_digest
from app.log.contract import Acks, AppendRequest
from app.log.producers import Producer
from storage.format.records import BODY_SCHEMA, Headers, RecordColumns, RecordTable

Row = tuple[bytes | None, bytes | None, int | None, Headers | None]  # as of RecordColumns.add

ROW: Row = (b"value", b"key", 7, [("name", b"content"), ("more", b"")])
OTHER_RECORDS: list[list[Row]] = [
    [],
    [ROW, ROW],
    [(b"valu", b"ekey", 7, ROW[3])],
    [(b"value", b"key", 7, None)],
    [(b"value", b"key", 7, [("names", b"content"), ("more", b"")])],
    [(b"value", b"key", 7, [("name", b"contents"), ("more", b"")])],
    [(b"value", b"key", 7, [("more", b""), ("name", b"content")])],
    [(b"value", b"key", 8, ROW[3])],
    [(b"value", b"key", None, ROW[3])],
    [(b"value", None, 7, ROW[3])],
    [(b"value", b"", 7, ROW[3])],
    [(None, b"key", 7, ROW[3])],
    [(b"", b"key", 7, ROW[3])],
]
CONDITIONS: list[dict[str, Any]] = [
    {"match_index": 1},
    {"match_term": 1},
    {"fencing_token": "1"},
    {"producer": Producer("p", 1, 1)},
    {"producer": Producer("p", 1, 2)},
    {"producer": Producer("p", 2, 1)},
    {"producer": Producer("q", 1, 1)},
]


def digest_of(rows: list[Row], **conditions: Any) -> bytes:
    records = RecordColumns()
    for row in rows:
        records.add(*row)
    return append_digest(AppendRequest(records, **conditions))


def test_each_difference_of_records_and_conditions_gives_another_digest() -> None:
    digests = [digest_of([ROW]), *map(digest_of, OTHER_RECORDS)]
    digests += [digest_of([ROW], **conditions) for conditions in CONDITIONS]
    assert len(set(digests)) == len(digests)


@pytest.mark.parametrize("conditions", [{}, *CONDITIONS])
def test_a_retry_may_send_no_headers_as_an_empty_list(conditions: dict[str, Any]) -> None:
    """A read shows both as `[]`, and encodings differ in what they send for a record without headers."""
    absent, empty = ([(b"value", b"key", 7, headers)] for headers in (None, []))
    assert digest_of(empty, **conditions) == digest_of(absent, **conditions)


def test_a_retry_may_wait_for_other_acks_or_longer() -> None:
    assert digest_of([ROW], acks=Acks.ALL, timeout_ms=1) == digest_of([ROW])


@pytest.mark.parametrize("rows", [[ROW], *OTHER_RECORDS[1:], [(b"value", b"key", 7, [])]])
def test_the_digest_does_not_depend_on_the_encoding(rows: list[Row]) -> None:
    """A client may repeat its JSON as Arrow."""
    columns = [
        [None if row[2] is None else row[2] * 1_000 for row in rows],
        [row[1] for row in rows],
        [row[0] for row in rows],
        [row[3] and [{"name": name, "value": content} for name, content in row[3]] for row in rows],
    ]
    arrays = [pa.array(values, field.type) for values, field in zip(columns, BODY_SCHEMA, strict=True)]
    table = RecordTable(pa.RecordBatch.from_arrays(arrays, schema=BODY_SCHEMA), 10)
    assert append_digest(AppendRequest(table)) == digest_of(rows)


def test_a_time_of_any_microsecond_is_not_an_absent_one() -> None:
    """Times of Arrow records have microseconds."""
    digests = set()
    for stamp in (None, -1, 0):
        row = {"timestamp": stamp, "key": None, "value": b"v", "headers": None}
        table = RecordTable(pa.RecordBatch.from_pylist([row], BODY_SCHEMA), 1)
        digests.add(append_digest(AppendRequest(table)))
    assert len(digests) == 3


def test_the_digest_stays_the_same_in_later_versions() -> None:
    """The log holds it: a retry may reach a node of another version than its first attempt."""
    rows: list[Row] = [(b"v", b"k", -1, [("name", b"h")]), (None, None, None, None)]
    assert digest_of(rows).hex() == "69284806c63435605392d1e9ddb4b661"
    conditions = {"match_index": 1, "match_term": 2, "fencing_token": "f", "producer": Producer("p", 3, 4)}
    assert digest_of(rows, **conditions).hex() == "990087eade8e9714db7120e4a21f1b82"
