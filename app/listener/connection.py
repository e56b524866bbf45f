"""HTTP/1.1 connections of the REST listener: uvicorn's protocol, with limits for clients and two fast lanes.

A client occupies a connection by an incomplete request head or body, by an answer that it does not read, or
by silence. Each of these ends after a time limit, a head also at a size limit, and the number of connections
is limited: a client without a token must not exhaust the node's memory or descriptors.
"""

import asyncio
import fcntl
import logging
import math
import re
import termios
from typing import Any, Final

import httptools
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from app.api.append.group_answers import GroupAnswers
from app.api.append.lane import AppendLane, LaneAppend
from app.api.http.dependencies import PIECE_BYTES
from app.api.http.lane_call import LaneCall
from app.api.http.messages import Response, header_lines, new_request_id, problem_response
from app.api.http.single_headers import repeated_header
from app.api.read.poll_groups import LanePoll
from app.errors import BadRequest, CommitlogError, RateLimited, RequestTimeout
from app.listener.asgi_calls import closed_when_cut_off, end_waiting, ended_by_close
from app.listener.listener import PIPELINED_MAX, Listener
from app.listener.refusals import (
    MAX_HEADERS,
    check_head,
    check_header,
    check_target,
    head_too_large,
    refusal_of,
)

logger = logging.getLogger(__name__)

STREAM_SUFFIX: Final = ":stream"
HEAD_END: Final = b"\r\n\r\n"
UPGRADE: Final = re.compile(rb"\r\nupgrade(?=[ \t]*:)", re.IGNORECASE)
BLANKS: Final = b" \t"  # around a header's value, not part of it (RFC 9110, section 5.5)
_BODY_GRACE_S: Final = 5.0  # the append route has a body timeout of its own, and a better answer
_EOF_GRACE_S: Final = 6.0  # the default time limit of an append is 5 s


