"""Events: the records of the log `__controller`, one JSON object each, distinguished by `event`.

An event contains its result, not its reason: applying it needs no clock, no randomness and no liveness, so
every controller holds the same metadata (C-01). `time_ms` is the active controller's wall clock, for people.
"""

from typing import Any, Final

import msgspec

from app.controller.metadata import Confirmed, LogSpec

SKIPPED_EPOCHS: Final = 1_000_000  # more than can have been given without a trace


class MetadataEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=str):
    """log: whose metadata it changes."""

    log: str
    time_ms: int = 0


class LogCreated(MetadataEvent, frozen=True, kw_only=True, tag="log-created"):
    """generation: the index of this event, -1 for a log of the configuration file."""

    spec: LogSpec
    log_id: int
    generation: int
    change_id: str = ""


class LogChanged(MetadataEvent, frozen=True, kw_only=True, tag="log-changed"):
    """configured: for a log of the configuration file, the settings in the file; None for other logs.

    leaving, arriving: as in Log. The copies of nodes that the log no longer names are removed with this
    event, and those that become learners leave the SyncStateSet.
    """

    spec: LogSpec
    change_id: str = ""
    configured: LogSpec | None = None
    leaving: tuple[str, ...] = ()
    arriving: tuple[str, ...] = ()


class LogDeletionBegun(MetadataEvent, frozen=True, kw_only=True, tag="log-deleting"):
    """The nodes remove their replicas; appends are refused from now on."""

    change_id: str = ""


class LogDeleted(MetadataEvent, frozen=True, kw_only=True, tag="log-deleted"):
    """The name of the log is free again."""


class ReplicaIdApplied(MetadataEvent, frozen=True, kw_only=True, tag="replica-id-applied"):
    """C-03: the id belongs to the copy with the check code, also if the answer was lost."""

    node: str
    replica_id: int
    check_code: str


class ReplicaRegistered(MetadataEvent, frozen=True, kw_only=True, tag="replica-registered"):
    """The node keeps this copy at this address. Earlier copies of the node leave the SyncStateSet, unless
    it has no other member: what they held is lost, and the set records that. is_copy: its folder is a copy.
    """

    replica_id: int
    address: str
    is_copy: bool = False


class MasterElected(MetadataEvent, frozen=True, kw_only=True, tag="master-elected"):
    """C-05: master, epoch and set change in one event; the set is {master}.

    lost: of an unclean election: what is known of that which the new master does not have.
    former_set: replicas that may be elected while the master has not opened the epoch (metadata.py); empty
    when there are none but the master. former_acks: how many of them hold each acknowledged record, 0 for
    all. lease_ms: of the leases in this epoch.
    """

    master: int
    master_epoch: int
    set_epoch: int
    reason: str
    unclean: bool = False
    lost: dict[str, Any] | None = None
    former_set: tuple[int, ...] = ()
    lease_ms: int = 0
    former_acks: int = 0


class MasterLost(MetadataEvent, frozen=True, kw_only=True, tag="master-lost"):
    """No member of the set lives: no master, until one of them returns (C-05). Epoch and set stay."""

    master_epoch: int


class SyncStateSetChanged(MetadataEvent, frozen=True, kw_only=True, tag="sync-state-set-changed"):
    """C-06: the master of this epoch asked for it, or has opened its epoch: then the set is the same.

    restored: the master never opened its epoch, or never used a lease in it, and the set before its election
    holds again. acks: how many
    members hold each acknowledged record from now on, 0 for all. confirmed: what copies have reported as
    confirmed since it was recorded last; with the set epoch that holds already, nothing else changes.
    """

    master_epoch: int
    sync_state_set: tuple[int, ...]
    set_epoch: int
    restored: bool = False
    acks: int = 0
    confirmed: tuple[Confirmed, ...] = ()


class MetadataRebuilt(MetadataEvent, frozen=True, kw_only=True, tag="metadata-rebuilt"):
    """The controllers had lost their disks, and have a copy of the metadata that may lack what was committed
    last. No log has a master, and the epochs go on beyond those that may have been given (C-04).

    log: of the metadata themselves. doubtful: logs of which a node knows, or may know, a newer master epoch
    or set than the copy: the SyncStateSets here are not the last ones. unnamed: log -> nodes that keep a copy
    of it and that its settings here do not name. They may have been added since, so they are replicas again.
    keeps_former: a log whose last set is known keeps its former set too; False in the event of an earlier
    version.
    """

    skipped_epochs: int = SKIPPED_EPOCHS
    doubtful: tuple[str, ...] = ()
    unnamed: dict[str, tuple[str, ...]] = {}
    keeps_former: bool = False


class ControllersChanged(MetadataEvent, frozen=True, kw_only=True, tag="controllers-changed"):
    """The settings of the controllers that differ from their files from now on (config.py).

    log: of the metadata themselves.
    """

    settings: dict[str, Any]
    change_id: str = ""


AnyEvent = (
    ControllersChanged
    | LogCreated
    | LogChanged
    | LogDeletionBegun
    | LogDeleted
    | ReplicaIdApplied
    | ReplicaRegistered
    | MasterElected
    | MasterLost
    | SyncStateSetChanged
    | MetadataRebuilt
)
_ENCODER = msgspec.json.Encoder()
_DECODER: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)


def encode_event(event: AnyEvent) -> bytes:
    return _ENCODER.encode(event)


def decode_event(data: bytes) -> AnyEvent:
    """Invert encode_event. Raises ValueError for a record that no controller of this version wrote."""
    return _DECODER.decode(data)
