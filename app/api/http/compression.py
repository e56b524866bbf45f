"""Content-Encoding of a request body: gzip and zstd, never decompressed beyond a limit."""

import zlib
from typing import Final

import zstandard

from app.errors import InvalidBody, TooLarge, UnsupportedMediaType
from storage.units import KIB, MIB

_PIECE_BYTES: Final = 4 * KIB  # a decompressor copies what follows its member or frame
_ZSTD_PIECE_BYTES: Final = 512  # small, so that a decompression bomb is detected early
_PARTS_MAX: Final = 10_000  # members of gzip, frames of zstd: each takes 10 us, empty or not
_KNOWN: Final = ("gzip", "zstd", "identity")
_GZIP: Final = 16 + zlib.MAX_WBITS
_ZSTD_WINDOW_MAX_BYTES: Final = 8 * MIB  # the window that RFC 9659 requires every decoder to accept


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
        f"Content-Encoding must be one of {', '.join(_KNOWN)}, got {name.decode('latin-1')!r}",
        encodings=_KNOWN,
    )


def too_large(limit: int) -> TooLarge:
    return TooLarge(f"the uncompressed body may have at most {limit} bytes, got more", limit)


def _gunzip(body: bytes, limit: int) -> bytes:
    parts: list[bytes] = []
    size = at = 0
    for _ in range(_PARTS_MAX):  # members: RFC 1952 lets them follow one another
        member = zlib.decompressobj(_GZIP)
        while at < len(body) and not member.eof:
            piece = body[at : at + _PIECE_BYTES]
            try:
                part = member.decompress(piece, limit - size + 1)
            except zlib.error as error:
                raise InvalidBody(f"gzip: {error}") from error
            size += len(part)
            if size > limit:
                raise too_large(limit)
            parts.append(part)
            at += len(piece) - len(member.unused_data)
        if not member.eof:
            raise InvalidBody("gzip: the body is truncated")
        if at == len(body):
            return b"".join(parts)
    raise InvalidBody(f"gzip: the body has more than {_PARTS_MAX} members")


def _unpack_zstd(body: bytes, limit: int) -> bytes:
    if not body:
        raise InvalidBody("zstd: the body is empty")
    parts: list[bytes] = []
    size = at = 0
    unpacker = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX_BYTES)
    for _ in range(_PARTS_MAX):
        frame = unpacker.decompressobj()
        try:
            while at < len(body) and not frame.eof:
                piece = body[at : at + _ZSTD_PIECE_BYTES]
                part = frame.decompress(piece)
                size += len(part)
                if size > limit:
                    raise too_large(limit)
                parts.append(part)
                at += len(piece) - len(frame.unused_data)
        except zstandard.ZstdError as error:
            raise InvalidBody(f"zstd: {error}") from error
        if not frame.eof:
            raise InvalidBody("zstd: the body is truncated")
        if at == len(body):
            return b"".join(parts)
    raise InvalidBody(f"zstd: the body has more than {_PARTS_MAX} frames")
