"""Rows of the table beside appends: idle nodes, the client, bulk reads, a large log, readers at the tail.

    python -m tests.bench.service [--rows idle,bulk-read] [--records 300000] [--fill-mib 512] [--seconds 3]

One cluster of three nodes, fsync; one JSON line a row.
"""

import argparse
import asyncio
import json
import random
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from app.client import CommitlogClient, RecordProducer
from app.futures import settle
from tests.bench.compare import CONTENT_TYPES, bodies, cpu_s
from tests.bench.rest_append import BATCH_RECORDS, RECORD_BYTES, build_loadgen
from tests.bench.systems.local_cluster import print_figure
from tests.bench.systems.memory import filled_page_cache
from tests.bench.systems.setups import Nodes, Setup, running_nodes
from tests.support.programs import run_program

Figure = dict[str, Any]
Received = Callable[[bytes | memoryview], None]
Reading = Callable[[Nodes, Received], Coroutine[Any, Any, None]]
CLIENT_RECORD_BYTES = 100
IDLE_S = 8.0
TAIL_READERS = 100
TAIL_RATE = 5_000  # appends per second
POLL_RATE = 1_500
TIMED_READERS = 3  # of them: reading the timestamps of all records costs the client as much as reading them
CATCH_UP_S = 10.0
TIMESTAMP = re.compile(rb'"timestamp":(\d+)')  # of an event, ms
LOOKUPS = 200
ROWS = ("idle", "tail-readers", "long-polls", "log-size", "bulk-read", "producer", "reader")


def idle(nodes: Nodes) -> Figure:
    """Processor time and memory of nodes without clients."""
    time.sleep(2)  # the start is over
    before = [cpu_s([pid]) for pid in nodes.pids]
    time.sleep(IDLE_S)
    used = [cpu_s([pid]) - began for pid, began in zip(nodes.pids, before, strict=True)]
    status = Path(f"/proc/{nodes.pids[0]}/status").read_text().split("VmRSS:")[1]
    return {
        "percent_of_a_core": round(100 * max(used) / IDLE_S, 2),
        "leader_mib": round(int(status.split()[0]) / 1024),
    }


def producer(nodes: Nodes, records: int) -> Figure:
    """One process with RecordProducer."""
    value = b"v" * CLIENT_RECORD_BYTES
    began, used = time.monotonic(), time.process_time()
    with CommitlogClient(nodes.leader) as client, RecordProducer(client) as sender:
        for _ in range(records):
            sender.send(value)
    return {
        "records_per_s": round(records / (time.monotonic() - began)),
        "per_client_cpu_s": round(records / (time.process_time() - used)),
    }


def reader(nodes: Nodes, from_index: int) -> Figure:
    """One process that reads into Arrow."""
    count = size = 0
    began = time.monotonic()
    with CommitlogClient(nodes.leader) as client:
        for table, _, _ in client.arrow_pages(from_index, endpoint=nodes.leader):
            count, size = count + table.num_rows, size + table.nbytes
    took_s = time.monotonic() - began
    return {"records_per_s": round(count / took_s), "mib_per_s": round(size / took_s / 2**20)}


def load(loadgen: Path, nodes: Nodes, *arguments: str) -> Figure:
    command = [str(loadgen), "-warmup", "0s", "-url", f"{nodes.leader}/v1/logs/default/records", *arguments]
    found: Figure = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    return found


