"""Request headers that have one value: a request that gives one of them twice is refused.

Of two values a proxy, this node and the node that it forwards to could each use another one.
"""

from typing import Final

from app.api.http.messages import RawHeaders
from app.errors import InvalidRequest

_NAMES: Final = (
    "Authorization",
    "Commitlog-Key",
    "Commitlog-Min-Index",
    "Commitlog-No-Forward",
    "Commitlog-Timestamp",
    "Content-Encoding",
    "Content-Type",
    "Idempotency-Key",
    "If-Match",
    "If-None-Match",
    "Last-Event-ID",
)
_BY_RAW_NAME: Final = {name.lower().encode(): name for name in _NAMES}


def repeated_header(headers: RawHeaders) -> str | None:
    """Return the first single-value header that occurs twice. headers: with lower-case names."""
    seen: set[bytes] = set()
    for name, _ in headers:
        if name in _BY_RAW_NAME:
            if name in seen:
                return _BY_RAW_NAME[name]
            seen.add(name)
    return None


def check_single_headers(headers: RawHeaders) -> None:
    """Raise InvalidRequest for a single-value header that occurs twice."""
    name = repeated_header(headers)
    if name is not None:
        raise InvalidRequest((f"/headers/{name}", "given twice"))
