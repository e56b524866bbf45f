"""Requests that a connection refuses: the parser does not accept their bytes, or this node their head."""

from typing import Final

import httptools

from app.api.access.hosts import KnownHosts
from app.api.http.messages import RawHeaders
from app.errors import BadRequest, CommitlogError, CrossOrigin, HeadTooLarge

MAX_HEADERS: Final = 256  # in one request head
TARGET_MAX_BYTES: Final = 65_535  # the parser of targets takes no more
VERSIONS: Final = ("1.1", "1.0")
BODY_HEADERS: Final = (b"content-length", b"transfer-encoding")


def head_too_large(max_bytes: int) -> HeadTooLarge:
    """Return the refusal of a head above a limit. max_bytes: that of its size."""
    return HeadTooLarge(f"a request head may have at most {max_bytes} bytes and {MAX_HEADERS} headers")


def check_target(target: bytes) -> None:
    """Raise HeadTooLarge."""
    if len(target) > TARGET_MAX_BYTES:
        raise HeadTooLarge(f"a request target may have at most {TARGET_MAX_BYTES} bytes")


def check_header(name: bytes, value: bytes, hosts: KnownHosts | None) -> None:
    """Raise BadRequest or CrossOrigin for one header of a head. name: in lower case. hosts: the accepted
    values of Host; None: all."""
    if name == b"transfer-encoding" and value.lower() != b"chunked":
        raise BadRequest("the only transfer coding is chunked; a compressed body has a Content-Encoding")
    if name == b"host" and hosts is not None and not hosts.have(value):
        raise CrossOrigin(
            f"{value[:100].decode('latin-1')} is not a name of this node, which needs no token; use an "
            "address of its [[nodes]] url, or set [security] tokens_file or allow_insecure_rest"
        )


def check_head(headers: RawHeaders, version: str, *, asks_upgrade: bool) -> None:
    """Raise BadRequest for a complete head that the parser accepts. asks_upgrade: it asks for another
    protocol."""
    names = [name for name, _ in headers]
    if asks_upgrade and any(name in BODY_HEADERS for name in names):
        raise BadRequest("a request with a body may not ask for another protocol")
    if version not in VERSIONS:
        raise BadRequest(f"the version of HTTP must be 1.1 or 1.0, got {version}")
    if version == "1.0" and b"transfer-encoding" in names:
        raise BadRequest("HTTP/1.0 has no transfer codings")
    hosts = names.count(b"host")
    if hosts != 1 and (hosts or version != "1.0"):
        raise BadRequest(f"a request needs exactly one Host header, got {hosts}")


def refusal_of(error: httptools.HttpParserError) -> CommitlogError:
    """Return the refusal that a callback of the parser raised, without its traceback.

    The traceback holds the frames that parsed, and with them all received bytes. A frame that names the
    refusal would keep both until the collector runs, hundreds of refused connections later.
    """
    refusal = error.__context__
    if not isinstance(refusal, HeadTooLarge | BadRequest | CrossOrigin):
        if isinstance(error, httptools.HttpParserInvalidMethodError):
            return BadRequest("it does not begin with a method of HTTP")
        if isinstance(error, httptools.HttpParserCallbackError):  # the target could not be split
            return BadRequest("the target of the request must be a path, or a URL with a path")
        return BadRequest(f"this is not HTTP/1.1: {error.args[0]}")
    return refusal.with_traceback(None)
