"""Comparison of the replicas of a log batch by batch, which finds the first index that differs (:verify).

The node that is asked compares its own replica with every other one: a digest per chunk over the headers of
the batches, which contain chain and checksums. Where a digest differs, bisection finds the batch, and the
batches themselves the record. Only settled batches are compared, so a difference is a broken guarantee: it is
reported and never repaired automatically, because it is unknown which replica is right.
"""

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from app.log.contract import NO_INDEX
from app.node.network.peer_calls import PeerCalls
from app.node.network.repair_messages import (
    DIGEST_MAX_BYTES,
    DigestAnswer,
    DigestRequest,
    FetchAnswer,
    FetchRequest,
)
from app.node.repair.server import DIGEST_SIZE, is_readable, settled_index_of
from app.node.replica.driver import LogDriver
from storage.format.batch import HEADER_SIZE_BYTES
from storage.format.records import read_columns
from storage.units import MIB

logger = logging.getLogger(__name__)

TIME_MAX_S: Final = 5.0  # of one comparison; then the answer states where to continue
BEHIND_MAX_S: Final = 3.0  # how long a peer may lag before it counts as behind
_ANSWER_TIMEOUT_S: Final = 4.0
_TRIES: Final = 2
_FETCHES: Final = 20
_STEP_BYTES: Final = MIB
_POLL_S: Final = 0.1


class ReplicaState(StrEnum):
    SAME = "same"
    DIFFERS = "differs"
    DAMAGED = "damaged"  # one of its batches cannot be read: its repair has begun
    BEHIND = "behind"  # it has not settled all of the range yet
    REPAIRING = "repairing"
    UNREACHABLE = "unreachable"


@dataclass(slots=True)
class ReplicaReport:
    """Result for one replica, compared with that of the node that was asked. [from_index,
    until_index) was compared: it begins later than the comparison if the replica does. first_difference: the
    first index at which it differs."""

    node: str
    state: ReplicaState = ReplicaState.SAME
    from_index: int = 0
    until_index: int = 0
    first_difference: int | None = None
    digest: bytes = b""  # of the first batch that differs
    begin_index: int = 0  # of its log, from its last answer without a digest

    @property
    def compares(self) -> bool:
        return self.state is ReplicaState.SAME


@dataclass(slots=True)
class Comparison:
    """until_index: exclusive; records from there on were not compared yet."""

    from_index: int
    until_index: int
    replicas: list[ReplicaReport]
    batches: int = 0
    size_bytes: int = 0

    @property
    def differing(self) -> list[ReplicaReport]:
        return [each for each in self.replicas if each.state is ReplicaState.DIFFERS]

    @property
    def equal(self) -> bool:
        """True if no compared batch differs or is damaged."""
        return not any(each.state in (ReplicaState.DIFFERS, ReplicaState.DAMAGED) for each in self.replicas)

    @property
    def complete(self) -> bool:
        return all(each.compares for each in self.replicas)

    @property
    def first_difference(self) -> int | None:
        return min((each.first_difference or 0 for each in self.differing), default=None)

    @property
    def groups(self) -> list[list[str]]:
        """Replicas that agree at the first difference, the largest group first; [] without one. One that
        begins later is in none."""
        at = self.first_difference
        if at is None:
            return []
        groups: dict[bytes, list[str]] = {}
        for each in self.replicas:
            begins_later = each.from_index > max(at, self.from_index)  # a batch may begin before from_index
            if not begins_later and (each.compares or each.state is ReplicaState.DIFFERS):
                digest = each.digest if each.first_difference == at else b""
                groups.setdefault(digest, []).append(each.node)
        return sorted(groups.values(), key=len, reverse=True)


@dataclass(slots=True)
class _Chunk:
    """Consecutive batches of our own; digests: over all headers up to and including each."""

    batches: list[tuple[int, int]] = field(default_factory=list)  # base and last index
    digests: list[bytes] = field(default_factory=list)
    size_bytes: int = 0

    @property
    def first_index(self) -> int:
        return self.batches[0][0]

    @property
    def last_index(self) -> int:
        return self.batches[-1][1]


