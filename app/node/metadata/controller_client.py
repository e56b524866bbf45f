"""Client of the active controller at one node: commands until they are answered, and heartbeats (C-03, C-10).

It finds the active controller by itself: the leader of `__controller` as far as this node knows, otherwise
the one that an inactive controller names, otherwise one after the other. An unanswered request is repeated
under the same id; after its time limit its outcome is unknown.
"""

from collections import deque
from collections.abc import Callable, Sequence
from random import Random
from typing import Final

from app.controller.commands import AnyCommand, Done, Reason, Refusal
from app.controller.config import ControllerConfig
from app.controller.liveness import Report
from app.controller.messages import (
    AnyControllerMessage,
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    CommandAnswer,
    CommandRequest,
)
from app.log.driver_interfaces import Clock

Answered = Callable[[Done | Refusal | None], None]
HeartbeatAnswered = Callable[[BrokerHeartbeatAnswer, int], None]
MAX_OPEN_COMMANDS: Final = 1_024  # of one node
_REMEMBERED_HEARTBEATS: Final = 64
_FOLLOWED_A_TICK: Final = 4


class _Asked:
    __slots__ = ("answered", "command", "deadline_ms", "due_ms")

    def __init__(self, command: AnyCommand, answered: Answered, deadline_ms: int, now_ms: int) -> None:
        self.command = command
        self.answered = answered
        self.deadline_ms = deadline_ms
        self.due_ms = now_ms


