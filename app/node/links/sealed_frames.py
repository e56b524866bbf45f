"""Authenticated frames of one direction of a connection, after its handshake. PURE.

    size(4, little-endian) payload mac(16)      mac: BLAKE2b, keyed, over counter(8) size(4) payload

The counter is the number of frames before this one in this direction; it is not sent. A frame that was
changed, injected, dropped, repeated or moved, or that belongs to another connection or direction, has a wrong
mac. The payloads are a stream of bytes: frames have no relation to the messages in it.

The frames are authenticated, not encrypted: keep the network private, or use TLS.
"""

import hmac
import struct
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from storage.units import KIB

PAYLOAD_MAX_BYTES: Final = 256 * KIB
MAC_BYTES: Final = 16
_SIZE: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<QI")

LinkBuffer = bytes | bytearray | memoryview


class ForgedFrame(Exception):
    """The frame is not the next one that the other side sent: close the connection."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Sealer:
    """Writer of one direction."""

    __slots__ = ("_count", "_key")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0

    def seal(self, buffers: Iterable[LinkBuffer]) -> list[LinkBuffer]:
        """Return the bytes of all buffers as frames, as buffers to be sent one after the other."""
        stream = memoryview(b"".join(buffers))
        sealed: list[LinkBuffer] = []
        for start in range(0, len(stream), PAYLOAD_MAX_BYTES):
            payload = stream[start : start + PAYLOAD_MAX_BYTES]
            sealed += (_SIZE.pack(len(payload)), payload, _mac(self._key, self._count, payload))
            self._count += 1
        return sealed


class Opener:
    """Reader of one direction. It holds at most one frame and the bytes of one feed."""

    __slots__ = ("_count", "_key", "_parts", "_size", "_wanted")

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._count = 0
        self._parts: list[bytes] = []  # of the frame that is not complete
        self._size = 0
        self._wanted = _SIZE.size

    def feed(self, data: bytes) -> bytes:
        """Return the payloads of the frames that `data` completes, joined. Raises ForgedFrame."""
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < self._wanted:
                return b""
            data = b"".join(self._parts)
            self._parts.clear()
        view = memoryview(data)
        payloads: list[memoryview] = []
        start, end = 0, len(data)
        while True:
            self._wanted = _SIZE.size
            if end - start < _SIZE.size:
                break
            (size,) = _SIZE.unpack_from(data, start)
            if not 0 < size <= PAYLOAD_MAX_BYTES:
                raise ForgedFrame(f"a frame of {size} bytes")
            self._wanted = _SIZE.size + size + MAC_BYTES
            if end - start < self._wanted:
                break
            payload = view[start + _SIZE.size : start + _SIZE.size + size]
            start += self._wanted
            if not hmac.compare_digest(
                _mac(self._key, self._count, payload), view[start - MAC_BYTES : start]
            ):
                raise ForgedFrame(f"frame {self._count} has a wrong mac")
            self._count += 1
            payloads.append(payload)
        if start < end:
            self._parts.append(data[start:])
            self._size = end - start
        return b"".join(payloads)


def _mac(key: bytes, count: int, payload: LinkBuffer) -> bytes:
    mac = blake2b(_HEAD.pack(count, len(payload)), digest_size=MAC_BYTES, key=key)
    mac.update(payload)
    return mac.digest()
