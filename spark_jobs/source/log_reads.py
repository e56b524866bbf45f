"""Reads of a log from any of its replicas, checked record by record, with the errors of the source.

Calls, retries and the choice of the node are those of the Python client (app/client). Used in Spark's Python
workers, so an object holds only sockets and is created where it is used.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar
from urllib.parse import quote

import pyarrow as pa

from app.client.connection import ClusterConnection, HttpAnswer
from app.client.errors import ClientError, InvalidAnswer, Problem
from app.media_types import ARROW_STREAM, BATCHES, JSON
from app.schemas import LogSchema
from spark_jobs.errors import LogClash, LogTrimmed, RequestRefused, ShortRead, Unreachable
from spark_jobs.source.answers import (
    EventPage,
    LogEnds,
    LogTail,
    Node,
    Place,
    decode_batches,
    decoding,
    ends_of,
    piece_of,
    schema_of,
    source_error,
    tail_of,
)
from spark_jobs.source.planning import check_joined, check_same_log
from storage.format.batch import Batch, follows_chain
from storage.format.records import READ_SCHEMA, HeaderColumns, runs
from storage.units import MIB

READ_WAIT_S = 10.0  # longer than a replica waits for Commitlog-Min-Index
GIVE_UP_S = 60.0
MAX_READ_RECORDS = 100_000
MAX_READ_BYTES = 16 * MIB
MAX_EVENTS = 10_000
OWN_ANSWER = {"Commitlog-No-Forward": "1"}  # a node without a copy of a log would forward the call
ALL_COMMITTED = {"include": "control", "consistency": "committed"}

Result = TypeVar("Result")


class LogReads:
    """One log, read from `endpoints` alone; the first is asked first; on failure the next endpoint is tried.

    give_up_s: time for which a call is retried before it raises Unreachable. connection: to the endpoints,
    of the caller, who closes it. Not safe for use by two threads, which may share a connection.
    """

    def __init__(
        self,
        endpoints: Sequence[str],
        log: str,
        token: str | None = None,
        give_up_s: float = GIVE_UP_S,
        connection: ClusterConnection | None = None,
    ) -> None:
        self.log = log
        self._connection = connection or connect(endpoints, token, give_up_s)

    def close(self) -> None:
        self._connection.close()

    def log_id(self) -> str:
        """Hex id of the log, from the names of its cluster and itself."""
        return str(self._any("")["id"])

    def is_gone(self, log_id: str) -> bool:
        """Return whether every endpoint answers that the log of this name is another one, or that there is
        none: it was deleted, since one of them has reported its id. A 404 of a proxy proves nothing."""
        for endpoint in self._connection.endpoints:
            try:
                if self._json(endpoint, self._path(""))["id"] == log_id:
                    return False
            except ClientError as error:
                if not isinstance(error, Problem) or error.code != "log-not-found":
                    return False
        return True

    def tail(self, *, confirmed: bool) -> LogTail:
        """Return the end of the log. confirmed: retry until its leader confirms; else use what replicas
        know."""
        if confirmed:
            return tail_of(self._any("/tail", consistency="linearizable"), confirmed=True)
        try:
            return self._best_tail()
        except ClientError as error:
            raise source_error(self.log, error) from error

    def _best_tail(self) -> LogTail:
        for failed in self._connection.rounds():
            tails = []
            for consistency in ("linearizable", "committed"):
                for endpoint in self._connection.endpoints:
                    try:
                        answer = self._json(endpoint, self._path("/tail"), consistency=consistency)
                    except ClientError as error:
                        if not error.may_pass:
                            raise
                        failed(endpoint, error)
                        continue
                    if consistency == "linearizable":
                        return tail_of(answer, confirmed=True)
                    tails.append(tail_of(answer, confirmed=False))
            if tails:
                return max(tails, key=lambda tail: tail.next_index)
        raise AssertionError("rounds end by raising")

    def place(self, index: int) -> Place | None:
        """Return the place of a committed record, None if it was trimmed."""
        try:
            records = self._read_one(index)
        except LogTrimmed:
            return None
        term, offset = (records[name][0].as_py() for name in ("term", "offset"))
        return Place(term, offset, records["timestamp"][0].value)

    def stored_batch(self, index: int) -> bytes:
        """Return the stored batch that holds a committed record, as it is in the replicas' files."""
        query = {"from_index": index, "until_index": index + 1, "limit": 1, "max_bytes": 1}
        headers = {"Accept": BATCHES, "Commitlog-Min-Index": str(index)}

        def ask(endpoint: str) -> bytes:
            answer = self._once(endpoint, self._path("/records"), {**query, **ALL_COMMITTED}, headers)
            if not answer.data:
                raise InvalidAnswer(f"{endpoint}: does not hold the batch of index {index} yet")
            return bytes(answer.data)

        return self._first_good(ask, index)

    def read(self, first: int, until: int, log_id: str = "") -> Iterator[pa.Table]:
        """Yield all records of [first, until), control records included, as tables of READ columns, in order.

        They arrive as the replicas store them: both checksums of each batch are verified, and that each
        follows the one before. Control records have record batches of their own. [first, until) must be
        committed somewhere: a replica that lags is waited for, then skipped. log_id: of the log, "" for any;
        while another replica may have it, one that has another log of that name is skipped too. Raises
        LogTrimmed, LogClash, ShortRead, RequestRefused, Unreachable.
        """
        before: Batch | None = None
        while first < until:
            batches = self._stored_batches(first, until, before, log_id)
            columns = HeaderColumns(batches)
            pieces = [piece_of(columns, run, first, until) for run in runs(batches)]
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

    def schemas(self, min_index: int, known: int | None = None) -> list[LogSchema] | None:
        """Return all versions of the log's schema that records up to `min_index` may have, oldest first.

        known: the newest version that the caller has, 0 for none: if it is still the newest one, the result
        is None. A service without schemas has none.
        """
        headers = {"Accept": JSON}
        if min_index >= 0:
            headers["Commitlog-Min-Index"] = str(min_index)
        if known is not None:
            headers["If-None-Match"] = f'"{known}"'

        def ask(endpoint: str) -> list[LogSchema] | None:
            answer = self._once(endpoint, self._path("/schemas"), {"consistency": "committed"}, headers)
            if answer.status == 304:
                return None
            with decoding(endpoint):
                found = json.loads(answer.data)["schemas"]
            return [schema_of(document) for document in found]

        try:
            return self._first_good(ask, min_index)
        except RequestRefused as refused:
            if refused.status != 404 or refused.code != "not-found":
                raise
            return []

    def log_names(self) -> list[str]:
        """Return the logs of the cluster."""
        answer = self._first_good(lambda endpoint: self._json(endpoint, "/v1/logs"))
        return [str(log["name"]) for log in answer["logs"]]

    def ends(self, node_url: str) -> dict[str, LogEnds]:
        """Return the ends of all logs of which one node serves a replica, by one call. Raises Unreachable,
        RequestRefused."""
        try:
            answer = self._json(node_url, "/v1/logs", OWN_ANSWER, ends="true")
            return ends_of(answer)
        except ClientError as error:
            raise source_error(self.log, error, 0, node_url) from error
        except (KeyError, TypeError, ValueError) as error:
            raise Unreachable(f"{node_url}: its answer lacks the ends of the logs ({error!r})") from error

    def ends_of_log(self) -> LogEnds:
        """Return the ends of this log, as any of its replicas knows them; without those of the journal."""
        log_id, tail = self.log_id(), self.tail(confirmed=False)
        return LogEnds(log_id, tail.begin_index, tail.next_index, tail.term, 0)

    def limits(self) -> dict[str, int]:
        """Return the limits of the service (docs/api.md §3)."""
        answer = self._first_good(lambda endpoint: self._json(endpoint, "/v1/cluster"))
        return {str(name): int(value) for name, value in answer["limits"].items()}

    def nodes(self) -> list[Node]:
        """Return the members of the cluster, in its order."""
        return self._first_good(self._nodes)

    def events(self, node: Node, from_seq: int, limit: int = MAX_EVENTS) -> EventPage:
        """Return a page of one node's own journal. Raises JournalTrimmed; Unreachable at once when that
        node has or sends none."""
        return self._of_node(node, lambda: self._events(node, from_seq, limit), from_seq)

    def events_when_up(self, node: Node, from_seq: int) -> EventPage:
        """As `events`, but retries until the node answers, or for `give_up_s`."""
        return self._first_good(lambda _: self._events(node, from_seq, MAX_EVENTS), from_seq)

    def receipt(self, node_id: str, name: str) -> pa.Table:
        """Return the records that an unclean election removed from a node, by its receipt's name. Raises
        RequestRefused, Unreachable."""

        def ask(endpoint: str) -> pa.Table:
            url = next((node.url for node in self._nodes(endpoint) if node.id == node_id), None)
            if url is None:
                raise RequestRefused(404, "not-found", f"the cluster has no node {node_id} any more")
            answer = self._once(url, self._path(f"/receipts/{quote(name, safe='')}"), {}, {})
            with decoding(url):
                return pa.ipc.open_file(answer.data).read_all()

        return self._first_good(ask)

    def committed_index(self, node: Node) -> int:
        """Return the committed index of one node. Raises Unreachable at once when that node does not
        answer."""
        path = self._path("/tail")
        answer = self._of_node(node, lambda: self._json(node.url, path, OWN_ANSWER, consistency="committed"))
        return int(answer["committed_index"])

    def epochs(self, node: Node) -> list[dict[str, Any]]:
        """Return one node's epoch file. Raises Unreachable at once when that node has or sends none."""
        path = self._path("/epochs")
        return list(self._of_node(node, lambda: self._json(node.url, path, OWN_ANSWER))["epochs"])

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
        headers = {"Accept": ARROW_STREAM, "Commitlog-Min-Index": str(index)}

        def ask(endpoint: str) -> pa.Table:
            answer = self._once(endpoint, self._path("/records"), {**query, **ALL_COMMITTED}, headers)
            with decoding(endpoint):
                records = pa.ipc.open_stream(answer.data).read_all()
            if not records.num_rows:
                raise InvalidAnswer(f"{endpoint}: does not hold index {index} yet")
            found = int(records["index"][0].as_py())
            self._check_joined([(found, found + 1)], index)
            return records

        return self._first_good(ask, index)

    def _stored_batches(self, first: int, until: int, before: Batch | None, log_id: str) -> list[Batch]:
        """Return the verified batches of one answer, from the one that holds `first` on, at least one.

        before: the batch that ends before `first`, None if it is unknown. log_id: "" for any.
        """
        limit = min(until - first, MAX_READ_RECORDS)
        query = {"from_index": first, "until_index": until, "limit": limit, "max_bytes": MAX_READ_BYTES}
        headers = {"Accept": BATCHES, "Commitlog-Min-Index": str(until - 1)}

        def ask(endpoint: str) -> list[Batch]:
            answer = self._once(endpoint, self._path("/records"), {**query, **ALL_COMMITTED}, headers)
            with decoding(endpoint):
                batches = decode_batches(answer.data)
            if not batches:
                raise InvalidAnswer(f"{endpoint}: does not hold index {first} yet")
            if log_id:
                self._check_log(f"{batches[0].header.log_id:016x}", log_id)
            self._check_joined([(batch.base_index, batch.next_index) for batch in batches], first)
            for one, following in pairwise([*([before] if before is not None else []), *batches]):
                if not follows_chain(following, one.header.chain):
                    raise LogClash(self.log, f"it has another history from index {following.base_index} on")
            return batches

        return self._first_good(ask, first)

    def _check_log(self, found_id: str, log_id: str) -> None:
        """As `check_same_log`. While a replica may not know yet that the log was deleted, or created again,
        the error is one after which another replica is asked."""
        try:
            check_same_log(self.log, log_id, found_id)
        except LogClash as error:
            if self.is_gone(log_id):
                raise
            raise InvalidAnswer(str(error)) from error

    def _check_joined(self, ranges: Sequence[tuple[int, int]], first: int) -> None:
        """As `check_joined`, as an error after which another replica is asked."""
        try:
            check_joined(self.log, ranges, first)
        except ShortRead as error:
            raise InvalidAnswer(str(error)) from error

    def _nodes(self, endpoint: str) -> list[Node]:
        nodes = self._json(endpoint, "/v1/cluster")["nodes"]
        return [Node(node["id"], node["url"].rstrip("/"), bool(node.get("alive", True))) for node in nodes]

    def _events(self, node: Node, from_seq: int, limit: int) -> EventPage:
        answer = self._json(node.url, self._path("/events"), OWN_ANSWER, from_seq=from_seq, limit=limit)
        return EventPage(answer["events"], int(answer["next_seq"]), bool(answer["has_more"]))

    def _any(self, route: str, **query: Any) -> Any:
        return self._first_good(
            lambda endpoint: self._json(endpoint, self._path(route), **query), query.get("from_index", 0)
        )

    def _first_good(self, ask: Callable[[str], Result], position: int = 0) -> Result:
        """Return the first good answer of any replica. position: index or seq that is asked for, for the
        errors."""
        try:
            return self._connection.first_good(ask)
        except ClientError as error:
            raise source_error(self.log, error, position) from error

    def _of_node(self, node: Node, ask: Callable[[], Result], position: int = 0) -> Result:
        """Return one node's answer to one call."""
        try:
            return ask()
        except ClientError as error:
            raise source_error(self.log, error, position, node.url) from error

    def _path(self, route: str) -> str:
        return f"/v1/logs/{quote(self.log, safe='')}{route}"

    def _json(self, endpoint: str, path: str, headers: Mapping[str, str] | None = None, **query: Any) -> Any:
        answer = self._once(endpoint, path, query, {"Accept": JSON, **(headers or {})})
        with decoding(endpoint):
            return json.loads(answer.data)

    def _once(
        self, endpoint: str, path: str, query: Mapping[str, Any], headers: Mapping[str, str]
    ) -> HttpAnswer:
        return self._connection.once("GET", endpoint, path, query=query, headers=headers, wait_s=READ_WAIT_S)


def connect(endpoints: Sequence[str], token: str | None, give_up_s: float) -> ClusterConnection:
    """Return a connection to these nodes alone, which many `LogReads` may share."""
    return ClusterConnection(endpoints, token=token, give_up_s=give_up_s, learns_nodes=False)
