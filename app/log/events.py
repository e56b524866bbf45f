"""Events of a node's journal: one struct a kind (docs/api.md §2, docs/operations.md §12).

PURE. The journal and the REST contract have an event as `kind`, `term` and the object `data`: `kind` is the
tag of the struct and `data` its fields. A field that is UNSET is absent from `data`.

A reader gets the kinds and fields of other versions unchanged in `data`.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class JournalEvent(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str):
    """Base of all events. Indexes are inclusive, -1 for none; offsets in bytes; times in ms since 1970."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def data(self) -> dict[str, Any]:
        """The fields as JSON values, without the tag."""
        fields: dict[str, Any] = msgspec.to_builtins(self)
        del fields["kind"]
        return fields


class Started(JournalEvent, frozen=True, kw_only=True, tag="start"):
    """The node began to serve its replica."""

    version: str
    """Version of the program."""
    incarnation: int
    """Wall clock at the start, ms."""


class Stopped(JournalEvent, frozen=True, kw_only=True, tag="stop"):
    """Clean stop. A `start` without a `stop` before it follows a crash."""


class RoleChanged(JournalEvent, frozen=True, kw_only=True, tag="role"):
    """The role of the replica, or the leader that it knows, changed."""

    role: str
    """Role of this replica."""
    leader: str | None
    """Leader or master; null while none is known."""


class TermKnown(JournalEvent, frozen=True, kw_only=True, tag="term"):
    """A term or master epoch became known, or its leader."""

    term: int
    """The term or master epoch."""
    leader: str
    """Its leader or master."""


class Watermarks(JournalEvent, frozen=True, kw_only=True, tag="watermarks"):
    """Indexes of the replica, and what each peer has acknowledged (D-22)."""

    role: str
    """Role of this replica."""
    begin_index: int
    """First index of the log."""
    end_index: int
    """Last index of the log."""
    committed_index: int
    """Committed index."""
    peers: dict[str, int]
    """Last acknowledged index of each replica."""


class EpochAdded(JournalEvent, frozen=True, kw_only=True, tag="epoch"):
    """An epoch was added to the epoch file: the epoch object of docs/api.md §2."""

    epoch: int
    """The epoch."""
    term: int
    """Its term."""
    leader: str
    """Its leader or master."""
    start_index: int
    """Its first index."""
    start_offset: int
    """Its first byte."""
    end_index: int | None
    """Null: the epoch is open."""
    end_offset: int | None
    """Null: the epoch is open."""
    started_ms: int
    """Beginning of the epoch, milliseconds since 1970."""


class Truncated(JournalEvent, frozen=True, kw_only=True, tag="truncate"):
    """Records were removed from the end of this copy. With `receipt`, an unclean election lost them."""

    from_index: int
    """First index removed."""
    to_index: int
    """Last index before the removal; below `from_index` when no record was removed."""
    reset: bool = False
    """True: the copy was emptied and continues at another index."""
    refused: bool = False
    """True: nothing was removed, because the records are committed (R-07)."""
    leader: str | UnsetType | None = UNSET
    """Leader or master whose log the copy follows."""
    committed_index: int | UnsetType = UNSET
    """Committed index of this copy before the removal."""
    offset: int | UnsetType = UNSET
    """End of the copy after the removal (controller mode)."""
    epoch: int | UnsetType = UNSET
    """Epoch of the unclean election."""
    reason: str | UnsetType = UNSET
    """`unclean-election`."""
    receipt: str | UnsetType = UNSET
    """File with the removed records, relative to the node's data folder."""


class SyncStateSetPublished(JournalEvent, frozen=True, kw_only=True, tag="sync_state_set"):
    """The SyncStateSet changed (controller mode)."""

    epoch: int
    """Master epoch."""
    set_epoch: int
    """Version of the set."""
    master: str
    """The master."""
    members: list[str]
    """Nodes in the set."""
    confirm_offset: int
    """Byte up to which the log is confirmed."""
    acks: int = 0
    """Members that must hold an append."""


