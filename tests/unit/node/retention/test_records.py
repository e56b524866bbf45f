"""Records that retention removes: by age, by size, never beyond a fence, never only control records."""

from typing import Any

import pytest

from app.errors import ConfigError
from app.log.state import LogState
from app.node.retention.records import Retention, exceeded_until, retained_from
from app.settings.file import parse
from app.settings.model import RetentionConfig, ScrubConfig
from storage.format.batch import Batch, stamp
from storage.format.records import RecordColumns, encode_body, encode_control
from storage.log.commitlog import Commitlog, CommitlogConfig
from tests.support.memory_files import MemoryFiles

HOUR_MS = 3_600_000
NOW_MS = 1_800_000_000_000


class Log:
    """A log in memory, everything in it committed."""

    def __init__(self) -> None:
        self.state = LogState()
        config = CommitlogConfig(segment_max_bytes=4_000)
        self.log = Commitlog.open(MemoryFiles(), "log", log_id=1, config=config)

    def _append(self, body: Any, timestamp_ms: int, *, control: bool) -> Batch:
        log = self.log
        batch = stamp(
            body,
            log_id=1,
            base_index=log.next_index,
            term=1,
            timestamp_ms=timestamp_ms,
            offset=log.end_offset,
            previous_chain=log.last_chain,
            control=control,
        )
        log.append([batch])
        self.state.apply(batch)
        log.settle(log.end_index)
        self.state.committed(log.end_index)
        return batch

    def data(self, age_ms: int = 0, size: int = 500, count: int = 1) -> Batch:
        records = RecordColumns()
        for _ in range(count):
            records.add(b"v" * size, timestamp_ms=NOW_MS - age_ms)
        return self._append(encode_body(records), NOW_MS, control=False)

    def control(self, **value: Any) -> Batch:
        return self._append(encode_control(value), NOW_MS, control=True)

    def until(self, retention: Retention) -> int | None:
        exceeded = exceeded_until(self.log, self.log.end_index, retention, NOW_MS)
        return retained_from(self.log, self.state, exceeded)


@pytest.fixture
def log() -> Log:
    made = Log()
    made.control(kind="term", leader="n1")
    return made


def test_nothing_goes_without_a_limit(log: Log) -> None:
    log.data(age_ms=1000 * HOUR_MS)
    assert log.until(Retention()) is None


def test_the_first_young_record_stays_and_everything_behind_it(log: Log) -> None:
    for age_ms in (9 * HOUR_MS, 8 * HOUR_MS, 2 * HOUR_MS, 9 * HOUR_MS, 0):
        log.data(age_ms=age_ms)
    assert log.until(Retention(ms=5 * HOUR_MS)) == 3  # the old record behind a young one stays with it
    assert log.until(Retention(ms=HOUR_MS)) == 5
    assert log.until(Retention(ms=10 * HOUR_MS)) is None


def test_all_may_be_old_and_only_control_records_are_left_alone(log: Log) -> None:
    log.data(age_ms=9 * HOUR_MS)
    assert log.until(Retention(ms=HOUR_MS)) == 2
    only_control = Log()
    for _ in range(3):
        only_control.control(kind="term", leader="n1")
    assert only_control.until(Retention(bytes=1)) is None


def test_by_size_the_newest_batches_that_fit_stay(log: Log) -> None:
    batches = [log.data() for _ in range(40)]
    limit = sum(batch.size_bytes for batch in batches[-10:])
    assert log.until(Retention(bytes=limit)) == batches[-10].base_index
    assert log.until(Retention(bytes=limit + 100)) == batches[-10].base_index
    assert log.until(Retention(bytes=log.log.end_offset - 100)) is None  # a little too much is let be


def test_no_fence_is_passed(log: Log) -> None:
    for _ in range(10):
        log.data(age_ms=9 * HOUR_MS)
    log.control(kind="cursor", name="etl", index=4, fence=True)
    assert log.until(Retention(ms=HOUR_MS)) == 4
    log.control(kind="cursor", name="other", index=0, fence=True)
    assert log.until(Retention(ms=HOUR_MS)) is None


def test_a_part_of_a_batch_is_not_worth_a_trim(log: Log) -> None:
    """A trim removes whole batches: each check would write another record and remove nothing."""
    log.data(age_ms=9 * HOUR_MS, count=3)
    log.data(age_ms=9 * HOUR_MS)
    for index, until_index in ((2, None), (3, None), (4, 4)):
        log.control(kind="cursor", name="etl", index=index, fence=True)
        assert log.until(Retention(ms=HOUR_MS)) == until_index


def test_an_empty_log_has_nothing_to_remove() -> None:
    assert Log().until(Retention(ms=HOUR_MS, bytes=1)) is None


def test_nothing_uncommitted_is_trimmed_and_no_trim_is_requested_twice(log: Log) -> None:
    for _ in range(10):
        log.data(age_ms=9 * HOUR_MS)
    assert exceeded_until(log.log, 5, Retention(ms=HOUR_MS), NOW_MS) == 6
    log.control(kind="trim", until_index=11)
    assert log.until(Retention(ms=HOUR_MS)) is None  # on its way: only control records lie behind it


def test_a_log_without_its_own_retention_has_the_defaults() -> None:
    default = RetentionConfig(ms=5, bytes=7)
    assert Retention.of(None, default) == Retention(5, 7)
    assert Retention.of({"ms": 9}, default) == Retention(9, None)
    assert Retention.of({"ms": None, "bytes": None}, default) == Retention()


def configured(**tables: Any) -> Any:
    node = {"id": "n1", "listen": "127.0.0.1:1", "peer_listen": "127.0.0.1:2", "data": "d"}
    return parse({"cluster": {"id": "c"}, "nodes": [node], **tables}, "n1")


def test_the_configuration_sets_duration_and_rate() -> None:
    logs = [{"name": "own", "retention_ms": 5}, {"name": "other"}]
    settings = configured(logs=logs, retention={"bytes": 7}, scrub={"bytes_per_s": 1_000})
    kept = {log.name: Retention.of(log.retention, settings.retention) for log in settings.logs}
    assert kept == {"default": Retention(None, 7), "own": Retention(5), "other": Retention(None, 7)}
    assert settings.scrub == ScrubConfig(bytes_per_s=1_000)
    for wrong in ({"retention": {"ms": 0}}, {"scrub": {"interval_ms": 0}}, {"retention": {"days": 1}}):
        with pytest.raises(ConfigError):
            configured(**wrong)
