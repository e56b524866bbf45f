"""Groups of clients' appends at a node, formed as app/api/append/groups.py forms them, without HTTP."""

from collections.abc import Callable
from zlib import crc32

import msgspec

from app.errors import CommitlogError, NoLeader, NotLeader, Outcome, QuorumTimeout
from app.log.contract import AppendRequest, AppendResult
from app.log.driver_interfaces import Clock
from app.node.replica.driver import LogDriver
from app.node.replica.open_appends import AppendDone, OpenAppend
from storage.format.records import RecordColumns

ALONE_OF_EACH = 4  # one of so many plain appends begins no group: it shares batches as an append of its own


class AppendGroups:
    """The group that waits for the driver of one node."""

    def __init__(self, clock: Clock, hit: Callable[[str], None]) -> None:
        """hit(point): a rare path was reached (sometimes.py)."""
        self.clock = clock
        self.hit = hit
        self._waiting: _Group | None = None

    def append(self, driver: LogDriver, request: AppendRequest, done: AppendDone) -> None:
        if not _may_join(request):
            driver.append(request, done)
        elif self._waiting is None or not self._waiting.join(driver, request, done):
            group = _Group(self, driver, request)
            self._waiting = group if group.start(request, done) else None


class _Group:
    """Appends that enter the log together."""

    _append: OpenAppend

    def __init__(self, groups: AppendGroups, driver: LogDriver, like: AppendRequest) -> None:
        self._groups = groups
        self._driver = driver
        self._records = RecordColumns()
        self._request = AppendRequest(self._records, like.acks, like.timeout_ms)
        self._members: list[tuple[AppendRequest, AppendDone, int]] = []  # int: when it arrived, in ms

    def start(self, request: AppendRequest, done: AppendDone) -> bool:
        """Queue the first member; return False if it was refused at once."""
        self._add(request, done, self._groups.clock.monotonic_ms())
        self._append = self._driver.append(self._request, self._ended)
        return self._append.is_queued

    def join(self, driver: LogDriver, request: AppendRequest, done: AppendDone) -> bool:
        """Add a member; return False if the append cannot be one."""
        now_ms = self._groups.clock.monotonic_ms()
        own = (self._driver, self._request.acks, self._request.timeout_ms)
        joins = own == (driver, request.acks, request.timeout_ms) and driver.grow(
            self._append, request.records.size_bytes, now_ms
        )
        if joins:
            self._add(request, done, now_ms)
        return joins

    def _add(self, request: AppendRequest, done: AppendDone, now_ms: int) -> None:
        assert isinstance(request.records, RecordColumns)
        self._records.extend(request.records)
        self._members.append((request, done, now_ms))

    def _ended(self, result: AppendResult | CommitlogError) -> None:
        before, shares, now_ms = 0, len(self._members) > 1, self._groups.clock.monotonic_ms()
        if shares:
            self._groups.hit("group-refused" if isinstance(result, CommitlogError) else "group-acknowledged")
        for request, done, arrived_ms in self._members:
            count, left_ms = request.records.count, arrived_ms + request.timeout_ms - now_ms
            if isinstance(result, AppendResult):
                first = result.first_index + before
                own = msgspec.structs.replace(
                    result, first_index=first, last_index=first + count - 1, count=count
                )
                done(own)
            elif isinstance(result, QuorumTimeout) and result.first_index is not None:
                done(QuorumTimeout(result.first_index + before))
            elif shares and left_ms > 0 and _may_be_tried_alone(result):
                self._driver.append(msgspec.structs.replace(request, timeout_ms=left_ms), done)
            else:
                done(result)
            before += count


def _may_join(request: AppendRequest) -> bool:
    conditions = (request.match_index, request.match_term, request.fencing_token)
    of_its_own = (request.idempotency_key, request.producer, request.stream, *conditions)
    is_plain = isinstance(request.records, RecordColumns) and not any(x is not None for x in of_its_own)
    return is_plain and crc32(request.digest) % ALONE_OF_EACH != 0


def _may_be_tried_alone(refusal: CommitlogError) -> bool:
    return refusal.outcome is Outcome.NOT_APPLIED and not isinstance(refusal, NotLeader | NoLeader)
