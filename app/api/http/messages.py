"""Complete answers and request ids, independent of any framework."""

import itertools
import re
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from app.errors import CommitlogError
from app.media_types import JSON, PROBLEM

RawHeaders = Sequence[tuple[bytes, bytes]]

JSON_TYPE: Final = JSON.encode()
PROBLEM_TYPE: Final = PROBLEM.encode()
REQUEST_ID: Final = b"x-request-id"

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_PROBLEM_BEGIN = b'{"type":"/problems/'
_PREFIX = secrets.token_hex(6).encode()
_NUMBERS = itertools.count(1)
_ENCODE = msgspec.json.Encoder().encode


def new_request_id() -> bytes:
    """Return an id that no other request of this process has, and hardly one of another process."""
    return b"%b-%x" % (_PREFIX, next(_NUMBERS))


def valid_id(given: bytes | None) -> bytes | None:
    """Return the client's id if it is 1 to 128 visible ASCII characters, otherwise None."""
    return given if given is not None and _REQUEST_ID.fullmatch(given) else None


def given_or_new_id(given: bytes | None) -> bytes:
    """Return the client's id if it is valid, otherwise a new one."""
    return valid_id(given) or new_request_id()


@dataclass(slots=True)
class Response:
    """A complete answer. `headers` has everything but the Date and Connection of the server."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


@dataclass(slots=True)
class PageResponse:
    """As Response, for a read: the body may be a view of an Arrow buffer."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes | memoryview


def json_response(
    status: int, content: object, headers: Iterable[tuple[bytes, bytes]] = (), media_type: bytes = JSON_TYPE
) -> Response:
    body = _ENCODE(content)
    return Response(
        status,
        [(b"content-type", media_type), (b"content-length", b"%d" % len(body)), *headers],
        body,
    )


def header_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return headers as they are sent."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def is_problem(body: bytes) -> bool:
    """Return whether a body is a problem document as `problem_response` writes it."""
    return body.startswith(_PROBLEM_BEGIN)


def problem_response(
    error: CommitlogError,
    *,
    instance: str,
    request_id: bytes,
    headers: Iterable[tuple[bytes, bytes]] = (),
) -> Response:
    """Return the problem document of `error` (docs/api.md §2), with its headers, each name once."""
    of_error = {name.encode("latin-1"): value.encode("latin-1") for name, value in error.headers()}
    return json_response(
        error.http_status,
        error.problem(instance, request_id.decode("ascii")),
        (of_error | dict(headers) | {REQUEST_ID: request_id}).items(),
        PROBLEM_TYPE,
    )


def as_json(content: object) -> bytes:
    """Return compact JSON."""
    return _ENCODE(content)
