"""Controller at one node: while inactive it redirects; while active it decides, commits and answers (C-01,
C-02).

It works beside the driver of `__controller`: the Raft leader of that log is the active controller once
everything before its term is committed here. Callback style, as the driver: no loop or clock of its own.
"""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from app.controller.active.controller import ActiveController
from app.controller.active.rounds import Answer, MakeLogId, Round
from app.controller.commands import Done, Reason, Refusal
from app.controller.config import ControllerConfig
from app.controller.events import encode_event
from app.controller.log_state import MetadataLogState
from app.controller.messages import (
    AnyControllerMessage,
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    CommandAnswer,
    CommandRequest,
)
from app.controller.metadata import LogSpec
from app.controller.senders import only_sender_of
from app.errors import CommitlogError, Outcome
from app.log.commands import Trim
from app.log.contract import AppendRequest, AppendResult, Role
from app.log.driver_interfaces import Clock, Scheduler
from app.node.replica.driver import LogDriver
from storage.format.records import RecordColumns

logger = logging.getLogger(__name__)

_KNOWN_WITHIN_MS: Final = 1_000
_ROUND_TIMEOUT_MS: Final = 60_000
MAX_OPEN_REQUESTS: Final = 4_096  # of all nodes; a node repeats what gets no answer
_NOT_ACTIVE: Final = Refusal(Reason.NOT_ACTIVE, "this controller is not active")
Token = tuple[str, int]  # asking node, id of its request


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSetup:
    """Values of the configuration file that a controller decides with; see ActiveController."""

    node_id: str
    config: ControllerConfig
    brokers: Sequence[str]
    configured: dict[str, LogSpec]
    make_log_id: MakeLogId


