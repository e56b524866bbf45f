"""Groups: plain appends of several clients that enter the log as one.

An append costs the leader far more than a record. Appends without anything of their own (a condition, a key,
a producer, a header of one record) that arrive while another one for the same log, acks and timeout waits for
the driver's turn join it: the driver checks, stores and acknowledges them together, and each gets its own
answer. An invalid body never joins. A group that is refused falls apart: each member is handled alone,
because a limit or a schema may refuse some of them only, and those that may be forwarded are.
"""

from collections import Counter
from functools import partial
from typing import Any, Final, Protocol, TypeVar

from app.api.append.bodies import read_plain
from app.api.append.call import AppendCall, GroupKey
from app.api.append.group_answers import GroupAnswers
from app.api.append.handler import AppendHandler
from app.api.http.messages import Response
from app.errors import CommitlogError, FlushSlaveTimeout, NoLeader, NotLeader, Outcome, QuorumTimeout
from app.log.contract import AppendRequest, AppendResult
from app.log.set_schema import REJECT
from app.media_types import OCTETS
from app.node.hosted_log import HostedLog
from app.node.replica.commit_waiters import answer
from app.node.replica.driver import LogDriver
from app.node.replica.open_appends import OpenAppend
from storage.format.records import RecordColumns
from storage.units import KIB

MEMBER_MAX_BYTES: Final = 16 * KIB  # of a body: for a larger one a group saves little
GROUP_MAX_BYTES: Final = 256 * KIB  # of records

AnyAppendCall = TypeVar("AnyAppendCall", bound=AppendCall, contravariant=True)


class AppendSource(Protocol[AnyAppendCall]):
    """Origin of an append. It gets one of the two calls, once."""

    def answer(self, call: AnyAppendCall, answer: Response) -> None:
        """Give the answer to an append that was handled alone, or was not acknowledged."""
        ...

    def answer_in_group(
        self, call: AnyAppendCall, answers: GroupAnswers, first_index: int, count: int
    ) -> None:
        """Give the answer to a member of a group that was acknowledged."""
        ...


class AppendGroups:
    """The groups that wait for their driver. Owned by the event loop."""

    def __init__(self, handler: AppendHandler) -> None:
        limits = handler.broker.settings.limits
        self.handler = handler
        self._broker = handler.broker
        self._limits = limits
        self._body_max_bytes = min(MEMBER_MAX_BYTES, limits.max_request_bytes)
        self._value_max_bytes = min(MEMBER_MAX_BYTES, limits.max_record_bytes)
        self._takes_any = handler.tracer is None  # a span describes one append
        self._waiting: dict[GroupKey, _Group] = {}  # the newest of each key

    def begin(self, call: AnyAppendCall, source: AppendSource[AnyAppendCall]) -> None:
        """Begin an append, in a group if it can join or begin one."""
        key = call.head.group
        if key is None or not self._takes_any or not self._joins(key, call, source):
            self.handler.handle(call, partial(source.answer, call))

    def close(self, group: "_Group") -> None:
        """Close the group to further members: it has been answered."""
        if self._waiting.get(group.key) is group:
            del self._waiting[group.key]

    def _joins(self, key: GroupKey, call: AppendCall, source: AppendSource[Any]) -> bool:
        """Add the append to the group that waits, or to a new one; return False if it must be handled
        alone."""
        head, size_bytes = call.head, len(call.body)
        if call.parameters is not None:
            key = (head.log, call.parameters.acks, call.parameters.timeout_ms)
        group = self._waiting.get(key)
        led = self._led(head.log) if group is None else None
        if group is None and led is None:
            return False
        records: RecordColumns | None = None
        if head.media_type == OCTETS:
            if size_bytes > self._value_max_bytes:
                return False
        elif size_bytes > self._body_max_bytes or (records := read_plain(call, self._limits)) is None:
            return False
        now_ms = self._broker.clock.monotonic_ms()
        if group is not None:
            if group.join(call, source, records, now_ms):
                return True
            led = self._led(head.log)
        if led is None:
            return False
        group = _Group(self, key, *led)
        group.start(call, source, records, now_ms)
        return True

    def open(self, group: "_Group") -> None:
        """Let others join the group, which waits for its driver."""
        self._waiting[group.key] = group

    def _led(self, log: str) -> tuple[HostedLog, LogDriver] | None:
        """Return the log and its driver if this node leads it, and no schema of it may reject single
        records."""
        try:
            hosted = self._broker.lookup.find(log)
        except CommitlogError:
            return None
        driver = hosted.driver
        return None if driver is None or not hosted.leads or judges_records(driver) else (hosted, driver)


