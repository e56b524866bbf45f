"""Answers to peers that repair a log or compare theirs with ours.

Only settled batches are sent, verified as they are read, at most SERVE_BYTES_PER_S, so that a repair does not
slow down replication. Owned by the event loop.
"""

import asyncio
import contextlib
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from app.log.contract import NO_INDEX
from app.log.driver_interfaces import Clock
from app.log.terms import TERM_UNKNOWN
from app.node.network.repair_messages import (
    DIGEST_MAX_BYTES,
    FETCH_MAX_BYTES,
    DigestAnswer,
    DigestRequest,
    FetchAnswer,
    FetchRequest,
    PeerCall,
    TermAnswer,
    TermRequest,
)
from app.node.repair.interfaces import OfflineCopy
from app.node.replica.driver import LogDriver
from storage.care.scrub import Scrub
from storage.errors import CorruptLog, StorageError
from storage.file_system import FileSystem
from storage.format.batch import HEADER_SIZE_BYTES, Batch
from storage.units import MIB

SERVE_BYTES_PER_S: Final = 64 * MIB
_BURST_MS: Final = 100
_STEP_BYTES: Final = MIB  # read at once; in between the loop does other work
DIGEST_SIZE: Final = 16


def settled_index_of(driver: LogDriver) -> int:
    """Return the last index that this replica holds durably and knows to be committed; NO_INDEX for none."""
    return min(driver.committed_index, driver.log.durable_index)


def is_readable(driver: LogDriver) -> bool:
    """Return whether the log can be read now: its files may be cut once its driver has ended, or while the
    disk thread truncates or resets it."""
    return not (driver.has_ended or driver.is_truncating)


class ByteBudget:
    """Limit of bytes per second; a larger burst is delayed. Pure."""

    def __init__(self, bytes_per_s: int) -> None:
        self._bytes_per_ms = bytes_per_s / 1000
        self._free_ms = 0.0

    def allows(self, now_ms: int) -> bool:
        return self._free_ms <= now_ms + _BURST_MS

    def spend(self, size_bytes: int, now_ms: int) -> None:
        self._free_ms = max(self._free_ms, now_ms) + size_bytes / self._bytes_per_ms


@dataclass(slots=True)
class Digest:
    """Digest of consecutive batches up to `last_index`. value: over their headers, which contain the body
    checksums."""

    last_index: int
    value: bytes
    chain: bytes
    size_bytes: int


async def digest_of(
    driver: LogDriver, first_index: int, last_index: int, max_bytes: int = DIGEST_MAX_BYTES
) -> Digest | None:
    """Digest the batches from the one that holds first_index to the one that holds last_index, both held.

    Ends early at about max_bytes; None when first_index is not held (any more), or the log is not readable.
    Raises CorruptLog.
    """
    log = driver.log
    hash_ = hashlib.blake2b(digest_size=DIGEST_SIZE)
    before: Batch | None = None
    at, size = first_index, 0
    if not is_readable(driver):
        return None
    while at <= last_index and size < max_bytes:
        if not log.begin_index <= at <= log.end_index:
            break
        batches = log.read_batches(at, min(_STEP_BYTES, max_bytes - size), last_index)
        for batch in batches:
            hash_.update(memoryview(batch.data)[:HEADER_SIZE_BYTES])
            size += batch.size_bytes
            before = batch
        at = batches[-1].next_index
        await asyncio.sleep(0)
        if not is_readable(driver):
            return None
    if before is None:
        return None
    return Digest(before.last_index, hash_.digest(), before.header.chain, size)


async def reread(files: FileSystem, driver: LogDriver, first_index: int, last_index: int) -> None:
    """Read the settled batches of a range from the disk, bypassing all caches, and verify the chain of each.
    A log that is not readable meanwhile is not read to the end.

    Raises CorruptLog for damage, and when the disk holds another history than memory; DiskError.
    """
    log = driver.log
    scrub = Scrub(files, log, from_index=first_index, until_index=last_index)
    for step in scrub:
        await asyncio.to_thread(step.run)
        if not is_readable(driver):
            return
    if scrub.chain is not None and log.begin_index <= last_index <= log.end_index:
        known = log.batch_at(last_index)
        if scrub.chain != known.header.chain:
            raise CorruptLog(log.folder, known.offset, "the disk holds another history")


