"""One append request, free of any framework."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from app.api.append.parameters import AppendParameters, parse_append_query
from app.api.http.messages import RawHeaders
from app.api.http.negotiation import accepted_type
from app.errors import CommitlogError, UnsupportedMediaType
from app.log.contract import Acks, AppendStream
from app.media_types import ARROW_STREAM, BATCHES, JSON, NDJSON, OCTETS
from storage.format.records import RecordColumns

MEDIA_TYPES: Final = (JSON, NDJSON, OCTETS, ARROW_STREAM, BATCHES)
_AS_SENT: Final = {media_type.encode(): media_type for media_type in MEDIA_TYPES}
_OF_ONE_APPEND: Final = frozenset(  # headers
    (b"idempotency-key", b"content-encoding", b"commitlog-key", b"commitlog-timestamp")
)

GroupKey = tuple[str, Acks, int]  # log, acks, timeout_ms


class AppendHead:
    """Head of an append. Requests with equal heads may share one: it keeps what it has parsed.

    headers: lower-case names, as ASGI gives them; `fields`: the same by name. carried: encoded for another
    node (carried_head.py), None before that. group: an append may enter the log with others of the same
    group; None: the head is invalid, or something in it applies to this append alone (a key, a condition).
    """

    __slots__ = (
        "_media_type",
        "_parameters",
        "carried",
        "fields",
        "group",
        "headers",
        "log",
        "path",
        "query",
    )

    def __init__(self, log: str, path: str, query: bytes, headers: RawHeaders) -> None:
        self.log = log
        self.path = path
        self.query = query
        self.headers = headers
        self.fields = dict(headers)
        self.carried: bytes | None = None
        self._media_type: str | None = None
        self._parameters: AppendParameters | None = None
        self.group = self._group()

    def _group(self) -> GroupKey | None:
        try:
            self.check_accept()
            parameters = self.parameters
            is_plain = self.media_type in (OCTETS, JSON, NDJSON) and parameters.is_plain
        except CommitlogError:
            return None
        if not is_plain or not _OF_ONE_APPEND.isdisjoint(self.fields):
            return None
        return self.log, parameters.acks, parameters.timeout_ms

    def check_accept(self) -> None:
        """Raise NotAcceptable if the client accepts no JSON, the only format of an answer."""
        accepted_type(self.headers, (JSON,))

    @property
    def media_type(self) -> str:
        """The Content-Type without its parameters. Raises UnsupportedMediaType when it is missing or
        unknown."""
        if self._media_type is None:
            self._media_type = media_type_of(self.fields.get(b"content-type", b""))
        return self._media_type

    @property
    def parameters(self) -> AppendParameters:
        """The parameters of the query. Raises InvalidRequest with all errors."""
        if self._parameters is None:
            self._parameters = parse_append_query(self.query)
        return self._parameters


def media_type_of(given: bytes, known: Sequence[str] = MEDIA_TYPES) -> str:
    """Return a Content-Type without its parameters. given: b"" if it is missing. known: the accepted types.
    Raises UnsupportedMediaType."""
    name = given.partition(b";")[0].strip().lower()
    media_type = _AS_SENT.get(given) or _AS_SENT.get(name)
    if media_type is not None and media_type in known:
        return media_type
    received = f"got {name.decode('latin-1')!r}" if given else "but it is missing"
    raise UnsupportedMediaType(f"Content-Type must be one of {', '.join(known)}, {received}", types=known)


@dataclass(slots=True)
class AppendCall:
    """An append as it arrived, from the lane, the plain route or a stream of appends.

    body: as sent, not yet unpacked. reserved_bytes: reserved in the in-flight limit for it. parameters:
    instead of those in the query. stream: the stream it belongs to. records: decoded already, instead of the
    body. arrived_ms: when it joined a group, monotonic; 0: it has been in none.
    """

    head: AppendHead
    body: bytes
    request_id: bytes
    reserved_bytes: int = 0
    parameters: AppendParameters | None = None
    stream: AppendStream | None = None
    records: RecordColumns | None = None
    arrived_ms: int = 0
