"""Which logs a micro-batch reads, how much of each, and in which partitions."""

import pytest

from spark_jobs.source.log_names import selected
from spark_jobs.source.logs_planning import PACKED_RECORDS, LogRange, LogsOffset, Turns, packed, shared
from spark_jobs.source.planning import RecordsOffset


def test_an_offset_survives_its_json() -> None:
    offset = LogsOffset({"b": RecordsOffset(7, 2, "id", 1), "a": RecordsOffset(0, None, "")}, {"b": (3, 7)})
    assert LogsOffset.from_json(offset.to_json()) == offset
    assert list(offset.to_json()["logs"]) == ["a", "b"]
    assert LogsOffset.from_json({"logs": {}}) == LogsOffset({})


@pytest.mark.parametrize(
    ("waiting", "limit", "granted"),
    [
        ({"a": 5, "b": 7}, None, {"a": 5, "b": 7}),
        ({"a": 5, "b": 1_000, "c": 1_000}, 105, {"a": 5, "b": 50, "c": 50}),
        ({"a": 9, "b": 9, "c": 9}, 2, {"a": 1, "b": 1, "c": 1}),
    ],
)
def test_a_log_that_has_little_leaves_the_rest_of_its_share_to_the_others(
    waiting: dict[str, int], limit: int | None, granted: dict[str, int]
) -> None:
    assert shared(waiting, limit) == granted


def test_backlogs_have_batches_of_their_own_in_turn_with_the_new_records_of_all() -> None:
    turns = Turns(1_000, 100)
    waiting = {"a": 5_000, "b": 20, "c": 4_000, "d": 30}
    chosen = [turns.choose(waiting) for _ in range(4)]
    assert chosen == [{"a": 200}, {"b": 20, "d": 30}, {"c": 200}, {"b": 20, "d": 30}]
    assert turns.choose({"a": 5_000}) == {"a": 1_000}
    assert turns.choose({"a": 5_000, "c": 300}) == {"c": 200}
    assert turns.choose({"a": 5_000, "c": 300}) == {"a": 200}
    assert turns.choose({"b": 90, "d": 90}) == {"b": 50, "d": 50}
    assert Turns(None, 100).choose({"a": 5_000, "b": 1}) == {"a": 5_000}
    assert Turns(60, None).choose({"a": 5_000, "b": 10}) == {"a": 50, "b": 10}


def test_small_ranges_share_a_partition_and_long_ones_are_divided_in_order() -> None:
    small = [LogRange(name, 10, 20, 3) for name in "abc"]
    assert packed(small, None) == [small]
    assert packed(small, 20) == [small[:2], small[2:]]
    long = LogRange("long", 0, 250, 3, lost_from=None)
    parts = packed([small[0], long, small[1]], 100)
    pieces = [each for part in parts for each in part if each.log == "long"]
    assert [(each.first, each.until) for each in pieces] == [(0, 83), (83, 166), (166, 250)]
    assert [small[0], small[1]] in parts
    assert packed([LogRange("x", 0, PACKED_RECORDS + 1, 1)], None)[0][0].records == PACKED_RECORDS + 1
    lost = LogRange("lost", 9, 9, 3, lost_from=4)
    assert packed([lost], None) == [[lost]]
    [[first], [second]] = packed([LogRange("lost", 10, 30, 3, lost_from=4)], 10)
    assert (first.lost_from, second.lost_from) == (4, None)  # reported once
    assert packed([], None) == []


def test_logs_are_selected_by_name_and_pattern_each_once() -> None:
    logs = ["orders-eu", "orders-us", "default", "__system"]
    assert selected(["default", "orders-*", "orders-eu"], logs) == ["orders-eu", "default", "orders-us"]
    assert selected(["*", "missing"], logs) == ["orders-eu", "orders-us", "default"]
