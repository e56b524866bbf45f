"""The way of a call from any node to the leader of its log: one search, one retry policy, one outcome.

Independent of any framework. Appends, streams of appends, commands and reads of the leader use it.
"""

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec

from app.api.http.leader_headers import not_leader
from app.errors import NoLeader, NotLeader, QuorumTimeout, Repairing
from app.node.broker import Broker
from app.node.hosted_log import HostedLog
from app.node.network.http_forwarder import Lost, NotSent, Relayed
from app.node.replica.driver import LogDriver
from app.settings.model import NodeSettings

RETRY_MS: Final = 100  # pause between two searches for a leader
Answer = TypeVar("Answer")


class LeaderProxy:
    """Finds the leader of a log and lets it answer. Owned by the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def deadline_ms(self) -> int:
        """Return the monotonic time until which a call that arrives now waits for a leader."""
        return self._broker.clock.monotonic_ms() + self._broker.settings.http.leader_wait_ms

    async def at_leader(
        self,
        hosted: HostedLog,
        here: Callable[[LogDriver], Awaitable[Answer]],
        there: Callable[[NodeSettings], Awaitable[Answer]],
        *,
        deadline_ms: int,
        here_only: bool = False,
        repeatable: bool = False,
        acknowledges: Callable[[Answer], bool] = lambda _: True,
        lost: Lost | None = None,
    ) -> Answer:
        """Return the answer of `here` if this node leads, otherwise that of `there` from the leader.

        Both raise NotLeader or NoLeader when that node does not lead: it has applied nothing, so the search
        continues, until deadline_ms (monotonic). `there` also raises NotSent and Lost.
        here_only: forward to no other node. repeatable: a call whose answer was lost may be sent again; then
        only an answer that `acknowledges` is certain, because the first attempt may have been applied. lost:
        such an attempt, made before.

        Raises NoLeader; NotLeader if `here_only`; QuorumTimeout when the outcome of an attempt is unknown.
        """
        clock = self._broker.clock
        why: str | None = None
        while lost is None or repeatable:
            try:
                answer = await self._attempt(hosted, here, there, here_only)
            except (NotLeader, NoLeader) as refusal:
                if here_only:
                    raise
                why = refusal.detail if isinstance(refusal, NoLeader) else None
            except Lost as error:
                lost = error
                if not repeatable:
                    break
            else:
                if lost is not None and not acknowledges(answer):
                    break
                return answer
            left_ms = deadline_ms - clock.monotonic_ms()
            if left_ms <= 0:
                break
            await hosted.leadership_changed(min(RETRY_MS, left_ms) / 1000)
        if lost is not None:
            raise QuorumTimeout(None, f"the leader's answer was lost: {lost}")
        raise NoLeader(why)

    async def _attempt(
        self,
        hosted: HostedLog,
        here: Callable[[LogDriver], Awaitable[Answer]],
        there: Callable[[NodeSettings], Awaitable[Answer]],
        here_only: bool,
    ) -> Answer:
        """Ask this node if it leads, otherwise each node that may lead, and those that they name."""
        if hosted.leads and hosted.driver is not None:
            return await here(hosted.driver)
        if here_only:
            raise not_leader(self._broker, hosted)
        refusal: NotLeader | NoLeader = hosted.no_leader
        asked = {self._broker.node.id}
        waiting = deque(self._candidates(hosted))
        while waiting:
            node = self._broker.nodes.find(waiting.popleft())
            if node is None or node.id in asked:
                continue
            asked.add(node.id)
            try:
                return await there(node)
            except NotSent:
                continue
            except NotLeader as error:
                refusal = error
                if error.leader is not None:
                    waiting.appendleft(error.leader)
            except NoLeader as error:
                refusal = error
        raise refusal

    def _candidates(self, hosted: HostedLog) -> list[str]:
        """Return the known leader; for a log that is not served here, every replica."""
        if hosted.serving is None:
            return hosted.answering(self._broker.node.id)
        leader = hosted.leader_id
        return [] if leader is None else [leader]


class _Refusal(msgspec.Struct, frozen=True):
    code: str = ""
    leader: str | None = None
    detail: str | None = None


def check_led(relayed: Relayed) -> Relayed:
    """Return another node's answer, unless it refuses because it does not lead: it has applied nothing.

    Raises NotLeader, with the leader that it named, or NoLeader.
    """
    if relayed.status not in (NotLeader.http_status, NoLeader.http_status):
        return relayed
    try:
        refusal = msgspec.json.decode(relayed.body, type=_Refusal)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return relayed
    if refusal.code == NotLeader.code:
        raise NotLeader(refusal.leader)
    if refusal.code in (NoLeader.code, Repairing.code):
        raise NoLeader(refusal.detail if refusal.code == NoLeader.code else None)
    return relayed
