"""Answers of the nodes about a log as values of the source, and their refusals as its errors."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import pyarrow as pa

from app.client.errors import ClientError, InvalidAnswer, NoReplica, Problem
from app.schemas import LogSchema
from spark_jobs.errors import (
    JournalTrimmed,
    LogClash,
    LogTrimmed,
    NoCopy,
    RequestRefused,
    ShortRead,
    SourceError,
    Unreachable,
)
from storage.errors import CorruptBatch
from storage.format.batch import Batch, decode_batch
from storage.format.records import HeaderColumns


@dataclass(frozen=True)
class LogTail:
    """End of a log. next_index: after the last committed index. term: no record before it has a later one.
    confirmed: by its leader, just now; otherwise replicas know this much, and the log may be longer."""

    begin_index: int
    next_index: int
    term: int
    confirmed: bool


@dataclass(frozen=True)
class LogEnds:
    """Ends of a log and its journal at one node, as that node knows them. next_index: one after the last
    committed index. events: the next seq of the journal. term: no record before next_index has a later
    one."""

    log_id: str
    begin_index: int
    next_index: int
    term: int
    events: int


@dataclass(frozen=True)
class Place:
    """Place of a record: its term, the byte position of its batch, and its time in microseconds since 1970,
    None if it is not known."""

    term: int
    offset: int
    timestamp_us: int | None


@dataclass(frozen=True)
class Node:
    """A member of the cluster, as a replica reports it."""

    id: str
    url: str
    alive: bool


@dataclass(frozen=True)
class EventPage:
    """Events of one node from one seq on. next_seq: where the next read starts."""

    events: Sequence[Mapping[str, Any]]
    next_seq: int
    has_more: bool


def tail_of(answer: Mapping[str, Any], *, confirmed: bool) -> LogTail:
    """Return the end of a log from `/tail`. The beginning of an empty log is -1 there; 0 takes its place."""
    next_index = int(answer["committed_index"]) + 1
    return LogTail(max(0, int(answer["begin_index"])), next_index, int(answer["term"]), confirmed)


def ends_of(answer: Mapping[str, Any]) -> dict[str, LogEnds]:
    """Return the ends of the logs of which a node serves a replica, from `GET /v1/logs?ends=true`. Raises
    KeyError, TypeError, ValueError for any other answer."""
    return {
        str(log["name"]): LogEnds(
            str(log["id"]),
            max(0, int(at["begin_index"])),
            int(at["committed_index"]) + 1,
            int(at["term"]),
            int(at["events"]),
        )
        for log in answer["logs"]
        if (at := log["ends"]) is not None
    }


def schema_of(document: Mapping[str, Any]) -> LogSchema:
    """Return a version of a schema from `/schemas`."""
    settings = {each.name: document[each.name] for each in fields(LogSchema)}
    names = {name: tuple(settings[name]) for name in ("key_columns", "cluster_by")}
    return LogSchema(**{**settings, **names})


def decode_batches(data: bytes) -> list[Batch]:
    """Return consecutive stored batches, views of `data`. Raises CorruptBatch."""
    rest, batches = memoryview(data), []
    while rest:
        batches.append(decode_batch(rest))
        rest = rest[batches[-1].size_bytes :]
    return batches


def piece_of(columns: HeaderColumns, run: Sequence[Batch], first: int, until: int) -> pa.RecordBatch:
    """Return the records of consecutive batches within [first, until), columns READ_SCHEMA. Raises
    CorruptBatch."""
    base_index = run[0].base_index
    start = max(first, base_index)
    return columns.read(run).slice(start - base_index, until - start)


@contextmanager
def decoding(endpoint: str) -> Iterator[None]:
    """Turn the errors of a decoder into InvalidAnswer, after which another replica is asked."""
    try:
        yield
    except (ValueError, OSError, pa.ArrowException, CorruptBatch) as error:
        raise InvalidAnswer(f"{endpoint}: the answer is truncated or malformed ({error})") from error


def source_error(log: str, error: ClientError, position: int = 0, node: str = "") -> SourceError:
    """Return the source's error for one of the client. position: index or seq that was asked for. node: its
    URL, for a call of one node."""
    if isinstance(error, NoReplica):
        causes = [cause.__cause__ for _, cause in error.errors]
        wrong = next((cause for cause in causes if isinstance(cause, ShortRead | LogClash)), None)
        return Unreachable(f"log {log!r}: {error}") if wrong is None else wrong
    if not isinstance(error, Problem):
        return Unreachable(str(error))
    if error.status == 410 and error.code == "events-trimmed":
        return JournalTrimmed(log, node, position, int(error.document["first_seq"]))
    if error.status == 410:
        return LogTrimmed(log, position, int(error.document["begin_index"]))
    if error.status == 416:
        ends = error.document.get("next_index")
        return LogClash(log, f"it ends before index {ends}, {position} was due")
    if error.may_pass:
        kind = NoCopy if error.status == 421 else Unreachable
        return kind(f"{f'{node}: ' if node else ''}{error.status} {error}")
    return RequestRefused(error.status, error.code, error.detail, error.document)
