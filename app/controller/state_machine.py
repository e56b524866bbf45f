"""Deterministic state machine of the metadata: applies events in the order of their indexes (C-01).

`apply` is total: an event that does not fit the state (its log is unknown, its epoch is not newer) changes
nothing, whatever wrote it. It is idempotent: an index that was applied is never applied again.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

from app.controller.events import (
    AnyEvent,
    ControllersChanged,
    LogChanged,
    LogCreated,
    LogDeleted,
    LogDeletionBegun,
    MasterElected,
    MasterLost,
    MetadataRebuilt,
    ReplicaIdApplied,
    ReplicaRegistered,
    SyncStateSetChanged,
)
from app.controller.metadata import LOG_CREATED, LOG_DELETING, Confirmed, Log, Replica, SetBefore
from app.ha.roles import acks_needed
from storage.units import NO_INDEX

CHANGES_MAX: Final = 4_096  # changes remembered: a repeat of an older one may have an effect again


class _MetadataSnapshot(msgspec.Struct, array_like=True):
    index: int
    logs: list[Log]
    changes: list[tuple[str, str]] = []
    settings: dict[str, Any] = {}
    settings_version: int = NO_INDEX


class Metadata:
    """All logs that the controllers know, by name, in the order of their creation.

    Invariants: a log's master epoch and set epoch never decrease; replica ids are never assigned twice; the
    master is in the SyncStateSet.
    """

    def __init__(self) -> None:
        self._logs: dict[str, Log] = {}
        self._applied_index = NO_INDEX
        self.settings: dict[str, Any] = {}  # of the controllers, as changed at run time (config.py)
        self.settings_version = NO_INDEX  # index of their last change
        self._changes: dict[tuple[str, str], None] = {}  # (log, change id) carried out, oldest first

    @property
    def applied_index(self) -> int:
        """Index of the last event that was applied, NO_INDEX for none."""
        return self._applied_index

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def log(self, name: str) -> Log | None:
        return self._logs.get(name)

    def was_carried_out(self, log: str, change_id: str) -> bool:
        """Return whether a log of that name was created, changed or deleted by that change."""
        return (log, change_id) in self._changes

    def copy(self) -> "Metadata":
        """Return an independent copy: to try what is not committed yet."""
        other = Metadata()
        other._logs = dict(self._logs)
        other._applied_index = self._applied_index
        other._changes = dict(self._changes)
        other.settings, other.settings_version = self.settings, self.settings_version
        return other

    def apply(self, index: int, event: AnyEvent) -> None:
        """Apply the event at `index`, unless it was applied before."""
        if index <= self._applied_index:
            return
        self._applied_index = index
        if isinstance(event, MetadataRebuilt):
            self._logs = {name: _rebuilt(log, index, event) for name, log in self._logs.items()}
            return
        if isinstance(event, ControllersChanged):
            self.settings, self.settings_version = event.settings, index
            self._remember((event.log, event.change_id))
            return
        log = self._logs.get(event.log)
        if isinstance(event, LogDeletionBegun) or (
            isinstance(event, LogCreated | LogChanged) and event.change_id
        ):
            self._remember((event.log, event.change_id))
        if isinstance(event, LogCreated):
            if log is None:
                self._logs[event.log] = _created(index, event)
        elif log is not None:
            changed = _changed(log, index, event)
            if changed is None:
                del self._logs[event.log]
            else:
                self._logs[event.log] = changed

    def _remember(self, change: tuple[str, str]) -> None:
        self._changes.pop(change, None)
        self._changes[change] = None
        while len(self._changes) > CHANGES_MAX:
            del self._changes[next(iter(self._changes))]

    def snapshot(self) -> bytes:
        """Return everything, as of `applied_index` (C-09)."""
        return msgspec.msgpack.encode(
            _MetadataSnapshot(
                self._applied_index,
                list(self._logs.values()),
                list(self._changes),
                self.settings,
                self.settings_version,
            )
        )

    @classmethod
    def restore(cls, data: bytes) -> "Metadata":
        """Invert snapshot. Raises ValueError."""
        snapshot = msgspec.msgpack.decode(data, type=_MetadataSnapshot)
        metadata = cls()
        metadata._applied_index = snapshot.index
        metadata._logs = {log.name: log for log in snapshot.logs}
        metadata._changes = dict.fromkeys(snapshot.changes)
        metadata.settings, metadata.settings_version = snapshot.settings, snapshot.settings_version
        return metadata


def _created(index: int, event: LogCreated) -> Log:
    return Log(
        name=event.log,
        log_id=event.log_id,
        generation=event.generation,
        spec=event.spec,
        version=index,
        changed_by=event.change_id,
        never_open=True,
    )


def _changed(log: Log, index: int, event: AnyEvent) -> Log | None:
    """Return the log after the event; None if it is deleted."""
    replace = msgspec.structs.replace
    match event:
        case LogChanged() if log.state == LOG_CREATED:
            changed = replace(
                log,
                spec=event.spec,
                configured=event.configured,
                leaving=event.leaving,
                arriving=event.arriving,
                raised_from=_raised_from(log, event),
            )
            version = log.version if changed == log else index
            return _without_gone(replace(changed, version=version, changed_by=event.change_id))
        case LogDeletionBegun():
            return replace(log, state=LOG_DELETING, version=index, master=None)
        case LogDeleted() if log.state == LOG_DELETING:
            return None
        case ReplicaIdApplied() if event.replica_id >= log.next_replica_id:
            others = tuple(each for each in log.replicas if each.node != event.node or each.registered)
            replica = Replica(event.replica_id, event.node, event.check_code)
            return replace(log, replicas=(*others, replica), next_replica_id=event.replica_id + 1)
        case ReplicaRegistered():
            return _registered(log, event)
        case MasterElected() if event.master_epoch > log.master_epoch and event.set_epoch > log.set_epoch:
            return _with_master(log, event)
        case MasterLost() if event.master_epoch == log.master_epoch:
            return replace(log, master=None)
        case SyncStateSetChanged() if _only_records(log, event):
            return replace(log, confirmed=_with_confirmed(log, event.confirmed))
        case SyncStateSetChanged() if _may_change_set(log, event):
            return _with_set(log, event)
    return log


def _raised_from(log: Log, event: LogChanged) -> int:
    """Return the smallest min_in_sync_replicas that the log had; 0 if that is the new one."""
    least = log.raised_from or log.spec.min_in_sync_replicas
    return least if least < event.spec.min_in_sync_replicas else 0


def _with_master(log: Log, event: MasterElected) -> Log:
    """Return the log under its new master, who begins with a SyncStateSet of itself."""
    return msgspec.structs.replace(
        log,
        master=event.master,
        master_epoch=event.master_epoch,
        sync_state_set=(event.master,),
        set_epoch=event.set_epoch,
        unclean_epoch=event.master_epoch if event.unclean else log.unclean_epoch,
        former_set=event.former_set,
        set_before=None,
        lease_ms=event.lease_ms,
        set_acks=0,
        former_acks=event.former_acks,
        lost_history=False,
        never_open=log.never_open and bool(event.former_set),
        copied=log.copied if event.former_set else (),
    )


def _with_set(log: Log, event: SyncStateSetChanged) -> Log:
    """Return the log with the new SyncStateSet. The previous set ends unless the event restores it, and is
    remembered until the first set that the master asks for. At the first opening of all every copy held all
    that was ever acknowledged: nothing. A master that opens its epoch holds everything, and lets only those
    join that do so, too: they are no older copies any more."""
    opened_epoch, before = event.master_epoch, None
    if event.restored:
        opened_epoch = log.set_before.opened_epoch if log.set_before else log.opened_epoch
    elif log.is_opening and event.sync_state_set == log.sync_state_set:
        everybody = {each.id for each in log.eligible()} if log.never_open else set()
        members = tuple(sorted({*log.former_set, *everybody}))
        before = SetBefore(members, log.former_acks, log.opened_epoch)
    return msgspec.structs.replace(
        log,
        sync_state_set=event.sync_state_set,
        set_epoch=event.set_epoch,
        set_acks=event.acks,
        former_set=log.former_set if event.restored else (),
        former_acks=log.former_acks if event.restored else 0,
        set_before=before,
        never_open=log.never_open and event.restored,
        opened_epoch=opened_epoch,
        confirmed=_with_confirmed(log, event.confirmed),
        copied=tuple(each for each in log.copied if event.restored or each not in event.sync_state_set),
    )


def _without_gone(log: Log) -> Log:
    """Return the log after a change of its nodes: no copy of a node that it does not name, no learner in the
    set.

    The set may be empty then (a change by force): only an unclean election brings another master. A set whose
    appends need only some members keeps them: a record may be on them and on fewer others than its acks
    require, until the master has requested a set without them.
    """
    replicas = tuple(each for each in log.replicas if each.node in log.nodes)
    voting = {each.id for each in replicas if not log.is_learner(each.node)}
    members, former = log.sync_state_set, log.former_set
    if acks_needed(len(members), log.set_acks) == len(members):
        members = tuple(member for member in members if member in voting)
    if acks_needed(len(former), log.former_acks) == len(former):
        former = tuple(member for member in former if member in voting)
    if log.set_before is not None and not voting.issuperset(log.set_before.members):
        log = msgspec.structs.replace(log, set_before=None)
    if (replicas, members, former) == (log.replicas, log.sync_state_set, log.former_set):
        return log
    master = log.master if log.master in voting else None
    return msgspec.structs.replace(
        log,
        replicas=replicas,
        master=master,
        sync_state_set=members,
        former_set=former,
        never_open=log.never_open and (bool(former) or master is None),  # else it gets a lease now
        set_before=None,
        set_epoch=log.set_epoch + 1,
    )


def _rebuilt(log: Log, index: int, event: MetadataRebuilt) -> Log:
    """Return the log without a master.

    If its last SyncStateSet is unknown, a member of the one here may lack acknowledged records, and one of
    the elections that are lost may have been unclean. If it is known, the members of the former set may still
    be elected: the master has not opened its epoch, for which its node needs an event that no copy has. A
    change that is lost may have lowered min_in_sync_replicas down to 1.
    """
    is_lost = log.master_epoch == 0 or log.name in event.doubtful
    keeps_former = event.keeps_former and not is_lost
    master_epoch = log.master_epoch + event.skipped_epochs
    unnamed = event.unnamed.get(log.name, ())
    if unnamed:
        spec = msgspec.structs.replace(log.spec, replicas=(*log.spec.replicas, *unnamed))
        configured = (log.configured or log.spec) if log.generation < 0 else None
        log = msgspec.structs.replace(log, spec=spec, configured=configured, version=index)
    return msgspec.structs.replace(
        log,
        master=None,
        lost_history=log.lost_history or is_lost,
        unclean_epoch=master_epoch - 1 if is_lost else log.unclean_epoch,
        master_epoch=master_epoch,
        set_epoch=log.set_epoch + event.skipped_epochs,
        former_set=log.former_set if keeps_former else (),
        former_acks=log.former_acks if keeps_former else 0,
        set_before=None,
        never_open=False,
        raised_from=1 if log.spec.min_in_sync_replicas > 1 else 0,
    )


def _with_confirmed(log: Log, reported: tuple[Confirmed, ...]) -> tuple[Confirmed, ...]:
    """Return the recorded positions of the copies that are still known."""
    found = {each.replica_id: each for each in (*log.confirmed, *reported)}
    return tuple(each for replica_id, each in sorted(found.items()) if log.replica(replica_id) is not None)


def _only_records(log: Log, event: SyncStateSetChanged) -> bool:
    """Return whether the set stays as it is, and the event comes with what copies have confirmed."""
    return (event.master_epoch, event.set_epoch) == (log.master_epoch, log.set_epoch)


def _may_change_set(log: Log, event: SyncStateSetChanged) -> bool:
    return (
        event.master_epoch == log.master_epoch
        and event.set_epoch > log.set_epoch
        and (event.restored if log.master is None else log.master in event.sync_state_set)
    )


def _registered(log: Log, event: ReplicaRegistered) -> Log:
    """Record the replica's address; older copies of its node are removed (C-03). In the SyncStateSet they
    stay until its master has requested one without them: an election has to count them as not heard. Without
    the last SyncStateSet they stay known: an election must not take the new copy for them.

    A copied folder may lack what it held when the master requested a set: the set epoch ends such requests.
    """
    replica = log.replica(event.replica_id)
    if replica is None:
        return log
    registered = msgspec.structs.replace(replica, address=event.address)
    gone = [each.id for each in log.replicas if each.node == replica.node and each.id < replica.id]
    replicas = tuple(
        registered if each is replica else each
        for each in log.replicas
        if each.id not in gone or each.id in log.sync_state_set or log.lost_history
    )
    noted = (*log.copied, replica.id) if event.is_copy else log.copied
    copied = tuple(each.id for each in replicas if each.id in noted)
    return msgspec.structs.replace(
        log,
        replicas=replicas,
        copied=copied,
        master=None if log.master in gone else log.master,
        set_epoch=log.set_epoch + (event.is_copy or bool(gone)),
    )
