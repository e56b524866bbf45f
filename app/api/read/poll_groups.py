"""Groups of long polls that get the same page: one task reads it for all, and each gets the bytes.

A task, a confirmation and a timer for each poll take longer than the system takes to send its answer. So the
polls of one content at one index that arrive in a turn of the loop are a group, which confirms the leader
once. At the end of the log it joins the group that waits at its index. What belongs to one client stays with
its poll: rights, limits, request id, and a connection that is slow.
"""

import asyncio
import logging
from collections.abc import Hashable
from typing import Final, Protocol

from app.api.access.caller import Caller, Grant
from app.api.http.in_flight_limit import InFlightLimit, Reservation
from app.api.http.lane_call import RECORDS_ROUTE, LaneCall
from app.api.http.log_call import Served
from app.api.http.messages import REQUEST_ID, given_or_new_id, header_lines, problem_response
from app.api.read.page_answer import headers_of, page_of
from app.api.read.query import ReadQuery
from app.api.read.reader import LogHead, Reader
from app.api.read.shared_pages import RenderedPage
from app.api.read.tail_pace import PAGE_S, WOKEN_AT_ONCE, pace_of
from app.api.read.tail_pages import MomentPages, waits_at_the_end
from app.errors import CommitlogError, Internal, Repairing
from app.node.broker import Broker
from app.node.replica.commit_waiters import answer
from storage.errors import StorageError

logger = logging.getLogger(__name__)

_ID_LINE: Final = REQUEST_ID.replace(b"%", b"%%") + b": %b\r\n"


class KnownPoll:
    """The part of a poll's head that its repetitions share.

    content: determines the answer, with the log and from_index. permitted: the grant that permitted it last.
    """

    __slots__ = ("authorization", "content", "given_id", "log", "media_type", "path", "permitted", "query")

    def __init__(
        self,
        log: str,
        path: str,
        query: ReadQuery,
        media_type: str,
        given_id: bytes | None,
        authorization: bytes | None,
    ) -> None:
        self.log = log
        self.path = path
        self.query = query
        self.media_type = media_type
        self.given_id = given_id
        self.authorization = authorization
        self.content: Hashable = (query.model_dump_json(exclude={"from_index"}), media_type)
        self.permitted: Grant | None = None


class LanePoll(LaneCall):
    """One poll in the lane. group: finds its answer, from `PollGroups.add` on. writing: gives a large answer
    to a slow client."""

    __slots__ = (
        "caller", "from_index", "granted", "group", "groups", "here", "keep_alive", "known", "more_body",
        "request_id", "reservation", "response_complete", "source", "writing",
    )  # fmt: skip

    def __init__(
        self,
        groups: "PollGroups",
        source: "PollSource",
        known: KnownPoll,
        from_index: int,
        here: Served,
        caller: Caller,
        reservation: Reservation,
        *,
        keep_alive: bool,
    ) -> None:
        self.known = known
        self.from_index = from_index
        self.groups = groups
        self.source = source
        self.here = here
        self.caller = caller
        self.granted = caller.grant
        self.reservation = reservation
        self.keep_alive = keep_alive
        self.request_id = given_or_new_id(known.given_id)
        self.more_body = False
        self.response_complete = False
        self.group: PollGroup | None = None
        self.writing: asyncio.Task[None] | None = None


class PollSource(Protocol):
    """Origin of a poll: its connection."""

    def answer_poll(self, poll: LanePoll, status: int, lines: bytes, body: bytes | memoryview) -> None:
        """Send the answer without waiting for the client; call PollGroups.left once it is handed over.

        lines: the headers.
        """
        ...


