"""Selection of records from stored batches: the same records whatever batches hold them."""

from random import Random

import pyarrow as pa
import pytest

from app.api.read.selection import RecordPage, Selection, select
from storage.format.batch import FIRST_CHAIN, Batch, stamp
from storage.format.records import READ_SCHEMA, RecordColumns, encode_body, encode_control, read_columns, runs


def random_batches(chance: Random) -> list[Batch]:
    """Consecutive batches of 1 to 700 records of terms 1 to 3, some of them of control records."""
    batches: list[Batch] = []
    for _ in range(chance.randint(1, 30)):
        before = batches[-1] if batches else None
        control = chance.random() < 0.15
        records = RecordColumns()
        times = chance.choice(("none", "some", "all"))
        for _ in range(chance.choice((1, 1, 2, 9, 700))):
            timed = times == "all" or (times == "some" and chance.random() < 0.5)
            records.add(
                None if chance.random() < 0.1 else chance.randbytes(chance.randrange(40)),
                chance.choice((None, b"k", b"other")),
                chance.randrange(1, 10_000) if timed else None,
                [("name", b"header")] if chance.random() < 0.1 else None,
            )
        batches.append(
            stamp(
                encode_control({"kind": "note"}) if control else encode_body(records),
                log_id=1,
                base_index=5 if before is None else before.next_index,
                term=1 if before is None else min(3, before.term + (chance.random() < 0.1)),
                timestamp_ms=10_000 + len(batches),
                offset=0 if before is None else before.next_offset,
                previous_chain=FIRST_CHAIN if before is None else before.header.chain,
                control=control,
            )
        )
    return batches


def one_by_one(batches: list[Batch]) -> pa.Table:
    return pa.Table.from_batches([read_columns(batch) for batch in batches], READ_SCHEMA).combine_chunks()


@pytest.mark.parametrize("seed", range(20))
def test_batches_of_one_kind_are_read_together_as_one_by_one(seed: int) -> None:
    batches = [batch for batch in random_batches(Random(seed)) if not batch.is_control]
    for start in range(len(batches)):
        run = _without_gaps(batches[start:])
        found = read_columns(*run)
        found.validate(full=True)
        assert pa.Table.from_batches([found]).equals(one_by_one(run))


def _without_gaps(batches: list[Batch]) -> list[Batch]:
    run = batches[:1]
    for batch in batches[1:]:
        if batch.base_index != run[-1].next_index:
            break
        run.append(batch)
    return run


@pytest.mark.parametrize("seed", range(60))
def test_a_page_has_the_wanted_records_up_to_its_limits(seed: int) -> None:
    chance = Random(seed)
    batches = random_batches(chance)
    first, end = batches[0].base_index, batches[-1].last_index
    wanted = Selection(
        limit=chance.choice((1, 3, 600, 10_000)),
        max_bytes=chance.choice((1, 50, 3_000, 1 << 20)),
        include_control=chance.random() < 0.5,
        key=chance.choice((None, b"k")),
        term=chance.choice((None, 1, 2)),
    )
    start = chance.randint(batches[0].base_index, batches[0].last_index)
    until = chance.randint(start, end)
    rows = one_by_one(batches).slice(start - first, until - start + 1).to_pylist()
    matching = [
        row
        for row in rows
        if (wanted.include_control or row["type"] == "data")
        and wanted.key in (None, row["key"])
        and wanted.term in (None, row["term"])
    ]
    expected, size = list[dict[str, object]](), 0
    for row in matching[: wanted.limit]:
        size += sum(len(row[name] or b"") for name in ("key", "value"))
        size += sum(len(pair["name"]) + len(pair["value"]) for pair in row["headers"] or ())
        if expected and size > wanted.max_bytes:
            break
        expected.append(row)

    page = RecordPage(start)
    select(batches, page, until, wanted)
    found = [row for columns in page.columns for row in columns.to_pylist()]
    assert found == expected
    assert page.count == len(expected)
    left_out = [row["index"] for row in matching[len(expected) :]]
    last = expected[-1]["index"] if expected else start - 1
    assert isinstance(last, int)
    assert last < page.next_index <= (left_out[0] if left_out else until + 1)
    assert page.full or page.next_index == until + 1


def test_small_batches_are_read_together_and_large_ones_alone() -> None:
    def batch(base_index: int, count: int, size: int, *, control: bool = False) -> Batch:
        records = RecordColumns()
        for _ in range(count):
            records.add(b"v" * size)
        stamped = {"log_id": 1, "base_index": base_index, "term": 1, "timestamp_ms": 1, "offset": 0}
        body = encode_control({"kind": "note"}) if control else encode_body(records)
        return stamp(body, **stamped, previous_chain=FIRST_CHAIN, control=control)

    small, long, large = batch(0, 3, 5), batch(3, 600, 5), batch(603, 1, 600_000)
    control, last = batch(604, 1, 0, control=True), batch(605, 1, 5)
    assert [*runs([small, small, long, small, large, small, control, last])] == [
        [small, small, long],
        [small],
        [large],
        [small],
        [control],
        [last],
    ]
    assert [*runs([small, long, small], lambda each: each is long)] == [[small], [long], [small]]
    medium, larger = batch(606, 100, 1024), batch(706, 200, 1024)
    assert [*runs([medium, medium, larger, larger])] == [[medium, medium], [larger], [larger]]
    assert [*runs([])] == []