class RepairServer:
    """Server of the requests of app/node/network/repair_messages.py, within a budget of bytes per second."""

    def __init__(
        self,
        files: FileSystem,
        clock: Clock,
        send: Callable[[str, int, PeerCall], None],
        report: Callable[[StorageError, str], bool],
        bytes_per_s: int = SERVE_BYTES_PER_S,
    ) -> None:
        """report(error, found_by): called when a requested batch cannot be read here; returns whether its log
        is repaired now. bytes_per_s: of batches that are sent.
        """
        self._files = files
        self._clock = clock
        self._send = send
        self._report = report
        self._budget = ByteBudget(bytes_per_s)
        self._digesting = asyncio.Lock()
        self._reading = asyncio.Lock()  # logs that are offline

    async def answer(
        self,
        source: str,
        log_id: int,
        driver: LogDriver | None,
        request: PeerCall,
        repaired: OfflineCopy | None = None,
    ) -> None:
        """Answer one request. driver: of the log, None while it is offline or unknown here. repaired: the log
        while it is repaired here."""
        if isinstance(request, FetchRequest) and driver is None and repaired is not None:
            self._send(source, log_id, await self._fetched_offline(repaired, request))
        elif isinstance(request, FetchRequest):
            self._send(source, log_id, self._fetched(driver, request))
        elif isinstance(request, TermRequest):
            answer = (
                await self._term_offline(repaired, request) if driver is None else self._term(driver, request)
            )
            if answer is not None:
                self._send(source, log_id, answer)
        elif isinstance(request, DigestRequest):
            self._send(source, log_id, await self._digest(driver, request))

    def _term(self, driver: LogDriver, request: TermRequest) -> TermAnswer:
        """Return the term, unless it may be older than the last one of this replica."""
        replaced = driver.state.replaced_membership
        candidates = dict.fromkeys((*driver.group.members, *(() if replaced is None else replaced.voters)))
        term = driver.term if driver.knows_vote else TERM_UNKNOWN
        return TermAnswer(request.id, term, self._clock.now_ms(), tuple(candidates))

    async def _term_offline(self, repaired: OfflineCopy | None, request: TermRequest) -> TermAnswer | None:
        """Return the term of a log under repair: a peer that needs it may have what this log lacks. The log
        names no candidates meanwhile."""
        term = None
        if repaired is not None:
            with contextlib.suppress(StorageError):
                term = await repaired.term()
        return None if term is None else TermAnswer(request.id, term, self._clock.now_ms())

    def _fetched(self, driver: LogDriver | None, request: FetchRequest) -> FetchAnswer:
        if driver is None:
            return FetchAnswer(request.id, NO_INDEX, NO_INDEX)
        log, settled = driver.log, settled_index_of(driver)
        if request.held:
            settled = log.durable_index
        now_ms = self._clock.monotonic_ms()
        if not (is_readable(driver) and self._budget.allows(now_ms)):
            return FetchAnswer(request.id, log.begin_index, settled, busy=True)
        if request.first_index > settled and not driver.sound:
            # It may have acknowledged what it lacks: no evidence that it was never committed.
            return FetchAnswer(request.id, NO_INDEX, NO_INDEX)
        first, last = request.first_index, min(request.last_index, settled)
        if not max(log.begin_index, 0) <= first <= last:
            return FetchAnswer(request.id, log.begin_index, settled)
        try:
            batches = tuple(
                batch
                for batch in log.read_batches(first, FETCH_MAX_BYTES, last)
                if batch.last_index <= settled
            )
        except StorageError as error:
            if not self._report(error, "peer"):
                raise
            return FetchAnswer(request.id, NO_INDEX, NO_INDEX)
        self._budget.spend(sum(batch.size_bytes for batch in batches), now_ms)
        return FetchAnswer(request.id, log.begin_index, settled, False, batches)

    async def _fetched_offline(self, repaired: OfflineCopy, request: FetchRequest) -> FetchAnswer:
        """Send what is intact in a log under repair. What it lacks proves nothing (R-07)."""
        now_ms = self._clock.monotonic_ms()
        if self._reading.locked() or not self._budget.allows(now_ms):
            return FetchAnswer(request.id, NO_INDEX, NO_INDEX, busy=True)  # it may have no record
        batches: Sequence[Batch] = ()
        async with self._reading:
            with contextlib.suppress(StorageError):
                batches = await repaired.held(
                    request.first_index, request.last_index, FETCH_MAX_BYTES, committed=not request.held
                )
        if not batches:
            return FetchAnswer(request.id, NO_INDEX, NO_INDEX)
        self._budget.spend(sum(batch.size_bytes for batch in batches), now_ms)
        last_index = batches[-1].last_index
        return FetchAnswer(request.id, request.first_index, last_index, False, tuple(batches))

    async def _digest(self, driver: LogDriver | None, request: DigestRequest) -> DigestAnswer:
        if driver is None:
            return DigestAnswer(request.id, NO_INDEX, NO_INDEX, NO_INDEX, b"", b"")
        begin, settled = driver.log.begin_index, settled_index_of(driver)
        nothing = DigestAnswer(request.id, begin, settled, NO_INDEX, b"", b"")
        is_held = max(begin, 0) <= request.first_index <= request.last_index <= settled
        if not (is_readable(driver) and is_held):
            return nothing
        async with self._digesting:
            try:
                if request.deep:
                    await reread(self._files, driver, request.first_index, request.last_index)
                digest = await digest_of(driver, request.first_index, request.last_index)
            except StorageError as error:
                if not is_readable(driver):
                    return nothing  # its files are cut or moved, which is not damage
                if not self._report(error, "verify"):
                    raise
                return DigestAnswer(request.id, begin, settled, NO_INDEX, b"", b"", damaged=True)
        if digest is None:
            return nothing
        return DigestAnswer(request.id, begin, settled, digest.last_index, digest.value, digest.chain)
