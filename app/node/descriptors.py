"""File descriptors of the process: connections must leave enough of them for the files of the logs."""

import resource
from typing import Final

DESCRIPTORS_MAX: Final = 1 << 20
_PEER_ROOM_MAX: Final = 256
_HA_ROOM_MAX: Final = 1_024  # each log dials its master
_TLS_ROOM_MAX: Final = 1_024


def descriptors_allowed() -> int:
    """Return how many descriptors the process may open, at most DESCRIPTORS_MAX."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else min(soft, DESCRIPTORS_MAX)


def peer_room_size() -> int:
    """Return how many connections may wait at the peer port without having introduced themselves."""
    return min(_PEER_ROOM_MAX, descriptors_allowed() // 16)


def ha_room_size() -> int:
    """As peer_room_size, at the HA port."""
    return min(_HA_ROOM_MAX, descriptors_allowed() // 8)


def tls_room_size() -> int:
    """Return how many connections of clients may be in a TLS handshake at once."""
    return min(_TLS_ROOM_MAX, descriptors_allowed() // 8)


def logs_allowed() -> int:
    """Return how many logs may be open: each has two files open, two more while it is read, and its syncs
    must find a descriptor."""
    return descriptors_allowed() // 8