class PollGroups:
    """The groups of a node. Owned by the event loop.

    arriving: groups that take the polls of this turn. waiting: groups at the end of their log, which take
    later groups.
    """

    def __init__(self, broker: Broker, in_flight: InFlightLimit) -> None:
        self.broker = broker
        self.arriving: dict[Hashable, PollGroup] = {}
        self.waiting: dict[Hashable, PollGroup] = {}
        self._in_flight = in_flight

    def add(self, poll: LanePoll) -> "asyncio.Task[None]":
        """Answer a poll. Return the task that does so now: a clean stop waits for it."""
        key = (poll.here.driver, poll.from_index, poll.known.content)
        group = self.arriving.get(key)
        if group is None:
            group = self.arriving[key] = PollGroup(self, key, poll)
        group.take(poll)
        return group.task

    def abandon(self, poll: LanePoll) -> None:
        """The client has disconnected, or the answer was given."""
        if poll.writing is not None:
            poll.writing.cancel()
        elif poll.group is None or poll.group.forget(poll):
            self.left(poll)

    def left(self, poll: LanePoll) -> None:
        """The poll has been answered, or its client has disconnected."""
        poll.caller.leave()
        self._in_flight.leave(poll.reservation.bytes)

    def refusal(self, error: Exception, poll: LanePoll) -> CommitlogError:
        """Return the refusal that an exception becomes; details of a failure are only logged."""
        if isinstance(error, CommitlogError):
            return error
        extra = {"request_id": poll.request_id.decode("ascii")}
        try:
            if isinstance(error, StorageError) and self.broker.repairs.report(error, "read"):
                return Repairing()
        except Exception:  # of the disk that has damaged the log
            logger.exception("no repair has begun", extra=extra)
        if isinstance(error, StorageError):
            logger.error("storage: %s", error, extra=extra)
        else:
            logger.error("request failed", exc_info=error, extra={**extra, "path": poll.known.path})
        return Internal()


