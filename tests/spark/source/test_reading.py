"""A task in the middle of its range, while replicas go, the log is trimmed, or is another one."""

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from spark_jobs.errors import JournalTrimmed, LogClash, LogTrimmed, OptionError, Unreachable
from spark_jobs.source import log_reads
from spark_jobs.source.answers import LogTail, Node
from spark_jobs.source.data_source import (
    RecordsBatchReader,
    RecordsStreamReader,
    asked_range,
    first_index,
)
from spark_jobs.source.events import EventsBatchReader, EventsPartition, EventsStreamReader, read_events, scan
from spark_jobs.source.options import SourceOptions, parse_options
from spark_jobs.source.planning import EventsOffset, JournalPosition
from spark_jobs.source.reading import PIECE_BYTES, RecordsPartition, read_records, rows
from storage.format.batch import FIRST_CHAIN, stamp
from storage.format.records import RecordColumns, encode_body, read_columns
from tests.spark.conftest import endpoints
from tests.spark.source.log_server import FakeLog, FakeReplica

PAGE = 10


@pytest.fixture(autouse=True)
def _small_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_reads, "MAX_READ_RECORDS", PAGE)


def options_for(replicas: list[FakeReplica], **given: str) -> SourceOptions:
    return parse_options({"endpoint": endpoints(replicas), "includeControl": "true", **given})


def started(
    options: SourceOptions, first: int = 0, until: int = 102, last_term: int | None = None
) -> tuple[list[int], Iterator[pa.RecordBatch]]:
    """The indexes of the first answer, and the rest of the read."""
    batches = read_records(options, RecordsPartition(first, until, options.endpoints, last_term))
    return next(batches).column("index").to_pylist(), batches


