"""Cuts a stream of bytes into frames: a length (u32, little-endian) and that many bytes."""

import struct
from typing import Final

from app.node.network import wire

LENGTH: Final = struct.Struct("<I")


class FrameReader:
    """Reads the frames of one connection. Each frame is one piece of memory of its own."""

    __slots__ = ("_limit", "_parts", "_size", "_wanted")

    def __init__(self, limit: int) -> None:
        """limit: the longest frame, bytes."""
        self._limit = limit
        self._parts: list[bytes] = []  # of the frame (with its length) that is not whole yet
        self._size = 0
        self._wanted = LENGTH.size

    def raise_limit(self, limit: int) -> None:
        """Accept longer frames from now on. limit: bytes of one frame."""
        self._limit = limit

    def feed(self, data: bytes) -> list[memoryview]:
        """Return the frames that `data` completes. Raises wire.CorruptFrame for an impossible length."""
        if self._parts:
            self._parts.append(data)
            self._size += len(data)
            if self._size < self._wanted:
                return []
            data = b"".join(self._parts)
            self._parts.clear()
        frames: list[memoryview] = []
        view = memoryview(data)
        start, end = 0, len(data)
        while True:
            self._wanted = LENGTH.size
            if end - start < LENGTH.size:
                break
            (length,) = LENGTH.unpack_from(data, start)
            if not 0 < length <= self._limit:
                raise wire.CorruptFrame(f"a frame of {length} bytes")
            self._wanted = LENGTH.size + length
            if end - start < self._wanted:
                break
            frames.append(view[start + LENGTH.size : start + self._wanted])
            start += self._wanted
        if start < end:
            self._parts.append(data[start:] if start else data)
            self._size = end - start
        return frames
