"""Retention by age and size: the leader checks its logs periodically, and trims what exceeds the limits.

A trim is a record of the log (app/log/commands.py), so every replica removes the same records. Records
protected by readers' fences and the newest committed batch stay. A trim that would remove only control
records is omitted, because it writes one itself. Age is measured by a clock that is not ahead of the other
replicas (clocks.py).
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from app.errors import CommitlogError
from app.log.commands import Trim
from app.log.contract import NO_INDEX
from app.log.state import LogState
from app.node.hosted_log import HostedLog
from app.node.replica.driver import LogDriver
from app.node.retention.clocks import PeerClocks
from app.pauses import Repeats
from app.settings.model import Replication, RetentionConfig
from storage.errors import StorageError
from storage.log.commitlog import Commitlog
from storage.units import KIB, MIB

logger = logging.getLogger(__name__)

_SEARCH_BYTES: Final = MIB  # of what would be removed, in search of a data record
_SLACK_BYTES: Final = 4096
_STEP_BYTES: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class Retention:
    """Maximum age (ms since the record's timestamp) and size (bytes as stored) of a log. None: no limit."""

    ms: int | None = None
    bytes: int | None = None

    @classmethod
    def of(cls, chosen: Mapping[str, Any] | None, default: RetentionConfig) -> "Retention":
        """chosen: {"ms", "bytes"} of the log, which replace both defaults; null: no limit."""
        if chosen is None:
            return cls(default.ms, default.bytes)
        return cls(chosen.get("ms"), chosen.get("bytes"))


def retained_from(log: Commitlog, state: LogState, until: int) -> int | None:
    """Return the index below which everything may be removed, None for nothing. Raises CorruptLog,
    DiskError.

    until: as `exceeded_until` returns it. A fence keeps the records from its position on.
    """
    if until == 0:
        return None
    fence = state.fenced_below(until)
    if fence is not None:
        until = min(until, fence[1])
    removed = max(log.begin_index, state.trim_index)  # or about to be: the last trim may be in progress
    return until if _holds_data(log, removed, until) else None


def exceeded_until(log: Commitlog, committed_index: int, retention: Retention, now_ms: int) -> int:
    """Return the index below which the committed records exceed a limit, whether a fence keeps them or not;
    0 for none. Raises CorruptLog, DiskError."""
    if log.begin_index == NO_INDEX or committed_index < log.begin_index:
        return 0
    until = max(_young_from(log, retention.ms, now_ms), _small_from(log, retention.bytes))
    return min(until, committed_index + 1)


def _young_from(log: Commitlog, ms: int | None, now_ms: int) -> int:
    """Return the first data record that is young enough. The age of control records does not matter."""
    if ms is None:
        return log.begin_index
    found = log.first_index_at_or_after(now_ms - ms)
    return log.next_index if found is None else found


def _small_from(log: Commitlog, size_bytes: int | None) -> int:
    """Return the first index of the newest batches within size_bytes, found by bisection.

    A small excess is accepted: the record of a trim takes space itself.
    """
    slack = _SLACK_BYTES + min((size_bytes or 0) // 16, MIB)
    if size_bytes is None or log.end_offset - log.begin_offset <= size_bytes + slack:
        return log.begin_index
    target = log.end_offset - size_bytes
    low, high = log.begin_index, log.next_index  # the batch that holds low begins before target
    while low < high:
        middle = (low + high) // 2
        batch = log.batch_at(middle)
        if batch.offset >= target:
            high = batch.base_index
        else:
            low = batch.next_index
    return high


def _holds_data(log: Commitlog, begin: int, until: int) -> bool:
    """Return whether a data record would be removed. Control records alone are not worth another one."""
    at, read_bytes = begin, 0
    while at < until and read_bytes < _SEARCH_BYTES:
        for batch in log.read_batches(at, _STEP_BYTES, until - 1):
            if not batch.is_control and batch.last_index < until:
                return True
            read_bytes += batch.size_bytes
            at = batch.next_index
    return at < until


class RetentionKeeper:
    """Checks the logs that this node leads. Owned by the event loop."""

    def __init__(self, default: RetentionConfig, clocks: PeerClocks, node_id: str) -> None:
        self._default = default
        self._clocks = clocks
        self._node_id = node_id
        self._fences: dict[str, tuple[str, int]] = {}  # by log, those that keep records: cursor, position
        self._fences_before: dict[str, tuple[str, int]] = {}  # at the check before
        self._reports = Repeats()  # by log

    async def run(self, logs: Mapping[str, HostedLog]) -> None:
        """Run as long as the node. logs: as the node keeps them."""
        while True:
            await asyncio.sleep(self._default.check_interval_ms / 1000)
            await self.trim_all(list(logs.values()))

    async def trim_all(self, logs: Iterable[HostedLog]) -> None:
        """Trim what is due. A node that cannot compare its clock removes nothing by age."""
        self._clocks.begin_round()
        self._fences_before, self._fences = self._fences, {}
        self._reports.keep(self._fences_before)
        for hosted in logs:
            driver, retention = hosted.driver, Retention.of(hosted.settings.retention, self._default)
            if driver is None or not hosted.leads or retention == Retention():
                continue
            now_ms = 0 if retention.ms is None else await self._agreed_ms(hosted)
            if now_ms is None:
                retention, now_ms = Retention(None, retention.bytes), 0
            if hosted.leads and hosted.driver is driver:
                try:
                    self._trim(hosted, driver, retention, now_ms)
                except StorageError as error:  # the scrub or the next read will report the damage
                    logger.error("log %s: retention: %s", hosted.name, error)
            await asyncio.sleep(0)  # a check may read from the disk: the loop continues between two

    async def _agreed_ms(self, hosted: HostedLog) -> int | None:
        """Return the time by which age counts, None when it is not known.

        A Raft leader reaches a majority of the voters, so it must know as many clocks. A master in the other
        modes may be alone for long, and uses the clocks that it knows.
        """
        voters = hosted.voters
        least = len(voters) // 2 + 1 if hosted.settings.replication is Replication.RAFT else 1
        peers = [voter for voter in voters if voter != self._node_id]
        return await self._clocks.agreed_ms(hosted.log_id, peers, least)

    def _trim(self, hosted: HostedLog, driver: LogDriver, retention: Retention, now_ms: int) -> None:
        committed_index = min(driver.committed_index, driver.log.durable_index)
        exceeded = exceeded_until(driver.log, committed_index, retention, now_ms)
        self._report_fence(hosted.name, driver.state.fenced_below(exceeded), exceeded, time.monotonic())
        until_index = retained_from(driver.log, driver.state, exceeded)
        if until_index is None:
            return

        def done(result: object) -> None:
            if isinstance(result, CommitlogError):
                logger.warning("log %s: retention: %s", hosted.name, result)
            else:
                logger.info("retention", extra={"log": hosted.name, "until_index": until_index})

        driver.command(Trim(until_index), done)

    def _report_fence(self, log: str, fence: tuple[str, int] | None, until_index: int, now_s: float) -> None:
        """Log which fence keeps records below `until_index`, at most once in REPORT_S, if it has not moved
        since the last check: the log grows until the disk is full, and nothing else names the cursor."""
        if fence is None:
            return
        self._fences[log] = fence
        if self._fences_before.get(log) == fence and self._reports.allow(log, now_s):
            extra = {"log": log, "cursor": fence[0], "next_index": fence[1], "until_index": until_index}
            logger.warning("a fencing cursor keeps records that retention would remove", extra=extra)