def by_size(loadgen: Path, batch: Path, nodes: Nodes, seconds: int, fill_mib: int) -> Figure:
    """Appends and reads of a small log, then of the same log with `fill_mib` more."""
    size = str(RECORD_BYTES)

    def probe() -> tuple[float, float]:
        rate = load(loadgen, nodes, "-c", "64", "-size", size, "-d", f"{seconds}s")["records_per_s"]
        with CommitlogClient(nodes.leader) as client:
            end = client.tail()["next_index"]
            took = []
            for _ in range(LOOKUPS):
                began = time.monotonic()
                client.read(from_index=random.randrange(end), limit=1, endpoint=nodes.leader)
                took.append(time.monotonic() - began)
        return rate, sorted(took)[LOOKUPS // 2] * 1e3

    probe()  # the first one does not count: it was slower than the same probe of a filled log
    small = probe()
    appends = fill_mib * 2**20 // (BATCH_RECORDS * RECORD_BYTES)
    body = ["-body-file", str(batch), "-content-type", CONTENT_TYPES["arrow"]]
    filled = load(loadgen, nodes, "-c", "8", *body, "-records", str(BATCH_RECORDS), "-n", str(appends))
    large = probe()
    return {
        "fill_records_per_s": round(filled["records_per_s"]),
        "append_ratio": round(large[0] / small[0], 2),
        "read_p50_ms": [round(small[1], 2), round(large[1], 2)],
    }


def tail_readers(loadgen: Path, nodes: Nodes, seconds: int, rate: int, read: Reading) -> Figure:
    """Appends at a constant rate without readers, then with readers at the tail.

    lag_p50_ms, lag_p99_ms: from the timestamp of a record, when its leader takes it, until a reader has it.
    """
    arguments = ["-c", "32", "-size", str(RECORD_BYTES), "-rate", str(rate), "-d", f"{seconds}s"]
    alone = load(loadgen, nodes, *arguments)
    stop = threading.Event()
    received, lags_ms = [0], list[float]()
    thread = threading.Thread(
        target=lambda: asyncio.run(_read_tail(nodes, read, stop, received, lags_ms)), daemon=True
    )
    thread.start()
    time.sleep(1)
    together = load(loadgen, nodes, *arguments)
    given_up_s = time.monotonic() + CATCH_UP_S  # readers that lag far behind must not improve their figure
    while len(lags_ms) < TIMED_READERS * together["requests"] and time.monotonic() < given_up_s:
        time.sleep(0.01)
    stop.set()
    thread.join(10)
    lags_ms.sort()
    return {
        "readers": TAIL_READERS,
        "appends_per_s": [round(alone["records_per_s"]), round(together["records_per_s"])],
        "append_p50_ms": [alone["p50_ms"], together["p50_ms"]],
        "lag_p50_ms": round(lags_ms[len(lags_ms) // 2], 1),
        "lag_p99_ms": round(lags_ms[len(lags_ms) * 99 // 100], 1),
        "received_mib": round(received[0] / 2**20),
    }


async def _read_tail(
    nodes: Nodes, read: Reading, stop: threading.Event, received: list[int], lags_ms: list[float]
) -> None:
    def count(data: bytes | memoryview) -> None:
        received[0] += len(data)

    def count_and_time(data: bytes | memoryview) -> None:
        count(data)
        now_ms = time.time() * 1000
        lags_ms.extend(now_ms - int(found) for found in TIMESTAMP.findall(data))

    timed = [read(nodes, count_and_time) for _ in range(TIMED_READERS)]
    others = [read(nodes, count) for _ in range(TAIL_READERS - TIMED_READERS)]
    tasks = [asyncio.create_task(reading) for reading in (*timed, *others)]
    await asyncio.to_thread(stop.wait)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class _Events(asyncio.BufferedProtocol):
    """Client of an event stream. All of them receive into one buffer: asyncio's streams, which copy, took
    twice as much processor time as the node that sent the events."""

    buffer = bytearray(1 << 20)

    def __init__(self, received: Received) -> None:
        self._received = received
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._received(memoryview(self.buffer)[:nbytes])

    def connection_lost(self, exc: Exception | None) -> None:
        settle(self.ended, None)


async def _events(nodes: Nodes, received: Received) -> None:
    """Read an event stream of a follower."""
    place = urlsplit(nodes.follower)
    loop = asyncio.get_running_loop()
    sink, events = await loop.create_connection(lambda: _Events(received), place.hostname, place.port)
    sink.write(
        b"GET /v1/logs/default/records?from=latest HTTP/1.1\r\nHost: n\r\nAccept: text/event-stream\r\n\r\n"
    )
    try:
        await events.ended
    finally:
        sink.close()


async def _pages(nodes: Nodes, received: Received) -> None:
    """Read page after page from the leader, each of which waits for records."""
    place = urlsplit(nodes.leader)
    source, sink = await asyncio.open_connection(place.hostname, place.port)
    start = "from=latest"
    while True:
        sink.write(f"GET /v1/logs/default/records?{start}&wait_ms=10000 HTTP/1.1\r\nHost: n\r\n\r\n".encode())
        head = (await source.readuntil(b"\r\n\r\n")).lower()
        headers = dict(line.split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
        start = f"from_index={int(headers[b'commitlog-next-index'])}"
        received(await source.readexactly(int(headers[b"content-length"])))


def measure(records: int, fill_mib: int, seconds: int, wanted: Sequence[str] = ROWS) -> dict[str, Figure]:
    """Measure the wanted rows, print each, and return them by name."""
    found: dict[str, Figure] = {}
    with (
        tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder,
        filled_page_cache() as cache,
        running_nodes(Setup.FSYNC) as nodes,
    ):
        loadgen, batch = build_loadgen(Path(folder)), bodies(Path(folder))["arrow"]
        rows: dict[str, Callable[[], Figure]] = {
            "idle": lambda: idle(nodes),
            "tail-readers": lambda: tail_readers(loadgen, nodes, seconds, TAIL_RATE, _events),
            "long-polls": lambda: tail_readers(loadgen, nodes, seconds, POLL_RATE, _pages),
            "log-size": lambda: by_size(loadgen, batch, nodes, seconds, fill_mib),
            "bulk-read": lambda: reader(nodes, 0),
            "producer": lambda: producer(nodes, records),
            "reader": lambda: reader(nodes, begin),
        }
        begin = 0
        for name in wanted:
            if name == "producer":
                with CommitlogClient(nodes.leader) as client:
                    begin = client.tail()["next_index"]
            cache.fill()
            found[name] = rows[name]()
            print_figure(row=name, **found[name])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--records", type=int, default=300_000)
    parser.add_argument("--fill-mib", type=int, default=512)
    parser.add_argument("--seconds", type=int, default=3)
    parser.add_argument("--rows", default=",".join(ROWS), help="in this order; default: all")
    options = parser.parse_args()
    measure(options.records, options.fill_mib, options.seconds, options.rows.split(","))


if __name__ == "__main__":
    run_program(main)
