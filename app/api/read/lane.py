"""Fast lane of long polls: a connection takes them before ASGI, as the lane of appends takes appends.

A reader that waits at the end of a log repeats one request with another `from_index`. FastAPI needs ten
times as long for it as the read itself. The lane takes a poll whose head has nothing special, and
poll_groups.py answers it by the functions of the plain route. Everything else, every refusal at its beginning
included, is left to the plain route: both give the same bytes. A request whose head differs only in the
digits of `from_index` from one that the HTTP parser has accepted needs no parser.
"""

import re
from typing import Final
from urllib.parse import parse_qsl

from pydantic import ValidationError

from app.api.access.caller import TO_READ
from app.api.access.tokens import Tokens
from app.api.http.in_flight_limit import InFlightLimit
from app.api.http.lane_call import (
    KNOWN_HEADS_MAX,
    SPECIAL_HEADERS,
    is_repeatable,
    lane_headers,
    log_of_records,
)
from app.api.http.log_call import Served
from app.api.http.messages import RawHeaders
from app.api.http.negotiation import accepted_type
from app.api.http.query import query_refusal
from app.api.read.page_answer import FORMATS, PAGES
from app.api.read.poll_groups import KnownPoll, LanePoll, PollGroups, PollSource
from app.api.read.query import ReadQuery
from app.api.read.selection import Consistency
from app.errors import CommitlogError
from app.names import SYSTEM
from app.node.broker import Broker

_URL: Final = re.compile(rb"[A-Za-z0-9._/-]+\?[A-Za-z0-9_=&-]+")  # nothing that would have to be decoded
_START: Final = re.compile(rb"(?<=[?&]from_index=)(?:0|[1-9][0-9]{0,17})(?![0-9])")
_DECLINED: Final = SPECIAL_HEADERS | {b"commitlog-min-index", b"commitlog-no-forward"}


class PollLane:
    """The lane of all connections of a node."""

    def __init__(self, broker: Broker, tokens: Tokens, in_flight: InFlightLimit) -> None:
        """in_flight: limit of everything but appends."""
        self._broker = broker
        self._tokens = tokens
        self._in_flight = in_flight
        self._groups = PollGroups(broker, in_flight)
        self._known: dict[tuple[bytes, bytes], KnownPoll] = {}  # by the bytes around from_index

    def known(self, raw: bytes) -> tuple[KnownPoll, int] | None:
        """Return what the lane knows of a whole head, as received, and its from_index."""
        start = _START.search(raw)
        if start is None:
            return None
        known = self._known.get((raw[: start.start()], raw[start.end() :]))
        return None if known is None else (known, int(start[0]))

    def take(
        self, source: PollSource, raw: bytes | None, url: bytes, headers: RawHeaders, *, keep_alive: bool
    ) -> LanePoll | None:
        """Return the poll that the head of a GET begins; None: the plain route answers the request.

        raw: the head as received; None: it is not remembered. headers: with lower-case names.
        """
        start = _START.search(url)
        known = None if start is None else self._read(url, headers)
        if start is None or known is None:
            return None
        poll = self.begin(source, known, int(start[0]), keep_alive=keep_alive)
        if poll is not None and raw is not None and keep_alive and is_repeatable(raw, b"GET"):
            place = _START.search(raw)
            if place is not None and raw.startswith(url, len(b"GET ")):
                if len(self._known) >= KNOWN_HEADS_MAX:
                    self._known.clear()
                self._known[raw[: place.start()], raw[place.end() :]] = known
        return poll

    def _read(self, url: bytes, headers: RawHeaders) -> KnownPoll | None:
        read = lane_headers(headers, _DECLINED)
        if read is None or read.length is not None:
            return None
        raw_path, _, raw_query = url.decode("ascii", "replace").partition("?")
        log = log_of_records(raw_path)
        if not _URL.fullmatch(url) or log is None or log.startswith(SYSTEM) or query_refusal(url) is not None:
            return None
        pairs = parse_qsl(raw_query, keep_blank_values=True)
        try:
            query = ReadQuery.model_validate(dict(pairs))
            query.check_one_start()
            media_type = accepted_type(headers, FORMATS)
        except (CommitlogError, ValidationError):
            return None
        is_poll = query.wait_ms > 0 and query.consistency is not Consistency.LOCAL
        if not is_poll or media_type not in PAGES or len(dict(pairs)) != len(pairs):
            return None
        return KnownPoll(log, raw_path, query, media_type, read.given_id, read.authorization)

    def begin(
        self, source: PollSource, known: KnownPoll, from_index: int, *, keep_alive: bool
    ) -> LanePoll | None:
        """Count a poll with that head as in progress, and return it; None: the plain route answers it."""
        try:
            caller = self._tokens.caller(known.path, known.authorization)
            if caller.grant is not known.permitted:
                caller.require(TO_READ, known.log)
                known.permitted = caller.grant
            hosted = self._broker.lookup.find(known.log)
            driver = hosted.serving
            if driver is None or from_index < driver.log.first_index:
                return None
            self._in_flight.enter(0)
        except CommitlogError:
            return None
        try:
            caller.enter()
        except CommitlogError:
            self._in_flight.leave(0)
            return None
        here, reservation = Served(self._broker, hosted, driver), self._in_flight.reservation()
        return LanePoll(
            self._groups, source, known, from_index, here, caller, reservation, keep_alive=keep_alive
        )
