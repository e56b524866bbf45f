"""Common part of the calls that a connection takes before ASGI: appends and long polls.

A lane call takes the place of uvicorn's cycle of a request: uvicorn reads `response_complete` and sets
`keep_alive`.
"""

from collections.abc import Set
from typing import Final, NamedTuple

from app.api.access.caller import Caller
from app.api.http.messages import REQUEST_ID, RawHeaders

RECORDS_ROUTE: Final = "/v1/logs/{log}/records"  # of both lanes, as FastAPI and the metrics name it
_BEFORE, _AFTER = RECORDS_ROUTE.split("{log}")
SPECIAL_HEADERS: Final = frozenset(
    (b"expect", b"transfer-encoding", b"upgrade", b"origin")
)  # no lane takes them
KNOWN_HEADS_MAX: Final = 512  # that one lane remembers; beyond it all are forgotten
KNOWN_HEAD_MAX_BYTES: Final = 1024


class LaneCall:
    """caller: has entered. more_body: True until the request is complete. response_complete: the answer was
    handed to the transport."""

    __slots__ = ()
    response_started = False

    caller: Caller
    request_id: bytes
    keep_alive: bool
    more_body: bool
    response_complete: bool


def log_of_records(path: str) -> str | None:
    """Return the log's name in a path of RECORDS_ROUTE, None for any other path."""
    if path.startswith(_BEFORE) and path.endswith(_AFTER):
        name = path[len(_BEFORE) : -len(_AFTER)]
        if name and "/" not in name:
            return name
    return None


class LaneHeaders(NamedTuple):
    """Headers that a lane itself reads. None: absent."""

    length: bytes | None
    given_id: bytes | None
    authorization: bytes | None


def lane_headers(headers: RawHeaders, declined: Set[bytes]) -> LaneHeaders | None:
    """Return the headers that a lane reads; None: it declines the request, because of one in `declined` or of
    a second Authorization. headers: with lower-case names."""
    length = given_id = authorization = None
    for name, value in headers:
        if name == b"content-length":
            length = value
        elif name == REQUEST_ID:
            given_id = value
        elif name == b"authorization":
            if authorization is not None:
                return None
            authorization = value
        elif name in declined:
            return None
    return LaneHeaders(length, given_id, authorization)


def is_repeatable(raw: bytes, method: bytes) -> bool:
    """Return whether any request that begins with these bytes has this head: it begins at the first byte, and
    ends at the first empty line for every parser."""
    return (
        len(raw) <= KNOWN_HEAD_MAX_BYTES
        and raw.startswith(method + b" ")
        and raw.count(b"\n") == raw.count(b"\r\n") == raw.count(b"\r")
    )
