"""The Python client of commitlog: `from app.client import CommitlogClient`."""

from app.client.client import Appended, CommitlogClient, Page
from app.client.errors import (
    ClientError,
    ConditionFailed,
    InvalidRequest,
    NoAnswer,
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
    "InvalidRequest",
    "NoAnswer",
    "NotFound",
    "OutcomeUnknown",
    "Page",
    "Problem",
    "Record",
    "Unavailable",
    "Untrusted",
    "in_batches",
]
