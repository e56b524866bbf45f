"""Head of an append on its way to the leader of its log: the part of a client's head that the leader reads.

The token stays at the node that the client called: that node has checked it.
"""

from typing import Final

import msgspec

from app.api.append.call import AppendHead
from app.api.append.parameters import without_timeout
from app.node.network.http_forwarder import NO_FORWARD, PASSED_ON

_HEADERS: Final = PASSED_ON - {b"authorization"}


class CarriedHead(msgspec.Struct, frozen=True, array_like=True):
    """Encoding of CarriedAppend.head. query: without timeout_ms. headers: what the handler reads."""

    log: str
    query: bytes
    headers: tuple[tuple[bytes, bytes], ...]


_ENCODE: Final = msgspec.msgpack.Encoder().encode
decode_head: Final = msgspec.msgpack.Decoder(CarriedHead).decode


def carried_head(head: AppendHead) -> bytes:
    """Return the head of a client's append as the leader gets it; equal heads of clients share the work."""
    if head.carried is None:
        query = b"&".join(without_timeout(head.query))
        headers = [(name, value) for name, value in head.headers if name in _HEADERS]
        head.carried = _ENCODE(CarriedHead(head.log, query, (*headers, (NO_FORWARD, b"1"))))
    return head.carried