class ControllerClient:
    """Owned by the event loop. Every `answered` is called exactly once."""

    def __init__(
        self,
        *,
        config: ControllerConfig,
        controllers: Sequence[str],
        leader: Callable[[], str | None],
        send: Callable[[str, AnyControllerMessage], None],
        reports: Callable[[], tuple[int, tuple[Report, ...]]],
        heartbeat_answered: HeartbeatAnswered,
        clock: Clock,
        random: Random,
    ) -> None:
        """leader: of `__controller` as far as is known here. reports: metadata index and reports for a
        heartbeat. heartbeat_answered(answer, sent_ms): by the active controller. random: draws ids."""
        self._config = config
        self._controllers = tuple(controllers)
        self._leader = leader
        self._send = send
        self._reports = reports
        self._heartbeat_answered = heartbeat_answered
        self._clock = clock
        self._random = random
        self._asked: dict[int, _Asked] = {}
        self._ended: list[_Asked] = []  # displaced by newer ones since the last tick
        self._hint: str | None = None
        self._turn = 0
        self._follows = 0  # in this tick: two that name each other must not cause an endless loop
        self._heartbeats: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED_HEARTBEATS)  # (id, sent_ms)
        self._answered = (0, -1)  # id and sent_ms of the newest heartbeat that an active one has answered
        self._heartbeat_due_ms = 0
        self._is_unheard = False  # no active controller has answered the last heartbeat
        self._stopped = False
        # Sent in vain after two intervals without an answer. A single one may be late: a controller whose
        # logs are quiet answers in its next tick, which may come after the repeat.
        self.missed_heartbeats = 0
        self.silent = False  # send no heartbeats for now: this node is not a member of the cluster

    def ask(self, command: AnyCommand, answered: Answered, timeout_ms: int) -> None:
        """Repeat the request until it is answered; answered(None) after timeout_ms: the outcome is unknown.

        While MAX_OPEN_COMMANDS are open the oldest ends that way, so that a new one is never lost to old ones
        that no controller answers. Its caller learns it in the next tick, because it may ask again within
        `answered`.
        """
        if len(self._asked) >= MAX_OPEN_COMMANDS:
            self._ended.append(self._asked.pop(next(iter(self._asked))))
        now_ms = self._clock.monotonic_ms()
        id = self._random.getrandbits(53)
        asked = self._asked[id] = _Asked(command, answered, now_ms + timeout_ms, now_ms)
        self._ask(id, asked, now_ms)

    def heartbeat_now(self) -> None:
        """Send a heartbeat now instead of at the next interval."""
        self._heartbeat_due_ms = 0

    def stop(self) -> None:
        """Send no more heartbeats: the node leaves."""
        self._stopped = True

    @property
    def _reports_itself(self) -> bool:
        return not (self._stopped or self.silent)

    def tick(self) -> None:
        now_ms = self._clock.monotonic_ms()
        self._follows = 0
        if now_ms >= self._heartbeat_due_ms and self._reports_itself:
            if self._is_unheard:
                self._hint = None  # the named controller did not answer
                was_due = now_ms - self._heartbeats[-1][1] >= self._config.retry_interval_ms
                is_late = now_ms - self._answered[1] >= 2 * self._config.heartbeat_interval_ms
                self.missed_heartbeats += was_due and is_late
            self._heartbeat(now_ms)
        ended, self._ended = self._ended, []
        for asked in ended:
            asked.answered(None)
        for id, asked in list(self._asked.items()):
            if id not in self._asked:
                continue  # a caller that was answered in this loop has asked again, which displaced it
            if now_ms >= asked.deadline_ms:
                del self._asked[id]
                asked.answered(None)
            elif now_ms >= asked.due_ms:
                self._hint = None  # the named controller did not answer
                self._ask(id, asked, now_ms)

    def take(self, source: str, answer: CommandAnswer | BrokerHeartbeatAnswer) -> None:
        """Handle an answer of a controller; a duplicate, or one to an earlier incarnation, is dropped."""
        now_ms = self._clock.monotonic_ms()
        if isinstance(answer, BrokerHeartbeatAnswer):
            self._take_heartbeat(source, answer, now_ms)
            return
        asked = self._asked.get(answer.id)
        if asked is None:
            return
        if answer.refusal is not None and answer.refusal.reason is Reason.NOT_ACTIVE:
            if self._follow(source, answer.active):
                self._ask(answer.id, asked, now_ms)
            return
        del self._asked[answer.id]
        asked.answered(answer.done if answer.done is not None else answer.refusal)

    def _take_heartbeat(self, source: str, answer: BrokerHeartbeatAnswer, now_ms: int) -> None:
        sent = [sent_ms for id, sent_ms in self._heartbeats if id == answer.id]
        if not sent:
            return
        if answer.active != source:
            if self._follow(source, answer.active) and self._reports_itself:
                self._heartbeat(now_ms)
            return
        self._is_unheard = False
        if sent[0] > self._answered[1]:
            self._answered = (answer.id, sent[0])
        self._heartbeat_due_ms = max(self._heartbeat_due_ms, sent[0] + self._config.heartbeat_interval_ms)
        self._heartbeat_answered(answer, sent[0])

    def _follow(self, source: str, active: str | None) -> bool:
        """Return whether an inactive controller names one that was not asked a moment ago."""
        is_new = active not in (None, source, self._hint) and self._follows < _FOLLOWED_A_TICK
        self._follows += 1
        self._hint = active
        return is_new

    def _ask(self, id: int, asked: _Asked, now_ms: int) -> None:
        asked.due_ms = now_ms + self._config.retry_interval_ms
        self._send(self._target(), CommandRequest(id, asked.command, self._reports()[0]))

    def _heartbeat(self, now_ms: int) -> None:
        """Until it is answered the next one is due soon: a lease must not expire because of a lost
        message."""
        self._heartbeat_due_ms = now_ms + self._config.retry_interval_ms
        self._is_unheard = True
        id = self._random.getrandbits(53)
        self._heartbeats.append((id, now_ms))
        metadata_index, reports = self._reports()
        self._send(self._target(), BrokerHeartbeat(id, metadata_index, reports, self._answered[0]))

    def _target(self) -> str:
        known = self._hint or self._leader()
        if known is not None:
            return known
        self._turn += 1
        return self._controllers[self._turn % len(self._controllers)]