class Election(JournalEvent, frozen=True, kw_only=True, tag="election"):
    """The controllers elected a master or withdrew it."""

    controller_index: int
    """Index of the decision in the log `__controller`: it identifies a repeated event."""
    master: str | None
    """The elected node; null: no replica is eligible."""
    replica_id: int | None
    """Its replica id."""
    master_epoch: int
    """Master epoch."""
    time_ms: int
    """Time of the decision, by the clock of the active controller."""
    set_epoch: int | UnsetType = UNSET
    """Version of the SyncStateSet after the election."""
    reason: str | UnsetType = UNSET
    """Reason for the election."""
    unclean: bool | UnsetType = UNSET
    """True: the master was not a member of the set; confirmed records may be lost."""
    lost: dict[str, Any] | UnsetType | None = UNSET
    """Known extent of the records that an unclean election lost."""
    former_set: list[int] | UnsetType = UNSET
    """Replica ids that may be elected until the master has opened the epoch."""
    former_acks: int | UnsetType = UNSET
    """Members of that set that hold each acknowledged record; 0: all."""
    lease_ms: int | UnsetType = UNSET
    """Duration of a lease in this epoch, ms."""


class GroupKnown(JournalEvent, frozen=True, kw_only=True, tag="membership"):
    """The members of the Raft group changed."""

    voters: list[str]
    """Voting members."""
    learners: list[str]
    """Members without a vote."""
    index: int
    """Index of the record that names the group; -1: the configured group."""


class Corruption(JournalEvent, frozen=True, kw_only=True, tag="corruption"):
    """Damage or a contradicting history was found; rate-limited."""

    reason: str | UnsetType = UNSET
    """Description of the damage."""
    found_by: str | UnsetType = UNSET
    """Finder of the damage, such as `open`, `read`, `scrub`, `verify`, `replication`."""
    file: str | UnsetType = UNSET
    """Damaged file, relative to the folder of the log."""
    offset: int | UnsetType | None = UNSET
    """Byte in the log at which the damage begins; null: not in the log."""
    peer: str | UnsetType = UNSET
    """Peer that sent an implausible term."""
    master: str | UnsetType | None = UNSET
    """Master whose log contradicts this copy."""
    slave: str | UnsetType = UNSET
    """Slave whose log contradicts this copy."""
    first_index: int | UnsetType = UNSET
    """First index of the copy whose earlier state is lost."""
    first_difference: int | UnsetType | None = UNSET
    """First index at which replicas differ."""
    groups: list[list[str]] | UnsetType = UNSET
    """Replicas that hold the same records."""
    damaged: list[str] | UnsetType = UNSET
    """Replicas whose files are damaged."""
    suppressed: int | UnsetType = UNSET
    """Events of this kind that the rate limit dropped before this one."""


class Repair(JournalEvent, frozen=True, kw_only=True, tag="repair"):
    """A repair waits for a peer, or has ended; rate-limited."""

    state: str
    """`waiting` or `healed`."""
    reason: str | UnsetType = UNSET
    """Reason for the wait."""
    stretches: list[dict[str, int]] | UnsetType = UNSET
    """Repaired ranges: `first_index`, `last_index`."""
    batches: int | UnsetType = UNSET
    """Batches fetched from peers."""
    bytes: int | UnsetType = UNSET
    """Bytes fetched from peers."""
    peers: list[str] | UnsetType = UNSET
    """Peers that sent them."""
    small_files: list[str] | UnsetType = UNSET
    """Other files that were replaced."""
    set_aside: bool | UnsetType = UNSET
    """True: the log was quarantined and a new copy was fetched."""
    begin_index: int | UnsetType = UNSET
    """Index at which the log begins since: all peers had trimmed a damaged range before it."""
    suppressed: int | UnsetType = UNSET
    """Events of this kind that the rate limit dropped before this one."""


KINDS: dict[str, type[JournalEvent]] = {
    str(kind.__struct_config__.tag): kind
    for kind in (
        Started,
        Stopped,
        RoleChanged,
        TermKnown,
        Watermarks,
        EpochAdded,
        Truncated,
        SyncStateSetPublished,
        Election,
        GroupKnown,
        Corruption,
        Repair,
    )
}
