"""Addresses of listeners, as the configuration and the nodes write them: host:port, [v6]:port."""

import ipaddress


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
