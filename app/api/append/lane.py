"""Fast lane of appends: a connection takes their requests before ASGI, without a task or a future for each.

The lane takes an append whose head has nothing special, and gives it to the same handler as the plain route.
Everything else, every refusal before the body included, is left to the plain route: both give the same bytes.

Most clients repeat one head. The lane remembers heads that the HTTP parser has accepted, byte by byte: a
connection whose next request begins with such a head needs no parser for it.
"""

import re
from functools import lru_cache
from typing import Final

from app.api.access.caller import TO_APPEND, Caller, Grant
from app.api.access.tokens import Tokens
from app.api.append.call import AppendCall, AppendHead
from app.api.append.groups import AppendGroups, AppendSource
from app.api.append.plain_route import late_body
from app.api.http.lane_call import (
    KNOWN_HEADS_MAX,
    SPECIAL_HEADERS,
    LaneCall,
    is_repeatable,
    lane_headers,
    log_of_records,
)
from app.api.http.messages import RawHeaders, Response, new_request_id, valid_id
from app.api.http.query import query_refusal
from app.errors import CommitlogError
from app.names import SYSTEM
from app.settings.model import Limits

_PATH: Final = re.compile(rb"[A-Za-z0-9._/-]+")  # no path that would have to be decoded first
_DIGITS_MAX: Final = 12  # of a Content-Length


@lru_cache(maxsize=1024)  # most clients repeat one URL
def _target_of(url: bytes) -> tuple[str, str, bytes] | None:
    """Return log, path and query of the URL of an append, None for any other URL."""
    path, _, query = url.partition(b"?")
    if not _PATH.fullmatch(path) or b"#" in query or query_refusal(query) is not None:
        return None
    log = log_of_records(path.decode("ascii"))
    return None if log is None or log.startswith(SYSTEM) else (log, path.decode("ascii"), query)


class KnownHead:
    """The part of a head that the lane itself reads. size_bytes: of the body. given_id: a valid request id of
    the client. permitted: the grant that permitted an append with this head last."""

    __slots__ = ("authorization", "given_id", "head", "permitted", "size_bytes")

    def __init__(
        self, head: AppendHead, size_bytes: int, given_id: bytes | None, authorization: bytes | None
    ) -> None:
        self.head = head
        self.size_bytes = size_bytes
        self.given_id = given_id
        self.authorization = authorization
        self.permitted: Grant | None = None


class LaneAppend(AppendCall, LaneCall):
    """One append in the lane. Its answer is written at once."""

    __slots__ = ("caller", "keep_alive", "more_body", "parts", "response_complete", "since_s")

    def __init__(self, known: KnownHead, caller: Caller, *, keep_alive: bool, since_s: float) -> None:
        super().__init__(known.head, b"", known.given_id or new_request_id(), known.size_bytes)
        self.caller = caller
        self.keep_alive = keep_alive
        self.since_s = since_s  # when the head was complete, in the loop's time
        self.more_body = True
        self.response_complete = False
        self.parts: list[bytes] = []


class AppendLane:
    """The lane of all connections of a node."""

    def __init__(self, groups: AppendGroups, tokens: Tokens, limits: Limits, body_timeout_ms: int) -> None:
        self._groups = groups
        self._handler = groups.handler
        self._tokens = tokens
        self._max_bytes = limits.max_request_bytes
        self._body_timeout_ms = body_timeout_ms
        self._known: dict[bytes, KnownHead] = {}

    def known(self, raw: bytes) -> KnownHead | None:
        """Return what the lane knows of a whole head, as received."""
        return self._known.get(raw)

    def take(
        self, raw: bytes | None, url: bytes, headers: RawHeaders, *, keep_alive: bool, now_s: float
    ) -> LaneAppend | None:
        """Return the append that the head of a POST begins; None: the plain route answers the request.

        raw: the head as received; None: it is not remembered. headers: with lower-case names. now_s: the
        loop's time.
        """
        found = self._read(url, headers)
        if found is None:
            return None
        append = self.begin(found, keep_alive=keep_alive, now_s=now_s)
        if append is not None and raw is not None and keep_alive and is_repeatable(raw, b"POST"):
            if len(self._known) >= KNOWN_HEADS_MAX:
                self._known.clear()
            self._known[raw] = found
        return append

    def _read(self, url: bytes, headers: RawHeaders) -> KnownHead | None:
        target = _target_of(url)
        if target is None or (read := lane_headers(headers, SPECIAL_HEADERS)) is None:
            return None
        log, path, query = target
        length = read.length
        if length is None or not length.isdigit() or len(length) > _DIGITS_MAX:
            return None
        size_bytes = int(length)
        if size_bytes > self._max_bytes:
            return None
        head = AppendHead(log, path, query, headers)
        return KnownHead(head, size_bytes, valid_id(read.given_id), read.authorization)

    def begin(self, known: KnownHead, *, keep_alive: bool, now_s: float) -> LaneAppend | None:
        """Count an append with that head as in flight, and return it; None: the plain route refuses it."""
        head, in_flight = known.head, self._handler.in_flight
        try:
            caller = self._tokens.caller(head.path, known.authorization)
            if caller.grant is not known.permitted:
                caller.require(TO_APPEND, head.log)
                known.permitted = caller.grant
            self._handler.check_log(head.log)
            in_flight.enter(known.size_bytes)
        except CommitlogError:
            return None
        try:
            caller.enter()
        except CommitlogError:
            in_flight.leave(known.size_bytes)
            return None
        return LaneAppend(known, caller, keep_alive=keep_alive, since_s=now_s)

    def handle(self, append: LaneAppend, source: AppendSource["LaneAppend"]) -> None:
        """Begin an append whose body has arrived, whole or in parts. The source gets its answer, now or
        later; then the caller leaves."""
        append.more_body = False
        if append.parts:
            append.body = b"".join(append.parts)
            append.parts = []
        self._groups.begin(append, source)

    def abandon(self, append: LaneAppend) -> None:
        """The client has disconnected before the body was complete, or the body is late."""
        append.more_body = False
        append.caller.leave()
        self._handler.in_flight.leave(append.reserved_bytes)

    def late(self, append: LaneAppend, now_s: float) -> Response | None:
        """Return the refusal of an append whose body did not arrive in time, which ends it."""
        if not append.more_body or now_s - append.since_s <= self._body_timeout_ms / 1000:
            return None
        self.abandon(append)
        return self._handler.refusal(late_body(self._body_timeout_ms), append.head.path, append.request_id)