class Verifier:
    """One comparison."""

    def __init__(
        self,
        calls: PeerCalls,
        driver: LogDriver,
        peers: Sequence[str],
        reread: Callable[[LogDriver, int, int], Awaitable[None]] | None = None,
    ) -> None:
        """reread(driver, first, last): read from the disk, not from memory, and recompute each chain, here
        and at every replica (server.py); None: trust what was verified when it was read."""
        self._calls = calls
        self._reread = reread
        self._driver = driver
        self._own = ReplicaReport(driver.node_id)
        self._peers = [ReplicaReport(peer) for peer in peers]

    async def compare(self, from_index: int, until_index: int) -> Comparison:
        """Compare [from_index, until_index), which this replica holds settled; at most for TIME_MAX_S.

        Raises CorruptLog when this very replica is damaged.
        """
        result = Comparison(from_index, from_index, [self._own, *self._peers])
        deadline = asyncio.get_running_loop().time() + TIME_MAX_S
        at = from_index
        while at < until_index:
            chunk = await self._chunk(at, until_index - 1)
            if chunk is None:
                break  # trimmed away meanwhile
            if self._reread is not None:
                await self._reread(self._driver, chunk.first_index, chunk.last_index)
            await asyncio.gather(*(self._compare_peer(peer, chunk) for peer in self._peers if peer.compares))
            at = chunk.last_index + 1
            result.batches += len(chunk.batches)
            result.size_bytes += chunk.size_bytes
            if asyncio.get_running_loop().time() >= deadline or not any(
                peer.compares for peer in self._peers
            ):
                break
        self._own.from_index = from_index
        self._own.until_index = result.until_index = min(max(at, from_index), until_index)
        return result

    def damaged(self, from_index: int) -> Comparison:
        """Return the result of a comparison that ended because this very replica is damaged."""
        self._own.state = ReplicaState.DAMAGED
        return Comparison(from_index, from_index, [self._own, *self._peers])

    async def _chunk(self, first_index: int, last_index: int) -> _Chunk | None:
        """Return our own batches from first_index on, at most DIGEST_MAX_BYTES."""
        log, chunk = self._driver.log, _Chunk()
        hash_ = hashlib.blake2b(digest_size=DIGEST_SIZE)
        at = first_index
        if not is_readable(self._driver):
            return None
        while at <= last_index and chunk.size_bytes < DIGEST_MAX_BYTES:
            if not log.begin_index <= at <= log.end_index:
                break
            room = min(_STEP_BYTES, DIGEST_MAX_BYTES - chunk.size_bytes)
            for batch in log.read_batches(at, room, last_index):
                hash_.update(memoryview(batch.data)[:HEADER_SIZE_BYTES])
                chunk.batches.append((batch.base_index, batch.last_index))
                chunk.digests.append(hash_.digest())
                chunk.size_bytes += batch.size_bytes
                at = batch.next_index
            await asyncio.sleep(0)
            if not is_readable(self._driver):
                return None
        return chunk if chunk.batches else None

    async def _compare_peer(self, peer: ReplicaReport, chunk: _Chunk) -> None:
        """Compare a chunk with a peer, from the peer's first batch on if that is in the chunk."""
        last_index, rest = chunk.last_index, chunk
        await self._compare_chunk(peer, rest)
        while peer.compares and peer.begin_index > rest.first_index:
            begin = next((base for base, _ in chunk.batches if base >= peer.begin_index), last_index + 1)
            if begin > last_index:
                self._compared(peer, begin, begin)  # nothing to compare
                return
            later = await self._chunk(begin, last_index)
            if later is None:  # trimmed away here meanwhile
                return
            rest = later
            await self._compare_chunk(peer, rest)

    async def _compare_chunk(self, peer: ReplicaReport, chunk: _Chunk) -> None:
        answer = await self._settled_digest(peer, chunk, len(chunk.batches) - 1)
        if answer is None:
            return
        if self._same(answer, chunk, len(chunk.batches) - 1):
            self._compared(peer, chunk.first_index, chunk.last_index + 1)
            return
        low, high = 0, len(chunk.batches) - 1  # the first batch that differs is in [low, high]
        while low < high:
            middle = (low + high) // 2
            answer = await self._settled_digest(peer, chunk, middle)
            if answer is None:
                return  # perhaps trimmed there since the first digest, which then ended early
            if self._same(answer, chunk, middle):
                low = middle + 1
            else:
                high = middle
        base_index, last_index = chunk.batches[low]
        peer.state = ReplicaState.DIFFERS
        self._compared(peer, chunk.first_index, base_index)
        peer.first_difference, peer.digest = await self._first_record(peer, base_index, last_index)

    def _compared(self, peer: ReplicaReport, first_index: int, until_index: int) -> None:
        if peer.from_index == peer.until_index:
            peer.from_index = first_index
        peer.until_index = until_index

    def _same(self, answer: DigestAnswer, chunk: _Chunk, position: int) -> bool:
        return answer.last_index == chunk.batches[position][1] and answer.digest == chunk.digests[position]

    async def _settled_digest(self, peer: ReplicaReport, chunk: _Chunk, position: int) -> DigestAnswer | None:
        """Return the peer's digest of the chunk up to the batch at `position`, once it has settled it;
        otherwise its state has the reason."""
        deadline = asyncio.get_running_loop().time() + BEHIND_MAX_S
        while True:
            answer = await self._digest(peer, chunk.first_index, chunk.batches[position][1])
            if answer is None or answer.digest:
                return answer
            if answer.settled_index == NO_INDEX:
                peer.state = ReplicaState.REPAIRING
            elif answer.begin_index > chunk.first_index:
                peer.begin_index = answer.begin_index
                return None
            else:
                peer.state = ReplicaState.BEHIND
            if asyncio.get_running_loop().time() >= deadline:
                return None
            peer.state = ReplicaState.SAME
            await asyncio.sleep(_POLL_S)

    async def _digest(self, peer: ReplicaReport, first_index: int, last_index: int) -> DigestAnswer | None:
        request = partial(
            DigestRequest, first_index=first_index, last_index=last_index, deep=self._reread is not None
        )
        for _ in range(_TRIES):
            answer = await self._calls.ask(peer.node, self._driver.log_id, request, _ANSWER_TIMEOUT_S)
            if isinstance(answer, DigestAnswer):
                if answer.damaged:
                    peer.state = ReplicaState.DAMAGED
                    return None
                return answer
        peer.state = ReplicaState.UNREACHABLE
        return None

    async def _first_record(self, peer: ReplicaReport, base_index: int, last_index: int) -> tuple[int, bytes]:
        """Return the first record of a batch that differs, and a digest of the peer's; the batch's first
        where the records are equal."""
        log = self._driver.log
        if not log.begin_index <= base_index <= log.end_index:
            return base_index, b"?"  # trimmed here meanwhile
        ours = log.batch_at(base_index)
        request = partial(FetchRequest, first_index=base_index, last_index=last_index)
        for _ in range(_FETCHES):
            answer = await self._calls.ask(peer.node, self._driver.log_id, request, _ANSWER_TIMEOUT_S)
            if not isinstance(answer, FetchAnswer) or not answer.busy:
                break
            await asyncio.sleep(_POLL_S)
        if not isinstance(answer, FetchAnswer) or not answer.batches:
            return base_index, b"?"
        theirs = answer.batches[0]
        digest = hashlib.blake2b(theirs.data, digest_size=DIGEST_SIZE).digest()
        mine, other = read_columns(ours).to_pylist(), read_columns(theirs).to_pylist()
        for index, (one, two) in enumerate(zip(mine, other, strict=False), base_index):
            if {**one, "offset": 0} != {**two, "offset": 0}:
                return index, digest
        return (base_index if len(mine) == len(other) else base_index + min(len(mine), len(other))), digest


def settled_end(driver: LogDriver) -> int:
    """Return the exclusive end of the indexes that can be compared."""
    return settled_index_of(driver) + 1
