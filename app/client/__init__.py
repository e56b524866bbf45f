"""The Python client of commitlog: `from app.client import CommitlogClient`."""

from app.client.client import Appended, CommitlogClient, Page
from app.client.errors import (
    ClientError,
    ConditionFailed,
    InvalidAnswer,
    InvalidRequest,
    NoAnswer,
    NoReplica,
    NotFound,
    OutcomeUnknown,
    Problem,
    Unavailable,
    Untrusted,
)
from app.client.records import Record, in_batches

__all__ = [
    "Appended",
    "ClientError",
    "CommitlogClient",
    "ConditionFailed",
    "InvalidAnswer",
    "InvalidRequest",
    "NoAnswer",
    "NoReplica",
    "NotFound",
    "OutcomeUnknown",
    "Page",
    "Problem",
    "Record",
    "Unavailable",
    "Untrusted",
    "in_batches",
]