class PollGroup:
    """Polls of one log, content and index.

    Invariant: all that was committed when one of its polls was confirmed is before `_known_end`, or it is not
    yet in `waiting`. A poll is in one group until it has its answer.
    gives_up_s: it sleeps until then; no wait ends before.
    """

    def __init__(self, groups: PollGroups, key: Hashable, first: LanePoll) -> None:
        known = first.known
        self._groups = groups
        self._key = key
        self._known = known
        self._index = first.from_index
        self._reader = Reader(first.here, known.query.consistency)
        self._known_end = 0
        self.gives_up_s = 0.0
        self._polls: dict[LanePoll, float] = {}  # with the end of its wait; 0.0 before it is confirmed
        self.task = asyncio.get_running_loop().create_task(self._run())
        self.task.add_done_callback(self._has_ended)

    def take(self, poll: LanePoll) -> None:
        """Answer a poll of this turn too."""
        poll.group = self
        self._polls[poll] = 0.0

    def forget(self, poll: LanePoll) -> bool:
        """Give a poll no answer; return whether it had none yet."""
        if self._polls.pop(poll, None) is None:
            return False
        if not self._polls:
            self._takes_no_more()
            self.task.cancel()
        return True

    def _takes_no_more(self) -> None:
        for groups in (self._groups.arriving, self._groups.waiting):
            if groups.get(self._key) is self:
                del groups[self._key]

    def _has_ended(self, _: "asyncio.Task[None]") -> None:
        """Polls without an answer are left when a stop has cancelled the task."""
        self._takes_no_more()
        for poll in self._polls:
            self._groups.left(poll)
        self._polls.clear()

    async def _run(self) -> None:
        self._takes_no_more()  # a poll that arrives from now on needs another confirmation
        try:
            await self._answer_all()
        except Exception as error:
            self._takes_no_more()
            polls = list(self._polls)
            for number, poll in enumerate(polls, 1):
                if self._polls.pop(poll, None) is not None:
                    self._refuse(poll, error)
                if number % WOKEN_AT_ONCE == 0:
                    await asyncio.sleep(0)

    async def _answer_all(self) -> None:
        reader, known = self._reader, self._known
        await reader.confirm()
        query = known.query.model_copy(update={"from_index": self._index})
        range_ = await reader.range_of(query)
        has_end = query.until_index is not None or query.until_timestamp is not None
        wanted = query.selection()
        if has_end or reader.is_limited or not waits_at_the_end(reader, range_, wanted, query.wait_ms):
            found = await page_of(reader, range_, query, known.media_type, self._reserve)
            await self._answer(found, list(self._polls))
        else:
            await self._wait(MomentPages(reader, range_, wanted, query.encoding, known.media_type))

    def _reserve(self, size_bytes: int) -> None:
        """Reserve memory for the page, which all share, at one poll. Raises RateLimited."""
        next(iter(self._polls)).reservation.reach(size_bytes)

    async def _wait(self, pages: MomentPages) -> None:
        """As tail_page, for all polls of the group, and of those that it takes meanwhile."""
        self._known_end = self._reader.visible_end
        self.gives_up_s = asyncio.get_running_loop().time() + self._known.query.wait_ms / 1000
        self._polls = dict.fromkeys(self._polls, self.gives_up_s)
        while not self._join():
            head = await self._moment(pages)
            self._takes_no_more()
            if head is None:
                return
            found = await pages.at(self._index, head)
            if found.body is not None:
                await self._answer(found, list(self._polls))
                return
            self._index = found.next_index

    def _join(self) -> bool:
        """Give the polls to the group that waits at this index; return whether it has taken them. Otherwise
        this group waits there, or beside one that sleeps until after its end."""
        self._key = (self._reader.driver, self._index, self._known.content)
        other = self._groups.waiting.setdefault(self._key, self)
        if other is self or other.gives_up_s > self.gives_up_s:
            return False
        other.take_from(self)
        return True

    def take_from(self, other: "PollGroup") -> None:
        """Take all polls of another group."""
        self._known_end = max(self._known_end, other._known_end)
        for poll in other._polls:
            poll.group = self
        self._polls |= other._polls
        other._polls.clear()

    async def _moment(self, pages: MomentPages) -> LogHead | None:
        """Wait for the moment that has the index; None when no poll waits any more."""
        reader, loop = self._reader, asyncio.get_running_loop()
        pace = pace_of(reader)
        while self._polls:
            self.gives_up_s = min(self._polls.values())
            left_s = max(0.0, self.gives_up_s - loop.time())
            if not await pace.grown(reader, self._index, left_s):
                stops, now_s = self._groups.broker.waits.stopping, loop.time()
                late = [poll for poll, until_s in self._polls.items() if stops or until_s <= now_s]
                await self._answer(await pages.empty(self._index), late)
                continue
            known_end = self._known_end
            head = await pace.moment(self._index, known_end, PAGE_S, reader.head)
            if self._known_end == known_end:  # no poll that has joined meanwhile knows of more
                pace.put_off(PAGE_S * (len(self._polls) - 1))
                return head
        return None

    # --- answers ------------------------------------------------------------------------------------------

    async def _answer(self, found: RenderedPage, polls: list[LanePoll]) -> None:
        """Answer these polls, some in a turn of the loop: appends are served between the turns."""
        body = found.body or b""
        while polls:
            self._reader.check_served()
            lines = header_lines(headers_of(self._reader, self._known.media_type, found))
            for poll in polls[:WOKEN_AT_ONCE]:
                if self._polls.pop(poll, None) is not None:
                    self._give(poll, lines, body)
            polls = polls[WOKEN_AT_ONCE:]
            if polls:
                await asyncio.sleep(0)

    def _give(self, poll: LanePoll, lines: bytes, body: bytes | memoryview) -> None:
        try:
            poll.reservation.reach(len(body))
            if not poll.caller.holds(poll.granted):
                raise poll.caller.revocation()
        except CommitlogError as refusal:
            self._refuse(poll, refusal)
        else:
            self._send(poll, 200, lines + _ID_LINE % poll.request_id, body)

    def _refuse(self, poll: LanePoll, error: Exception) -> None:
        refusal = self._groups.refusal(error, poll)
        if not poll.caller.holds(poll.granted):
            refusal = poll.caller.revocation()
        problem = problem_response(refusal, instance=poll.known.path, request_id=poll.request_id)
        self._send(poll, problem.status, header_lines(problem.headers), problem.body)

    def _send(self, poll: LanePoll, status: int, lines: bytes, body: bytes | memoryview) -> None:
        self._groups.broker.meter.answered("GET", RECORDS_ROUTE, status)
        answer(poll.source.answer_poll, poll, status, lines, body)  # a defect there is that of one poll
