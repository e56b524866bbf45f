"""Carries appends of clients to the leader of their log, over the connections of replication.

All appends of one turn of the loop share a frame, and so do their answers: one forwarded append costs neither
a task nor an HTTP call. This end makes one attempt; app/api/append/handler.py decides what follows.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, Protocol, TypeVar

from app.node.hosted_log import REPLACED_GRACE_S, HostedLog
from app.node.network.append_messages import (
    DECLINED,
    HEAD_MAX_BYTES,
    AppendMessage,
    CarriedAnswer,
    CarriedAnswers,
    CarriedAppend,
    CarriedAppends,
)
from app.node.network.http_forwarder import Lost, NotSent
from app.node.replica.commit_waiters import answer
from storage.units import KIB

BODY_MAX_BYTES: Final = 128 * KIB  # a larger body takes an HTTP call, so that no heartbeat waits for it
FRAME_BYTES: Final = 256 * KIB  # from which on the next append begins another frame
ITEM_BYTES: Final = 64  # at most, in a frame, beside what has a length of its own
SWEEP_S: Final = 0.1
GRACE_S: Final = 1.0  # the leader's own timeout ends earlier, with the more precise answer
_NO_LOG: Final = 0  # a frame may be about several logs

Item = TypeVar("Item", CarriedAppend, CarriedAnswer)
CarryOutcome = CarriedAnswer | NotSent | Lost
Serve = Callable[[CarriedAppend, Callable[[CarriedAnswer], None]], None]


class CarryingTransport(Protocol):
    """The part of app.node.network.peer_transport.PeerTransport that is used here."""

    def carries_appends(self, peer_id: str) -> bool:
        """Return whether appends can be sent to the peer now."""
        ...

    def send(self, target: str, log_id: int, message: AppendMessage) -> None:
        """Queue a message for the end of this turn of the loop."""
        ...


@dataclass(slots=True)
class _OpenCall:
    hosted: HostedLog
    done: Callable[[CarryOutcome], None]
    deadline_s: float  # in the loop's time
    replaced_s: float | None = None  # since when another leader is known


class AppendCarrier:
    """Both ends of one node. Owned by the event loop.

    serve: takes the appends of other nodes, and answers each once; None: they are declined.
    """

    def __init__(self, transport: CarryingTransport, chance: Random) -> None:
        """chance: draws the first id, so that no answer to an earlier incarnation of this node matches."""
        self.serve: Serve | None = None
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._last_id = chance.getrandbits(53)
        self._open: dict[str, dict[int, _OpenCall]] = {}  # by leader
        self._appends: dict[str, list[CarriedAppend]] = {}  # of this turn, by leader
        self._answers: dict[str, list[CarriedAnswer]] = {}  # of this turn, by sender
        self._flush_due = False
        self._sweep_handle: asyncio.TimerHandle | None = None

    # --- the end of the client ----------------------------------------------------------------------------

    def send(
        self,
        hosted: HostedLog,
        head: bytes,
        request_id: bytes,
        body: bytes,
        timeout_ms: int,
        done: Callable[[CarryOutcome], None],
    ) -> bool:
        """Send an append to the leader of its log, then done(outcome), once; False: that is impossible now,
        and done is not called.

        The outcome is NotSent if the leader has certainly not begun it, and Lost if no answer arrived: also
        when another leader has replaced it.
        """
        leader = hosted.leader_id
        fits = len(head) <= HEAD_MAX_BYTES and len(body) <= BODY_MAX_BYTES
        if leader is None or not fits or not self._transport.carries_appends(leader):
            return False
        self._last_id += 1
        deadline_s = self._loop.time() + timeout_ms / 1000 + GRACE_S
        self._open.setdefault(leader, {})[self._last_id] = _OpenCall(hosted, done, deadline_s)
        append = CarriedAppend(self._last_id, timeout_ms, head, request_id, body)
        self._appends.setdefault(leader, []).append(append)
        self._ask_flush()
        if self._sweep_handle is None:
            self._sweep_handle = self._loop.call_later(SWEEP_S, self._sweep)
        return True

    def lost(self, peer_id: str) -> None:
        """A connection with this peer was lost: no answer to what was sent is certain to arrive."""
        unsent = {append.id for append in self._appends.pop(peer_id, ())}
        for call_id, call in self._open.pop(peer_id, {}).items():
            why = f"{peer_id}: the connection was lost"
            answer(call.done, NotSent(why) if call_id in unsent else Lost(why))

    def stop(self) -> None:
        """End all calls: their outcome is unknown."""
        for peer_id in list(self._open):
            self.lost(peer_id)
        if self._sweep_handle is not None:
            self._sweep_handle.cancel()

    def _sweep(self) -> None:
        """Give up calls that are late, or whose leader was replaced; it has a grace period, as in HTTP."""
        now_s = self._loop.time()
        for leader, calls in list(self._open.items()):
            for call_id, call in list(calls.items()):
                if call.hosted.leader_id in (None, leader):
                    call.replaced_s = None
                elif call.replaced_s is None:
                    call.replaced_s = now_s
                if now_s >= call.deadline_s:
                    why = "did not answer in time"
                elif call.replaced_s is not None and now_s - call.replaced_s >= REPLACED_GRACE_S:
                    why = "lost its leadership before it answered"
                else:
                    continue
                if calls.pop(call_id, None) is not None:
                    answer(call.done, Lost(f"{leader} {why}"))
            if not calls:
                self._open.pop(leader, None)
        self._sweep_handle = self._loop.call_later(SWEEP_S, self._sweep) if self._open else None

    # --- the end of the leader ----------------------------------------------------------------------------

    def take(self, source: str, message: AppendMessage, *, serves: bool = True) -> None:
        """Take a message of a peer. serves: False declines its appends, whose tokens another node would have
        checked; the peer sends them as HTTP calls."""
        if isinstance(message, CarriedAppends):
            for append in message.appends:
                reply = partial(self._reply, source)
                if self.serve is None or not serves:
                    reply(CarriedAnswer(append.id, DECLINED))
                else:
                    self.serve(append, reply)
            return
        calls = self._open.get(source, {})
        for each in message.answers:
            call = calls.pop(each.id, None)
            if call is not None:
                answer(call.done, each if each.status != DECLINED else NotSent(f"{source} declined"))

    def _reply(self, source: str, given: CarriedAnswer) -> None:
        self._answers.setdefault(source, []).append(given)
        self._ask_flush()

    # --- frames -------------------------------------------------------------------------------------------

    def _ask_flush(self) -> None:
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        queued, self._appends = self._appends, {}
        for leader, appends in queued.items():
            if self._transport.carries_appends(leader):
                for part in _parts(appends):
                    self._transport.send(leader, _NO_LOG, CarriedAppends(part))
            else:
                self._decline(leader, appends)
        given, self._answers = self._answers, {}
        for source, answers in given.items():
            for share in _parts(answers):
                self._transport.send(source, _NO_LOG, CarriedAnswers(share))

    def _decline(self, leader: str, appends: list[CarriedAppend]) -> None:
        calls = self._open.get(leader, {})
        for append in appends:
            call = calls.pop(append.id, None)
            if call is not None:
                answer(call.done, NotSent(f"{leader}: no connection"))


def _parts(items: Iterable[Item]) -> Iterator[tuple[Item, ...]]:
    """Divide what was queued in one turn into frames, in its order. Heads count: a receiver closes the
    connection, which is that of the heartbeats, for a frame that is too large."""
    part: list[Item] = []
    size_bytes = 0
    for item in items:
        part.append(item)
        size_bytes += _size_of(item)
        if size_bytes >= FRAME_BYTES:
            yield tuple(part)
            part, size_bytes = [], 0
    if part:
        yield tuple(part)


def _size_of(item: CarriedAppend | CarriedAnswer) -> int:
    """Return an upper bound of the bytes that an item takes in a frame."""
    if isinstance(item, CarriedAppend):
        return ITEM_BYTES + len(item.head) + len(item.request_id) + len(item.body)
    headers = sum(ITEM_BYTES + len(name) + len(value) for name, value in item.headers)
    return ITEM_BYTES + headers + len(item.body)
