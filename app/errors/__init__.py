"""Refusals to a caller: one tree, each class one problem of docs/api.md §2 (RFC 9457).

base.py        the base class; ConfigError, and `check`, which raises it
client.py      errors in the request: 4xx
logs.py        creating, changing and deleting logs; elections
operations.py  members, leadership, trims, cursors
schemas.py     schemas, and records that do not match them
service.py     the service's state: 5xx; the outcome may be unknown
tables.py      queries about Delta tables

A class declares its code, title, status, whether a retry may succeed, and the outcome of the append; an
instance adds the detail and its own fields. Broken invariants and wrong configurations are not refusals:
they stop the node.
"""

from collections.abc import Iterator

from app.errors.base import (
    CommitlogError,
    ConfigError,
    Outcome,
    check,
)
from app.errors.client import (
    BadRequest,
    CrossOrigin,
    CursorNotFound,
    EpochNotFound,
    EventsTrimmed,
    Fenced,
    Forbidden,
    HeadTooLarge,
    IdempotencyKeyReused,
    IndexMismatch,
    IndexOutOfRange,
    IndexTrimmed,
    InvalidBody,
    InvalidJson,
    InvalidRequest,
    LogNotFound,
    MethodNotAllowed,
    NotAcceptable,
    NotFound,
    NotLeader,
    ProducerFenced,
    RateLimited,
    RequestOutstanding,
    RequestTimeout,
    SequenceGap,
    TermMismatch,
    TooLarge,
    Unauthenticated,
    UnsupportedMediaType,
)
from app.errors.logs import (
    ConfigChanged,
    LastInSync,
    LogDeleting,
    LogExists,
    NodeAlive,
    NoEligibleReplica,
)
from app.errors.operations import (
    AlreadyLeader,
    ChangeInProgress,
    CursorMoved,
    NotCaughtUp,
    NotMaterialized,
    TransferFailed,
    WouldLoseQuorum,
)
from app.errors.schemas import SchemaChanged, SchemaIncompatible, SchemaMismatch, SchemaNotFound
from app.errors.service import (
    FlushSlaveTimeout,
    Internal,
    LeaderPendingFull,
    LeaderTransferring,
    LogUnsupported,
    NoLeader,
    NotEnoughInSync,
    NotYetReplicated,
    QuorumTimeout,
    ReadIndexUnavailable,
    Repairing,
    StorageFull,
    TermChanged,
)
from app.errors.tables import NoSuchCut, NotYetMaterialized, TableNotFound
from storage.errors import InvariantError  # a broken invariant stops the node

__all__ = [
    "PROBLEMS",
    "AlreadyLeader",
    "BadRequest",
    "ChangeInProgress",
    "CommitlogError",
    "ConfigChanged",
    "ConfigError",
    "CrossOrigin",
    "CursorMoved",
    "CursorNotFound",
    "EpochNotFound",
    "EventsTrimmed",
    "Fenced",
    "FlushSlaveTimeout",
    "Forbidden",
    "HeadTooLarge",
    "IdempotencyKeyReused",
    "IndexMismatch",
    "IndexOutOfRange",
    "IndexTrimmed",
    "Internal",
    "InvalidBody",
    "InvalidJson",
    "InvalidRequest",
    "InvariantError",
    "LastInSync",
    "LeaderPendingFull",
    "LeaderTransferring",
    "LogDeleting",
    "LogExists",
    "LogNotFound",
    "LogUnsupported",
    "MethodNotAllowed",
    "NoEligibleReplica",
    "NoLeader",
    "NoSuchCut",
    "NodeAlive",
    "NotAcceptable",
    "NotCaughtUp",
    "NotEnoughInSync",
    "NotFound",
    "NotLeader",
    "NotMaterialized",
    "NotYetMaterialized",
    "NotYetReplicated",
    "Outcome",
    "ProducerFenced",
    "QuorumTimeout",
    "RateLimited",
    "ReadIndexUnavailable",
    "Repairing",
    "RequestOutstanding",
    "RequestTimeout",
    "SchemaChanged",
    "SchemaIncompatible",
    "SchemaMismatch",
    "SchemaNotFound",
    "SequenceGap",
    "StorageFull",
    "TableNotFound",
    "TermChanged",
    "TermMismatch",
    "TooLarge",
    "TransferFailed",
    "Unauthenticated",
    "UnsupportedMediaType",
    "WouldLoseQuorum",
    "check",
]


def _tree(root: type[CommitlogError]) -> Iterator[type[CommitlogError]]:
    for child in root.__subclasses__():
        yield child
        yield from _tree(child)


PROBLEMS: dict[str, type[CommitlogError]] = {problem.code: problem for problem in _tree(CommitlogError)}
