"""The sink's parts without Spark: how rows are split, what is durable when, and a kill at every step."""

import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.client import NoAnswer, Problem
from spark_jobs.errors import OptionError, SinkClash, SinkError
from spark_jobs.sink.options import SinkOptions, parse_sink_options
from spark_jobs.sink.staging import (
    AppendSizeLimits,
    StagedFile,
    StagedList,
    Staging,
    body_rows,
    record_sizes,
    split,
)
from spark_jobs.sink.writer import CHUNKS_A_BATCH, Delivery
from tests.support.disk_steps import record_disk_steps

LIMITS = AppendSizeLimits(record_bytes=100, chunk_bytes=250, chunk_records=4)
DAY_MS = 86_400_000
REMEMBERED = 5


class Killed(BaseException):
    """The driver's end; only the test catches it."""


class Life:
    """Counts steps, and ends at one of them."""

    def __init__(self, ends_at: int | None = None) -> None:
        self.ends_at = ends_at
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps == self.ends_at:
            raise Killed


class ProducerLog:
    """Guarantees of the service for one producer and epoch (docs/api.md §3), kept in memory.

    lose_last: the next refusal comes from a leader that is lost right after it, with the last append, which
    was in its log alone.
    """

    def __init__(self) -> None:
        self.values: list[bytes] = []
        self.sequences: list[tuple[int, int]] = []  # (sequence, first index)
        self.lose_last = False

    def append(self, rows: pa.RecordBatch, sequence: int, allow_gap: bool) -> SimpleNamespace:
        for known, first in self.sequences[-REMEMBERED:]:
            if known == sequence:
                return SimpleNamespace(first_index=first, last_index=first, replayed=True)
        last = self.sequences[-1][0] if self.sequences else None
        if last is not None and (sequence < last or (sequence > last + 1 and not allow_gap)):
            if self.lose_last:
                self.lose_last = False
                del self.values[self.sequences.pop()[1] :]
            raise Problem(409, {"code": "sequence-gap", "expected_sequence": last + 1})
        first = len(self.values)
        self.values += rows.column("value").to_pylist()
        self.sequences.append((sequence, first))
        return SimpleNamespace(first_index=first, last_index=len(self.values) - 1, replayed=False)


class Client:
    """A driver's way to the log; the driver may end before and after each append."""

    def __init__(self, log: ProducerLog, life: Life) -> None:
        self.log = log
        self.life = life

    def tail(self) -> dict[str, int]:
        return {"committed_index": len(self.log.values) - 1}

    def append_arrow(self, rows: pa.RecordBatch, **options: Any) -> SimpleNamespace:
        self.life.step()
        answer = self.log.append(rows, options["producer_sequence"], options["producer_allow_gap"])
        self.life.step()
        return answer


class MortalStaging(Staging):
    def __init__(self, folder: Path, life: Life) -> None:
        super().__init__(folder)
        self.life = life

    def publish(self, batch_id: int, staged: StagedList) -> tuple[StagedList, bool]:
        self.life.step()
        published = super().publish(batch_id, staged)
        self.life.step()
        return published

    def finish(self, batch_id: int, staged: StagedList) -> None:
        self.life.step()
        super().finish(batch_id, staged)
        self.life.step()


def options_in(folder: Path) -> SinkOptions:
    return SinkOptions(
        endpoints=("http://127.0.0.1:1",),
        token=None,
        log="default",
        producer_id="p",
        producer_epoch=0,
        staging=folder,
    )


def values(*names: str) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array([name.encode() for name in names], pa.binary())})


def stage(staging: Staging, batch_id: int, name: str) -> list[StagedFile]:
    """Two tasks' files with 9 appends between them."""
    one = [values(*(f"{name}-{number}" for number in range(21)))]
    two = [values(*(f"{name}-{number}" for number in range(21, 30)))]
    return [staging.stage(batch_id, one, LIMITS), staging.stage(batch_id, two, LIMITS)]


def rows_of(name: str) -> list[bytes]:
    return [f"{name}-{number}".encode() for number in range(30)]


def deliver(folder: Path, log: ProducerLog, batch_id: int, name: str, life: Life) -> StagedList:
    staging = MortalStaging(folder, life)
    files = stage(staging, batch_id, name)
    return Delivery(options_in(folder), staging, Client(log, life), DAY_MS).run(batch_id, files)  # type: ignore[arg-type]