class Connection(HttpToolsProtocol):
    """One client's connection.

    Invariant: `_in_head` from the end of one request to the end of the next one's head.
    """

    def __init__(self, listener: Listener, **given: Any) -> None:
        super().__init__(**given)
        self._listener = listener
        self._in_head = True
        self._head_bytes = 0  # received of the incoming head
        self._head_since_s = 0.0
        self._received_s = 0.0
        self._eof_s = math.inf  # since when the client sends no more
        self._unsent_bytes = 0  # when last checked
        self._unsent_since_s = 0.0
        self._running: RequestResponseCycle | LaneCall | None = None
        self._parsing = False  # the parser is within a request
        self._raw_head: bytes | None = None  # of the request that the parser reads, if received in one piece
        self._body_left = 0  # bytes of the body of an append with a known head

    # --- uvicorn's seams ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_since_s = self._received_s = self._unsent_since_s = self.loop.time()
        if not self._listener.opened(self):
            limit = self._listener.max_connections
            self._answer_and_close(RateLimited(f"this node accepts at most {limit} connections"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.closed(self)
        if isinstance(self._running, LaneAppend) and self._running.more_body:
            self._lane.abandon(self._running)
        if isinstance(self._running, LanePoll):
            self._running.groups.abandon(self._running)
            self._running = None  # it refers to this connection
        if isinstance(self._running, RequestResponseCycle):
            end_waiting(self._running)
        if isinstance(self.cycle, LaneCall):
            self.cycle = None  # type: ignore[assignment]  # as uvicorn leaves it before the first request
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        self._unset_keepalive_if_required()
        self._received_s = self.loop.time()
        if self._body_left:
            data = self._take_body(data)
            if not data:
                return
        if self._in_head:
            if not self._head_bytes:
                if not self._parsing and self._take_known(data):
                    return
                self._head_since_s = self._received_s
            self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            self._break_off(refusal_of(error))
            return
        if self._in_head and self._head_bytes > self._listener.settings.max_head_bytes:
            self._break_off(head_too_large(self._listener.settings.max_head_bytes))

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends no more. Return whether the connection stays open: for the answers to complete
        requests, which the client may wait for. It may also have disconnected, so these answers have a time
        limit, and a read, which may wait, ends at once. TLS cannot be half-closed."""
        running = self._running
        is_read = isinstance(running, LanePoll) or (
            isinstance(running, RequestResponseCycle) and running.scope["method"] == "GET"
        )
        if self.scheme == "https" or is_read or not self._owes_answers:
            return False
        self._eof_s = min(self._eof_s, self.loop.time())
        self._end_after_answers()
        return True

    def shutdown(self) -> None:
        """As uvicorn: close the connection if it is idle, otherwise after its answer. TLS is not awaited: the
        event loop would wait for 30 s until the client, which may read nothing, has ended its side too."""
        has_all = self.scheme == "https" and self._client_has_all
        super().shutdown()
        if has_all and self.transport.is_closing() and not self.transport.get_write_buffer_size():
            self.transport.abort()

    @property
    def _client_has_all(self) -> bool:
        """True if the kernel has nothing more to send. The transport of TLS does not report what waits below
        it, for the kernel."""
        descriptor = self.transport.get_extra_info("socket").fileno()
        try:
            return fcntl.ioctl(descriptor, termios.TIOCOUTQ, bytes(4)) == bytes(4)
        except OSError:  # it is closed
            return False

    def _feed(self, data: bytes) -> None:
        """Parse received bytes. The header Upgrade is ignored (RFC 9110, section 7.8): clients for HTTP/2
        send it with their first request. The parser would take the body of such a request for the other
        protocol, so the header is renamed before it arrives there, if the bytes begin within the head."""
        if self._in_head:
            end = data.find(HEAD_END)
            head = data if end < 0 else data[:end]
            self._raw_head = data[: end + len(HEAD_END)] if end >= 0 and not self._parsing else None
            if UPGRADE.search(head):
                data = UPGRADE.sub(b"\r\nignored", head) + data[len(head) :]
        while data:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            else:
                return

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._parsing = True
        self._parsed_head_bytes = 0

    def on_url(self, url: bytes) -> None:
        self._count_head(len(url))
        super().on_url(url)
        check_target(self.url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_head(len(name) + len(value))
        if not self._in_head:  # a trailer: it comes after the checks of the head, and is ignored
            return
        name, value = name.lower(), value.strip(BLANKS)
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = self.parser.get_http_version() == "1.1"  # RFC 9110, section 10.1.1
        else:
            check_header(name, value, self._listener.hosts)
        self.headers.append((name, value))

    def _count_head(self, size_bytes: int) -> None:
        """Count a parsed part of the head: `_head_bytes` of a request in one piece is never compared."""
        self._parsed_head_bytes += size_bytes
        if (
            self._parsed_head_bytes > self._listener.settings.max_head_bytes
            or len(self.headers) >= MAX_HEADERS
        ):
            raise head_too_large(self._listener.settings.max_head_bytes)

    def on_headers_complete(self) -> None:
        parser = self.parser
        check_head(self.headers, parser.get_http_version(), asks_upgrade=parser.should_upgrade())
        if len(self.pipeline) >= PIPELINED_MAX:
            raise BadRequest(f"at most {PIPELINED_MAX} requests may wait for an earlier answer")
        self._in_head = False
        if self.transport.is_closing():  # after an answer with `connection: close`
            return
        call = self._take_call()
        if call is None:
            if self.expect_100_continue and self.url.partition(b"?")[0].endswith(STREAM_SUFFIX.encode()):
                self._continue_stream()
            super().on_headers_complete()
        else:
            self._running = call
            self.cycle = call  # type: ignore[assignment]  # it has what uvicorn uses of a cycle

    def _continue_stream(self) -> None:
        """Send 100 at once: uvicorn sends none after the response of a stream, which precedes its body."""
        if not self._lane_is_busy:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.expect_100_continue = False

    def on_body(self, body: bytes) -> None:
        if not isinstance(self.cycle, LaneCall):
            super().on_body(body)
        elif isinstance(self.cycle, LaneAppend) and self.cycle.more_body:
            self.cycle.parts.append(body)

    def on_message_complete(self) -> None:
        self._parsing = False
        self._in_head, self._head_bytes, self._head_since_s = True, 0, self._received_s
        if isinstance(self.cycle, LaneAppend):
            self._body_has_arrived(self.cycle)
        elif isinstance(self.cycle, LanePoll):
            self._begin_poll(self.cycle)
        else:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGIApp) -> None:  # type: ignore[override]
        self._running = cycle
        if cycle.scope["http_version"] == "1.0":
            app = ended_by_close(cycle, app)
        app = closed_when_cut_off(cycle, app)
        super()._start_asgi_task(cycle, app)  # type: ignore[arg-type]

    # --- the lanes ----------------------------------------------------------------------------------------

    @property
    def _lane(self) -> AppendLane:
        assert self._listener.lane is not None
        return self._listener.lane

    def _take_call(self) -> LaneCall | None:
        """Return the append or the poll whose head is complete, if a lane takes it.

        One at a time: a pipelined request waits for its turn in uvicorn's queue, as any other.
        """
        parser, listener = self.parser, self._listener
        raw, self._raw_head = self._raw_head, None
        method = parser.get_method()
        if self._lane_is_busy or parser.get_http_version() != "1.1":
            return None
        if repeated_header(self.headers) is not None:  # refused by HttpMiddleware
            return None
        keep_alive = parser.should_keep_alive()
        if method == b"GET" and listener.polls is not None:
            return listener.polls.take(self, raw, self.url, self.headers, keep_alive=keep_alive)
        if method == b"POST" and listener.lane is not None:
            now_s = self._received_s
            return listener.lane.take(raw, self.url, self.headers, keep_alive=keep_alive, now_s=now_s)
        return None

    @property
    def _lane_is_busy(self) -> bool:
        cycle = self.cycle
        return (cycle is not None and not cycle.response_complete) or self.flow.write_paused

    def _take_known(self, data: bytes) -> bool:
        """Take a call whose head a lane knows, without the parser. Return False for any other request.

        data: begins a request.
        """
        body_start = data.find(HEAD_END) + len(HEAD_END)
        if body_start < len(HEAD_END) or self._lane_is_busy:
            return False
        lane, polls = self._listener.lane, self._listener.polls
        if polls is not None and len(data) == body_start and data.startswith(b"GET "):
            seen = polls.known(data)
            poll = None if seen is None else polls.begin(self, *seen, keep_alive=True)
            if poll is not None:
                self.cycle = self._running = poll  # type: ignore[assignment]  # as in on_headers_complete
                self._head_since_s = self._received_s
                self._begin_poll(poll)
            return poll is not None
        known = None if lane is None else lane.known(data[:body_start])
        if lane is None or known is None or len(data) - body_start > known.size_bytes:
            return False
        append = lane.begin(known, keep_alive=True, now_s=self._received_s)
        if append is None:
            return False
        self.cycle = self._running = append  # type: ignore[assignment]  # as in on_headers_complete
        self._head_since_s = self._received_s
        self._body_left = known.size_bytes - len(data) + body_start
        if self._body_left:
            self._in_head = False
            append.parts.append(data[body_start:])
        else:
            append.body = data[body_start:]
            lane.handle(append, self)
        return True

    def _begin_poll(self, poll: LanePoll) -> None:
        self._awaited_by_a_stop(poll.groups.add(poll))

    def _awaited_by_a_stop(self, task: asyncio.Task[None]) -> None:
        if task not in self.tasks:
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    def answer_poll(self, poll: LanePoll, status: int, lines: bytes, body: bytes | memoryview) -> None:
        """As PollSource.answer_poll."""
        head = b"".join(self._head_of(poll, status, lines))
        if self.flow.write_paused or len(body) > PIECE_BYTES:
            poll.writing = self.loop.create_task(self._write_in_pieces(poll, head, memoryview(body)))
            self._awaited_by_a_stop(poll.writing)
            poll.writing.add_done_callback(lambda _: poll.groups.left(poll))
            return
        poll.groups.left(poll)
        if not self.transport.is_closing():
            self.transport.writelines((head, body))
        poll.response_complete = True
        self._has_answered(poll)

    async def _write_in_pieces(self, poll: LanePoll, head: bytes, rest: memoryview) -> None:
        """Write an answer as the client reads it, as ExactResponse does."""
        while rest or head:
            if self.flow.write_paused:
                await self.flow.drain()
            is_last = len(rest) <= PIECE_BYTES
            if self.transport.is_closing():
                break
            if not is_last and not poll.caller.holds(poll.granted):
                logger.info("read ended: its token was removed or lost rights: %s", poll.caller.name)
                self.transport.close()
                break
            self.transport.writelines((head, rest[:PIECE_BYTES]))
            rest, head = rest[PIECE_BYTES:], b""
        poll.response_complete = True
        self._has_answered(poll)

    def _take_body(self, data: bytes) -> bytes:
        """Take the next part of the body of an append with a known head; return what follows the body."""
        append: Any = self.cycle
        part = data[: self._body_left]
        if append.more_body:
            append.parts.append(part)
        self._body_left -= len(part)
        if not self._body_left:
            self._in_head, self._head_bytes, self._head_since_s = True, 0, self._received_s
            self._body_has_arrived(append)
        return data[len(part) :]

    def _body_has_arrived(self, append: LaneAppend) -> None:
        if append.more_body:  # otherwise it was refused because the body was late
            self._lane.handle(append, self)

    def answer(self, append: LaneAppend, answer: Response) -> None:
        """As AppendSource.answer."""
        append.caller.leave()
        self._write_response(append, answer)

    def answer_in_group(
        self, append: LaneAppend, answers: GroupAnswers, first_index: int, count: int
    ) -> None:
        """As AppendSource.answer_in_group."""
        append.caller.leave()
        body = answers.body(first_index, count)
        self._write(append, answers.status, answers.lines(len(body), append.request_id), body)

    def _write_response(self, append: LaneAppend, answer: Response) -> None:
        self._write(append, answer.status, header_lines(answer.headers), answer.body)

    def _write(self, append: LaneAppend, status: int, lines: bytes, body: bytes) -> None:
        append.response_complete = True
        if not self.transport.is_closing():
            self.transport.write(b"".join((*self._head_of(append, status, lines), body)))
            self._has_answered(append)

    def _head_of(self, call: LaneCall, status: int, lines: bytes) -> tuple[bytes, bytes, bytes]:
        """Return the parts of the head of an answer as uvicorn writes it."""
        end = b"\r\n" if call.keep_alive else b"connection: close\r\n\r\n"
        return self._listener.start_of_answer(status, self.server_state.default_headers), lines, end

    def _has_answered(self, call: LaneCall) -> None:
        """Continue after an answer as uvicorn does. The client may have disconnected meanwhile."""
        if self.transport.is_closing():
            return
        if not call.keep_alive:
            self.transport.close()
        if self.pipeline or self.flow.read_paused:
            self.on_response_complete()
        else:
            self._head_since_s = self.loop.time()  # `enforce` ends the silence that follows

    # --- limits -------------------------------------------------------------------------------------------

    def enforce(self, now_s: float) -> None:
        """Close the connection if it has exceeded a time limit. now_s: the loop's time."""
        settings = self._listener.settings
        running = self._running
        late = self._lane.late(running, now_s) if isinstance(running, LaneAppend) else None
        if isinstance(running, LaneAppend) and late is not None:
            self._write_response(running, late)
        if self._unread_since(now_s) > settings.write_timeout_ms / 1000:
            self.transport.abort()
        elif self.transport.is_closing():
            return
        elif now_s - self._eof_s > _EOF_GRACE_S and not self.transport.get_write_buffer_size():
            self.transport.close()
        elif self.flow.read_paused:  # the node is silent, not the client: requests wait for earlier answers
            self._head_since_s = self._received_s = now_s
        elif self._in_head:
            silent_s = now_s - self._head_since_s
            if self._head_bytes and silent_s > settings.head_timeout_ms / 1000:
                self._break_off(RequestTimeout("the request head did not arrive in time"))
            elif not self._head_bytes and self._is_idle and silent_s > self.timeout_keep_alive:
                self.transport.close()
        elif not self._streams and now_s - self._received_s > (
            settings.body_timeout_ms / 1000 + _BODY_GRACE_S
        ):
            self._break_off(RequestTimeout("the request body did not arrive in time"))

    @property
    def _is_idle(self) -> bool:
        """Return whether the client is silent before its first request, or after an answer of the lane."""
        return self.cycle is None or (isinstance(self.cycle, LaneCall) and self.cycle.response_complete)

    @property
    def _streams(self) -> bool:
        """Return whether the incoming request is a stream of appends, which may pause for any time."""
        return not isinstance(self.cycle, LaneCall) and self.scope["path"].endswith(STREAM_SUFFIX)

    def _unread_since(self, now_s: float) -> float:
        """Return for how many seconds the client has read nothing of the waiting answer; 0 while it reads."""
        unsent_bytes = self.transport.get_write_buffer_size()
        if not unsent_bytes or unsent_bytes < self._unsent_bytes:
            self._unsent_since_s = now_s
        self._unsent_bytes = unsent_bytes
        return now_s - self._unsent_since_s

    # --- refusals -----------------------------------------------------------------------------------------

    def _break_off(self, error: CommitlogError) -> None:
        """End the connection: bytes after this point cannot be parsed. Complete requests keep their
        answers, because an append without an answer must not be taken for a refused one."""
        running = self._running
        if self._owes_answers:
            self._end_after_answers()
        elif running is not None and running.response_started and not running.response_complete:
            self.transport.close()
        else:
            self._answer_and_close(error)

    @property
    def _owes_answers(self) -> bool:
        """Return whether the request that is being answered is complete."""
        running = self._running
        if running is None or running.response_complete:
            return False
        return not (running.more_body and self.cycle is running)

    def _end_after_answers(self) -> None:
        """Take no more requests, and close the connection after the answers that it owes."""
        if self.cycle.more_body:  # not begun: it waits for earlier answers
            self.pipeline.popleft()
            newest: Any = self.pipeline[0][0] if self.pipeline else self._running
            self.cycle = newest
        self.cycle.keep_alive = False
        self.flow.pause_reading()

    def _answer_and_close(self, error: CommitlogError) -> None:
        answer = problem_response(error, instance="/", request_id=new_request_id())
        lines = header_lines((*answer.headers, (b"connection", b"close")))
        self.transport.write(b"".join((STATUS_LINE[answer.status], lines, b"\r\n", answer.body)))
        self.transport.close()
