"""A stream over many logs, without Spark: what joins, what is left out, and that the others go on."""

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from spark_jobs.errors import LogTrimmed, OptionError, Unreachable
from spark_jobs.source import many_logs
from spark_jobs.source.answers import LogEnds, Place
from spark_jobs.source.log_reads import LogReads
from spark_jobs.source.logs_planning import LogRange
from spark_jobs.source.many_logs import LogsPartition, LogsStreamReader, read_ranges
from spark_jobs.source.options import parse_options
from tests.spark.conftest import Collected, Stream, endpoints
from tests.spark.source.log_server import FakeLog, FakeReplica
from tests.spark.source.looks import DATA, await_true
from tests.support.cluster import Cluster

Rows = dict[str, list[int]]


def reader_of(endpoint: str, **options: object) -> LogsStreamReader:
    given = {name: str(value) for name, value in options.items()}
    return LogsStreamReader(parse_options({"endpoint": endpoint, **given}).for_stream())


def rows_between(reader: LogsStreamReader, start: dict[str, Any], end: dict[str, Any]) -> Rows:
    found: Rows = {}
    for partition in reader.partitions(start, end):
        assert isinstance(partition, LogsPartition)
        for batch in reader.read(partition):
            for log, index in zip(batch["log"].to_pylist(), batch["index"].to_pylist(), strict=True):
                found.setdefault(log, []).append(index)
    return found


def ends_of(offset: dict[str, Any]) -> dict[str, int]:
    return {log: at["next_index"] for log, at in offset["logs"].items()}


def test_logs_join_and_leave_a_stream_and_each_has_its_own_offset(service: Cluster) -> None:
    for name in ("stream-a", "stream-b"):
        assert service.call("POST", "n1", "/v1/logs", json={"name": name}).status_code == 201
    last = {
        name: service.append("n1", *"vvv", log=name).json()["last_index"] for name in ("stream-a", "stream-b")
    }
    reader = reader_of(service.url("n1"), logs="stream-*", startingIndex="earliest", maxRecordsPerTrigger=4)
    try:
        start = reader.initialOffset()
        offsets = [start]
        found: Rows = {}

        def reads(wanted: dict[str, int]) -> bool:
            end = reader.latestOffset(offsets[-1], ReadMaxRows(4))
            if end != offsets[-1]:
                for log, indexes in rows_between(reader, offsets[-1], end).items():
                    found.setdefault(log, []).extend(indexes)
                offsets.append(end)
            return all(ends_of(end).get(log, 0) >= index for log, index in wanted.items())

        await_true(lambda: reads({log: index + 1 for log, index in last.items()}))
        assert {log: len(indexes) for log, indexes in found.items()} == {"stream-a": 3, "stream-b": 3}
        sizes = [sum(until - first for first, until in each["batch"].values()) for each in offsets[1:]]
        assert max(sizes) <= 4
        assert service.call("POST", "n1", "/v1/logs", json={"name": "stream-c"}).status_code == 201
        joined = service.append("n1", "v", log="stream-c").json()["last_index"]
        assert service.call("DELETE", "n1", "/v1/logs/stream-b").status_code == 202
        newest = service.append("n1", "v", log="stream-a").json()["last_index"]
        await_true(lambda: reads({"stream-c": joined + 1, "stream-a": newest + 1}))
        assert found["stream-c"] == [joined]
        assert found["stream-a"][-1] == newest
        assert all(later > sooner for sooner, later in itertools.pairwise(found["stream-a"]))
        assert rows_between(reader, start, start) == {}
    finally:
        reader.stop()


