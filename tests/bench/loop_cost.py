"""Processor time of the event loop for one append, or one long poll: one node in this process, real files, no
sockets.

    python -m tests.bench.loop_cost [--rounds 60] [--kinds "one record,100 records as Arrow"]
                                    [--against CHECKOUT --turns 6]

Prints one JSON line for each kind of body. With --against, processes of this checkout and of another one
alternate, and the last lines have the least of each and their ratio. The minimum of the rounds depends little
on what else runs on the machine, so it shows the effect of a change that the rates of `rest_append` cannot
show there. The time of the disk threads and of system calls on sockets is not in it. Part of a cluster's cost
is not in it either: the frames to the followers.

The cost of a long poll includes its part of the append of POLLED_RECORDS records that all polls wait for.
"""

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import uvicorn
import uvloop
from uvicorn.server import ServerState

from app.listener.connection import Connection
from app.listener.listener import Listener
from app.log.control_records import SchemaRecord
from app.log.set_schema import SetSchema
from app.main import build_app
from app.media_types import BATCHES
from app.node.broker import Broker
from app.settings.file import load
from tests.bench.compare import packed_batch
from tests.bench.rest_append import BATCH_RECORDS, RECORD_BYTES
from tests.bench.systems.local_cluster import print_figure
from tests.support.cluster import configuration, free_ports
from tests.support.programs import run_program

OBJECTS, CHECKED_OBJECTS = "100 objects as NDJSON", "100 checked objects as NDJSON"
SCHEMA = SchemaRecord(
    version=0,
    format="json",
    definition="id BIGINT NOT NULL, time TIMESTAMP, price DOUBLE, tags ARRAY<STRING>, text STRING",
    on_invalid="reject",
)
POLLS = "100 long polls"
POLLED_RECORDS = 45  # between two answers to a poll, about as many as 1 500 appends per second make
NEXT_INDEX = b"\r\ncommitlog-next-index: "
EXCHANGES = 5  # of every connection in a round


class Answers(asyncio.Transport):
    """The client's end of a connection: counts the answers of all, and remembers the last one."""

    waiting = 0
    all_here: "asyncio.Future[None]"
    last = b""
    closing = False

    def write(self, data: Any) -> None:
        Answers.last = bytes(data)
        Answers.waiting -= 1
        if not Answers.waiting:
            Answers.all_here.set_result(None)

    def writelines(self, parts: Any) -> None:
        self.write(parts[0])

    def close(self) -> None:
        self.closing = True

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return ("127.0.0.1", 1) if name.endswith("name") else default

    def get_write_buffer_size(self) -> int:
        return 0


class PollAnswers(Answers):
    """The client's end of a connection that sends the next poll after each answer."""

    connection: Any

    def write(self, data: Any) -> None:
        super().write(data)
        start = Answers.last.index(NEXT_INDEX) + len(NEXT_INDEX)
        self.poll(Answers.last[start : Answers.last.index(b"\r\n", start)])

    def poll(self, index: bytes) -> None:
        head = (
            b"GET /v1/logs/default/records?from_index=%b&wait_ms=10000 HTTP/1.1\r\nHost: node\r\n\r\n" % index
        )
        asyncio.get_running_loop().call_soon(self.connection.data_received, head)


def requests() -> dict[str, tuple[int, bytes]]:
    """Return connections and request of each kind."""
    value, line = b"v" * RECORD_BYTES, json.dumps({"value": "v" * RECORD_BYTES})
    batch = pa.record_batch({"value": pa.array([value] * BATCH_RECORDS, pa.binary())})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    records = ",".join([line] * BATCH_RECORDS)
    return {
        "one record": (64, _request("application/octet-stream", value)),
        "100 records as JSON": (8, _request("application/json", f'{{"records":[{records}]}}'.encode())),
        "100 records as NDJSON": (
            8,
            _request("application/x-ndjson", "\n".join([line] * BATCH_RECORDS).encode()),
        ),
        "100 records as Arrow": (
            8,
            _request("application/vnd.apache.arrow.stream", sink.getvalue().to_pybytes()),
        ),
        "100 records as a packed batch": (8, _request(BATCHES, packed_batch([value] * BATCH_RECORDS))),
        OBJECTS: (8, _request("application/x-ndjson", objects())),
        CHECKED_OBJECTS: (8, _request("application/x-ndjson", objects())),
        POLLS: (100, _request(BATCHES, packed_batch([value] * POLLED_RECORDS))),
    }


