"""Costs of storage, one JSON line per figure. `python -m tests.bench.storage_bench [--folder DIR]`.

Times are the median of repeated runs on one core, microseconds unless the name has another unit.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from app.api.read.rendering import as_arrow
from app.api.read.selection import RecordPage, Selection, select
from app.log.state import LogState
from storage.files import OsFileSystem
from storage.format.batch import FIRST_CHAIN, AppendMark, Batch, decode_batch, stamp
from storage.format.checksum import crc32c
from storage.format.records import RecordColumns, encode_body, read_columns
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.hard_state import HardState, HardStateFile
from tests.support.programs import run_program

KIB = 1024
LOG_ID = 1


def microseconds(work: Callable[[], object], times: int = 1_000) -> float:
    """Median over five runs of `times` calls, one call."""
    runs = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(times):
            work()
        runs.append((time.perf_counter() - start) / times * 1e6)
    return round(statistics.median(runs), 2)


def report(name: str, value: float, **more: object) -> None:
    sys.stdout.write(json.dumps({"bench": "storage", "name": name, "value": value, **more}) + "\n")


def columns(values: list[bytes]) -> RecordColumns:
    records = RecordColumns()
    for value in values:
        records.add(value)
    return records


def next_batch(log: Commitlog, records: RecordColumns) -> Batch:
    return stamp(
        encode_body(records),
        log_id=LOG_ID,
        base_index=log.next_index,
        term=1,
        timestamp_ms=1_730_000_000_000,
        offset=log.end_offset,
        previous_chain=log.last_chain,
    )


def sync(log: Commitlog) -> None:
    ticket = log.start_sync()
    if ticket is not None:
        ticket.run()
        log.finish_sync(ticket)


def bench_codec(values: list[bytes]) -> None:
    records = columns(values)
    body = encode_body(records)

    def stamped() -> Batch:
        return stamp(
            body, log_id=LOG_ID, base_index=0, term=1, timestamp_ms=1, offset=0, previous_chain=FIRST_CHAIN
        )

    batch = stamped()
    data = memoryview(batch.data)
    count = len(values)
    report("add_records", microseconds(lambda: columns(values)), records=count)
    report("encode_body", microseconds(lambda: encode_body(records)), records=count)
    report("stamp", microseconds(stamped), records=count)
    crc = microseconds(lambda: crc32c(batch.body))
    report("crc_of_body", crc, records=count)
    report("decode_batch", microseconds(lambda: decode_batch(data, log_id=LOG_ID)), records=count, crc=crc)
    report("read_columns", microseconds(lambda: read_columns(batch)), records=count)


def bench_append(folder: str, values: list[bytes]) -> None:
    files = OsFileSystem()
    log = Commitlog.open(files, f"{folder}/append", log_id=LOG_ID)
    records = columns(values)
    report(
        "encode_stamp_append", microseconds(lambda: log.append([next_batch(log, records)]), 1_000), records=64
    )
    start = time.perf_counter()
    times = 1_000
    for _ in range(times):
        log.append([next_batch(log, records)])
        sync(log)
    seconds = time.perf_counter() - start
    report("append_and_sync", round(seconds / times * 1e6, 2), records=64)
    log.settle(log.end_index)
    end, place = log.end_index, iter(range(0, 1 << 30, 64))
    report("term_at_newest", microseconds(lambda: log.term_at(end)))
    report("term_at_old", microseconds(lambda: log.term_at(next(place) % 100_000)))
    report("batch_at_old", microseconds(lambda: log.batch_at(next(place) % 100_000)))
    start, read = time.perf_counter(), 0
    index = 0
    while index <= 200_000:
        batches = log.read_batches(index, KIB * KIB)
        read += sum(batch.size_bytes for batch in batches)
        index = batches[-1].next_index
    report("read_batches_mib_per_s", round(read / (time.perf_counter() - start) / KIB / KIB))
    log.close()
    vote = HardStateFile(files, f"{folder}/vote")
    vote.load()
    report("save_hard_state", microseconds(lambda: vote.save(HardState(1, "n1")), 100))


def bench_page(folder: str, values: list[bytes]) -> None:
    """An Arrow page of 4 MiB, by the size of the stored batches: read, selected, rendered."""
    wanted = Selection(limit=10_000)
    for count in (1, 20, 100, 1_000):
        log = Commitlog.open(OsFileSystem(), f"{folder}/page{count}", log_id=LOG_ID)
        records = columns((values * count)[:count])
        while log.end_offset < 3 * wanted.max_bytes:
            log.append([next_batch(log, records)])
        sync(log)
        log.settle(log.end_index)
        times = []
        for _ in range(9):
            start, page = time.process_time(), RecordPage(0)
            select(log.read_batches(0, wanted.max_bytes, log.end_index), page, log.end_index, wanted)
            as_arrow(page.columns)
            times.append(time.process_time() - start)
        report(
            "arrow_page_ms",
            round(statistics.median(times) * 1e3, 2),
            records_a_batch=count,
            records=page.count,
        )
        log.close()


def bench_open(folder: str, values: list[bytes]) -> None:
    """Start-up after a clean stop and after a kill, of a small and of a large log."""
    files = OsFileSystem()
    record = columns(values[:1])
    for size_mib in (10, 1_000):
        path = f"{folder}/open{size_mib}"
        log = Commitlog.open(files, path, log_id=LOG_ID)
        big = columns(values)
        while log.end_offset < size_mib * KIB * KIB:
            log.append([next_batch(log, big)])
            if log.next_index % 6_400 == 0:
                sync(log)
        sync(log)
        for _ in range(2_000):
            log.append([next_batch(log, record)])
        sync(log)
        for state in ("killed", "clean"):
            start = time.perf_counter()
            Commitlog.open(files, path, log_id=LOG_ID).close()
            report("open_ms", round((time.perf_counter() - start) * 1e3, 1), size_mib=size_mib, after=state)


def bench_scan(folder: str, values: list[bytes]) -> None:
    """Recovery of a tail that was never marked durable: the worst that a start may have to read."""
    files = OsFileSystem()
    for count in (1, 64):
        path = f"{folder}/scan{count}"
        config = CommitlogConfig(mark_interval_bytes=1 << 40)
        log = Commitlog.open(files, path, log_id=LOG_ID, config=config)
        records = columns(values[:count])
        while log.end_offset < 16 * KIB * KIB:
            log.append([next_batch(log, records)])
        start = time.perf_counter()
        Commitlog.open(files, path, log_id=LOG_ID, config=config)
        report("scan_16_mib_ms", round((time.perf_counter() - start) * 1e3, 1), records_a_batch=count)


def bench_state() -> None:
    state = LogState()
    body = encode_body(columns([b""] * 64))
    batches = []
    for k in range(1_000):
        marks = [AppendMark(n, 1, f"key-{k:08d}-{n:08d}", digest=os.urandom(16)) for n in range(64)]
        batches.append(
            stamp(
                body,
                log_id=LOG_ID,
                base_index=64 * k,
                term=1,
                timestamp_ms=1,
                offset=64 * k,
                previous_chain=FIRST_CHAIN,
                marks=marks,
            )
        )
    start = time.perf_counter()
    for batch in batches:
        state.apply(batch)
        state.committed(batch.last_index)
    report("apply_key", round((time.perf_counter() - start) / 64_000 * 1e6, 3))
    start = time.perf_counter()
    size = len(state.snapshot())
    report("snapshot_64k_keys_ms", round((time.perf_counter() - start) * 1e3, 1), size_bytes=size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="where to write; default: the system's temporary folder")
    folder = tempfile.mkdtemp(prefix="storage-bench-", dir=parser.parse_args().folder)
    try:
        values = [os.urandom(KIB) for _ in range(64)]
        for count in (1, 64):
            bench_codec(values[:count])
        bench_append(folder, values)
        bench_page(folder, values)
        bench_open(folder, values)
        bench_scan(folder, values)
        bench_state()
    finally:
        shutil.rmtree(Path(folder))


if __name__ == "__main__":
    run_program(main)