def judges_records(driver: LogDriver | None) -> bool:
    """Return whether the log refuses single records: then appends enter it one by one."""
    newest = None if driver is None else driver.state.schemas.newest
    return newest is not None and newest.record.on_invalid == REJECT


class _Group:
    """Appends that enter the log together. Each member gets one answer."""

    __slots__ = ("_append", "_driver", "_groups", "_hosted", "_members", "_records", "_request", "key")

    _append: OpenAppend

    def __init__(self, groups: AppendGroups, key: GroupKey, hosted: HostedLog, driver: LogDriver) -> None:
        _, acks, timeout_ms = self.key = key
        self._groups = groups
        self._hosted = hosted
        self._driver = driver
        self._members: list[tuple[AppendCall, AppendSource[Any], int]] = []  # int: number of records
        self._records = RecordColumns()
        self._request = AppendRequest(self._records, acks, timeout_ms)

    def start(
        self, call: AppendCall, source: AppendSource[Any], records: RecordColumns | None, now_ms: int
    ) -> None:
        """Queue the group with its first member. records: decoded; None: the body is the record."""
        self._add(call, source, records, now_ms)
        self._append = self._driver.append(self._request, self._ended)
        if self._append.is_queued:  # otherwise it has been refused already
            self._groups.open(self)

    def join(
        self, call: AppendCall, source: AppendSource[Any], records: RecordColumns | None, now_ms: int
    ) -> bool:
        """Add a member; return False if the group is full or has left the queue."""
        size_bytes = len(call.body) if records is None else records.size_bytes
        if self._records.packed_bytes + size_bytes > GROUP_MAX_BYTES or not self._driver.grow(
            self._append, size_bytes, now_ms
        ):
            return False
        self._add(call, source, records, now_ms)
        return True

    def _add(
        self, call: AppendCall, source: AppendSource[Any], records: RecordColumns | None, now_ms: int
    ) -> None:
        call.arrived_ms = now_ms
        if records is None:
            self._records.add(call.body)
            self._members.append((call, source, 1))
        else:
            self._records.extend(records)
            self._members.append((call, source, records.count))

    def _ended(self, result: AppendResult | CommitlogError) -> None:
        """The driver answers. A failure of one source reaches no other member."""
        self._groups.close(self)
        if isinstance(result, CommitlogError):
            self._refuse(result)
        else:
            self._acknowledge(result)

    def _acknowledge(self, result: AppendResult) -> None:
        handler, members = self._groups.handler, self._members
        answers = GroupAnswers(handler.response(self._hosted, result, b""))
        handler.acknowledged(Counter([call.arrived_ms for call, _, _ in members]), self._records)
        handler.answered(answers.status, sum([call.reserved_bytes for call, _, _ in members]), len(members))
        index = result.first_index
        for call, source, count in members:
            answer(source.answer_in_group, call, answers, index, count)
            index += count

    def _refuse(self, failure: CommitlogError) -> None:
        """Begin each of several members again, alone, if that may help and time is left; otherwise the
        failure is what the driver answers to each, with its own index."""
        handler, timeout_ms = self._groups.handler, self._request.timeout_ms
        is_refused = failure.outcome is Outcome.NOT_APPLIED and not isinstance(failure, NotLeader | NoLeader)
        may_help = is_refused and len(self._members) > 1
        now_ms = handler.broker.clock.monotonic_ms()
        before = 0
        for call, source, count in self._members:
            own, done = failure, partial(source.answer, call)
            if isinstance(failure, QuorumTimeout | FlushSlaveTimeout) and failure.first_index is not None:
                own = type(failure)(failure.first_index + before)
            before += count
            if may_help and now_ms < call.arrived_ms + timeout_ms:
                handler.handle(call, done)
            else:
                handler.refused(call, self._hosted, own, done)
