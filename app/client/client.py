"""Client of a log: append exactly once, read, follow. Blocking; one object may be shared by threads."""

import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

from app.arguments import check_instance, check_text, check_whole
from app.client.batches import arrow_stream, check_arrow
from app.client.connection import ANSWER_S, DEFAULT_ENDPOINT, ClusterConnection, HttpAnswer
from app.client.errors import ClientError, NoAnswer, NotFound, OtherLog
from app.client.records import EXACT_NUMBERS, RecordLike, ndjson
from app.extras import naming_the_extra
from app.media_types import ARROW_STREAM, JSON, NDJSON
from app.names import check_idempotency_key, check_log_name
from storage.units import MIB

if TYPE_CHECKING:
    import pyarrow as pa

FOLLOW_WAIT_MS = 10_000
_ARROW_HEADERS = ("Commitlog-Next-Index", "Commitlog-Has-More")
_ENDS = ("until_index", "until_timestamp")
ARROW_PAGE_RECORDS = 100_000
ARROW_PAGE_BYTES = 8 * MIB


@dataclass(frozen=True)
class Appended:
    """A committed append. Indexes are inclusive; `document` is the whole answer."""

    first_index: int
    last_index: int
    count: int
    term: int
    timestamp: int
    leader: str
    replayed: bool
    document: Mapping[str, Any]


@dataclass(frozen=True)
class Page:
    """One answer of a read. next_index: where the next read starts; `document` is the whole answer. log_id:
    None from a node of an earlier version."""

    records: Sequence[Mapping[str, Any]]
    next_index: int
    has_more: bool
    document: Mapping[str, Any]
    log_id: str | None = None


