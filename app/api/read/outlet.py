"""Outlet of a response: writes to the client past ASGI, whose layers take longer than the system does.

The connection puts it into the scope; the outermost layer adds its check.
"""

from collections.abc import Callable
from typing import Final

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

Write = Callable[[bytes], bool]

OUTLET: Final = "commitlog.outlet"  # in an ASGI scope: a Write; only with HTTP/1.1


def as_chunk(data: bytes) -> bytes:
    """Return data, not empty, in the chunked transfer coding (RFC 9112, section 7.1)."""
    return b"%x\r\n%b\r\n" % (len(data), data)


def write_chunks(cycle: RequestResponseCycle, chunks: bytes) -> bool:
    """Write whole chunks of a response that has begun, and return True; False, and nothing is written, while
    the client does not read, or after it has disconnected."""
    transport = cycle.transport
    if cycle.flow.write_paused or cycle.disconnected or transport.is_closing():
        return False
    transport.write(chunks)
    return True
