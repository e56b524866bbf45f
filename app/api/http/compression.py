"""Content-Encoding of a request body: gzip and zstd, never decompressed beyond a limit."""

import zlib
from typing import Final

import zstandard

from app.errors import InvalidBody, TooLarge, UnsupportedMediaType

_PIECE_BYTES: Final = 256 * 1024
_GZIP: Final = 16 + zlib.MAX_WBITS
_ZSTD_WINDOW_MAX_BYTES: Final = 8 * 1024 * 1024  # the window that RFC 9659 requires every decoder to accept


def unpack(body: bytes, encoding: bytes | None, limit: int) -> bytes:
    """Return the body without its Content-Encoding; limit: bytes after decompression.

    Raises TooLarge beyond the limit, InvalidBody when it is malformed, UnsupportedMediaType for another
    encoding.
    """
    name = (encoding or b"identity").strip().lower()
    if name == b"identity":
        return body
    if name in (b"gzip", b"x-gzip"):
        return _gunzip(body, limit)
    if name == b"zstd":
        return _unpack_zstd(body, limit)
    raise UnsupportedMediaType(
        f"Content-Encoding must be one of gzip, zstd, identity, got {name.decode('latin-1')!r}"
    )


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"the uncompressed body may have at most {limit} bytes, got more", limit)


def _gunzip(body: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    rest = body
    while True:  # one turn a member: RFC 1952 lets them follow one another
        member = zlib.decompressobj(_GZIP)
        try:
            part = member.decompress(rest, limit - size + 1)
            while part:
                parts.append(part)
                size += len(part)
                if size > limit:
                    raise too_large(limit)
                part = member.decompress(member.unconsumed_tail, limit - size + 1)
        except zlib.error as error:
            raise InvalidBody(f"gzip: {error}") from error
        if not member.eof:
            raise InvalidBody("gzip: the body is truncated")
        rest = member.unused_data
        if not rest:
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _unpack_zstd(body: bytes, limit: int) -> bytes:
    if not body:
        raise InvalidBody("zstd: the body is empty")
    parts: list[bytes] = []
    size = 0
    rest = body
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX_BYTES)
    while rest:
        frame = unpacker.decompressobj()
        try:
            # Decompressed in small pieces, so that a decompression bomb is detected early.
            at = 0
            while at < len(rest) and not frame.eof:
                part = frame.decompress(rest[at : at + 512])
                at += 512
                size += len(part)
                if size > limit:
                    raise too_large(limit)
                parts.append(part)
        except zstandard.ZstdError as error:
            raise InvalidBody(f"zstd: {error}") from error
        if not frame.eof:
            raise InvalidBody("zstd: the body is truncated")
        rest = frame.unused_data + rest[at:]
    return b"".join(parts)
