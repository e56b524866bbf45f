"""Reads of a log over HTTP from any of its replicas: docs/api.md §5, with retries.

Used by the source in Spark's Python workers, so it holds only sockets and is created where it is used.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import pyarrow as pa
import urllib3

from app.media_types import ARROW_STREAM, BATCHES
from spark_jobs.errors import (
    JournalTrimmed,
    LogClash,
    LogTrimmed,
    NoCopy,
    RequestRefused,
    ShortRead,
    Unreachable,
)
from spark_jobs.source.planning import check_joined
from storage.errors import CorruptBatch
from storage.format.batch import Batch, decode_batch, follows_chain
from storage.format.records import READ_SCHEMA, read_columns

_CONNECT_TIMEOUT_S = 2.0
READ_TIMEOUT_S = 15.0  # longer than a replica waits for Commitlog-Min-Index
GIVE_UP_S = 60.0
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0
MAX_READ_RECORDS = 100_000
MAX_READ_BYTES = 16 * 1024 * 1024
MAX_EVENTS = 10_000
OWN_ANSWER = {"Commitlog-No-Forward": "1"}  # a node without a copy of a log would forward the call
ALL_COMMITTED = {"include": "control", "consistency": "committed"}

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class LogTail:
    """End of a log. next_index: one after the last committed index. confirmed: by its leader, just now;
    otherwise it is the largest that the reachable replicas know, and the log may be longer."""

    begin_index: int
    next_index: int
    confirmed: bool


@dataclass(frozen=True)
class Place:
    """Place of a record: its term, and the byte position of its batch."""

    term: int
    offset: int


@dataclass(frozen=True)
class Node:
    """A member of the cluster, as a replica reports it."""

    id: str
    url: str
    alive: bool


@dataclass(frozen=True)
class EventPage:
    """Events of one node from one seq on. next_seq: where the next read starts."""

    events: Sequence[Mapping[str, Any]]
    next_seq: int
    has_more: bool


@dataclass
class LogClient:
    """One log, read from `endpoints`; the first is asked first; on failure the next endpoint is tried.

    give_up_s: time for which a call is retried before it raises Unreachable. Not safe for use by two threads.
    """

    endpoints: Sequence[str]
    log: str
    token: str | None = None
    give_up_s: float = GIVE_UP_S
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _at: int = field(default=0, init=False)
    _pool: urllib3.PoolManager = field(init=False, repr=False)

    def __post_init__(self) -> None:
        timeout = urllib3.Timeout(connect=_CONNECT_TIMEOUT_S, read=READ_TIMEOUT_S)
        self._pool = urllib3.PoolManager(timeout=timeout, retries=False, num_pools=16)

    def close(self) -> None:
        self._pool.clear()

    def log_id(self) -> str:
        """Hex id of the log, from the names of its cluster and itself."""
        return str(self._any("")["id"])

    def tail(self, *, confirmed: bool) -> LogTail:
        """Return the end of the log. confirmed: retry until its leader confirms; else use what replicas
        know."""
        if confirmed:
            return _tail(self._any("/tail", consistency="linearizable"), confirmed=True)
        for attempt in self._attempts():
            for endpoint in self.endpoints:
                try:
                    answer = self._json(endpoint, self._path("/tail"), consistency="linearizable")
                except Unreachable as error:
                    attempt(error)
                    continue
                return _tail(answer, confirmed=True)
            tails = []
            for endpoint in self.endpoints:
                try:
                    answer = self._json(endpoint, self._path("/tail"), consistency="committed")
                except Unreachable as error:
                    attempt(error)
                    continue
                tails.append(_tail(answer, confirmed=False))
            if tails:
                return max(tails, key=lambda tail: tail.next_index)
        raise AssertionError("attempts end by raising")

    def place(self, index: int) -> Place | None:
        """Return term and byte position of a committed record, None if it was trimmed."""
        try:
            records = self._read_one(index)
        except LogTrimmed:
            return None
        return Place(records["term"][0].as_py(), records["offset"][0].as_py())

    def stored_batch(self, index: int) -> bytes:
        """Return the stored batch that holds a committed record, as it is in the replicas' files."""
        query = {"from_index": index, "until_index": index + 1, "limit": 1, "max_bytes": 1}
        headers = {"Accept": BATCHES, "Commitlog-Min-Index": str(index)}

        def ask(endpoint: str) -> bytes:
            answer = self._request(endpoint, self._path("/records"), {**query, **ALL_COMMITTED}, headers)
            if not answer.data:
                raise Unreachable(f"{endpoint}: does not hold the batch of index {index} yet")
            return bytes(answer.data)

        return self._over_endpoints(ask)

    def first_index_at(self, timestamp_ms: int) -> int:
        """Return an index before which there is no record at or after a time: a replica that lags may
        report an earlier one than the others."""
        answer = self._any(
            "/records", from_timestamp=timestamp_ms, limit=1, include="control", consistency="committed"
        )
        return int(answer["records"][0]["index"] if answer["records"] else answer["next_index"])

    def read(self, first: int, until: int) -> Iterator[pa.Table]:
        """Yield all records of [first, until), control records included, as tables of READ columns, in order.

        They arrive as the replicas store them: both checksums of each batch are verified, and that each
        follows the one before. A record batch of a table is a stored one, complete or in part. [first, until)
        must be committed somewhere: a replica that lags is waited for, then skipped. Raises LogTrimmed,
        LogClash, ShortRead, RequestRefused, Unreachable.
        """
        before: Batch | None = None
        while first < until:
            batches = self._stored_batches(first, until, before)
            pieces = [piece(batch, first, until) for batch in batches]
            before = batches[-1]
            first = min(before.next_index, until)
            yield pa.Table.from_batches(pieces, READ_SCHEMA)

    def table_path(self, table: str) -> str | None:
        """Return the location of one of the log's Delta tables, None when the service does not know it."""
        try:
            return str(self._any(f"/tables/{table}")["path"])
        except RequestRefused as refused:
            if refused.status != 404:
                raise
            return None

    def log_names(self) -> list[str]:
        """Return the logs of the cluster."""
        answer = self._over_endpoints(lambda endpoint: self._json(endpoint, "/v1/logs"))
        return [str(log["name"]) for log in answer["logs"]]

    def limits(self) -> dict[str, int]:
        """Return the limits of the service (docs/api.md §3)."""
        answer = self._over_endpoints(lambda endpoint: self._json(endpoint, "/v1/cluster"))
        return {str(name): int(value) for name, value in answer["limits"].items()}

    def nodes(self) -> list[Node]:
        """Return the members of the cluster, in its order."""
        answer = self._over_endpoints(lambda endpoint: self._json(endpoint, "/v1/cluster"))
        return [
            Node(node["id"], node["url"].rstrip("/"), bool(node.get("alive", True)))
            for node in answer["nodes"]
        ]

    def events(self, node: Node, from_seq: int, limit: int = MAX_EVENTS) -> EventPage:
        """Return a page of one node's own journal. Raises JournalTrimmed; Unreachable at once when that
        node has or sends none."""
        answer = self._json(node.url, self._path("/events"), OWN_ANSWER, from_seq=from_seq, limit=limit)
        return EventPage(answer["events"], int(answer["next_seq"]), bool(answer["has_more"]))

    def events_when_up(self, node: Node, from_seq: int) -> EventPage:
        """As `events`, but retries until the node answers, or for `give_up_s`."""
        return self._over_endpoints(lambda _: self.events(node, from_seq))

    def receipt(self, node_id: str, name: str) -> pa.Table:
        """Return the records that an unclean election removed from a node, by its receipt's name. Raises
        RequestRefused."""

        def ask(_: str) -> pa.Table:
            url = next((node.url for node in self.nodes() if node.id == node_id), None)
            if url is None:
                raise RequestRefused(404, "not-found", f"the cluster has no node {node_id} any more")
            answer = self._request(url, self._path(f"/receipts/{quote(name, safe='')}"), {}, {})
            return pa.ipc.open_file(answer.data).read_all()

        return self._over_endpoints(ask)

    def committed_index(self, node: Node) -> int:
        """Return the committed index of one node. Raises Unreachable at once when that node does not
        answer."""
        answer = self._json(node.url, self._path("/tail"), OWN_ANSWER, consistency="committed")
        return int(answer["committed_index"])

    def epochs(self, node: Node) -> list[dict[str, Any]]:
        """Return one node's epoch file. Raises Unreachable at once when that node has or sends none."""
        return list(self._json(node.url, self._path("/epochs"), OWN_ANSWER)["epochs"])

    def first_data_index(self, first: int, until: int) -> int | None:
        """Return the index of the first data record in [first, until), None if it holds control records
        only."""
        while first < until:
            answer = self._any(
                "/records", from_index=first, until_index=until, limit=1, consistency="linearizable"
            )
            if answer["records"]:
                return int(answer["records"][0]["index"])
            if answer["next_index"] <= first:
                return None
            first = int(answer["next_index"])
        return None

    def _read_one(self, index: int) -> pa.Table:
        """Return one record, without the rest of its batch. Raises as `read`."""
        query = {"from_index": index, "until_index": index + 1, "limit": 1, "max_bytes": 1}

        def ask(endpoint: str) -> pa.Table:
            headers = {"Accept": ARROW_STREAM, "Commitlog-Min-Index": str(index)}
            answer = self._request(endpoint, self._path("/records"), {**query, **ALL_COMMITTED}, headers)
            try:
                records = pa.ipc.open_stream(answer.data).read_all()
            except pa.ArrowException as error:
                raise Unreachable(f"{endpoint}: the answer is cut or broken ({error})") from error
            if not records.num_rows:
                raise Unreachable(f"{endpoint}: does not hold index {index} yet")
            found = int(records["index"][0].as_py())
            check_joined(self.log, [(found, found + 1)], index)
            return records

        return self._over_endpoints(ask)

    def _stored_batches(self, first: int, until: int, before: Batch | None) -> list[Batch]:
        """Return the verified batches of one answer, from the one that holds `first` on, at least one.

        before: the batch that ends before `first`, None if it is unknown.
        """
        limit = min(until - first, MAX_READ_RECORDS)
        query = {"from_index": first, "until_index": until, "limit": limit, "max_bytes": MAX_READ_BYTES}

        def ask(endpoint: str) -> list[Batch]:
            headers = {"Accept": BATCHES, "Commitlog-Min-Index": str(until - 1)}
            answer = self._request(endpoint, self._path("/records"), {**query, **ALL_COMMITTED}, headers)
            try:
                batches = decode_batches(answer.data)
            except CorruptBatch as error:
                raise Unreachable(f"{endpoint}: the answer is cut or broken ({error})") from error
            if not batches:
                raise Unreachable(f"{endpoint}: does not hold index {first} yet")
            check_joined(self.log, [(batch.base_index, batch.next_index) for batch in batches], first)
            for one, following in pairwise([*([before] if before is not None else []), *batches]):
                if not follows_chain(following, one.header.chain):
                    raise LogClash(self.log, f"it has another history from index {following.base_index} on")
            return batches

        return self._over_endpoints(ask)

    def _any(self, route: str, **query: Any) -> Any:
        return self._over_endpoints(lambda endpoint: self._json(endpoint, self._path(route), **query))

    def _over_endpoints(self, ask: Callable[[str], Answer]) -> Answer:
        """Return the first good answer: from the endpoint that answered last, else from the next ones in
        turn.

        Raises LogTrimmed when no other endpoint begins earlier: the slaves of a classic log may.
        """
        for attempt in self._attempts():
            trimmed: list[LogTrimmed] = []
            for _ in self.endpoints:
                try:
                    return ask(self.endpoints[self._at])
                except LogTrimmed as error:
                    trimmed.append(error)
                except (Unreachable, ShortRead) as error:
                    attempt(error)
                self._at = (self._at + 1) % len(self.endpoints)
            if trimmed:
                raise min(trimmed, key=lambda error: error.begin_index)
        raise AssertionError("attempts end by raising")

    def _attempts(self) -> Iterator[Callable[[Unreachable | ShortRead], None]]:
        """Retry over the endpoints with growing pauses; collect their errors, and raise one in the end."""
        give_up_at = self.clock() + self.give_up_s
        pause = FIRST_PAUSE_S
        complaints: list[Unreachable | ShortRead] = []
        while True:
            complaints.clear()
            yield complaints.append
            if self.clock() + pause > give_up_at:
                for complaint in complaints:
                    if isinstance(complaint, ShortRead):
                        raise complaint
                raise Unreachable(
                    f"log {self.log!r}: no replica could answer for {self.give_up_s:.0f} s. Is the cluster "
                    "up, with a "
                    f"majority of its nodes? Last: {'; '.join(str(complaint) for complaint in complaints)}"
                )
            self.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _path(self, route: str) -> str:
        return f"/v1/logs/{quote(self.log, safe='')}{route}"

    def _json(self, endpoint: str, path: str, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        answer = self._request(endpoint, path, query, {"Accept": "application/json", **(headers or {})})
        try:
            return json.loads(answer.data)
        except ValueError as error:
            raise Unreachable(f"{endpoint}: the answer is cut or broken ({error})") from error

    def _request(
        self, endpoint: str, path: str, query: Mapping[str, Any], headers: Mapping[str, str]
    ) -> urllib3.BaseHTTPResponse:
        """Return one complete answer. Raises Unreachable for errors that another replica, or time, may
        fix; else RequestRefused."""
        if self.token is not None:
            headers = {**headers, "Authorization": f"Bearer {self.token}"}
        url = f"{endpoint}{path}" + (f"?{urlencode(query)}" if query else "")
        try:
            answer = self._pool.request("GET", url, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise Unreachable(f"{endpoint}: {error}") from error
        if answer.status == 200:
            return answer
        problem = _problem(answer.data)
        code, detail = str(problem.get("code", "")), str(problem.get("detail", answer.reason))
        if answer.status == 421:
            raise NoCopy(f"{endpoint}: 421 {code} {detail}")
        if answer.status == 429 or answer.status >= 500:
            raise Unreachable(f"{endpoint}: {answer.status} {code} {detail}")
        if answer.status == 410 and code == "events-trimmed":
            raise JournalTrimmed(self.log, endpoint, int(query["from_seq"]), int(problem["first_seq"]))
        if answer.status == 410:
            begin_index = int(problem["begin_index"])
            raise LogTrimmed(self.log, int(query.get("from_index", begin_index - 1)), begin_index)
        if answer.status == 416:
            raise LogClash(
                self.log, f"it ends before index {problem.get('next_index')}, {query['from_index']} was due"
            )
        raise RequestRefused(answer.status, code, detail, problem)


def decode_batches(data: bytes) -> list[Batch]:
    """Yield consecutive stored batches, views of `data`. Raises CorruptBatch."""
    rest, batches = memoryview(data), []
    while rest:
        batches.append(decode_batch(rest))
        rest = rest[batches[-1].size_bytes :]
    return batches


def piece(batch: Batch, first: int, until: int) -> pa.RecordBatch:
    """Return the records of a stored batch within [first, until), columns READ_SCHEMA. Raises
    CorruptBatch."""
    start = max(first, batch.base_index)
    return read_columns(batch).slice(start - batch.base_index, until - start)


def _tail(answer: Mapping[str, Any], *, confirmed: bool) -> LogTail:
    """Return the begin of a log, which is -1 while it is empty; then its next index counts."""
    next_index = int(answer["committed_index"]) + 1
    return LogTail(max(0, int(answer["begin_index"])), next_index, confirmed)


def _problem(data: bytes) -> dict[str, Any]:
    try:
        problem = json.loads(data)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}