def test_a_kill_at_any_step_leaves_each_row_once(tmp_path: Path) -> None:
    """Kill the driver at every step in turn, the one after it at another step, then let one live."""
    whole = Life()
    deliver(tmp_path / "whole", ProducerLog(), 0, "x", whole)
    assert whole.steps == 2 * 9 + 4
    for point in range(1, whole.steps + 1):
        folder, log = tmp_path / str(point), ProducerLog()
        deliver(folder, log, 0, "before", Life())
        with pytest.raises(Killed):
            deliver(folder, log, 1, "first", Life(point))
        listed = Staging(folder).find(1) is not None
        try:
            deliver(folder, log, 1, "second", Life(1 + point // 2))
        except Killed:
            listed_second = Staging(folder).find(1)
            deliver(folder, log, 1, "third", Life())
            winner = "first" if listed else "second" if listed_second is not None else "third"
        else:
            winner = "first" if listed else "second"
        assert log.values == rows_of("before") + rows_of(winner), point
        deliver(folder, log, 1, "again", Life())  # Spark may not have noted that the commit was done
        deliver(folder, log, 2, "after", Life())
        assert log.values == rows_of("before") + rows_of(winner) + rows_of("after")


@pytest.mark.parametrize("appends", [7, 8, 9])
def test_an_append_that_is_lost_with_its_leader_is_sent_again(tmp_path: Path, appends: int) -> None:
    """The service answers by what its leader holds, committed or not: the last append may go with it."""
    log = ProducerLog()
    deliver(tmp_path, log, 0, "before", Life())
    with pytest.raises(Killed):
        deliver(tmp_path, log, 1, "first", Life(2 + 2 * appends))
    assert len(log.sequences) == 9 + appends
    log.lose_last = True
    deliver(tmp_path, log, 1, "second", Life())
    assert not log.lose_last
    assert log.values == rows_of("before") + rows_of("first")


def test_a_kill_before_a_batch_is_noted_as_done_leaves_what_a_repeat_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All rows are in the log, but the list does not show that yet: the repeat reads its files once more."""

    def end(_path: Path, _target: Path) -> Path:
        raise Killed

    log = ProducerLog()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", end)
        with pytest.raises(Killed):
            deliver(tmp_path, log, 0, "first", Life())
    assert log.values == rows_of("first")
    deliver(tmp_path, log, 0, "second", Life())
    assert log.values == rows_of("first")


def test_files_of_finished_batches_are_cleaned_up(tmp_path: Path) -> None:
    log = ProducerLog()
    staging = Staging(tmp_path)
    for batch_id in range(4):
        deliver(tmp_path, log, batch_id, str(batch_id), Life())
        staging.stage(batch_id, [values("of a task that ran twice")], LIMITS)
        staging.discard_until(batch_id)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["batch-2.json", "batch-3.json"]
    staging.stage(5, [values("of the next one")], LIMITS)
    staging.discard_until(4)
    assert (tmp_path / "batch-5").is_dir()


def test_the_files_of_a_list_are_on_disk_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must leave no list without its files, nor an append that no list names."""
    steps = record_disk_steps(monkeypatch, linked="list")
    staging = Staging(tmp_path)
    file = staging.stage(0, [values("a")], LIMITS)
    assert steps == [str(tmp_path / file.path), str(tmp_path / "batch-0")]
    staging.publish(0, StagedList((file,)))
    written, *rest = steps[2:]
    assert written.startswith(f"{tmp_path}/.batch-0.json.")
    assert rest == ["list", str(tmp_path)]


def test_a_batch_is_noted_as_done_on_disk_before_its_files_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a power cut, a repeat would miss the files of a list that is not done."""
    staging = Staging(tmp_path)
    listed = StagedList((staging.stage(0, [values("a")], LIMITS),))
    staging.publish(0, listed)
    steps = record_disk_steps(monkeypatch, linked="list")
    unlink = Path.unlink

    def removed(path: Path, missing_ok: bool = False) -> None:
        steps.append("removal")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", removed)
    staging.finish(0, listed)
    written, *rest = steps
    assert written.startswith(f"{tmp_path}/.batch-0.json.")
    assert rest == [str(tmp_path), "removal"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    for act in (Staging.identify, lambda staging: staging.publish(1, StagedList(()))):
        with pytest.raises(SinkError, match=rf"{tmp_path} .*without hard links .*stagingLocation"):
            act(Staging(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_two_drivers_with_one_batch_append_the_same_list(tmp_path: Path) -> None:
    log, staging = ProducerLog(), Staging(tmp_path)
    first, second = stage(staging, 0, "a"), stage(staging, 0, "b")
    assert staging.publish(0, StagedList(tuple(first))) == (StagedList(tuple(first)), True)
    assert staging.publish(0, StagedList(tuple(second))) == (StagedList(tuple(first)), False)
    delivery = Delivery(options_in(tmp_path), staging, Client(log, Life()), DAY_MS)  # type: ignore[arg-type]
    assert delivery.run(0, second).files == tuple(first)
    assert log.values == rows_of("a")


@pytest.mark.parametrize("lost_after", [1, 2, 3, 9])
def test_a_staging_folder_that_was_lost_is_reported_and_nothing_is_doubled(
    tmp_path: Path, lost_after: int
) -> None:
    log = ProducerLog()
    with pytest.raises(Killed):
        deliver(tmp_path / "a", log, 0, "a", Life(2 + 2 * lost_after))
    before = list(log.values)
    for _ in range(3):  # Spark may come again with it
        with pytest.raises(SinkClash, match="higher producerEpoch"):
            deliver(tmp_path / "b", log, 0, "b", Life())
    assert log.values == before


def test_a_name_that_another_query_uses_is_refused_as_often_as_it_comes(tmp_path: Path) -> None:
    log = ProducerLog()
    for batch_id in range(3):
        deliver(tmp_path / "a", log, batch_id, str(batch_id), Life())
    before = list(log.values)
    for batch_id in (0, 0, 1, 2, 2):  # of a folder that knows nothing of those
        with pytest.raises(SinkClash):
            deliver(tmp_path / "b", log, batch_id, "b", Life())
    staging = Staging(tmp_path / "a")
    options = replace(options_in(tmp_path / "a"), query="another")
    delivery = Delivery(options, staging, Client(log, Life()), DAY_MS)  # type: ignore[arg-type]
    with pytest.raises(SinkClash):
        delivery.run(2, stage(staging, 2, "c"))
    assert log.values == before


@pytest.mark.parametrize("hours", [24, -24])
def test_a_list_that_the_service_may_have_forgotten_is_not_repeated(tmp_path: Path, hours: int) -> None:
    """A list of the future shows a wrong clock, with which no age is known."""
    log = ProducerLog()
    with pytest.raises(Killed):
        deliver(tmp_path, log, 0, "a", Life(8))
    before = list(log.values)
    begun = time.time() - hours * 3_600
    os.utime(tmp_path / "batch-0.json", (begun, begun))
    with pytest.raises(SinkError, match=rf"begun {hours}.0 hours ago"):
        deliver(tmp_path, log, 0, "b", Life())
    assert log.values == before


def test_a_refusal_reports_its_progress_and_whether_to_repeat(tmp_path: Path) -> None:
    class Failing(Client):
        def append_arrow(self, rows: pa.RecordBatch, **options: Any) -> SimpleNamespace:
            if options["producer_sequence"] == 2:
                raise NoAnswer("n1 does not answer", sent=True)
            return super().append_arrow(rows, **options)

    staging = Staging(tmp_path)
    delivery = Delivery(options_in(tmp_path), staging, Failing(ProducerLog(), Life()), DAY_MS)  # type: ignore[arg-type]
    with pytest.raises(SinkError, match=r"append 3 of 9: .* up to index 7; write it again"):
        delivery.run(0, stage(staging, 0, "a"))


def test_a_file_that_the_driver_cannot_see_names_the_remedy(tmp_path: Path) -> None:
    staging = Staging(tmp_path)
    files = stage(staging, 0, "a")
    staging.discard(0)
    delivery = Delivery(options_in(tmp_path), staging, Client(ProducerLog(), Life()), DAY_MS)  # type: ignore[arg-type]
    with pytest.raises(SinkError, match="all executors share"):
        delivery.run(0, files)


@given(
    sizes=st.lists(st.integers(0, 100), max_size=60),
    splits=st.integers(1, 7),
    chunk_records=st.integers(1, 9),
)
def test_rows_are_cut_within_the_limits_and_as_few_as_that_allows(
    sizes: list[int], splits: int, chunk_records: int
) -> None:
    limits = AppendSizeLimits(100, 250, chunk_records)
    all_values = [bytes([number % 256]) * size for number, size in enumerate(sizes)]
    given_batches = [
        pa.record_batch({"value": pa.array(all_values[at : at + splits], pa.binary())})
        for at in range(0, len(all_values), splits)
    ]
    chunks = list(split(given_batches, limits))
    assert [value for chunk in chunks for value in chunk.column("value").to_pylist()] == all_values
    counted = [int(record_sizes(chunk).sum()) for chunk in chunks]
    assert all(0 < chunk.num_rows <= chunk_records for chunk in chunks)
    assert all(size <= 250 for size in counted)
    for at, chunk in enumerate(chunks[1:]):
        assert chunks[at].num_rows == chunk_records or counted[at] + int(record_sizes(chunk)[0]) > 250


def test_columns_become_records_and_sizes_count_what_the_service_counts() -> None:
    headers = pa.list_(pa.struct([("name", pa.string()), ("value", pa.string())]))
    rows = body_rows(
        pa.record_batch(
            {
                "value": pa.array(["ä", None, "xyz"]),
                "headers": pa.array([[{"name": "é", "value": "12"}], None, []], headers),
                "timestamp": pa.array([0, None, 1], pa.timestamp("us", "Europe/Berlin")),
                "key": pa.array([b"k", b"", None]),
            }
        )
    )
    assert record_sizes(rows).tolist() == [7, 0, 3]
    assert record_sizes(rows.slice(1)).tolist() == [0, 3]
    assert rows.column("headers").to_pylist()[0] == [{"name": "é", "value": b"12"}]
    with pytest.raises(SinkError, match="got a row of 101"):
        list(split([values("x" * 101)], LIMITS))
    nameless = pa.array([[{"name": None, "value": "1"}]], headers)
    with pytest.raises(SinkError, match="without name"):
        body_rows(pa.record_batch({"value": pa.array(["v"]), "headers": nameless}))
    assert np.array_equal(record_sizes(body_rows(values())), [])


ENDPOINT = {"endpoint": "http://127.0.0.1:1"}


@pytest.mark.parametrize(
    ("options", "streaming", "complaint"),
    [
        ({}, False, "endpoint: give"),
        ({"startingIndex": "1"}, False, "a write to commitlog takes"),
        ({"checkpointLocation": "/c"}, False, "unknown option"),
        ({"producerId": "p"}, False, "needs a stagingLocation"),
        ({"batchId": "3"}, False, "batchId requires a producerId"),
        ({"producerId": "p", "stagingLocation": "/s"}, False, "needs a batchId, which rises"),
        ({"producerId": "p", "stagingLocation": "/s", "batchId": "-1"}, False, "not a whole number"),
        ({}, True, "share, or give the query a checkpointLocation"),
        ({"stagingLocation": "/s"}, True, "producerId: name the query"),
        ({"checkpointLocation": "s3://bucket/c"}, True, "stagingLocation: name a folder"),
        ({"stagingLocation": "/s", "producerId": "p", "batchId": "1"}, True, "batchId is for batch writes"),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, str], streaming: bool, complaint: str) -> None:
    given = options if complaint.startswith("endpoint") else {**ENDPOINT, **options}
    with pytest.raises(OptionError, match=complaint):
        parse_sink_options(given, streaming=streaming)


def test_a_stream_is_named_by_its_checkpoint_and_a_batch_by_itself(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"0fc1588b"}')
    named = {**ENDPOINT, "checkpointlocation": f"file:{tmp_path}", "queryname": "q"}
    options = parse_sink_options(named, streaming=True)
    assert (options.producer_id, options.repeatable) == ("0fc1588b", True)
    assert options.staging == tmp_path / "commitlog-staging" / "0fc1588b.0"
    elsewhere = {**named, "checkpointlocation": "/on/hdfs/only", "stagingLocation": "/s", "producerId": "a"}
    assert parse_sink_options(elsewhere, streaming=True).query == ""
    own: Callable[[], SinkOptions] = lambda: parse_sink_options(ENDPOINT, streaming=False)  # noqa: E731
    assert own().producer_id != own().producer_id
    assert not own().repeatable
    given = {**ENDPOINT, "producerId": "a/b", "stagingLocation": "/s", "batchId": "7", "producerEpoch": "2"}
    options = parse_sink_options(given, streaming=False)
    assert (options.batch_id, options.producer_epoch, options.staging) == (7, 2, Path("/s/a%2Fb.2"))


def test_sequences_of_batches_never_meet() -> None:
    most: Sequence[int] = [2**42 - 1]
    assert all((batch_id + 1) * CHUNKS_A_BATCH - 1 < 2**63 for batch_id in most)