def objects() -> bytes:
    """100 records of RECORD_BYTES that match SCHEMA."""
    lines = []
    for number in range(BATCH_RECORDS):
        fields = {"id": number, "time": "2026-01-01T00:00:00Z", "price": 12.5, "tags": ["a", "b"], "text": ""}
        fields["text"] = "x" * (RECORD_BYTES - len(json.dumps(fields)))
        lines.append(json.dumps({"value": json.dumps(fields)}))
    return "\n".join(lines).encode()


def _request(content_type: str, body: bytes) -> bytes:
    head = f"POST /v1/logs/default/records HTTP/1.1\r\nHost: node\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def measure(folder: Path, rounds: int, kinds: list[str]) -> None:
    rest, peer = (f"127.0.0.1:{port}" for port in free_ports(2))
    node = {"id": "n1", "listen": rest, "url": f"http://{rest}", "peer_listen": peer, "peer_address": peer}
    (folder / "node.toml").write_text(configuration("bench", [{**node, "data": folder / "n1"}]))
    settings = load(folder / "node.toml", "n1")
    broker = Broker(settings)
    await broker.start()
    application = build_app(settings, broker)
    listener = Listener(settings.http, 1000, broker.meter, application.lane, application.polls)
    config = uvicorn.Config(application.asgi, lifespan="off", log_config=None, access_log=False)
    config.load()
    while not broker.lookup.find("default").leads:  # noqa: ASYNC110  # what is awaited has no event
        await asyncio.sleep(0.05)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)
    loop = asyncio.get_running_loop()
    for kind, (count, request) in requests().items():
        if kind not in kinds:
            continue
        if kind == CHECKED_OBJECTS:
            driver = broker.lookup.find("default").driver
            assert driver is not None
            is_set = loop.create_future()
            driver.command(SetSchema(SCHEMA), is_set.set_result)
            await is_set
        state = ServerState()

        def connect(client: Answers, state: ServerState = state) -> Any:
            given = {"config": config, "server_state": state, "app_state": {}, "_loop": loop}
            connection: Any = Connection(listener, **given)
            connection.connection_made(client)
            return connection

        senders = [connect(Answers()) for _ in range(1 if kind == POLLS else count)]
        pollers = [PollAnswers() for _ in range(count if kind == POLLS else 0)]
        await _exchange(senders, [], request)
        for poller in pollers:
            poller.connection = connect(poller)
            poller.poll(b"%d" % (broker.lookup.find("default").serving.committed_index + 1))
        costs_us = []
        for _ in range(rounds):
            began_s = time.thread_time()
            for _ in range(EXCHANGES):
                await _exchange(senders, pollers, request)
            costs_us.append((time.thread_time() - began_s) * 1e6 / count / EXCHANGES)
        assert Answers.last.startswith(b"HTTP/1.1 200 "), Answers.last
        costs_us.sort()
        least_us, median_us = round(costs_us[0], 1), round(costs_us[len(costs_us) // 2], 1)
        print_figure(append=kind, connections=count, least_us=least_us, median_us=median_us)
        for poller in pollers:
            poller.connection.connection_lost(None)
    await broker.stop()


async def _exchange(senders: list[Any], pollers: list[PollAnswers], request: bytes) -> None:
    """Append once by each sender, and wait for the answers to them and to each poll."""
    Answers.waiting = len(senders) + len(pollers)
    Answers.all_here = asyncio.get_running_loop().create_future()
    for connection in senders:
        connection.data_received(request)
    await Answers.all_here


def compare(other: Path, turns: int, arguments: list[str]) -> None:
    """Run both checkouts by turns, with the interpreter of this one."""
    least: dict[str, dict[str, float]] = {}
    here = Path(__file__).parents[2]
    for _ in range(turns):
        for name, folder in (("here", here), ("other", other.resolve())):
            command = [sys.executable, "-m", "tests.bench.loop_cost", *arguments]
            environment = {**os.environ, "PYTHONPATH": str(folder)}
            run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
            for line in run.stdout.splitlines():
                figure = json.loads(line)
                found = least.setdefault(figure["append"], {})
                found[name] = min(found.get(name, figure["least_us"]), figure["least_us"])
    for kind, found in least.items():
        print_figure(
            append=kind,
            least_us=found["here"],
            other_least_us=found["other"],
            ratio=round(found["here"] / found["other"], 2),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--kinds", default=",".join(requests()))
    parser.add_argument("--against", type=Path, help="another checkout of this project")
    parser.add_argument("--turns", type=int, default=6)
    options = parser.parse_args()
    if options.against is not None:
        compare(options.against, options.turns, ["--rounds", str(options.rounds), "--kinds", options.kinds])
        return
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    with tempfile.TemporaryDirectory(prefix="commitlog-bench-") as folder, runner:
        runner.run(measure(Path(folder), options.rounds, options.kinds.split(",")))


if __name__ == "__main__":
    run_program(main)