def indexes(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [index for batch in batches for index in batch.column("index").to_pylist()]


def test_replicas_that_fail_one_after_the_other_are_survived(replicas: list[FakeReplica]) -> None:
    begun, rest = started(options_for(replicas))
    replicas[0].stop()
    then = next(rest).column("index").to_pylist()
    replicas[0].start(replicas[0].port)
    replicas[1].stop()
    assert [*begun, *then, *indexes(rest)] == [*range(102)]


def test_a_stream_that_ends_with_what_there_was_does_not_end_before_for_want_of_a_leader(
    replicas: list[FakeReplica],
) -> None:
    options = options_for(replicas, startingIndex="earliest").for_stream()
    reader = RecordsStreamReader(options)
    reader._client = log_reads.LogReads(options.endpoints, options.log, give_up_s=0.3)
    start = reader.initialOffset()
    reader.prepareForTriggerAvailableNow()
    for replica in replicas:
        replica.has_leader, replica.committed_index = False, 49
    with pytest.raises(Unreachable, match="majority"):
        reader.latestOffset(start, ReadAllAvailable())
    replicas[1].committed_index = 101  # a replica that knows of it all is enough
    assert reader.latestOffset(start, ReadAllAvailable())["next_index"] == 102
    reader.stop()


def test_a_change_of_leader_and_a_replica_that_fell_behind_are_survived(
    replicas: list[FakeReplica], log: FakeLog
) -> None:
    begun, rest = started(options_for(replicas))
    for replica in replicas:
        replica.has_leader = False
    replicas[0].committed_index = 15
    log.open_term(3, "n2")
    assert begun + indexes(rest) == [*range(102)]


def test_a_trim_in_the_middle_is_an_error_that_names_the_missing_range(
    replicas: list[FakeReplica], log: FakeLog
) -> None:
    _, rest = started(options_for(replicas))
    log.begin_index = 40
    with pytest.raises(
        LogTrimmed, match=r"begins at index 40: the records from 10 to 39 were.*failOnDataLoss"
    ):
        indexes(rest)


def test_a_trim_in_the_middle_that_the_user_accepts_is_reported_in_the_log_and_as_a_row(
    replicas: list[FakeReplica], log: FakeLog, caplog: pytest.LogCaptureFixture
) -> None:
    begun, rest = started(options_for(replicas, failOnDataLoss="false"))
    log.begin_index = 40
    lost = next(rest).to_pylist()
    assert [(row["index"], row["type"]) for row in lost] == [(10, "lost")]
    assert json.loads(lost[0]["value"]) == {"kind": "lost", "first_index": 10, "until_index": 40}
    assert "the records [10, 40) were trimmed before they were read" in caplog.text
    assert begun + indexes(rest) == [*range(10), *range(40, 102)]


def test_records_trimmed_before_the_start_of_a_stream_are_a_row_and_counted(
    replicas: list[FakeReplica], log: FakeLog
) -> None:
    log.begin_index = 80
    options = options_for(replicas, failOnDataLoss="false", startingIndex="60").for_stream()
    reader = RecordsStreamReader(options)
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    (partition,) = reader.partitions(start, end)
    assert indexes(reader.read(partition)) == [60, *range(80, 102)]
    assert end["lost"] == 20
    reader.stop()


def test_a_range_that_is_trimmed_as_a_whole_ends_where_it_was_to_end(
    replicas: list[FakeReplica], log: FakeLog, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_for(replicas, failOnDataLoss="false", includeControl="false")
    log.begin_index = 80
    with caplog.at_level(logging.WARNING):
        assert indexes(read_records(options, RecordsPartition(20, 60, options.endpoints))) == []
    assert "[20, 60)" in caplog.text


def test_a_log_that_was_replaced_after_planning_is_a_clash(replicas: list[FakeReplica]) -> None:
    _, rest = started(options_for(replicas), last_term=1)
    with pytest.raises(LogClash, match="index 101 is of term 2, it was of 1"):
        indexes(rest)


def test_a_log_that_was_created_again_after_planning_is_a_clash(
    replicas: list[FakeReplica], log: FakeLog
) -> None:
    options = options_for(replicas, startingIndex="earliest").for_stream()
    client = log_reads.LogReads(options.endpoints, options.log, give_up_s=0.3)
    reader, before = RecordsStreamReader(options, client), log.id
    start = reader.initialOffset()
    [planned] = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    assert isinstance(planned, RecordsPartition)
    log.cluster = "elsewhere"  # the same terms and indexes, in another log
    with pytest.raises(LogClash, match=f"its id is {log.id}, it was {before}"):
        indexes(read_records(options, planned, client))
    reader.stop()


def test_a_node_that_has_an_earlier_log_of_the_name_is_skipped(
    replicas: list[FakeReplica], log: FakeLog
) -> None:
    replicas[0].log = FakeLog(cluster="earlier", records=log.records)
    options = options_for(replicas)
    partition = RecordsPartition(0, 102, options.endpoints, 2, log_id=log.id)
    assert indexes(read_records(options, partition)) == [*range(102)]


READ_ALL = """
import sys
from spark_jobs.source.options import parse_options
from spark_jobs.source.reading import RecordsPartition, read_records
from spark_jobs.source import CommitlogDataSource

options = parse_options({"endpoint": sys.argv[1]})
rows = sum(batch.num_rows for batch in read_records(options, RecordsPartition(0, 102, options.endpoints)))
sys.exit(f"{rows} rows, pandas: {'pandas' in sys.modules}")
"""


def test_a_worker_reads_without_pandas_whose_import_is_most_of_its_start(replicas: list[FakeReplica]) -> None:
    command = [sys.executable, "-c", READ_ALL, endpoints(replicas)]
    assert subprocess.run(command, capture_output=True, text=True).stderr.strip() == "100 rows, pandas: False"


def seqs_of(replica: FakeReplica, from_seq: int, until_seq: int, **given: str) -> list[int]:
    """The events of a part of the replica's journal."""
    options = parse_options({"endpoint": endpoints(replica.peers), "stream": "events", **given})
    node = Node(replica.node, replica.url, alive=True)
    read = read_events(options, EventsPartition(node, from_seq, until_seq, replica.log.id))
    return [seq for batch in read for seq in batch.column("seq").to_pylist()]


def test_a_journal_that_began_again_is_read_on_after_the_gap_or_is_an_error(
    replicas: list[FakeReplica],
) -> None:
    replica = replicas[0]
    for number in range(8):
        replica.event("role", {"role": "follower", "number": number})
    del replica.journal[:5]  # a damaged journal begins behind the last event that could be found
    seqs = partial(seqs_of, replica)
    assert seqs(0, 8) == seqs(5, 8) == seqs(3, 8, failOnDataLoss="false") == [5, 6, 7]
    assert seqs(3, 4, failOnDataLoss="false") == []
    with pytest.raises(LogClash, match="journal does not hold the event 3"):
        seqs(3, 8)


def test_a_journal_that_began_again_on_an_empty_disk_is_reported_once_if_a_loss_is_accepted(
    replicas: list[FakeReplica], caplog: pytest.LogCaptureFixture
) -> None:
    replica = replicas[0]
    options = parse_options({"endpoint": replica.url, "stream": "events", "failOnDataLoss": "false"})
    client = log_reads.LogReads([replica.url], "default")

    def scanned(events: int, start: EventsOffset) -> EventsOffset:
        for _ in range(events):
            replica.event("watermarks", {})
        return scan(client, options, start, limit=None)

    read = scanned(10, scanned(1, EventsOffset({}, replica.log.id)))
    assert read.at("n1").next_seq == 11
    assert scanned(0, read) == read
    assert not caplog.messages
    replica.journal.clear()
    assert scanned(8, read) == scanned(2, read) == read
    [message] = caplog.messages
    assert "n1 does not hold the event 10; its events before seq 11 are left out" in message
    assert scanned(3, read).at("n1").next_seq == 13


def test_events_of_a_node_that_was_removed_after_planning_are_left_out_or_an_error(
    replicas: list[FakeReplica],
) -> None:
    """A query that starts again repeats the micro-batch that it had planned."""
    for replica in replicas:
        replica.event("stop", {})

    def reader(**given: str) -> EventsStreamReader:
        options = {"endpoint": endpoints(replicas), "stream": "events", "startingIndex": "earliest"}
        return EventsStreamReader(parse_options({**options, **given}))

    start = reader().initialOffset()
    end = reader().latestOffset(start, ReadAllAvailable())
    for replica in replicas:
        replica.peers = replicas[:1]
    with pytest.raises(Unreachable, match="events from seq 0 to 0 cannot be read"):
        reader().partitions(start, end)
    [left] = reader(failOnDataLoss="false").partitions(start, end)
    assert isinstance(left, EventsPartition)
    assert left.node.id == replicas[0].node


def test_the_journals_of_a_log_that_was_created_again_after_planning_are_a_clash(
    replicas: list[FakeReplica], log: FakeLog
) -> None:
    for number in range(8):
        replicas[0].event("role", {"role": "follower", "number": number})
    options = parse_options(
        {"endpoint": endpoints(replicas), "stream": "events", "startingIndex": "earliest"}
    )
    batch, stream, before = EventsBatchReader(options), EventsStreamReader(options), log.id
    start = stream.initialOffset()
    [of_stream] = stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))
    [of_batch] = batch.partitions()
    assert [len(rows) for rows in batch.read(of_batch)] == [8]
    log.cluster = "elsewhere"  # the same numbers, in the journal of another log
    for reader, planned in ((batch, of_batch), (stream, of_stream)):
        with pytest.raises(LogClash, match=f"its id is {log.id}, it was {before}"):
            list(reader.read(planned))
    stream.stop()


