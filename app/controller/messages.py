"""Messages between nodes and controllers, on the connections of the peers (app/node/network/wire.py, tags
30-39).

The log id of the frame is that of `__controller`. `id` is drawn by the sender, the same in every repeat of
one request; an answer contains it. A request may be sent to any controller: one that is not active names the
active one.
"""

import msgspec

from app.controller.commands import AnyCommand, Done, Refusal
from app.controller.liveness import Report


class ControllerMessage(msgspec.Struct, frozen=True, array_like=True, tag_field="kind"):
    """id: of the request."""

    id: int


class CommandRequest(ControllerMessage, frozen=True, array_like=True, tag=30):
    """metadata_index: up to where the node knows the metadata; -1 from one of an earlier version."""

    command: AnyCommand
    metadata_index: int = -1


class CommandAnswer(ControllerMessage, frozen=True, array_like=True, tag=31):
    """Leaves after the events were committed. active: the controller to ask instead, if this one is not
    active."""

    done: Done | None
    refusal: Refusal | None = None
    active: str | None = None


class BrokerHeartbeat(ControllerMessage, frozen=True, array_like=True, tag=32):
    """C-03, for all replicas of a node. metadata_index: up to where it knows the metadata.

    answered: id of the last heartbeat that an active controller has answered, 0 for none: it shows the
    controller whether the node hears it. None: a node of an earlier version, which does not report it.
    """

    metadata_index: int
    reports: tuple[Report, ...]
    answered: int | None = None


class BrokerHeartbeatAnswer(ControllerMessage, frozen=True, array_like=True, tag=33):
    """granted: (log, master epoch) of the logs whose master the node is: a lease from the sending of the
    heartbeat on (A-11). withheld: logs that it is master of and should give up: an election is waiting for
    it. alive: the nodes that were heard lately; only they may join a SyncStateSet. metadata_index: up to
    where the active controller knows the metadata. leases: for each of `granted`, how long the master counts
    its lease, ms; empty from a controller of an earlier version: then `lease_ms` of the node's configuration.
    withheld_epochs: for each of `withheld`, the master epoch that is to be given up; empty from a controller
    of an earlier version.
    """

    active: str | None
    metadata_index: int = -1
    granted: tuple[tuple[str, int], ...] = ()
    withheld: tuple[str, ...] = ()
    alive: tuple[str, ...] = ()
    leases: tuple[int, ...] = ()
    withheld_epochs: tuple[int, ...] = ()


AnyControllerMessage = CommandRequest | CommandAnswer | BrokerHeartbeat | BrokerHeartbeatAnswer
