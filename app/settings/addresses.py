"""Addresses of nodes, as the configuration and the nodes write them: host:port and URLs."""

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

_BASE_URL: Final = re.compile(
    r"https?://([A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?(/[A-Za-z0-9._~-]+)*/?", re.ASCII
)


def base_url(url: str) -> str:
    """Return a base URL without a slash at its end. It becomes a header of answers, so other signs than those
    of a host, a port and a path are refused. Raises ValueError."""
    if len(url) > 255 or _BASE_URL.fullmatch(url) is None:
        raise ValueError(f"must be a base URL such as http://127.0.0.1:8104, got {url!r}")
    return url.rstrip("/")


def is_http_url(url: str) -> bool:
    """Return whether `url` can be called: http or https, a host, and a port up to 65535 if it has one."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:
        return False


def split_address(address: str) -> tuple[str, int]:
    """host:port, [v6]:port -> (host, port). Raises ValueError."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"an address must be host:port with a port up to 65535, got {address!r}")
    return host.strip("[]"), int(port)


def is_loopback(address: str) -> bool:
    """Return True if a listener at `address` (host:port) is reachable from this machine only."""
    host, _ = split_address(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
