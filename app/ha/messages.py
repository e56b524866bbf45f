"""Messages between an HA core and its connections; the frames themselves: frames.py. PURE.

A connection has a key, which is the `source` of everything received on it and the `target` of everything sent
on it. The core assigns keys to connections that it opens, the transport to incoming ones.

    transport -> core   Opened, incoming frames, Drained, Closed (nothing after it)
    core -> transport   Connect, frames, Disconnect (nothing after it; Closed is answered to neither)

Frames of a connection arrive in the order in which they were sent, or the connection is lost: it is TCP.
"""

from dataclasses import dataclass
from typing import Final

from app.ha.frames import Frame, History

INCOMING: Final = "in-"  # prefix of the keys of incoming connections
OUTGOING: Final = "out-"  # ... and of those that the core opened; not part of any node id


@dataclass(frozen=True, slots=True)
class Opened:
    """The connection is open: requested by the core, or opened by a slave.

    replica: place of the slave among the log's replicas, from 1, if it sent that, else 0. history: what a
    classic slave holds, if it sent that. node: id of the node at the other end if the connection has proved
    it (a cluster secret or a certificate), None if not.
    """

    replica: int = 0
    history: History | None = None
    node: str | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection is closed, or could not be opened."""

    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """Everything was written to the socket: more may be sent."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection to host:port. history: to send in the preface (classic mode).

    node: id of the node that must answer, if connections prove nodes; empty for any node of the cluster.
    """

    address: str
    history: History | None = None
    node: str = ""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection after what was sent. node: at its other end, for the log line; empty: unknown."""

    reason: str
    node: str = ""


ConnectionEvent = Opened | Closed | Drained
ConnectionCommand = Connect | Disconnect
HaMessage = Frame | ConnectionEvent | ConnectionCommand
