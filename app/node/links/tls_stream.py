"""TLS over the bytes of one connection, without a socket of its own.

The loop's own TLS counts a connection only after its handshake; a link must bound it before. Both sides hand
in what arrived and send what is pending, so one class serves either side and any event loop.
"""

import ssl
from collections.abc import Iterable
from typing import Any, Final

from app.node.links.sealed_frames import LinkBuffer
from storage.units import KIB

PIECE_MAX_BYTES: Final = 256 * KIB
_READ_BYTES: Final = 64 * KIB


class TlsStream:
    """One side of a TLS connection. After every call, `pending` returns the bytes to send."""

    def __init__(self, context: ssl.SSLContext, *, accepts: bool) -> None:
        self._arrived = ssl.MemoryBIO()
        self._leaving = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving, server_side=accepts)
        self.is_open = False  # the handshake has ended; the other side's certificate is verified

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the other side; return what they decrypt to. Raises ssl.SSLError.

        Without bytes it begins the handshake.
        """
        self._arrived.write(data)
        plain: list[bytes] = []
        try:
            if not self.is_open:
                self._tls.do_handshake()
                self.is_open = True
            while piece := self._tls.read(_READ_BYTES):
                plain.append(piece)
        except ssl.SSLWantReadError:
            pass
        return b"".join(plain)

    def pending(self) -> bytes:
        """Return the bytes that must be sent, an alert after an error included."""
        return self._leaving.read()

    def seal(self, buffers: Iterable[LinkBuffer]) -> list[LinkBuffer]:
        """Return the bytes of all buffers, encrypted. Raises ssl.SSLError."""
        stream = memoryview(b"".join(buffers))
        sealed: list[LinkBuffer] = []
        while stream:
            stream = stream[self._tls.write(stream[:PIECE_MAX_BYTES]) :]
            sealed.append(self._leaving.read())
        return sealed

    @property
    def names(self) -> frozenset[str]:
        """DNS names and IP addresses of the other side's certificate."""
        certificate: dict[str, Any] = self._tls.getpeercert() or {}
        entries = certificate.get("subjectAltName", ())
        return frozenset(name for kind, name in entries if kind in ("DNS", "IP Address"))
