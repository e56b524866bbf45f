"""Comparison of the clocks of a log's replicas: a clock that is ahead of the others makes no record old.

A node takes over its wall clock at the start (app/node/clock.py). A leader that starts days ahead would find
every record old. So a leader asks the other voters for their clocks before it removes records by age. Between
two nodes that run the difference stays, so a lost answer changes nothing; a peer that is silent for
an hour counts no longer.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from app.log.driver_interfaces import Clock
from app.node.network.repair_messages import PeerCall, TermAnswer, TermRequest

logger = logging.getLogger(__name__)

CLOCK_ANSWER_TIMEOUT_S: Final = 2.0
AHEAD_MS: Final = 60_000  # difference that causes a warning
TRIES: Final = 3  # of a peer in one round, by different logs: it may not serve one of them
KEPT_MS: Final = 60 * 60 * 1000  # for so long the last answer of a silent peer counts


def earlier_of(own_ms: int, ahead_ms: Sequence[int]) -> int:
    """Return `own_ms`, or the median of all clocks if that is earlier. PURE.

    ahead_ms: how far each other clock is ahead of the own one, milliseconds; negative: late. Of an even
    number of clocks the earlier middle one is the median.
    """
    ordered = sorted((0, *ahead_ms))
    return own_ms + min(0, ordered[(len(ordered) - 1) // 2])


class TermCalls(Protocol):
    """The part of PeerCalls that is used here."""

    async def ask(self, peer: str, log_id: int, make: type[TermRequest], timeout_s: float) -> PeerCall | None:
        """As PeerCalls.ask."""
        ...


class PeerClocks:
    """Clocks that the peers have reported. Owned by the event loop."""

    def __init__(self, calls: TermCalls, clock: Clock) -> None:
        self._calls = calls
        self._clock = clock
        self._tries: dict[str, int] = {}  # by peer, in the present round; TRIES once it has answered
        self._ahead_ms: dict[str, tuple[int, int]] = {}  # by peer: (difference, monotonic time of the answer)
        self._is_ahead = False

    def begin_round(self) -> None:
        """Ask each peer again at its next use."""
        self._tries = {}

    async def agreed_ms(self, log_id: int, peers: Sequence[str], least: int) -> int | None:
        """Return the time by which a record's age is judged, milliseconds since 1970.

        peers: the other voters of the log. least: so many clocks must be known, the own one among them; None
        when fewer are. An older version does not report its clock.
        """
        due = [peer for peer in peers if self._tries.get(peer, 0) < TRIES]
        await asyncio.gather(*(self._ask(peer, log_id) for peer in due))
        oldest_ms = self._clock.monotonic_ms() - KEPT_MS
        answers = [self._ahead_ms[peer] for peer in peers if peer in self._ahead_ms]
        known = [ahead_ms for ahead_ms, answered_ms in answers if answered_ms >= oldest_ms]
        if len(known) + 1 < least:
            return None
        own_ms = self._clock.now_ms()
        agreed_ms = earlier_of(own_ms, known)
        self._report(own_ms - agreed_ms)
        return agreed_ms

    async def _ask(self, peer: str, log_id: int) -> None:
        self._tries[peer] = self._tries.get(peer, 0) + 1
        answer = await self._calls.ask(peer, log_id, TermRequest, CLOCK_ANSWER_TIMEOUT_S)
        if isinstance(answer, TermAnswer) and answer.clock_ms is not None:
            self._tries[peer], clock = TRIES, self._clock
            self._ahead_ms[peer] = answer.clock_ms - clock.now_ms(), clock.monotonic_ms()

    def _report(self, ahead_ms: int) -> None:
        if (ahead_ms > AHEAD_MS) is self._is_ahead:
            return
        self._is_ahead = not self._is_ahead
        if self._is_ahead:
            logger.warning(
                "the clock of this node is %.0f s ahead of the other replicas; retention uses theirs",
                ahead_ms / 1000,
            )
        else:
            logger.info("the clock of this node agrees with the other replicas again")