def test_a_batch_of_a_log_that_was_created_again_after_planning_is_a_clash(
    replicas: list[FakeReplica], log: FakeLog
) -> None:
    reader, before = RecordsBatchReader(options_for(replicas).for_batch()), log.id
    [planned] = reader.partitions()
    assert indexes(reader.read(planned)) == [*range(102)]
    log.cluster = "elsewhere"
    with pytest.raises(LogClash, match=f"its id is {log.id}, it was {before}"):
        indexes(reader.read(planned))


def test_a_trimmed_journal_is_read_on_after_the_gap_or_is_an_error(replicas: list[FakeReplica]) -> None:
    replica = replicas[0]
    for number in range(8):
        replica.event("role", {"role": "follower", "number": number})
    del replica.journal[:5]
    replica.first_seq = 5
    seqs = partial(seqs_of, replica)
    assert seqs(0, 8) == seqs(5, 8) == seqs(3, 8, failOnDataLoss="false") == [5, 6, 7]
    assert seqs(3, 4, failOnDataLoss="false") == []
    with pytest.raises(JournalTrimmed, match=r"begins at event 5: the events from 3 to 4 were removed"):
        seqs(3, 8)

    def latest(next_seq: int, **given: str) -> int:
        options = parse_options({"endpoint": replica.url, "stream": "events", **given})
        log_client = log_reads.LogReads(options.endpoints, options.log, None)
        start = EventsOffset({replica.node: JournalPosition(next_seq, None)}, log_client.log_id())
        return scan(log_client, options, start, limit=None).at(replica.node).next_seq

    assert latest(5) == 8  # the event before was trimmed, nothing that is due was
    assert latest(3, failOnDataLoss="false") == 8
    with pytest.raises(JournalTrimmed):
        latest(3)


