"""Byte view of a log for HA: conversion between byte positions of frames and indexes of the API. PURE."""

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from app.ha.epochs import EpochSpan, spans
from app.ha.frames import EpochStart
from app.log.contract import NO_INDEX, Durability, ReplicaLog
from app.raft.state import MemberState
from storage.format.batch import FIRST_CHAIN, Batch, follows_chain
from storage.format.epoch_file import Epoch


class HaLog(ReplicaLog, Protocol):
    """Read access of an HA core to its log beyond app.log.contract.ReplicaLog; storage's Commitlog has it."""

    @property
    def begin_offset(self) -> int: ...
    @property
    def last_chain(self) -> bytes: ...
    @property
    def epochs(self) -> Sequence[Epoch]: ...
    @property
    def last_segment_index(self) -> int:
        """Index of the first record of the newest segment, NO_INDEX of an empty log (A-09, H-06)."""
        ...


def is_empty(log: HaLog) -> bool:
    return log.end_index == NO_INDEX


def held_index(log: HaLog, member: MemberState) -> int:
    """The last index that this replica may acknowledge: on disk with `fsync`, else written (R-11).

    A change to `fsync` takes nothing back that it may have acknowledged before. Otherwise an election by the
    reports of some members could miss the one that holds a record (C-12).
    """
    if member.durability is Durability.FSYNC:
        return max(log.durable_index, min(member.unsynced_index, log.end_index))
    return log.end_index


def may_begin(log: HaLog, member: MemberState) -> bool:
    """Return whether the transfer from a master may begin: with `fsync` once the whole log is on disk.

    What an earlier setting let this replica acknowledge may not have been reported on the connection before,
    and the master may have promised by then that it is synced (R-11).
    """
    return member.durability is not Durability.FSYNC or log.durable_index == log.end_index


def offset_after(log: HaLog, index: int) -> int:
    """Return the byte after the batch that ends at `index`; of NO_INDEX the log's beginning.

    An empty log may begin anywhere, and what precedes it may be committed: then that is its only place.
    """
    if is_empty(log) or index == log.end_index:
        return log.end_offset
    if index == NO_INDEX or index < log.begin_index:
        return log.begin_offset
    return log.batch_at(index).next_offset


def index_before(log: HaLog, offset: int) -> int:
    """Return the last index of the batches that lie wholly below `offset`, NO_INDEX for none."""
    if is_empty(log) or offset <= log.begin_offset:
        return NO_INDEX
    if offset >= log.end_offset:
        return log.end_index
    low, high = log.begin_index, log.end_index
    found = NO_INDEX
    while low <= high:
        batch = log.batch_at((low + high) // 2)
        if batch.next_offset <= offset:
            found, low = batch.last_index, batch.next_index
        else:
            high = batch.base_index - 1
    return found


def epoch_starts(log: HaLog) -> tuple[EpochStart, ...]:
    """Return the log's epochs, oldest first, as a handshake lists them (A-07).

    A log that begins within an epoch whose opening it never had lists it from its own beginning.
    """
    if is_empty(log):
        return ()
    known = [EpochStart(epoch.epoch, epoch.start_offset) for epoch in log.epochs]
    first = log.term_at(log.begin_index)
    if not known or known[0].epoch != first:
        known.insert(0, EpochStart(first, log.begin_offset))
    return tuple(known)


def epoch_spans(log: HaLog) -> tuple[EpochSpan, ...]:
    return spans(epoch_starts(log), log.end_offset)


class LogEnd:
    """End of the log while batches are accepted one by one, before they are written."""

    def __init__(self, log: HaLog) -> None:
        self.next_index = log.next_index
        self.offset = log.end_offset
        self.epoch = log.last_term
        self._chain: bytes | None = log.last_chain
        if is_empty(log):  # after a reset the previous chain is unknown
            self._chain = FIRST_CHAIN if log.end_offset == 0 else None

    def start_at(self, batch: Batch) -> None:
        """The log is emptied, and begins with this batch."""
        self.next_index, self.offset, self.epoch = batch.base_index, batch.offset, 0
        self._chain = FIRST_CHAIN if batch.offset == 0 else None

    def why_not(self, batch: Batch, log_id: int) -> str | None:
        """Return why a valid batch cannot be the next one, None when it can."""
        if batch.header.log_id != log_id:
            return "a batch of another log"
        if batch.base_index != self.next_index or batch.offset != self.offset:
            return f"{batch!r} does not follow index {self.next_index - 1} at {self.offset}"
        if batch.term < self.epoch:
            return f"{batch!r} follows a record of epoch {self.epoch}"
        if self._chain is not None and not follows_chain(batch, self._chain):
            return f"{batch!r} belongs to another history"
        return None

    def pass_by(self, batch: Batch) -> None:
        """The batch will be written."""
        self.next_index, self.offset, self.epoch = batch.next_index, batch.next_offset, batch.term
        self._chain = batch.header.chain


class Boundaries:
    """Ends of batches between two moving marks: byte positions, and the indexes there."""

    def __init__(self) -> None:
        self._ends: deque[tuple[int, int]] = deque()  # (next_offset, last_index)

    def add(self, batch: Batch) -> None:
        self._ends.append((batch.next_offset, batch.last_index))

    def __len__(self) -> int:
        return len(self._ends)

    def clear(self) -> None:
        self._ends.clear()

    def take_until(self, offset: int) -> tuple[int, int] | None:
        """Drop every end up to `offset`; return the last of them, None if there is none."""
        last = None
        while self._ends and self._ends[0][0] <= offset:
            last = self._ends.popleft()
        return last
