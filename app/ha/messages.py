"""What an HA core and its connections say to each other; the frames themselves: frames.py. PURE.

A connection has a key, which is the `source` of everything that it brings and the `target` of everything that
it is sent. The core names those that it opens, the transport those that come in.

    transport -> core   Opened, the frames that came in, Drained, Closed (nothing after it)
    core -> transport   Connect, frames, Disconnect (nothing after it; Closed is answered to neither)

Frames of a connection arrive in the order in which they were sent, or the connection is lost: it is TCP.
"""

from dataclasses import dataclass
from typing import Final

from app.ha.frames import Frame, History

INCOMING: Final = "in-"  # how the keys of connections begin that others opened
OUTGOING: Final = "out-"  # ... and of those that the core opened; node ids have no part in it


@dataclass(frozen=True, slots=True)
class Opened:
    """The connection is there: for the core that asked for it, or because a slave came.

    replica: place of the slave among the log's replicas, from 1, if it said so, else 0. history: what a
    classic slave holds, if it sent that.
    """

    replica: int = 0
    history: History | None = None


@dataclass(frozen=True, slots=True)
class Closed:
    """The connection is gone, or never came about."""

    reason: str


@dataclass(frozen=True, slots=True)
class Drained:
    """Everything that was sent is on its way: there is room for more."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Open a connection to host:port. history: to send in the preface (classic mode)."""

    address: str
    history: History | None = None


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Close the connection after what was sent."""

    reason: str


ConnectionEvent = Opened | Closed | Drained
ConnectionCommand = Connect | Disconnect
HaMessage = Frame | ConnectionEvent | ConnectionCommand
