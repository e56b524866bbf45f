"""The Python client of commitlog: `from app.client import CommitlogClient`."""

from app.client.asynchronous import AsyncCommitlogClient, AsyncConsumer, AsyncProducer
from app.client.client import Appended, CommitlogClient, Page
from app.client.consumer import Consumer
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
    ProducerFailed,
    Unavailable,
    Untrusted,
)
from app.client.producer import RecordDelivery, RecordProducer
from app.client.records import Record, in_batches

__all__ = [
    "Appended",
    "AsyncCommitlogClient",
    "AsyncConsumer",
    "AsyncProducer",
    "ClientError",
    "CommitlogClient",
    "ConditionFailed",
    "Consumer",
    "InvalidAnswer",
    "InvalidRequest",
    "NoAnswer",
    "NoReplica",
    "NotFound",
    "OutcomeUnknown",
    "Page",
    "Problem",
    "ProducerFailed",
    "Record",
    "RecordDelivery",
    "RecordProducer",
    "Unavailable",
    "Untrusted",
    "in_batches",
]
