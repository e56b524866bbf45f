"""Offsets, ranges, admission and options: all that the source decides without Spark and without a network."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_jobs.errors import LogClash, OptionError, ShortRead
from spark_jobs.materialize.config import MaterializeConfig
from spark_jobs.source.options import parse_options
from spark_jobs.source.planning import (
    EventsOffset,
    JournalPosition,
    RecordsOffset,
    SmallBatchPace,
    admit_bytes,
    admit_records,
    check_joined,
    check_not_shorter,
    check_same_log,
    check_same_term,
    rotate,
    split_range,
)

ENDPOINT = {"endpoint": "http://127.0.0.1:1"}
COMMIT_S = 0.6  # a look at the ends, and a commit


def test_offsets_survive_the_checkpoint() -> None:
    records = RecordsOffset(7, None, "a1")
    events = EventsOffset({"n2": JournalPosition(3, 5), "n1": JournalPosition(0, None)}, "a1")
    assert RecordsOffset.from_json(json.loads(json.dumps(records.to_json()))) == records
    assert EventsOffset.from_json(json.loads(json.dumps(events.to_json()))) == events


@given(first=st.integers(0, 10**12), count=st.integers(0, 1_000), parts=st.integers(1, 40))
def test_a_split_covers_the_range_once_and_evenly(first: int, count: int, parts: int) -> None:
    ranges = split_range(first, first + count, parts)
    assert [index for begin, end in ranges for index in range(begin, end)] == [*range(first, first + count)]
    sizes = [end - begin for begin, end in ranges]
    assert len(ranges) == min(parts, count)
    assert not sizes or max(sizes) - min(sizes) <= 1


@given(sizes=st.lists(st.integers(1, 50), min_size=1, max_size=60), max_bytes=st.integers(1, 500))
def test_admission_by_bytes_takes_the_longest_prefix_that_begins_within_the_limit(
    sizes: list[int], max_bytes: int
) -> None:
    positions = [sum(sizes[:index]) for index in range(len(sizes))]
    until = admit_bytes(0, len(sizes), max_bytes, lambda index: positions[index])
    assert until >= 1
    assert all(position < max_bytes for position in positions[:until])
    assert until == len(sizes) or positions[until] >= max_bytes


def test_a_split_has_no_part_longer_than_asked_and_no_fewer_than_asked() -> None:
    assert split_range(5, 25, 1, 20) == [(5, 25)]
    assert split_range(5, 26, 1, 20) == [(5, 15), (15, 26)]
    assert len(split_range(0, 1_000, 3, 500)) == 3
    assert len(split_range(0, 1_000, 3, 100)) == 10


def test_admission_asks_for_few_positions() -> None:
    asked: list[int] = []
    until = admit_bytes(0, 1_000_000, 5_000, lambda index: asked.append(index) or index * 10)  # type: ignore[func-returns-value]
    assert until == 500
    assert len(asked) <= 22


@pytest.mark.parametrize(("limit", "until"), [(None, 30), (5, 15), (20, 30), (100, 30)])
def test_admission_by_records(limit: int | None, until: int) -> None:
    assert admit_records(10, 30, limit) == until


@pytest.mark.parametrize("ranges", [[(5, 7), (8, 9)], [(5, 7), (6, 9)], [(6, 7)], [(3, 5), (5, 7)]])
def test_a_read_with_a_gap_or_a_double_is_refused(ranges: list[tuple[int, int]]) -> None:
    with pytest.raises(ShortRead, match=r"instead of index|some are missing or repeated"):
        check_joined("default", ranges, 5)
    check_joined("default", [(3, 6), (6, 7), (7, 20)], 5)


def test_a_clash_reports_the_difference_and_the_remedy() -> None:
    offset = RecordsOffset(8, 3, "a1")
    check_same_log("default", "a1", "a1")
    check_same_term("default", offset, 3)
    check_same_term("default", offset, None)
    check_not_shorter("default", offset, 8)
    with pytest.raises(LogClash, match=r"index 7 is of term 4, it was of 3.*empty checkpoint"):
        check_same_term("default", offset, 4)
    with pytest.raises(LogClash, match="its id is b2, it was a1"):
        check_same_log("default", "a1", "b2")
    with pytest.raises(LogClash, match="ends before index 5"):
        check_not_shorter("default", offset, 5)


def test_readers_begin_at_different_replicas() -> None:
    assert [rotate(["a", "b", "c"], by)[0] for by in range(4)] == ["a", "b", "c", "a"]
    assert rotate(["a", "b", "c"], 1) == ["b", "c", "a"]


def test_options_have_the_contracts_names_and_defaults() -> None:
    options = parse_options({"endpoint": "http://127.0.0.1:1/, http://127.0.0.1:2", "STARTINGINDEX": "4"})
    assert options.endpoints == ("http://127.0.0.1:1", "http://127.0.0.1:2")
    assert (options.log, options.stream, options.min_partitions) == ("default", "records", 1)
    assert options.fail_on_data_loss
    assert not options.include_control
    assert options.starting_index == 4
    events = {**ENDPOINT, "stream": "events", "startingIndex": "5"}
    idle = {"endingIndex": "latest", "minPartitions": "1", "includeControl": "false"}
    assert parse_options({**events, **idle}) == parse_options(events)
    assert parse_options(events).starting_index == 5
    assert parse_options(ENDPOINT).for_batch().starting_index == "earliest"
    assert parse_options(ENDPOINT).for_stream().starting_index == "latest"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({}, "endpoint: give the base URL"),
        ({"endpoint": "127.0.0.1:1"}, "is not a URL"),
        ({"endpoint": "http://[::1"}, "is not a URL"),
        ({"endpoint": "http://127.0.0.1:99999"}, "is not a URL"),
        ({**ENDPOINT, "maxOffsetsPerTrigger": "1"}, "unknown option 'maxOffsetsPerTrigger'"),
        ({**ENDPOINT, "token": "secret\n"}, "token must consist of visible ASCII"),
        ({"option.endpoint": "http://127.0.0.1:1", **ENDPOINT, "owner": "me"}, "use CREATE TEMPORARY VIEW"),
        ({"owner": "me", **ENDPOINT, "option.endpoint": "http://127.0.0.1:1"}, "use CREATE TEMPORARY VIEW"),
        ({**ENDPOINT, "log": "a/b"}, "the name of a log must have 1 to 128 characters .* got 'a/b'"),
        ({**ENDPOINT, "logs": "a-*,B"}, "the name of a log must have 1 to 128 characters .* got 'B'"),
        ({**ENDPOINT, "tail": "both"}, "tail must be 'union', got 'both'"),
        ({**ENDPOINT, "startingIndex": "-1"}, "startingIndex: '-1' is neither"),
        ({**ENDPOINT, "endingIndex": "earliest"}, "endingIndex: 'earliest' is neither"),
        ({**ENDPOINT, "maxRecordsPerTrigger": "0"}, "must be a whole number above 0, got"),
        ({**ENDPOINT, "failOnDataLoss": "no"}, "neither true nor false"),
        ({**ENDPOINT, "stream": "both"}, "neither 'records' nor 'events'"),
        ({**ENDPOINT, "stream": "events", "minPartitions": "2"}, "does not apply to stream=events"),
        ({**ENDPOINT, "stream": "events", "maxRecordsPerPartition": "2"}, "does not apply to stream=events"),
        ({**ENDPOINT, "maxRecordsPerPartition": "0"}, "must be a whole number above 0, got"),
        ({**ENDPOINT, "stream": "events", "startingIndex": '{"n1": -2}'}, "a seq nor one by node"),
        ({**ENDPOINT, "stream": "events", "startingIndex": "-5"}, "a seq nor one by node"),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, str], complaint: str) -> None:
    with pytest.raises(OptionError, match=complaint):
        parse_options(options)


def test_options_that_only_streams_or_only_batches_take_are_refused_elsewhere() -> None:
    with pytest.raises(OptionError, match="for streams"):
        parse_options({**ENDPOINT, "maxRecordsPerTrigger": "5"}).for_batch()
    with pytest.raises(OptionError, match="for batch"):
        parse_options({**ENDPOINT, "endingIndex": "5"}).for_stream()


def taken(pace: SmallBatchPace, records: int, seconds: range) -> list[int]:
    """The seconds in which a batch is taken, while at least `records` are new in each."""
    return [second for second in seconds if pace.takes(records, second)]


def test_a_trickle_costs_few_micro_batches_and_a_single_append_none_of_the_wait() -> None:
    assert taken(SmallBatchPace(500, 10.0), 500, range(60)) == [*range(60)]  # enough records
    pace = SmallBatchPace(500, 10.0, burst=3)
    assert taken(pace, 1, range(60)) == [0, 1, 2, 10, 20, 30, 40, 50]
    assert pace.takes(500, 60.5)
    assert pace.takes(1, 61)
    assert not pace.takes(1, 62)
    assert taken(pace, 1, range(1_000, 1_006)) == [1_000, 1_001, 1_002]  # after a silence
    assert taken(SmallBatchPace(1, 10.0), 1, range(60)) == [*range(60)]  # switched off


def test_the_pace_is_an_option_of_streams() -> None:
    options = parse_options({**ENDPOINT, "minRecordsPerTrigger": "500", "maxTriggerDelay": "500ms"})
    assert (options.min_records_per_trigger, options.max_trigger_delay_s) == (500, 0.5)
    with pytest.raises(OptionError, match="minRecordsPerTrigger is for streams"):
        options.for_batch()
    with pytest.raises(OptionError, match=r"maxTriggerDelay must be a time such as 10s.*got '10'"):
        parse_options({**ENDPOINT, "minRecordsPerTrigger": "5", "maxTriggerDelay": "10"})
    with pytest.raises(OptionError, match="maxTriggerDelay requires minRecordsPerTrigger"):
        parse_options({**ENDPOINT, "maxTriggerDelay": "10s"})


def test_a_position_of_a_log_that_is_not_read_is_refused() -> None:
    given = {**ENDPOINT, "logs": "orders-*,payments", "startingIndex": '{"orders-eu": 5, "payments": 7}'}
    assert parse_options(given).starting_index == {"orders-eu": 5, "payments": 7}
    with pytest.raises(OptionError, match=r"startingIndex: the option logs does not select orders, payment$"):
        parse_options({**given, "startingIndex": '{"orders": 5, "payment": 7, "payments": 7}'})


@pytest.mark.parametrize("rate", [1, 20, 60, 99])
def test_each_record_of_a_trickle_reaches_the_tables_of_a_job_within_3_s(rate: int) -> None:
    job = MaterializeConfig(endpoint="http://127.0.0.1:1", tables="tables")
    pace = SmallBatchPace(job.min_records_per_trigger, job.max_delay_s)
    waiting: list[float] = []  # times of appends, one a second of `rate` records
    longest_s = now_s = due_s = 0.0
    while now_s < 600.0:
        while due_s <= now_s:
            waiting += [due_s] * rate
            due_s += 1.0
        if waiting and pace.takes(len(waiting), now_s):
            longest_s = max(longest_s, now_s - waiting[0])
            waiting.clear()
        now_s += job.trigger_s
    assert longest_s < 3.0 - COMMIT_S
