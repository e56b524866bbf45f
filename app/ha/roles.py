"""Messages from the ReplicasManager to an AutoSwitch core, and its view of the core (C-10). PURE.

All of it goes through the driver, so that the core handles one message at a time:

    driver.deliver(MANAGER, MasterRole(...))             this replica is master by the controller's decision
    driver.deliver(MANAGER, SlaveRole(...))              ... or another one is, or none (yet)
    driver.deliver(MANAGER, SyncStateSetUpdate(...))    the set as the controller has it now
    driver.deliver(MANAGER, Lease(until_ms))             a heartbeat was answered: fencing (A-11)

A message may arrive at any moment, twice, late, or in another order than it was sent. One that is older
than what the core knows changes nothing. The manager reads `HaView` between turns: one moment's values.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from app.log.contract import Role

MANAGER: Final = "@manager"  # the source of these messages; not the name of a connection or node
NO_EPOCH: Final = 0  # before the first election
ADDRESS_MAX_BYTES: Final = 50  # maximum of the handshake


@dataclass(frozen=True, slots=True)
class KnownReplica:
    """A registered replica of the log: one copy on one disk.

    id: what the controller gave this copy permanently (C-03), at least 1. Sets, acks, connections and the
    16-byte handshake name a copy by it: a node whose disk was replaced keeps another copy, with another id.
    node: id of the node that keeps it; a connection that has proved its node must be of this one. address:
    host:port of the node's HA listener, by which the seed's handshake names the copy; at most 50 bytes.
    learner: receives the log, is never in the set, nor master (C-11).
    """

    id: int
    node: str
    address: str
    learner: bool = False


def acks_needed(size: int, acks: int) -> int:
    """Return the number of members of a set of `size` that hold every acknowledged record at least (C-12).

    acks: as the set was recorded with, 0 for all of them.
    """
    return size if acks == 0 else min(acks, size)


@dataclass(frozen=True, slots=True)
class MasterRole:
    """The controller's metadata name this replica as master.

    master_epoch: of its election, at least 1; never given to two elections (C-04).
    sync_state_set, sync_state_set_epoch: as the controller has them, replica ids; this replica is in the set.
    replicas: all that are registered, this one among them. A later MasterRole of the same epoch replaces the
    list; connections of replicas that are not in it are closed.
    unclean_epoch: the newest epoch of this log that an unclean election opened, NO_EPOCH for none. Records
    confirmed before it may be lost. A slave that still holds them writes a loss receipt and truncates them.
    acks: how many members of the set must hold an append, as the controllers have it recorded; 0 for all.

    One incarnation of one process opens a master epoch, once. A core does not become master if it was master
    of `master_epoch` in an earlier incarnation (its vote file records that), if its log has records of that
    epoch or of a newer one, or if it is not `electable` and the election was clean. It then stays a slave
    without a master, and `HaView.needs_election` is true.
    """

    master_epoch: int
    sync_state_set: tuple[int, ...]
    sync_state_set_epoch: int
    replicas: tuple[KnownReplica, ...]
    unclean_epoch: int = NO_EPOCH
    acks: int = 0


@dataclass(frozen=True, slots=True)
class SlaveRole:
    """Another replica is master, or none is (master_id None): then nothing is followed.

    master_id: a replica id. master_epoch: of the newest election, also when its master is gone; NO_EPOCH
    before the first.
    replicas: all that are registered; the master's address is found there. unclean_epoch: see MasterRole.
    sync_state_set: as the controller has it, replica ids, for this replica's status.
    A master that hears this with an epoch at least its own stops being one at once (A-11).
    """

    master_id: int | None
    master_epoch: int
    replicas: tuple[KnownReplica, ...] = ()
    unclean_epoch: int = NO_EPOCH
    sync_state_set: tuple[int, ...] = ()

    def find(self, replica_id: int | None) -> KnownReplica | None:
        return next((each for each in self.replicas if each.id == replica_id), None)


@dataclass(frozen=True, slots=True)
class SyncStateSetUpdate:
    """The set as the controller has committed it: the answer to a request, or learned from its metadata.

    master_epoch: of the master it belongs to; of another epoch than the core's it is ignored. epoch: of the
    set; an older one, or the one that the core has, changes nothing. acks: as in MasterRole.

    A refusal is not sent. A request of the core is based on the set epoch that it knows, so a refused or
    unanswered one may still be in flight, and could be accepted later: the core counts acks by the union of
    everything it ever requested under a set epoch, until a newer set epoch settles it (C-12). Therefore the
    controller accepts a request for the present set, and raises the set epoch for it.
    """

    master_epoch: int
    epoch: int
    members: tuple[int, ...]
    acks: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """Answer to a heartbeat: the controller received it at some moment after this broker sent it.

    until_ms: on the node's monotonic clock, counted from the moment when that heartbeat was *sent*, and
    shorter than the time after which the controller declares a silent broker dead. After it a master
    acknowledges nothing and refuses appends (A-11); a later Lease lets it continue, as nothing was answered
    meanwhile. An earlier until_ms than the one known changes nothing. Without any Lease a master is fenced.
    master_epoch: the epoch that it was granted for, None for any: in a newer one it is invalid, since that
    epoch may not be open by the controllers' metadata yet.
    """

    until_ms: int
    master_epoch: int | None = field(default=None, compare=False)


def nodes_of(replica_ids: Iterable[int], replicas: Iterable[KnownReplica]) -> tuple[str, ...]:
    """Return the nodes that keep the replicas, in the order of the ids. An unregistered id has none."""
    nodes = {replica.id: replica.node for replica in replicas}
    return tuple(nodes[each] for each in replica_ids if each in nodes)


RoleMessage = MasterRole | SlaveRole | SyncStateSetUpdate | Lease


@dataclass(frozen=True, slots=True)
class SetRequest:
    """An AlterSyncStateSet that the master wants, requested with both epochs until it is settled (C-06)."""

    master_epoch: int
    sync_state_set_epoch: int  # the one it rests on
    members: tuple[int, ...]  # replica ids: this one first, the others ascending
    acks: int = 0  # how many of them must hold an append from then on, 0 for all


class HaView(Protocol):
    """View of a core for a ReplicasManager; AutoSwitchCore satisfies it."""

    @property
    def role(self) -> Role:
        """MASTER once its epoch is begun, LEARNER when its replica is one, else SLAVE."""
        ...

    @property
    def epoch(self) -> int:
        """The newest master epoch that this replica knows of; for heartbeats (C-03) use `log_epoch`."""
        ...

    @property
    def log_epoch(self) -> int:
        """The epoch of the record before `max_offset`, NO_EPOCH for none: what elections compare (C-05)."""
        ...

    @property
    def electable(self) -> bool:
        """True if this copy has all that a master needs: the log's state (keys, producers, fence, cursors)
        and every record that was not trimmed. Without it only an unclean election makes it master."""
        ...

    @property
    def has_room(self) -> bool:
        """False while the disk of this copy has no space for clients' records, as far as is known."""
        ...

    @property
    def max_offset(self) -> int:
        """Byte after the last record that is as durable as the log requires; falls by truncation. The record
        that opens an epoch counts once the epoch is open."""
        ...

    @property
    def confirm_offset(self) -> int:
        """Byte after the last confirmed record that this replica holds (C-08, A-10)."""
        ...

    @property
    def set_request(self) -> SetRequest | None:
        """The set that the master wants (C-07, C-08); None when it wants the present one.

        The same value stays until SyncStateSetUpdate has a newer set epoch, or another one is wanted: repeat
        the request (with pauses) meanwhile.
        """
        ...

    @property
    def needs_election(self) -> bool:
        """True if the controller names this replica master of an epoch that it cannot open.

        It had that epoch in an earlier incarnation, or opening it failed. Request an election; any replica of
        the set may win it, including this one.
        """
        ...
