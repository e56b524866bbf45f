"""Metadata of one log: its settings, its replicas, and its master.

Values only; state_machine.py changes them. A *replica id* identifies one copy of the log on one disk: a node
that returns with an empty disk is another replica, with another id, permanently (C-03). Sets are tuples of
replica ids, ascending.
"""

from collections.abc import Collection, Iterable
from typing import Any, Final

import msgspec

from app.ha.roles import acks_needed

CONTROLLER_LOG: Final = "__controller"  # the log that holds the metadata of all logs
AUDIT_LOG: Final = "__audit"  # the log that holds who administered what
LOG_CREATED: Final = "created"
LOG_DELETING: Final = "deleting"
PRIORITY_MAX: Final = 2**31 - 1  # of a node without a priority, as in RocketMQ


class Replica(msgspec.Struct, frozen=True, array_like=True):
    """One copy of a log. check_code: drawn by its node before it applied for the id, kept beside the copy.

    address: registered by the node, None before that: an id that was only applied for (C-03).
    """

    id: int
    node: str
    check_code: str
    address: str | None = None

    @property
    def registered(self) -> bool:
        return self.address is not None


class Confirmed(msgspec.Struct, frozen=True, array_like=True):
    """The most that a copy has reported as confirmed and held: byte end, exclusive; the epoch it was in."""

    replica_id: int
    offset: int
    epoch: int

    def exceeds(self, other: "Confirmed | None") -> bool:
        """True if this is more than what was known. Heartbeats may arrive late, so less in the same epoch
        changes nothing."""
        return other is None or self.offset > other.offset or self.epoch > other.epoch


class SetBefore(msgspec.Struct, frozen=True, array_like=True):
    """The SyncStateSet before an election: its members, how many of them hold each acknowledged record, 0
    for all; and the newest epoch whose opening each of them held."""

    members: tuple[int, ...]
    acks: int
    opened_epoch: int


class LogSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that a client chooses when it creates a log; replication and durability: as in docs/api.md §2.

    replicas: nodes that keep the log; classic: the first one is the master. learners: those of them that
    neither join the SyncStateSet nor are elected (C-11). min_in_sync_replicas: appends are refused while the
    set is smaller (C-12). in_sync_replicas: number of members of the set, including the master, that must
    hold a record before it is acknowledged; None: all of them. unclean: a replica outside the set may be
    elected when no member of it is alive, with the loss of what it does not have. preferred: elected where
    epoch and offset are equal. priorities: by node, from 0 to PRIORITY_MAX, the lower number wins (RocketMQ:
    brokerElectionPriority); they decide where epoch and offset are equal and no candidate is preferred, a
    node without one comes last.
    """

    replication: str
    replicas: tuple[str, ...]
    durability: str = "fsync"
    retention: dict[str, Any] | None = None
    min_in_sync_replicas: int = 1
    learners: tuple[str, ...] = ()
    unclean: bool = False
    preferred: str | None = None
    priorities: dict[str, int] = {}
    in_sync_replicas: int | None = None

    def names_of_other_settings(self, other: "LogSpec") -> str:
        """Return the names of the settings that differ, separated by commas."""
        names = self.__struct_fields__
        return ", ".join(name for name in names if getattr(self, name) != getattr(other, name))

    def preference(self, node: str) -> tuple[int, int, int]:
        """Return the rank of a replica among equal copies, the smallest wins: preferred, priority, order
        (C-05). A node that is removed from the log comes last."""
        order = self.replicas.index(node) if node in self.replicas else len(self.replicas)
        return (int(node != self.preferred), self.priorities.get(node, PRIORITY_MAX), order)


class Log(msgspec.Struct, frozen=True, kw_only=True):
    """One log's metadata.

    generation: index of the event that created it, -1 of a log of the configuration file: two logs of the
        same name at different times are different logs. version: index of the last event that changed spec
        or state (the ETag). changed_by: the change id that the event carried.
    master, master_epoch, sync_state_set, set_epoch: C-04, C-05; epoch 0: never had a master.
    unclean_epoch: the last epoch that an unclean election opened, or may have opened in metadata that a
        rebuild has lost; 0: none.
    former_set: the set before the last election, while the master has not opened its epoch: until then it is
        granted no lease, so nothing was acknowledged in this epoch, and each of these members holds all that
        ever was. Empty once the epoch is open.
    set_before: the former set once the epoch is open, until the set changes: it counts again if the master
        proves that it has never used a lease in this epoch (masters.py).
    set_acks, former_acks: how many members of sync_state_set and of former_set hold each record that was
        acknowledged, at least; 0: all of them.
    configured: of a log of the configuration file that was changed since: what the file had; None: `spec` is
        what it has.
    lost_history: the controllers were rebuilt from metadata that do not know the last master of this log, or
        none. So the next election needs a report of every node that may hold acknowledged records (C-09).
    never_open: no epoch of this log was ever open, and no lease was granted: each election had a former set.
        False also if that is not known, of metadata of an earlier version or after a rebuild.
    opened_epoch: the newest epoch that is known to be open, 0: none. Every member of the set held the record
        that opened it when it joined.
    confirmed: the most that copies had reported as confirmed when the set was changed or noted last: a copy
        that has less at its next start has lost records, whichever controller is active then (C-03).
    copied: replicas whose folder was a copy when they registered last, without a master that led: they may
        lack what they have acknowledged, and prove nothing until a master lets them join again.
    lease_ms: of the leases that are granted in this epoch, the same whichever controller is active; 0: the
        election of an earlier version, which recorded none.
    leaving: nodes that `spec` no longer names as replicas, or names as learners, and that act as replicas
        until the log can do without them (replica_changes.py). arriving: nodes of `spec` that must be in the
        SyncStateSet before those leave.
    raised_from: the smallest min_in_sync_replicas that the log had before it was raised to the present one,
        or may have had in metadata that a rebuild has lost; 0: never raised. Records that were acknowledged
        then may have no more holders.
    """

    name: str
    log_id: int
    generation: int
    spec: LogSpec
    version: int
    changed_by: str = ""
    state: str = LOG_CREATED
    replicas: tuple[Replica, ...] = ()
    next_replica_id: int = 1
    master: int | None = None
    master_epoch: int = 0
    sync_state_set: tuple[int, ...] = ()
    set_epoch: int = 0
    unclean_epoch: int = 0
    former_set: tuple[int, ...] = ()
    set_before: SetBefore | None = None
    lease_ms: int = 0
    lost_history: bool = False
    never_open: bool = False
    opened_epoch: int = 0
    confirmed: tuple[Confirmed, ...] = ()
    configured: LogSpec | None = None
    set_acks: int = 0
    former_acks: int = 0
    leaving: tuple[str, ...] = ()
    arriving: tuple[str, ...] = ()
    raised_from: int = 0
    copied: tuple[int, ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that keep a copy: those of the settings, then those that have yet to leave."""
        return tuple(dict.fromkeys((*self.spec.replicas, *self.leaving)))

    @property
    def acting_spec(self) -> LogSpec:
        """The settings that the replicas act by. While nodes leave, every member of the set counts: an
        acknowledged record could be on the leaving copies and too few others otherwise (C-12)."""
        return msgspec.structs.replace(self.spec, in_sync_replicas=None) if self.leaving else self.spec

    @property
    def voters(self) -> tuple[str, ...]:
        """The nodes that may be in the SyncStateSet and be elected, in the order of `nodes`."""
        return tuple(node for node in self.nodes if not self.is_learner(node))

    def is_learner(self, node: str) -> bool:
        """Return whether the node's copy receives the log and does not count (C-11)."""
        return node in self.spec.learners and node not in self.leaving

    @property
    def elects(self) -> bool:
        """True if the controller chooses this log's master."""
        return self.spec.replication == "controller" and self.state == LOG_CREATED

    @property
    def is_opening(self) -> bool:
        """True if the master has yet to open its epoch, so that members of the former set may be elected."""
        return bool(self.former_set)

    @property
    def holders(self) -> tuple[int, ...]:
        """The replicas that together hold everything acknowledged: one of them may win a clean election
        (C-05)."""
        return tuple(sorted({*self.sync_state_set, *self.former_set}))

    def can_restore_set(self, alive: Collection[str], *, least: int = 1) -> bool:
        """Return whether so many members of the set before live, at these nodes, that one can be elected
        once it is restored. least: of them, at least."""
        if self.set_before is None:
            return False
        members = self.set_before.members
        living = sum(node in alive for node in self.nodes_of(members))
        return living >= max(least, len(members) - acks_needed(len(members), self.set_before.acks) + 1)

    def opening_held_by(self, replica_id: int) -> int:
        """Return the newest epoch whose opening the copy has held, as a member of a set that counts or may
        count again; 0: none."""
        if replica_id in self.holders:
            return self.opened_epoch
        before = self.set_before
        return before.opened_epoch if before is not None and replica_id in before.members else 0

    def replica(self, replica_id: int) -> Replica | None:
        return next((replica for replica in self.replicas if replica.id == replica_id), None)

    def of_node(self, node: str) -> Replica | None:
        """Return the registered replica that the node has now: the newest of its ids."""
        return next((each for each in reversed(self.replicas) if each.node == node and each.registered), None)

    def confirmed_by(self, replica_id: int) -> Confirmed | None:
        """Return the recorded position of the copy's confirmed records, None for nothing."""
        return next((each for each in self.confirmed if each.replica_id == replica_id), None)

    def current(self, replica_id: int) -> Replica | None:
        """Return the replica if it still exists: registered, and its node has registered no later one."""
        replica = self.replica(replica_id)
        return replica if replica is not None and self.of_node(replica.node) is replica else None

    def is_current(self, replica_id: int) -> bool:
        return self.current(replica_id) is not None

    def originals(self, members: Iterable[int]) -> tuple[int, ...]:
        """Return those of the members that still exist and hold all that they have acknowledged."""
        return tuple(each for each in members if self.is_current(each) and each not in self.copied)

    def copies(self) -> tuple[Replica, ...]:
        """The registered copies of all nodes, learners included, in the order of the settings."""
        found = (self.of_node(node) for node in self.nodes)
        return tuple(replica for replica in found if replica is not None)

    def eligible(self) -> tuple[Replica, ...]:
        """The replicas that may ever be elected or join the set, in the order of the settings."""
        return tuple(replica for replica in self.copies() if not self.is_learner(replica.node))

    def nodes_of(self, replica_ids: tuple[int, ...]) -> tuple[str, ...]:
        """The nodes of the replicas that still exist, in the order of the ids."""
        return tuple(
            replica.node for replica_id in replica_ids if (replica := self.current(replica_id)) is not None
        )

    @property
    def master_node(self) -> str | None:
        replica = None if self.master is None else self.replica(self.master)
        return None if replica is None else replica.node

    @property
    def set_nodes(self) -> tuple[str, ...]:
        """The SyncStateSet as nodes. A member whose disk was lost has no node: it is missing here."""
        return self.nodes_of(self.sync_state_set)
