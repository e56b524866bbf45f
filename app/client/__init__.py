"""The Python client of commitlog: `CommitlogClient`, `RecordProducer`, `Consumer`, and those for asyncio.

docs/client.md has examples. `help(CommitlogClient)` describes the calls, `app.client.operations` has
the administrative ones, `app.client.data_frames` those for Arrow, pandas and polars.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from app.client.client import Appended, CommitlogClient, Page
from app.client.errors import (
    ClientError,
    ConditionFailed,
    InvalidAnswer,
    InvalidRequest,
    NoAnswer,
    NoReplica,
    NotFound,
    OtherLog,
    OutcomeUnknown,
    Problem,
    ProducerFailed,
    RecordRefused,
    Unavailable,
    Untrusted,
)
from app.client.records import Record, in_batches

if TYPE_CHECKING:
    from app.client.asynchronous import AsyncCommitlogClient, AsyncConsumer, AsyncProducer
    from app.client.consumer import Consumer
    from app.client.deliveries import RecordDelivery
    from app.client.producer import RecordProducer

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
    "OtherLog",
    "OutcomeUnknown",
    "Page",
    "Problem",
    "ProducerFailed",
    "Record",
    "RecordDelivery",
    "RecordProducer",
    "RecordRefused",
    "Unavailable",
    "Untrusted",
    "in_batches",
]

_LATER: Final = {  # name -> module of this package, imported when it is used: asyncio alone takes 0.05 s
    "AsyncCommitlogClient": "asynchronous",
    "AsyncConsumer": "asynchronous",
    "AsyncProducer": "asynchronous",
    "Consumer": "consumer",
    "RecordDelivery": "deliveries",
    "RecordProducer": "producer",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LATER[name]}", __name__), name)