class ControllerServer:
    """Owned by the event loop. Invariant: everything that it answers is committed, or changed nothing."""

    def __init__(
        self,
        *,
        setup: ControllerSetup,
        replica: Callable[[], LogDriver | None],
        connected: Callable[[], Collection[str]],
        send: Callable[[str, AnyControllerMessage], None],
        clock: Clock,
        scheduler: Scheduler,
    ) -> None:
        """replica: the driver of `__controller` here, None while it is repaired. connected: nodes whose
        connection to this one is open, including this one."""
        self._setup = setup
        self._replica = replica
        self._connected = connected
        self._send = send
        self._clock = clock
        self._scheduler = scheduler
        self._active: ActiveController | None = None
        self.refused_elections: Counter[tuple[str, str]] = Counter()  # (log, reason), since the start
        self.dropped_requests = 0  # since the start: the sender repeats them
        self._lead: tuple[LogDriver, int] | None = None  # driver and term of `_active`
        self._lost_history: tuple[LogDriver, int] | None = None  # driver and term in which that was proved
        self._open: dict[Token, None] = {}
        self._reported_errors: dict[str, str] = {}  # of the configuration file, by log
        self._turn_due = False
        self._compacting = False
        self._held: list[tuple[Token, Answer, int]] = []  # answers about new logs, until when they wait
        self._heartbeats: list[tuple[str, int, BrokerHeartbeat]] = []  # since the last tick
        self._closed: Counter[str] = Counter()  # connections of each node that have closed

    @property
    def is_active(self) -> bool:
        return self._active is not None

    def tick(self) -> None:
        """Answer what is applied, and append the next round if none is open."""
        self._follow_lead()
        self._confirm_heartbeats()
        if self._active is None or self._lead is None:
            return
        active, driver = self._active, self._lead[0]
        self._answer(active.applied(_state_of(driver).metadata.applied_index))
        self._let_go(active)
        if active.is_busy or not _is_ready(driver):
            return
        round_ = active.next_round(
            term=driver.term,
            next_index=driver.log.next_index,
            now_ms=self._clock.monotonic_ms(),
            time_ms=self._clock.now_ms(),
        )
        self._report_configuration(active)
        if round_ is None:
            self._compact(driver)
        elif round_.events:
            self._append(active, driver, round_)
        else:
            self._answer_confirmed(active, driver, round_.answers)

    def disconnected(self, node: str) -> None:
        """A node's connection to this one has closed (C-05): no heartbeat of before counts any more."""
        self._closed[node] += 1
        if self._active is not None:
            self._active.liveness.disconnected(node)

    def take(self, source: str, message: CommandRequest | BrokerHeartbeat) -> None:
        """Handle a request of a node. It is answered now, later, or never; then the node repeats it."""
        self._follow_lead()
        self._check_history(source, message.metadata_index)
        active = self._active
        if active is None:
            self._redirect(source, message)
        elif isinstance(message, BrokerHeartbeat):
            self._heartbeats.append((source, self._closed[source], message))
        elif (source, message.id) not in self._open:
            self._queue(active, source, message)

    def _queue(self, active: ActiveController, source: str, request: CommandRequest) -> None:
        """Let the next round decide about a command; drop it while MAX_OPEN_REQUESTS wait for their answers.

        So nothing that the controller keeps for open requests grows beyond that number.
        """
        if len(self._open) >= MAX_OPEN_REQUESTS:
            self.dropped_requests += 1
            return
        assert self._lead is not None
        sender = only_sender_of(_state_of(self._lead[0]).metadata, request.command)
        if sender not in (None, source):
            logger.error("node %s sent a command for a copy of node %s", source, sender)
            detail = f"node {source} must not speak for a copy of node {sender}"
            self._send(source, CommandAnswer(request.id, None, Refusal(Reason.INVALID, detail)))
            return
        active.liveness.joined(self._lead[0].group.members, self._clock.monotonic_ms())
        token = (source, request.id)
        self._open[token] = None
        active.ask(token, request.command)
        self._ask_turn()

    def _check_history(self, source: str, metadata_index: int) -> None:
        """A node knows more than what is committed here: another controller leads by now, or this group of
        controllers has lost its disks and started again. In either case this one must not decide anything,
        or logs are lost that only the brokers know. Only a leader that a quorum confirms proves the loss."""
        lead = self._lead
        if lead is None or lead == self._lost_history:
            return
        if metadata_index <= _state_of(lead[0]).metadata.applied_index:
            return
        self._active = None
        self._open.clear()
        self._held.clear()

        def confirmed(result: int | CommitlogError) -> None:
            if isinstance(result, CommitlogError) or self._lead != lead or self._lost_history == lead:
                return
            self._lost_history = lead
            logger.critical(
                "the controllers have lost their metadata: stop all nodes and run "
                "`commitlog rebuild-controllers`",
                extra={"node": self._setup.node_id, "known_by": source, "index": metadata_index},
            )

        lead[0].read_index(confirmed)

    def _redirect(self, source: str, message: CommandRequest | BrokerHeartbeat) -> None:
        driver = self._replica()
        leader = None if driver is None else driver.leader_id
        hint = None if leader == self._setup.node_id else leader
        if isinstance(message, CommandRequest):
            self._send(source, CommandAnswer(message.id, None, _NOT_ACTIVE, hint))
        else:
            self._send(source, BrokerHeartbeatAnswer(message.id, hint))

    def _confirm_heartbeats(self) -> None:
        """Answer the heartbeats since the last tick after a quorum has confirmed that this controller leads
        (R-08): a lease of a controller that was replaced unnoticed could outlast the next election.

        One round of the log's heartbeats confirms them all: the one that is due in this tick, if one is.
        """
        driver, active = self._replica(), self._active
        waiting, self._heartbeats = self._heartbeats, []
        if driver is None or active is None or not waiting:
            return

        def confirmed(result: int | CommitlogError) -> None:
            if self._active is not active or isinstance(result, CommitlogError):
                return
            now_ms = self._clock.monotonic_ms()
            for source, closed, heartbeat in waiting:
                if closed != self._closed[source]:
                    continue
                answer = active.heartbeat(
                    heartbeat.id,
                    source,
                    heartbeat.metadata_index,
                    heartbeat.reports,
                    now_ms,
                    heartbeat.answered,
                )
                self._send(source, answer)

        driver.read_index(confirmed)

    # --- being active -----------------------------------------------------------------------------------

    def _ask_turn(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._scheduler.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        self.tick()

    def _follow_lead(self) -> None:
        """Become active when this node leads and knows everything; end it with the term."""
        driver = self._replica()
        if self._lead is not None and (
            driver is not self._lead[0] or driver.role is not Role.LEADER or driver.term != self._lead[1]
        ):
            logger.info("controller inactive", extra={"node": self._setup.node_id})
            self._lead = self._active = None
            self._open.clear()
            self._held.clear()
        if self._lead is None and driver is not None and _is_ready(driver):
            self._lead = (driver, driver.term)
            self._active = ActiveController(
                node_id=self._setup.node_id,
                config=self._setup.config,
                metadata=_state_of(driver).metadata,
                brokers=self._setup.brokers,
                configured=self._setup.configured,
                make_log_id=self._setup.make_log_id,
                connected=self._connected(),
                now_ms=self._clock.monotonic_ms(),
            )
            self._active.masters.refused_elections = self.refused_elections
            logger.info("controller active", extra={"node": self._setup.node_id, "term": driver.term})

    def _report_configuration(self, active: ActiveController) -> None:
        """Log once what the configuration file asks for and a log cannot take."""
        if active.configuration_errors != self._reported_errors:
            self._reported_errors = dict(active.configuration_errors)
            for name, detail in self._reported_errors.items():
                logger.error(
                    "log %s keeps its settings, not those of the configuration file: %s", name, detail
                )

    def _append(self, active: ActiveController, driver: LogDriver, round_: Round) -> None:
        """Store the round directly after the state that it was decided for, or not at all. A refused round
        is decided again in the next tick: on a full disk each attempt costs writes and syncs."""
        records = RecordColumns()
        for event in round_.events:
            records.add(encode_event(event))

        def done(result: AppendResult | CommitlogError) -> None:
            refused = isinstance(result, CommitlogError) and result.outcome is Outcome.NOT_APPLIED
            if not refused:
                self._ask_turn()
            elif self._active is active:
                active.not_stored()

        driver.append(
            AppendRequest(
                records,
                timeout_ms=_ROUND_TIMEOUT_MS,
                match_index=round_.first_index,
                match_term=round_.term,
            ),
            done,
        )

    def _answer(self, answers: Sequence[tuple[Token, Answer]]) -> None:
        now_ms = self._clock.monotonic_ms()
        for token, answer in answers:
            if isinstance(answer, Done) and (answer.created or answer.everywhere):
                self._held.append((token, answer, now_ms + _KNOWN_WITHIN_MS))
            else:
                self._give(token, answer)
        if answers:
            self._ask_turn()

    def _answer_confirmed(
        self, active: ActiveController, driver: LogDriver, answers: Sequence[tuple[Token, Answer]]
    ) -> None:
        """Give answers that need no event, once a quorum confirms that this controller leads (R-08): one
        that was replaced unnoticed may not know the newest copies and masters."""

        def confirmed(result: int | CommitlogError) -> None:
            if self._active is not active:
                return
            if not isinstance(result, CommitlogError):
                self._answer(answers)
                return
            for token, _answer in answers:  # the nodes repeat their requests
                self._open.pop(token, None)

        driver.read_index(confirmed)

    def _let_go(self, active: ActiveController) -> None:
        """Answer about new and changed logs once every living node knows them: the caller may use any of
        them next. A node that lags delays the answer only briefly."""
        now_ms = self._clock.monotonic_ms()
        held, self._held = self._held, []
        for token, answer, until_ms in held:
            known = isinstance(answer, Done) and active.liveness.all_know(answer.index, now_ms)
            if known or now_ms >= until_ms:
                self._give(token, answer)
            else:
                self._held.append((token, answer, until_ms))

    def _give(self, token: Token, answer: Answer) -> None:
        self._open.pop(token, None)
        source, id = token
        if isinstance(answer, Done):
            self._send(source, CommandAnswer(id, answer, None, self._setup.node_id))
        else:
            self._send(source, CommandAnswer(id, None, answer, self._setup.node_id))

    def _compact(self, driver: LogDriver) -> None:
        """Trim events that every new replica gets by the state's snapshot instead (C-09)."""
        applied_index = _state_of(driver).metadata.applied_index
        config = self._setup.config if self._active is None else self._active.config
        if self._compacting or applied_index - driver.log.begin_index < config.trim_after_records:
            return
        self._compacting = True

        def done(result: object) -> None:
            self._compacting = False
            if isinstance(result, CommitlogError):
                logger.warning("the controllers' log is not compacted: %s", result)

        driver.command(Trim(applied_index + 1), done)


def _is_ready(driver: LogDriver) -> bool:
    """Return whether the driver leads, and its whole log is committed, including the opening of its term
    (R-05)."""
    log = driver.log
    return (
        driver.role is Role.LEADER
        and log.end_index >= 0
        and log.last_term == driver.term
        and driver.committed_index == log.end_index
    )


def _state_of(driver: LogDriver) -> MetadataLogState:
    state = driver.state
    assert isinstance(state, MetadataLogState)
    return state