class CommitlogClient:
    """One log of a cluster.

    endpoints: base URLs of some nodes; the others are learned from the first that answers. Appends are sent
    to the leader that the answers name; every call is retried at other nodes for `give_up_s`. An append
    without a key or a producer gets a new idempotency key, so a retry never stores it twice.
    waits_for_start: as of ClusterConnection. Raises ValueError for an endpoint that is not one base URL with
    `http://` or `https://`, and for a name that no log can have.
    """

    def __init__(
        self,
        endpoints: Sequence[str] | str = DEFAULT_ENDPOINT,
        *,
        log: str = "default",
        token: str | None = None,
        give_up_s: float = 30.0,
        waits_for_start: bool = True,
    ) -> None:
        self.connection = ClusterConnection(
            [endpoints] if isinstance(endpoints, str) else endpoints,
            token=token,
            give_up_s=give_up_s,
            waits_for_start=waits_for_start,
        )
        check_log_name(log)
        self.log = log

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a client cannot be pickled, because it has connections: create one in each process")

    def close(self) -> None:
        """Close the connections. A later call makes new ones; calls of other threads end by themselves."""
        self.connection.close()

    @property
    def endpoints(self) -> Sequence[str]:
        return self.connection.endpoints

    # --- appends

    def append(self, records: Iterable[RecordLike], **options: Any) -> Appended:
        """Append `records` as one: all are committed, consecutively, or none.

        options: idempotency_key, acks, timeout_ms, match_index, match_term, fencing_token, and producer_id
        with producer_epoch, producer_sequence and producer_allow_gap, as in the API. Raises ClientError;
        after OutcomeUnknown or NoAnswer with outcome "unknown" the records may be stored.
        """
        return self.append_body(ndjson(records), NDJSON, **options)

    def append_arrow(self, records: "pa.Table | pa.RecordBatch", **options: Any) -> Appended:
        """As `append`, from Arrow: column `value` (binary or string), optional key, timestamp, headers."""
        check_arrow("records", records)
        return self.append_body(arrow_stream(records), ARROW_STREAM, **options)

    def append_body(
        self,
        body: bytes,
        content_type: str,
        *,
        idempotency_key: str | None = None,
        timeout_ms: int = 5_000,
        headers: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Appended:
        """As `append`, from an encoded body. Raises ValueError for a key that no append can have."""
        check_instance("body", body, bytes)
        check_text("content_type", content_type)
        check_whole("timeout_ms", timeout_ms, 1)
        sent = {**(headers or {}), "Content-Type": content_type}
        if idempotency_key is None and options.get("producer_id") is None:
            idempotency_key = str(uuid.uuid4())
        if idempotency_key is not None:
            check_idempotency_key(idempotency_key)
            sent["Idempotency-Key"] = idempotency_key
        query = _parameters(options)
        answer = self.connection.call(
            "POST",
            self._path("/records"),
            query={**query, "timeout_ms": timeout_ms},
            headers=sent,
            body=body,
            to_leader=True,
            wait_s=timeout_ms / 1000,
        )
        document = document_of(answer)
        fields = ("first_index", "last_index", "count", "term", "timestamp", "leader", "replayed")
        try:
            return Appended(**{name: document[name] for name in fields}, document=document)
        except KeyError as error:
            raise NoAnswer(f"the response has no field {error}", sent=True) from error

    # --- reads ---

    def read(
        self, *, endpoint: str | None = None, wait_ms: int = 0, log_id: str | None = None, **query: Any
    ) -> Page:
        """Return one page of records; `query` as in the API: from_index, last, limit, include, ...

        endpoint: ask only this node, once. log_id: as of read_arrow. With encoding="json", a number of
        `value_json` that neither a float nor an int can hold is a decimal.Decimal.
        """
        check_whole("wait_ms", wait_ms, 0)
        query = {**query, "wait_ms": wait_ms}
        try:
            answer = self._answer("/records", endpoint, wait_s=wait_ms / 1000, **query)
        except NotFound as error:
            if log_id is not None and error.status in (410, 416):  # they do not contain the id
                self._check_begin(endpoint, log_id)
            raise
        found = self._checked_id(answer, log_id)
        document = document_of(answer, exact=query.get("encoding") == "json")
        try:
            return Page(document["records"], document["next_index"], document["has_more"], document, found)
        except KeyError as error:
            raise NoAnswer(f"the response has no field {error}", sent=True) from error

    def read_arrow(
        self, from_index: int, *, endpoint: str | None = None, log_id: str | None = None, **query: Any
    ) -> "tuple[pa.Table, int, bool]":
        """Return one page as an Arrow table, the next index, and whether there were more records.

        log_id: of the log that the records must be of, None for any. Raises OtherLog; nodes of earlier
        versions send no id, and pass.
        """
        with naming_the_extra():
            import pyarrow as pa

        check_whole("from_index", from_index, 0)
        query = {"from_index": from_index, **query}
        asked: dict[str, Any] = {
            "query": query,
            "headers": {"Accept": ARROW_STREAM},
            "wait_s": _wait_s(query),
        }
        if endpoint is None:
            answer = self.connection.call("GET", self._path("/records"), **asked)
        else:
            answer = self.connection.once("GET", endpoint, self._path("/records"), **asked)
        self._checked_id(answer, log_id)
        try:
            table = pa.ipc.open_stream(answer.data).read_all()
        except (pa.ArrowException, OSError) as error:  # OSError: it ends within a batch
            raise NoAnswer(f"the response is not a valid Arrow stream ({error})", sent=True) from error
        try:
            next_index, has_more = (answer.headers[name] for name in _ARROW_HEADERS)
            return table, int(next_index), has_more == "true"
        except (KeyError, ValueError) as error:
            raise NoAnswer(f"the response has no valid header ({error})", sent=True) from error

    def arrow_pages(
        self, from_index: int, *, most: int | None = None, **query: Any
    ) -> "Iterator[tuple[pa.Table, int, bool]]":
        """Yield pages as `read_arrow` returns them, at least one, up to the end that the log has then, or
        until they hold `most` records.

        The next page is requested while the caller uses the one before; who stops early waits for it.
        """
        from concurrent.futures import ThreadPoolExecutor  # slow to import

        query = {"limit": ARROW_PAGE_RECORDS, "max_bytes": ARROW_PAGE_BYTES, **query}
        check_whole("limit", query["limit"], 1)
        if most is not None:
            check_whole("most", most, 1)

        def page(index: int, left: int | None) -> "tuple[pa.Table, int, bool]":
            limit = query["limit"] if left is None else min(left, query["limit"])
            return self.read_arrow(index, **{**query, "limit": limit})

        with ThreadPoolExecutor(1) as pool:
            found = page(from_index, most)
            while True:
                table, next_index, has_more = found
                most = None if most is None else most - table.num_rows
                following = pool.submit(page, next_index, most) if has_more and most != 0 else None
                yield found
                if following is None:
                    return
                found = following.result()

    def follow(
        self, from_index: int, *, log_id: str | None = None, **query: Any
    ) -> Iterator[Mapping[str, Any]]:
        """Yield records from `from_index` on, without end, through fail-overs, each as soon as it is
        committed. Raises OtherLog when the log was deleted and created again: since the first page, or since
        the page that had `log_id`. Raises ValueError for an end (`until_index`): arrow_pages and read have
        one."""
        check_whole("from_index", from_index, 0)
        check_endless(query)
        while True:
            page = self.read(from_index=from_index, wait_ms=FOLLOW_WAIT_MS, log_id=log_id, **query)
            yield from page.records
            from_index, log_id = page.next_index, page.log_id or log_id

    def tail(self, *, consistency: str = "linearizable") -> dict[str, Any]:
        """Return the beginning and the end of the log, and its committed index."""
        return self._get("/tail", consistency=consistency)

    # --- schemas ---

    def schema(self, version: int | None = None) -> dict[str, Any]:
        """Return one version of the log's schema with its columns, by default the newest. Raises NotFound."""
        return self._get("/schema" if version is None else f"/schemas/{version}")

    def schemas(self, *, min_index: int | None = None) -> list[dict[str, Any]]:
        """Return all versions of the log's schema, oldest first; [] for a log without one.

        min_index: wait until the answering node holds the log up to this index.
        """
        headers = {} if min_index is None else {"Commitlog-Min-Index": str(min_index)}
        answer = self.connection.call("GET", self._path("/schemas"), headers=headers)
        return list(document_of(answer)["schemas"])

    def put_schema(
        self,
        definition: str | Mapping[str, Any],
        *,
        format: str = "json",
        if_match: int | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Set the next version of the log's schema, and return it. The newest one again changes nothing.

        definition: JSON Schema or Avro schema as an object or text, Spark DDL, or a Protobuf descriptor set
        in base64. if_match: the newest version must be this one; 0: there must be none. fields: message,
        key_columns, compatibility, on_invalid, cluster_by, as in the API. Raises ConditionFailed, and Problem
        with the code `schema-incompatible` and `differences` in its document.
        """
        check_instance("definition", definition, str, Mapping)
        headers = {"Content-Type": JSON}
        if if_match is not None:
            headers |= {"If-Match": f'"{if_match}"'} if if_match else {"If-None-Match": "*"}
        given = {name: value for name, value in fields.items() if value is not None}
        body = json.dumps({"format": format, "definition": definition, **given}).encode()
        path = self._path("/schema")
        return document_of(self.connection.call("PUT", path, headers=headers, body=body, wait_s=10.0))

    # --- views of the nodes ---

    def status(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return a node's view of the log: of `endpoint`, asked once, or of any node."""
        return self._get("/status", endpoint)

    def ha_status(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return a node's view of the transfer between master and slaves."""
        return self._get("/ha-status", endpoint)

    def epochs(self, endpoint: str | None = None) -> list[dict[str, Any]]:
        """Return a node's epoch file."""
        return list(self._get("/epochs", endpoint)["epochs"])

    def watermarks(self, term: int | None = None) -> dict[str, dict[str, int]]:
        """Return the leader's watermarks by term and peer."""
        return self._get("/watermarks", term=term)

    def events(self, endpoint: str | None = None, **query: Any) -> dict[str, Any]:
        """Return a page of a node's journal; `query` as in the API: from_seq, limit, wait_ms."""
        return document_of(self._answer("/events", endpoint, wait_s=_wait_s(query), **query))

    def logs(self) -> list[dict[str, Any]]:
        """Return the logs of the cluster."""
        return list(document_of(self.connection.call("GET", "/v1/logs"))["logs"])

    def cluster(self, endpoint: str | None = None) -> dict[str, Any]:
        """Return nodes and limits."""
        if endpoint is not None:
            return document_of(self.connection.once("GET", endpoint, "/v1/cluster"))
        return document_of(self.connection.call("GET", "/v1/cluster"))

    def _get(self, route: str, endpoint: str | None = None, **query: Any) -> dict[str, Any]:
        return document_of(self._answer(route, endpoint, **query))

    def _answer(
        self, route: str, endpoint: str | None = None, wait_s: float = ANSWER_S, **query: Any
    ) -> HttpAnswer:
        query = _parameters(query)
        if endpoint is not None:
            return self.connection.once("GET", endpoint, self._path(route), query=query, wait_s=wait_s)
        return self.connection.call("GET", self._path(route), query=query, wait_s=wait_s)

    def _checked_id(self, answer: HttpAnswer, log_id: str | None) -> str | None:
        """Return the id of the log that an answer is of. Raises OtherLog."""
        found = answer.headers.get("Commitlog-Log-Id")
        if log_id is not None and found not in (None, log_id):
            raise OtherLog(f"log {self.log!r}: its id is {found}, not {log_id}")
        return found

    def _check_begin(self, endpoint: str | None, log_id: str) -> None:
        """Raise OtherLog if the log has another id: its indexes may begin later, or end earlier."""
        try:
            query: dict[str, Any] = {"from": "earliest", "limit": 1}
            answer = self._answer("/records", endpoint, **query)
        except ClientError:
            return  # the refusal of the read itself is raised
        self._checked_id(answer, log_id)

    def _path(self, route: str) -> str:
        return f"/v1/logs/{quote(self.log, safe='')}{route}"


def check_endless(query: Mapping[str, Any]) -> None:
    """Raise ValueError for an end of records that are followed without one: nothing would be waited for."""
    if given := [name for name in _ENDS if query.get(name) is not None]:
        raise ValueError(f"{given[0]} is not available here: records are followed without an end")


def _wait_s(query: Mapping[str, Any]) -> float:
    """Return the time that the service may take for a query. Raises TypeError and ValueError."""
    wait_ms: int | None = query.get("wait_ms")
    if wait_ms is None:
        return ANSWER_S
    check_whole("wait_ms", wait_ms, 0)
    return max(ANSWER_S, wait_ms / 1000)


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a call. Raises TypeError for the log, which each client has one of."""
    if "log" in given:
        raise TypeError(f"a call has no option log: use CommitlogClient(..., log={given['log']!r})")
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in given.items()
        if value is not None
    }


def document_of(answer: HttpAnswer, *, exact: bool = False) -> dict[str, Any]:
    """Return the document of an answer. exact: it contains numbers of records, which may be of any size."""
    try:
        document = json.loads(answer.data, **(EXACT_NUMBERS if exact else {}))
    except (ValueError, RecursionError) as error:
        raise NoAnswer(f"the response is not valid JSON ({error})", sent=True) from error
    if not isinstance(document, dict):
        raise NoAnswer("the response is not a JSON object", sent=True)
    return document
