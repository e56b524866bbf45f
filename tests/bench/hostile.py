"""Appends while other clients misbehave: one JSON line per attack, with and without it.

`python -m tests.bench.hostile [--seconds 4] [--nodes 3] [--attacks slowloris,idle]`: all attacks go to the
leader. One client appends one record after the other meanwhile. The cluster has neither tokens nor TLS.

slowloris: 200 requests whose heads arrive one byte each half second. heads: 20 sockets that send header
fields without an end, as fast as the node reads. idle: 2 000 connections without a byte. sse: 300 readers of
all records as events.
"""

import argparse
import asyncio
import http.client
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

from tests.bench.rest_append import leader_first
from tests.bench.systems.local_cluster import pid_of, print_figure, running_cluster
from tests.support.programs import run_program

RECORD_BYTES = 1_024
HEAD = b"POST /v1/logs/default/records HTTP/1.1\r\nHost: a\r\n"
EVENTS = b"GET /v1/logs/default/records?from=latest HTTP/1.1\r\nHost: a\r\nAccept: text/event-stream\r\n\r\n"
TYPE = {"Content-Type": "application/octet-stream"}
HELD_FILES = 8_192
Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    for byte in HEAD * 1_000:
        writer.write(bytes((byte,)))
        await writer.drain()
        await asyncio.sleep(0.5)


async def endless_head(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(HEAD)
    while True:
        writer.write(b"X-Field: " + b"v" * 4_096 + b"\r\n")
        await writer.drain()


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


async def follow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(EVENTS)
    while await reader.read(65_536):
        pass


ATTACKS: dict[str, tuple[int, Client, bool]] = {  # clients; what each does; whether it connects again
    "slowloris": (200, drip, True),
    "heads": (20, endless_head, True),
    "idle": (2_000, silent, False),
    "sse": (300, follow, False),
}


async def attack(name: str, host: str, port: int) -> None:
    """Hold all connections until the process is ended; then print what the node has closed."""
    clients, act, again = ATTACKS[name]
    counts = {"connected": 0, "ended": 0}
    complete, stop = asyncio.Event(), asyncio.Event()

    async def one() -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection(host, port)
            except OSError:
                await asyncio.sleep(0.5)
                continue
            counts["connected"] += 1
            if counts["connected"] == clients:
                complete.set()
            with suppress(OSError):
                await act(reader, writer)
            counts["ended"] += 1
            writer.close()
            if not again:
                return

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    tasks = [asyncio.create_task(one()) for _ in range(clients)]
    await complete.wait()
    print_figure(ready=True)
    await stop.wait()
    print_figure(**counts)
    for task in tasks:
        task.cancel()


@contextmanager
def under(name: str, url: str) -> Iterator[dict[str, int]]:
    """Run an attack in a process of its own; its counts are there after the block."""
    command = [sys.executable, "-m", "tests.bench.hostile", "--against", url, "--attacks", name]
    counts: dict[str, int] = {}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["ready"]
        yield counts
        process.terminate()
        counts |= json.loads(process.stdout.readline())
        process.wait(30)
    finally:
        process.kill()
        process.wait()


def appends(url: str, seconds: float) -> dict[str, float]:
    """Append one record after the other; return their number, failures and latencies in milliseconds."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=30)
    body, until_s = b"v" * RECORD_BYTES, time.monotonic() + seconds
    took: list[float] = []
    failed = 0
    while time.monotonic() < until_s:
        began_s = time.monotonic()
        connection.request("POST", "/v1/logs/default/records", body, TYPE)
        answer = connection.getresponse()
        answer.read()
        failed += answer.status != 200
        took.append(1_000 * (time.monotonic() - began_s))
    connection.close()
    took.sort()
    figures = {"p50_ms": median(took), "p99_ms": took[int(0.99 * (len(took) - 1))], "max_ms": took[-1]}
    return {"appends": len(took), "failed": failed} | {name: round(each, 2) for name, each in figures.items()}


def used(pid: int) -> tuple[float, float]:
    """Processor seconds and MiB of memory of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return cpu_s, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def term_of(url: str) -> int:
    connection = http.client.HTTPConnection(str(urlsplit(url).hostname), urlsplit(url).port, timeout=30)
    connection.request("GET", "/v1/logs/default/status")
    term = json.loads(connection.getresponse().read())["term"]
    connection.close()
    return int(term)


def measure(names: list[str], nodes: int, port: int, seconds: float) -> None:
    with running_cluster(nodes, port) as (folder, urls):
        (leader,) = leader_first(urls)
        pid = pid_of(folder, f"n{urls.index(leader) + 1}")
        term = term_of(leader)
        appends(leader, 1.0)
        for name in names:
            without = appends(leader, seconds)
            _, memory_before = used(pid)
            with under(name, leader) as counts:
                cpu_before, _ = used(pid)
                began_s = time.monotonic()
                during = appends(leader, seconds)
                cpu_after, memory = used(pid)
                cores = (cpu_after - cpu_before) / (time.monotonic() - began_s)
            print_figure(
                attack=name,
                clients=ATTACKS[name][0],
                without=without,
                during=during,
                leader_cores=round(cores, 2),
                leader_mib=[round(memory_before), round(memory)],
                leader_kept=term_of(leader) == term,
                **counts,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--port", type=int, default=28301)
    parser.add_argument("--attacks", default=",".join(ATTACKS))
    parser.add_argument("--against", help="Only attack this URL, until SIGTERM.")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    files = HELD_FILES if hard == resource.RLIM_INFINITY else min(HELD_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    if options.against:
        parts = urlsplit(options.against)
        asyncio.run(attack(options.attacks, str(parts.hostname), int(parts.port or 0)))
    else:
        measure(options.attacks.split(","), options.nodes, options.port, options.seconds)


if __name__ == "__main__":
    run_program(main)
