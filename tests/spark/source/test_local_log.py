"""A log's files read in place: what a replica calls committed, verified, or nothing."""

import logging
from random import Random

import pyarrow as pa
import pytest

from spark_jobs.source.local_log import LocalLog, NotHere
from spark_jobs.source.options import parse_options
from spark_jobs.source.reading import RecordsPartition, read_records
from storage.format.batch import Batch
from storage.format.records import read_columns
from tests.support.cluster import Cluster
from tests.support.memory_files import MemoryFiles
from tests.unit.storage.support import LOG_ID, content, grow, next_batch, open_log, open_term, three_terms


def local(files: MemoryFiles, log_id: int = LOG_ID) -> LocalLog:
    return LocalLog(files, "/data", "default", log_id)


def read(files: MemoryFiles, first: int, last: Batch, log_id: int = LOG_ID) -> pa.Table:
    return pa.concat_tables(local(files, log_id).read(first, last))


def test_every_range_comes_as_it_was_stored_across_segments() -> None:
    files = MemoryFiles()
    batches = content(three_terms(files))
    stored = pa.Table.from_batches([read_columns(batch) for batch in batches])
    assert len([name for name in files.list("/data/logs/default") if name.endswith(".log")]) > 1
    chance = Random(1)
    for _ in range(60):
        first = chance.randrange(stored.num_rows)
        last = chance.choice([batch for batch in batches if batch.last_index >= first])
        assert read(files, first, last) == stored.slice(first, last.next_index - first)


def test_an_index_file_that_lags_lies_or_is_missing_changes_nothing() -> None:
    whole = MemoryFiles()
    batches = content(three_terms(whole))
    expected = read(whole, 0, batches[-1])
    for damage in ("missing", "empty", "foreign", "shifted"):
        files = MemoryFiles()
        three_terms(files)
        for name in files.list("/data/logs/default"):
            if name.endswith(".index"):
                path = f"/data/logs/default/{name}"
                data = files.read(path)
                if damage == "missing":
                    files.remove(path)
                else:
                    file = files.open(path)
                    file.truncate(0)
                    content_of = {"empty": b"", "foreign": bytes(640), "shifted": data[64:] + data[:64]}
                    file.pwrite(content_of[damage], 0)
        assert read(files, 0, batches[-1]) == expected
        assert read(files, 17, batches[-1]) == expected.slice(17)


def test_nothing_is_given_of_a_log_that_is_not_the_replicas() -> None:
    files = MemoryFiles()
    log = open_log(files)
    open_term(log, 1)
    grow(log, 5)
    here = content(log)
    other_files = MemoryFiles()
    other = open_log(other_files)
    open_term(other, 1)
    grow(other, 4)
    beyond = next_batch(other, [b"never replicated here"])
    assert beyond.base_index == here[5].base_index  # the same place in the log, other records
    with pytest.raises(NotHere, match="another batch at index"):
        read(files, 0, beyond)
    with pytest.raises(NotHere, match="another log"):
        read(files, 0, here[-1], LOG_ID + 1)
    grow(other, 30, Random(3))
    with pytest.raises(NotHere, match="ends before"):
        read(files, 0, content(other)[-1])
    with pytest.raises(NotHere, match="/elsewhere"):
        list(LocalLog(files, "/elsewhere", "default", LOG_ID).read(0, here[-1]))


def test_damage_is_found_and_what_came_before_it_is_right() -> None:
    files = MemoryFiles()
    batches = content(three_terms(files))
    expected = pa.Table.from_batches([read_columns(batch) for batch in batches])
    victim = batches[len(batches) // 2]
    names = [name for name in files.list("/data/logs/default") if name.endswith(".log")]
    base = max(int(name[:20]) for name in names if int(name[:20]) <= victim.offset)
    file = files.open(f"/data/logs/default/{base:020d}.log")
    at = victim.offset - base + victim.size_bytes - 20
    file.pwrite(bytes([file.read(at, 1)[0] ^ 1]), at)
    given: list[pa.Table] = []
    with pytest.raises(NotHere, match="checksum"):
        given.extend(local(files).read(0, batches[-1]))
    count = sum(table.num_rows for table in given)
    assert count <= victim.base_index
    if given:
        assert pa.concat_tables(given) == expected.slice(0, count)


def test_a_running_nodes_files_give_what_it_gives_over_http(
    service: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(30):
        service.append("n1", *(f"{number}-{at}" for at in range(7)), log="in-place")
    end = service.status("n1", "in-place")["committed_index"] + 1

    def read_with(first: int, until: int, **options: str) -> pa.Table:
        given = {"endpoint": service.url("n1"), "log": "in-place", "includeControl": "true", **options}
        parsed = parse_options(given)
        partition = RecordsPartition(first, until, parsed.endpoints)
        return pa.Table.from_batches(list(read_records(parsed, partition)))

    folder = str(service.folder / "n1")
    for first, until in ((0, end), (5, 6), (13, end - 3)):
        assert read_with(first, until, dataFolder=folder) == read_with(first, until)
    assert caplog.records == []
    with caplog.at_level(logging.WARNING):
        second = read_with(0, end, dataFolder=f"{folder}/nothing, {folder}")
        assert caplog.records == []
        elsewhere = read_with(0, end, dataFolder=f"{folder}/nothing")
    assert second == elsewhere == read_with(0, end)
    assert "not read in place from index 0 on" in caplog.text
