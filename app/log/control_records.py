"""Control records of a log: one struct a kind (docs/api.md §1).

PURE. The value of a control record is a JSON object. Its field `kind` is the tag of the struct, the others
are the fields of the struct in their order; a field that is UNSET is absent. storage/format/epoch_file.py
reads the kind `term` itself, because it opens an epoch.
"""

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from storage.errors import CorruptBatch


class ControlRecord(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str):
    """Base of all control records. A record contains the outcome of a decision, never its condition."""


class TermRecord(ControlRecord, frozen=True, kw_only=True, tag="term"):
    """Opens a term or master epoch (R-05, A-01)."""

    leader: str
    """Leader or master of the term."""
    voters: tuple[str, ...] | UnsetType = UNSET
    """Voting members, in the first record of a Raft group."""
    learners: tuple[str, ...] | UnsetType = UNSET
    """Members without a vote, in the first record of a Raft group."""
    unclean: bool | UnsetType = UNSET
    """True: the master was elected from outside of the SyncStateSet."""
    sync_slaves: int | UnsetType = UNSET
    """Slaves that hold each synchronous append of the epoch, at least; classic mode."""
    slaves: int | UnsetType = UNSET
    """Slaves of the log at the beginning of the epoch; classic mode."""


class MembershipRecord(ControlRecord, frozen=True, kw_only=True, tag="membership"):
    """Sets the members of the Raft group (R-10)."""

    voters: tuple[str, ...]
    """Voting members."""
    learners: tuple[str, ...]
    """Members without a vote."""
    nodes: dict[str, tuple[str, str]] = {}
    """Base URL and host:port for peers of members that joined at run time."""


class FenceRecord(ControlRecord, frozen=True, kw_only=True, tag="fence"):
    """Sets or removes the fencing token."""

    token: str | None
    """Token that every later append must carry; null: none."""


class CursorRecord(ControlRecord, frozen=True, kw_only=True, tag="cursor"):
    """Moves or deletes a cursor. The index of the record is the revision of the cursor."""

    name: str
    """Name of the cursor."""
    index: int | None
    """Position of the cursor; null: the cursor is deleted."""
    fence: bool
    """True: records from the position on are not trimmed."""
    holder: str | UnsetType = UNSET
    """Name that the reader who moved it gave itself."""


class TrimRecord(ControlRecord, frozen=True, kw_only=True, tag="trim"):
    """Lets every replica remove records from the beginning of the log."""

    until_index: int
    """First index that stays."""


class SchemaRecord(ControlRecord, frozen=True, kw_only=True, tag="schema"):
    """Sets the schema of the records after it. It stays known after a trim."""

    version: int
    """Version of the schema: 1 for the first of a log, then one more for each."""
    format: str
    """`json`, `avro` or `protobuf`."""
    definition: str
    """JSON Schema or Spark DDL; Avro schema as JSON; descriptor set in base64."""
    message: str | None = None
    """Full name of the Protobuf message; null for other formats."""
    key_columns: tuple[str, ...] = ()
    """Columns that identify a row of the table `current`; none: the key of the record."""
    compatibility: str = "backward"
    """`backward`: the version reads what the one before it wrote; `none`: it was not checked."""
    on_invalid: str = "dead_letter"
    """`reject`: appends of records that do not match are refused; `dead_letter`: such records are stored."""
    cluster_by: tuple[str, ...] = ()
    """Columns by which the typed table is clustered."""


AnyControlRecord = TermRecord | MembershipRecord | FenceRecord | CursorRecord | TrimRecord | SchemaRecord
CONTROL_KINDS: dict[str, type[ControlRecord]] = {
    str(kind.__struct_config__.tag): kind for kind in AnyControlRecord.__args__
}


def decode_control(value: dict[str, Any]) -> AnyControlRecord | None:
    """Return the control record with this value; None for a kind of a newer version.

    Raises CorruptBatch for a known kind with missing fields or fields of another type.
    """
    if value.get("kind") not in CONTROL_KINDS:
        return None
    try:
        record: AnyControlRecord = msgspec.convert(value, AnyControlRecord)
    except msgspec.ValidationError as error:
        raise CorruptBatch(f"control record: {error}") from error
    return record