def test_a_range_that_was_trimmed_whole_is_empty_or_an_error() -> None:
    tail = LogTail(begin_index=10, next_index=20, term=1, confirmed=True)
    asked = parse_options({"endpoint": "http://127.0.0.1:1", "startingIndex": "2", "endingIndex": "5"})
    assert asked_range(replace(asked, fail_on_data_loss=False), tail) == (6, 6)
    for lost in (asked, replace(asked, starting_index="earliest")):
        with pytest.raises(LogTrimmed, match="begins at index 10"):
            asked_range(lost, tail)
    with pytest.raises(OptionError, match=r"startingIndex must be at most the end of the read, .* got 15"):
        asked_range(replace(asked, starting_index=15, ending_index=12), tail)


def test_a_query_that_begins_after_the_end_of_the_log_has_a_wrong_option() -> None:
    """It has no position yet that the log could contradict."""
    tail = LogTail(begin_index=10, next_index=20, term=1, confirmed=True)
    asked = parse_options({"endpoint": "http://127.0.0.1:1", "startingIndex": "21"})
    for start in (asked_range, first_index):
        with pytest.raises(OptionError, match=r"startingIndex must be at most 20, the next index .*, got 21"):
            start(asked, tail)
    assert asked_range(replace(asked, starting_index=20), tail) == (20, 20)


def test_long_batches_are_cut_short_ones_joined_and_control_records_left_out() -> None:
    options = parse_options({"endpoint": "http://nowhere:1", "log": "orders"})
    lengths = [3, 1, 2_000, 5, 1, 20_000]
    wide, chain, batches = b"v" * 1_000, FIRST_CHAIN, []
    for number, length in enumerate(lengths):
        records = RecordColumns()
        for _ in range(length):
            records.add(wide)
        batches.append(
            stamp(
                encode_body(records),
                log_id=1,
                base_index=sum(lengths[:number]),
                term=1,
                timestamp_ms=1_700_000_000_000,
                offset=0,
                previous_chain=chain,
                control=length == 1,
            )
        )
        chain = batches[-1].header.chain
    table = pa.Table.from_batches([read_columns(batch) for batch in batches])
    given = list(rows(options, table))
    assert [row for batch in given for row in batch.column("index").to_pylist()] == [
        index
        for index, kind in zip(table["index"].to_pylist(), table["type"].to_pylist(), strict=True)
        if kind == "data"
    ]
    assert {*pa.Table.from_batches(given)["log"].to_pylist()} == {"orders"}
    assert given[0].num_rows == 3
    assert max(batch.nbytes for batch in given) < 1.1 * PIECE_BYTES
    assert len(given) < 30