def test_a_log_that_was_replaced_or_trimmed_is_left_out_with_a_warning(
    replicas: list[FakeReplica],
    log: FakeLog,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(many_logs, "ASK_AGAIN_S", 0.0)
    reader = reader_of(replicas[0].url, logs="default", startingIndex='{"default": 60}')
    try:
        start = reader.initialOffset()
        assert start["logs"]["default"]["next_index"] == 60
        end = reader.latestOffset(start, ReadAllAvailable())
        assert rows_between(reader, start, end) == {"default": list(range(60, 102))}
        log.begin_index = 80
        await_true(lambda: reader.latestOffset(start, ReadAllAvailable()) == start)
        assert "index 60 was trimmed, it begins at 80; it is left out" in caplog.text
        with pytest.raises(LogTrimmed):
            rows_between(reader, start, end)
        log.open_term(3, "n1")
        log.records[101]["term"] = 3
        await_true(
            lambda: (
                reader.latestOffset(end, ReadAllAvailable()) == end
                and "the record at index 101 is of term 3, it was of 2 at most" in caplog.text
            )
        )
        before = log.id
        log.cluster = "elsewhere"
        await_true(
            lambda: (
                reader.latestOffset(end, ReadAllAvailable()) == end
                and f"its id is {log.id}, it was {before}" in caplog.text
            )
        )
    finally:
        reader.stop()


def test_for_the_job_a_log_that_was_replaced_or_trimmed_joins_again_at_its_end(
    replicas: list[FakeReplica], log: FakeLog
) -> None:
    """The job of the log reads the records before that."""
    reader = reader_of(
        replicas[0].url,
        logs="default",
        startingIndex='{"default": 60}',
        joinsAgain="true",
        includeControl="true",
    )
    found = [reader.initialOffset()]

    def look() -> bool:
        found.append(reader.latestOffset(found[-1], ReadAllAvailable()))
        return found[-1] != found[-2]

    try:
        assert look()
        for change in ("replaced", "trimmed", "made again"):
            if change == "replaced":
                del log.records[100:]
                log.open_term(3, "n1")
            log.append_many(5)
            if change == "trimmed":
                log.begin_index = log.next_index - 2
            if change == "made again":
                log.cluster = "elsewhere"
            end = log.next_index
            await_true(lambda: not look() and bool(reader._joined))
            log.append_many(2)
            await_true(look)
            assert rows_between(reader, found[-2], found[-1]) == {"default": [end, end + 1]}, change
    finally:
        reader.stop()


@pytest.mark.parametrize("created_again", [True, False])
def test_a_log_that_was_deleted_after_planning_is_left_out_and_the_other_logs_continue(
    replicas: list[FakeReplica], log: FakeLog, created_again: bool, caplog: pytest.LogCaptureFixture
) -> None:
    reader = reader_of(replicas[0].url, logs="default", startingIndex="earliest")
    other = LogRange("other", 0, 102, None, log_id="")
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        [planned] = reader.partitions(start, end)
        assert isinstance(planned, LogsPartition)
        if created_again:
            log.cluster = "elsewhere"  # the same terms and indexes, in another log
        else:
            replicas[0].is_deleted = True
        read = read_ranges(reader.options, [*planned.ranges])
        assert list(read) == []
        assert "it was deleted: its records [0, 102), as far as" in caplog.text
        replicas[0].is_deleted = False
        planned.ranges.append(other)
        assert sum(batch.num_rows for batch in reader.read(planned)) == (100 if created_again else 200)
    finally:
        reader.stop()


class Comings:
    """Logs that nodes report, each with 5 records: `default`, and those of the test, which come and go."""

    def __init__(self, reader: LogsStreamReader, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader = reader
        self.offset = reader.initialOffset()
        self.present = ["default"]
        self.hidden: set[str] = set()  # no node reports them, and each has them
        self.asked: list[str] = []  # logs for which every endpoint was asked
        monkeypatch.setattr(LogReads, "ends", lambda *_: self.ends())
        monkeypatch.setattr(LogReads, "is_gone", lambda client, _: self.is_gone(client.log))

    def is_gone(self, log: str) -> bool:
        self.asked.append(log)
        return log not in self.hidden

    def ends(self) -> dict[str, LogEnds]:
        return {log: LogEnds(f"id of {log}", 0, 5, 1, 0) for log in self.present}

    def bring(self, *present: str) -> None:
        """Let these be the logs, and wait until the stream has met them all."""
        self.present = list(present)

        def has_met() -> bool:
            self.offset = self.reader.latestOffset(self.offset, ReadAllAvailable())
            return set(present) <= ends_of(self.offset).keys()

        await_true(has_met)


@pytest.fixture
def comings(replicas: list[FakeReplica], monkeypatch: pytest.MonkeyPatch) -> Iterator[Comings]:
    reader = reader_of(replicas[0].url, logs="*", startingIndex="{}")
    yield Comings(reader, monkeypatch)
    reader.stop()


def test_deleted_logs_leave_the_offset_and_the_memory_of_a_stream(comings: Comings) -> None:
    """An offset is in each micro-batch: with a new log each minute it would have megabytes in a month."""
    for number in range(30):
        comings.bring("default", f"run-{number}")
    assert ends_of(comings.offset) == {"default": 5, "run-29": 5}
    held = [len(each) for each in vars(comings.reader).values() if isinstance(each, dict)]
    assert max(held) <= 2


def test_a_log_that_no_node_reports_keeps_its_position_until_it_is_proved_to_be_deleted(
    comings: Comings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the stream would bring its records again. It delays the proof for no other log."""
    monkeypatch.setattr(many_logs, "ASK_AGAIN_S", 0.0)
    comings.bring("default", "hidden")
    comings.hidden = {"hidden"}
    comings.bring("default", "run-1")
    comings.bring("default", "run-2")
    assert ends_of(comings.offset) == {"default": 5, "hidden": 5, "run-2": 5}


def test_logs_that_may_be_deleted_are_asked_for_rarely_while_an_endpoint_gives_no_proof(
    comings: Comings,
) -> None:
    """Each question may take as long as the node that does not answer it, and a micro-batch waits for it."""
    old = [f"old-{number}" for number in range(20)]
    comings.bring("default", *old)
    comings.hidden = set(old)
    for number in range(20):
        comings.bring("default", f"run-{number}")
    assert len(comings.asked) == 1


def test_an_endpoint_that_does_not_answer_is_not_asked_for_deleted_logs(
    replicas: list[FakeReplica], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not prove that they are deleted, and the micro-batch would wait for its time limit."""
    reader = reader_of(f"{replicas[0].url},http://127.0.0.1:9", logs="*", startingIndex="{}")
    comings = Comings(reader, monkeypatch)
    answer = comings.ends

    def ends(client: LogReads, url: str) -> dict[str, LogEnds]:
        if url != replicas[0].url:
            raise Unreachable(url)
        return answer()

    monkeypatch.setattr(LogReads, "ends", ends)
    try:
        comings.bring("default", "old")
        comings.bring("default", "run-1")
        comings.bring("default", "run-2")
        assert comings.asked == []
        assert ends_of(comings.offset) == {"default": 5, "old": 5, "run-1": 5, "run-2": 5}
    finally:
        reader.stop()


def test_a_loss_that_is_accepted_is_a_row_and_counted(replicas: list[FakeReplica], log: FakeLog) -> None:
    log.begin_index = 80
    reader = reader_of(
        replicas[0].url,
        logs="default",
        startingIndex='{"default": 60}',
        failOnDataLoss="false",
        includeControl="true",
    )
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert end["logs"]["default"]["lost"] == 20
        assert rows_between(reader, start, end) == {"default": [60, *range(80, 102)]}
    finally:
        reader.stop()


def test_a_query_ends_with_what_was_there_and_continues_from_its_checkpoint(
    stream: Stream, collected: Collected, log: FakeLog
) -> None:
    reader = stream(logs="def*, other", startingIndex="earliest", maxRecordsPerTrigger=60)
    assert list(itertools.chain(*collected.run(reader))) == DATA
    log.append_many(5)
    assert collected.run(reader) == [[102, 103, 104, 105, 106]]


def test_the_end_of_a_log_whose_node_has_not_answered_yet_is_asked_for(
    replicas: list[FakeReplica], log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first node to answer has no copy of the log."""
    answered = threading.Event()

    def ends(client: LogReads, node_url: str) -> dict[str, LogEnds]:
        if node_url == replicas[1].url:
            answered.wait()
        return {}

    monkeypatch.setattr(LogReads, "ends", ends)
    reader = reader_of(endpoints(replicas), logs="default", startingIndex="latest")
    ending = reader_of(endpoints(replicas), logs="def*", startingIndex="earliest")
    try:
        assert ends_of(reader.initialOffset()) == {"default": 102}
        ending.prepareForTriggerAvailableNow()
        end = ending.latestOffset(ending.initialOffset(), ReadAllAvailable())
        assert ends_of(end) == {"default": 102}
    finally:
        answered.set()
        reader.stop()
        ending.stop()


def test_a_query_that_ends_reads_a_term_that_the_first_node_to_answer_does_not_know(
    replicas: list[FakeReplica], log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That node lags, and has missed an election."""
    monkeypatch.setattr(LogReads, "ends", lambda *_: {"default": LogEnds(log.id, 0, 51, 1, 0)})
    reader = reader_of(endpoints(replicas), logs="default", startingIndex="earliest")
    try:
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadAllAvailable())
        assert rows_between(reader, start, end) == {"default": DATA}
    finally:
        reader.stop()


def test_a_log_whose_reads_are_refused_is_left_out_and_the_others_go_on(
    replicas: list[FakeReplica], log: FakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its nodes report where it ends, and answer each read with 503."""
    places = LogReads.place

    def place(client: LogReads, index: int) -> Place | None:
        if client.log == "busy":
            raise Unreachable("503 repairing")
        return places(client, index)

    ends = {name: LogEnds(log.id, 0, 1_000, 2, 0) for name in ("busy", "default")}
    monkeypatch.setattr(LogReads, "ends", lambda *_: ends)
    monkeypatch.setattr(LogReads, "place", place)
    log.append_many(898)
    options = {"logs": "*", "startingIndex": "earliest", "maxBytesPerTrigger": 100_000}
    reader, ending = (reader_of(endpoints(replicas), **options) for _ in range(2))
    try:
        start = reader.initialOffset()
        end = reader.latestOffset(start, ReadMaxRows(10_000))
        assert list(end["batch"]) == ["default"]
        assert reader.latestOffset(end, ReadMaxRows(10_000))["batch"].keys() == {"default"}
        ending.prepareForTriggerAvailableNow()
        with pytest.raises(Unreachable, match="503 repairing"):
            ending.latestOffset(start, ReadMaxRows(10_000))
    finally:
        reader.stop()
        ending.stop()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"logs": " , "}, "logs: give names or patterns"),
        ({"logs": "a", "log": "b"}, "leave out the option log"),
        ({"logs": "a", "startingIndex": "7"}, "nor indexes by log"),
        ({"logs": "a", "stream": "events"}, "does not apply to stream=events"),
        ({"backlogRecords": "7"}, "backlogRecords requires the option logs"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], error: str) -> None:
    with pytest.raises(OptionError, match=error):
        parse_options({"endpoint": "http://127.0.0.1:1", **options})
    with pytest.raises(OptionError, match="logs is for streams"):
        parse_options({"endpoint": "http://127.0.0.1:1", "logs": "a"}).for_batch()
