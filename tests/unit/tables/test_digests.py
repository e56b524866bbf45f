"""Digests of records: every field counts, sums add up, and the first unequal block is found."""

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tables.digests import BlockSum, block_sums, digest_of, first_unequal
from storage.format.records import READ_SCHEMA

GOLDEN = 0x8213A4701B531B60
RECORD: dict[str, Any] = {
    "index": 42,
    "term": 3,
    "offset": 1_000,
    "timestamp": 1_700_000_000_000_000,
    "key": b"k",
    "value": b"v",
    "headers": [{"name": "n", "value": b"h"}],
    "type": "data",
}


def table(*records: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(records), READ_SCHEMA)


def test_golden() -> None:
    """The digests of logs of this version; Spark's are made by the same code."""
    assert (
        digest_of(42, 3, 1_000, 1_700_000_000_000_000, b"k", b"v", [{"name": "n", "value": b"h"}]) == GOLDEN
    )
    assert block_sums(table(RECORD)) == {0: BlockSum(1, GOLDEN)}


@pytest.mark.parametrize(
    "change",
    [
        {"index": 43},
        {"term": 4},
        {"offset": 1_001},
        {"timestamp": 1_700_000_000_000_001},
        {"key": b""},
        {"key": None},
        {"value": None},
        {"value": b"vk"},
        {"headers": None},
        {"headers": []},
        {"headers": [{"name": "nh", "value": b""}]},
        {"headers": [{"name": "n", "value": None}]},
    ],
    ids=str,
)
def test_every_field_counts(change: dict[str, Any]) -> None:
    assert block_sums(table({**RECORD, **change}), 100) != block_sums(table(RECORD), 100)


@given(st.lists(st.integers(0, 50_000), unique=True), st.integers(1, 20_000), st.randoms())
def test_sums_add_up_in_any_order(indexes: list[int], block: int, chance: Any) -> None:
    records = [{**RECORD, "index": index} for index in indexes]
    whole = block_sums(table(*records), block)
    chance.shuffle(records)
    parts: dict[int, BlockSum] = {}
    for record in records:
        for start, part in block_sums(table(record), block).items():
            parts[start] = parts.get(start, BlockSum()) + part
    assert parts == whole
    assert sum(part.count for part in whole.values()) == len(indexes)


def test_the_first_unequal_block() -> None:
    log = {0: BlockSum(2, 5), 100: BlockSum(1, 7)}
    assert first_unequal(log, dict(log)) is None
    assert first_unequal(log, {0: BlockSum(2, 5)}) == 100
    assert first_unequal({0: BlockSum(2, 5)}, log) == 100
    assert first_unequal(log, {**log, 0: BlockSum(1, 5)}) == 0
    assert BlockSum(1, 2**64 - 1) + BlockSum(1, 2) == BlockSum(2, 1)
