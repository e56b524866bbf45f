"""A replica that tests can command: it answers the reads of docs/api.md from memory, and fails on command.

The tests of the whole path use the real service. This one serves tests that need a replica that lags, gives
wrong answers or ends at a chosen moment, or a log that was wiped.
"""

import asyncio
import socket
import threading
import time
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import pyarrow as pa
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from storage.format.batch import FIRST_CHAIN, Batch, log_id_of, stamp
from storage.format.records import RecordColumns, encode_body

READ_SCHEMA = pa.schema(
    [
        ("index", pa.int64()),
        ("term", pa.int64()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
        ("type", pa.string()),
    ]
)
FIRST_TIMESTAMP_MS = 1_700_000_000_000
RECORD_BYTES = 100  # each record counts as a batch of this size


@dataclass
class FakeLog:
    """The records that all replicas of a test hold. Indexes are dense from 0; every one is in `records`."""

    name: str = "default"
    cluster: str = "test"
    term: int = 1
    begin_index: int = 0
    records: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    cursors: dict[str, dict[str, Any]] = field(default_factory=dict)  # each with its version
    schemas: list[dict[str, Any]] = field(default_factory=list)  # documents of its versions

    @property
    def id(self) -> str:
        return f"{log_id_of(self.cluster, self.name):016x}"

    @property
    def next_index(self) -> int:
        return len(self.records)

    def set_schema(self, definition: str, **options: Any) -> None:
        """The control record of a new version of the schema."""
        document = {
            "version": len(self.schemas) + 1,
            "index": self.next_index,
            "format": "json",
            "definition": definition,
            "message": None,
            "key_columns": [],
            "compatibility": "backward",
            "on_invalid": "dead_letter",
            "cluster_by": [],
            **options,
        }
        self.schemas.append(document)
        self.append(b'{"kind":"schema"}', type="control")

    def append(
        self,
        *values: bytes | None,
        key: bytes | None = None,
        type: str = "data",
        headers: tuple[tuple[str, bytes], ...] | None = None,
    ) -> None:
        for value in values:
            index = len(self.records)
            self.records.append(
                {
                    "index": index,
                    "term": self.term,
                    "offset": index * RECORD_BYTES,
                    "timestamp": (FIRST_TIMESTAMP_MS + index) * 1_000,
                    "key": key,
                    "value": value,
                    "headers": headers,
                    "type": type,
                }
            )

    def stored(self, first: int, until: int) -> list[Batch]:
        """The records of [first, until) as they would be stored, each in a batch of its own."""
        log_id, chain, batches = log_id_of(self.cluster, self.name), FIRST_CHAIN, []
        for record in self.records[:until]:
            batches.append(stored_batch(log_id, chain, *(record[name] for name in READ_SCHEMA.names)))
            chain = batches[-1].header.chain
        return batches[first:]

    def append_many(self, count: int) -> None:
        self.append(*(b"value-%d" % number for number in range(self.next_index, self.next_index + count)))

    def open_term(self, term: int, leader: str) -> None:
        """A leader's control record, and the epoch that begins with it."""
        self.term = term
        index = self.next_index
        if self.epochs:
            self.epochs[-1] |= {"end_index": index - 1, "end_offset": index * RECORD_BYTES}
        self.epochs.append(
            {
                "epoch": term,
                "term": term,
                "leader": leader,
                "start_index": index,
                "start_offset": index * RECORD_BYTES,
                "end_index": None,
                "end_offset": None,
                "started_ms": FIRST_TIMESTAMP_MS + index,
            }
        )
        self.append(b'{"kind":"term","leader":"%s"}' % leader.encode(), type="control")


@cache
def stored_batch(
    log_id: int,
    chain: bytes,
    index: int,
    term: int,
    offset: int,
    timestamp_us: int,
    key: bytes | None,
    value: bytes | None,
    headers: tuple[tuple[str, bytes], ...] | None,
    type: str,
) -> Batch:
    """One record's batch. chain: of the batch before it."""
    rows = RecordColumns()
    rows.add(value, key, timestamp_us // 1_000, headers)
    place = {"base_index": index, "term": term, "offset": offset, "timestamp_ms": timestamp_us // 1_000}
    return stamp(encode_body(rows), log_id=log_id, previous_chain=chain, control=type == "control", **place)


class _Server(uvicorn.Server):
    """A server that ends at once. Uvicorn's own finds out after 0.1 s, and waits as long for connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._ended = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def end(self) -> None:
        """End the server, which has started, from another thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._ended.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._ended.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)  # they close


class FakeReplica:
    """One node over HTTP on a port of its own, from `start` to `stop`."""

    def __init__(self, log: FakeLog, node: str = "n1") -> None:
        self.log = log
        self.node = node
        self.peers: list[FakeReplica] = [self]
        self.first_seq = 0  # of a journal whose retention has removed what was before
        self.journal: list[dict[str, Any]] = []
        self.committed_index: int | None = None  # None: all of the log
        self.has_leader = True
        self.is_deleted = False  # the log
        self.drop_record: int | None = None  # left out of every answer: a short read
        self.cut_answers = 0  # so many Arrow answers are cut in the middle
        self.stall_at: int | None = None  # a read of records past this index waits for `resume`
        self.stalled, self.resume = threading.Event(), threading.Event()
        self.receipts: dict[str, list[dict[str, Any]]] = {}  # records by name
        self.refuse_moves = False  # of cursors: no leader
        self.requests: list[str] = []
        self.sent = 0  # records in all answers
        self.url = ""
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, port: int = 0) -> None:
        base = "/v1/logs/{log}"
        routes = [
            Route("/v1/cluster", self.cluster),
            Route("/v1/logs", self.logs),
            Route(base, self.describe),
            Route(f"{base}/tail", self.tail),
            Route(f"{base}/records", self.read),
            Route(f"{base}/schemas", self.schemas),
            Route(f"{base}/events", self.events),
            Route(f"{base}/cursors/{{name}}", self.cursor, methods=["GET", "PUT"]),
            Route(f"{base}/receipts/{{name}}", self.receipt),
            Route(f"{base}/epochs", lambda _: JSONResponse({"epochs": self.visible_epochs()})),
        ]
        app = Starlette(routes=routes)
        self._server = _Server(
            uvicorn.Config(
                app, host="127.0.0.1", port=port, log_config=None, access_log=False, lifespan="off"
            )
        )
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.005)
        self.port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        if self._server is not None and self._thread is not None:
            self._server.end()
            self._thread.join()
            self._server = None

    @property
    def visible(self) -> int:
        return self.log.next_index - 1 if self.committed_index is None else self.committed_index

    def visible_epochs(self) -> list[dict[str, Any]]:
        return [dict(epoch) for epoch in self.log.epochs]

    def event(self, kind: str, data: dict[str, Any], timestamp_ms: int | None = None) -> None:
        seq = len(self.journal)
        self.journal.append(
            {
                "seq": seq,
                "node": self.node,
                "log": self.log.name,
                "timestamp": FIRST_TIMESTAMP_MS + seq if timestamp_ms is None else timestamp_ms,
                "kind": kind,
                "term": self.log.term,
                "data": data,
            }
        )

    async def cluster(self, request: Request) -> Response:
        nodes = [
            {"id": peer.node, "url": peer.url, "voter": True, "alive": peer._server is not None}
            for peer in self.peers
        ]
        return JSONResponse({"id": self.log.cluster, "nodes": nodes, "logs": [self.log.name], "limits": {}})

    async def logs(self, request: Request) -> Response:
        ends = {"begin_index": self.log.begin_index, "committed_index": self.visible, "term": self.log.term}
        log = {"name": self.log.name, "id": self.log.id}
        return JSONResponse({"logs": [{**log, "ends": {**ends, "events": len(self.journal)}}]})

    async def describe(self, request: Request) -> Response:
        if self.is_deleted:
            return problem(404, "log-not-found")
        return JSONResponse({"name": self.log.name, "id": self.log.id})

    async def tail(self, request: Request) -> Response:
        is_confirmed = request.query_params.get("consistency", "linearizable") == "linearizable"
        if is_confirmed and not self.has_leader:
            return problem(503, "read-index-unavailable")
        return JSONResponse(
            {
                "begin_index": self.log.begin_index if self.log.records else -1,
                "end_index": self.log.next_index - 1,
                "committed_index": self.log.next_index - 1 if is_confirmed else self.visible,
                "next_index": self.log.next_index,
                "term": self.log.term,
                "leader": self.node,
            }
        )

    async def read(self, request: Request) -> Response:
        query = request.query_params
        self.requests.append(str(request.url))
        if self.is_deleted:
            return problem(404, "log-not-found")
        until = int(query.get("until_index", self.log.next_index))
        if "from_timestamp" in query:
            first = self.first_at(int(query["from_timestamp"]))
        else:
            first = int(query["from_index"])
        if first < self.log.begin_index:
            return problem(410, "index-trimmed", begin_index=self.log.begin_index)
        if int(request.headers.get("commitlog-min-index", "-1")) > self.visible:
            return problem(504, "not-yet-replicated")
        if self.stall_at is not None and first > self.stall_at and until > first + 1:
            self.stalled.set()
            await asyncio.to_thread(self.resume.wait)
        end = min(until, self.visible + 1, first + int(query.get("limit", "1000")))
        found = self.log.records[first:end]
        if query.get("include") != "control":
            found = [record for record in found if record["type"] == "data"]
        self.sent += len(found)
        headers = {"Commitlog-Next-Index": str(max(first, end))}
        accepted = request.headers.get("accept", "")
        if "commitlog" in accepted:
            stored = self.log.stored(first, end)
            body = b"".join(batch.data for batch in stored if batch.base_index != self.drop_record)
            return Response(self._cut(body), media_type=accepted, headers=headers)
        if "arrow" not in accepted:
            records = [{"index": record["index"], "type": record["type"]} for record in found]
            return JSONResponse({"records": records, "next_index": max(first, end)}, headers=headers)
        body = arrow([record for record in found if record["index"] != self.drop_record])
        return Response(self._cut(body), media_type="application/vnd.apache.arrow.stream", headers=headers)

    def _cut(self, body: bytes) -> bytes:
        if not self.cut_answers:
            return body
        self.cut_answers -= 1
        return body[: len(body) // 2]

    async def schemas(self, request: Request) -> Response:
        if int(request.headers.get("commitlog-min-index", -1)) > self.visible:
            return problem(504, "not-yet-replicated", retryable=True)
        known = [schema for schema in self.log.schemas if schema["index"] <= self.visible]
        etag = f'"{len(known)}"'
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers={"ETag": etag})
        return JSONResponse({"schemas": known}, headers={"ETag": etag})

    async def cursor(self, request: Request) -> Response:
        name = request.path_params["name"]
        found = self.log.cursors.get(name)
        if self.is_deleted:
            return problem(404, "log-not-found")
        if request.method == "PUT":
            if self.refuse_moves:
                return problem(503, "no-leader", retryable=True)
            wanted = request.headers.get("if-match")
            absent = request.headers.get("if-none-match") == "*"
            if (found is not None and absent) or (wanted and wanted != (found and found["version"])):
                return problem(412, "cursor-moved")
            version = 1 if found is None else int(found["version"].strip('"')) + 1
            found = {"name": name, **await request.json(), "version": f'"{version}"'}
            self.log.cursors[name] = found
        if found is None:
            return problem(404, "cursor-not-found")
        return JSONResponse(found, headers={"ETag": found["version"]})

    def first_at(self, timestamp_ms: int) -> int:
        later = (
            record["index"]
            for record in self.log.records[self.log.begin_index : self.visible + 1]
            if record["timestamp"] >= timestamp_ms * 1_000
        )
        return next(later, self.visible + 1)

    async def receipt(self, request: Request) -> Response:
        records = self.receipts.get(request.path_params["name"])
        if records is None:
            return problem(404, "not-found")
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, READ_SCHEMA) as writer:
            writer.write(pa.RecordBatch.from_pylist(records, READ_SCHEMA))
        return Response(
            self._cut(sink.getvalue().to_pybytes()), media_type="application/vnd.apache.arrow.file"
        )

    async def events(self, request: Request) -> Response:
        first = int(request.query_params.get("from_seq", "0"))
        limit = int(request.query_params.get("limit", "1000"))
        if 0 < first < self.first_seq:
            return problem(410, "events-trimmed", first_seq=self.first_seq)
        later = [event for event in self.journal if event["seq"] >= first]
        events = later[:limit]
        next_seq = events[-1]["seq"] + 1 if events else first
        return JSONResponse({"events": events, "next_seq": next_seq, "has_more": len(later) > limit})


def arrow(records: list[dict[str, Any]]) -> bytes:
    """An Arrow stream of record batches of 3 rows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, READ_SCHEMA) as writer:
        step = 3 if len(records) < 10_000 else 1_000
        for start in range(0, len(records), step):
            writer.write(pa.RecordBatch.from_pylist(records[start : start + step], READ_SCHEMA))
    return sink.getvalue().to_pybytes()


def problem(status: int, code: str, **fields: Any) -> Response:
    body = {"type": f"/problems/{code}", "status": status, "code": code, "detail": code, **fields}
    return JSONResponse(body, status_code=status, media_type="application/problem+json")
