"""The active controller: commands, and changes that it observes, become events (C-02, C-05).

It decides on a copy of the metadata that includes its whole log and the events of the same round; one round
is open at a time. The round's events are appended for one index and one term (`Round`), so they are stored
directly after the state that they were decided on, or not at all. Answers leave when the round is applied;
the outcome of a lost round is unknown, and it is not answered.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from app.controller import elect_master, registration, replica_changes, settings_of_logs, sync_state_set
from app.controller.catching_up import CatchingUp
from app.controller.commands import (
    AlterSyncStateSet,
    AnyCommand,
    ApplyForReplicaId,
    ChangeControllers,
    ChangeLog,
    ChangeReplica,
    CreateLog,
    DeleteLog,
    Done,
    ElectMaster,
    Reason,
    Refusal,
    Refused,
    RegisterReplica,
    ReplicaChange,
    StepDown,
)
from app.controller.complete_copies import may_become_complete, surely_lacks
from app.controller.config import ControllerConfig, changed_config, check_changes
from app.controller.events import (
    AnyEvent,
    ControllersChanged,
    LogCreated,
    LogDeleted,
    LogDeletionBegun,
    MasterElected,
    MasterLost,
    SyncStateSetChanged,
)
from app.controller.liveness import Liveness, Report, counted_lease_ms
from app.controller.messages import BrokerHeartbeatAnswer
from app.controller.metadata import LOG_DELETING, Log, LogSpec
from app.controller.state_machine import Metadata
from app.errors import ConfigError

Answer = Done | Refusal
ChangeOfLog = CreateLog | ChangeLog | ChangeReplica | DeleteLog
MakeLogId = Callable[[str, int], int]  # (name, generation) -> log id
_OPENINGS_TRIED: Final = 2  # by one replica, before others are preferred: a restart may cost it one


@dataclass(slots=True)
class Round:
    """Events to be appended at first_index in `term`, and the answers that wait for them."""

    term: int
    first_index: int
    events: list[AnyEvent] = field(default_factory=list)
    answers: list[tuple[Any, Answer]] = field(default_factory=list)
    asked: list[tuple[Any, AnyCommand]] = field(default_factory=list)  # to ask again if nothing was stored

    @property
    def last_index(self) -> int:
        return self.first_index + len(self.events) - 1


class ActiveController:
    """One period of being active: from the first index of the term that this controller opened.

    Invariants: at most one round is open; no lease is granted to a log with an election in the open round, to
    one that waits for its master's lease to end, or to one whose master may still be replaced by a member of
    the former set (`Log.is_opening`).
    """

    def __init__(
        self,
        *,
        node_id: str,
        config: ControllerConfig,
        metadata: Metadata,
        brokers: Sequence[str],
        configured: Mapping[str, LogSpec],
        make_log_id: MakeLogId,
        connected: Collection[str],
        now_ms: int,
    ) -> None:
        """metadata: what is committed; the driver's side updates it. brokers: nodes that keep logs.
        configured: controller-mode logs of the configuration file, which exist without a command."""
        self._node_id = node_id
        self._file_config = self.config = config
        self._taken = metadata.settings_version
        self._metadata = metadata
        self._configured = configured
        self._make_log_id = make_log_id
        self._began_ms = now_ms
        keeping = (node for log in metadata for node in log.nodes)
        known = dict.fromkeys((*brokers, *keeping))
        self.liveness = Liveness(config, known, connected, now_ms, self._lease_ms_of)
        self._take_settings()
        self._waiting: list[tuple[Any, AnyCommand]] = []
        self._round: Round | None = None
        self._withheld: dict[str, None] = {}  # logs whose lease is not granted: an operator's election waits
        self._catching_up = CatchingUp()
        self._handing_over: dict[str, None] = {}  # of those: a node that leaves the log is its master
        self._unmastered_ms: dict[str, int] = {}  # log that never had a master -> since when it is known
        self._openings_failed: dict[str, dict[int, int]] = {}  # log -> replica -> how often, since one opened
        self._recorded_ms: dict[str, int] = {}  # log -> when its metadata got what its copies have confirmed
        self._opening_since: dict[str, tuple[int, int]] = {}  # log -> epoch that is not open yet, since when
        self.configuration_errors: dict[str, str] = {}  # log -> why it does not take what the file has now
        self._scanned_ms = now_ms - config.scan_interval_ms
        self.refused_elections: Counter[tuple[str, str]] = Counter()  # (log, reason)
        self._refused_epochs: dict[str, int] = {}  # log -> epoch after which an election was refused

    def _take_settings(self) -> None:
        """The settings that were changed at run time count as soon as they are committed. A file that
        contradicts them wins at its controller: the change was checked against another file."""
        self._taken = self._metadata.settings_version
        try:
            self.config = changed_config(self._file_config, self._metadata.settings)
        except ConfigError:
            self.config = self._file_config
        self.liveness.config = self.config

    # --- heartbeats -------------------------------------------------------------------------------------

    def heartbeat(
        self,
        id: int,
        node: str,
        metadata_index: int,
        reports: Sequence[Report],
        now_ms: int,
        answered: int | None = None,
    ) -> BrokerHeartbeatAnswer:
        """Process a heartbeat and grant leases. The caller has confirmed after its arrival that this
        controller is still active: no other one can have started before (R-08).

        answered: as in BrokerHeartbeat.
        """
        self.liveness.heard(node, metadata_index, reports, now_ms, answered)
        self.liveness.answers(node, id, now_ms)
        may_be_granted = self.liveness.may_be_granted(node, now_ms)
        granted, withheld, withheld_epochs, leases = [], [], [], []
        for log in self._metadata:
            if not log.elects or log.master is None or log.master_node != node:
                continue
            report = self.liveness.report(node, log.name, log.generation, log.master)
            if log.name in self._withheld:
                withheld.append(log.name)
                withheld_epochs.append(log.master_epoch)
            elif report is None or log.is_opening or not (may_be_granted and self._may_act(log)):
                continue
            elif self.liveness.is_given_up(log.name):
                continue  # it does not act in this epoch any more: a lease would only delay the election
            elif not self._is_electing(log.name):
                granted.append((log.name, log.master_epoch))
                leases.append(counted_lease_ms(self._lease_ms_of(log.name)))
                self.liveness.granted(log.name, now_ms)
        return BrokerHeartbeatAnswer(
            id,
            self._node_id,
            self._metadata.applied_index,
            tuple(granted),
            tuple(withheld),
            self.liveness.alive(now_ms),
            tuple(leases),
            tuple(withheld_epochs),
        )

    def _may_act(self, log: Log) -> bool:
        """Return whether the master may be granted a lease. A master that failed to open epochs must have
        reported that this one is open: another replica may be elected while it is known to hold nothing."""
        if elect_master.has_opened(log, self.liveness):
            self._openings_failed.pop(log.name, None)
        return log.master not in self._avoided(log)

    def _lease_ms_of(self, name: str) -> int:
        """Return the length of the leases in the log's epoch."""
        log = self._metadata.log(name)
        return self._file_config.lease_ms if log is None or log.lease_ms == 0 else log.lease_ms

    def _is_electing(self, log: str) -> bool:
        return self._round is not None and any(
            isinstance(event, MasterElected | LogDeletionBegun) and event.log == log
            for event in self._round.events
        )

    # --- rounds -----------------------------------------------------------------------------------------

    def ask(self, token: Any, command: AnyCommand) -> None:
        """Queue a command; `next_round` decides about it. token: identifies the caller."""
        self._waiting.append((token, command))

    @property
    def is_busy(self) -> bool:
        """True if a round is open."""
        return self._round is not None

    def next_round(self, *, term: int, next_index: int, now_ms: int, time_ms: int) -> Round | None:
        """Decide about all queued commands and observed changes; None if nothing follows.

        Call it only when everything in the log is committed and applied, and no round is open. term,
        next_index: of the log. time_ms: wall clock, for the events. A round without events has answers only.
        """
        assert self._round is None
        if not self._waiting and now_ms - self._scanned_ms < self.config.scan_interval_ms:
            return None
        round_ = Round(term, next_index)
        state = self._metadata.copy()
        self._scanned_ms = now_ms

        def happen(*events: AnyEvent) -> None:
            for event in events:
                if isinstance(event, SyncStateSetChanged):
                    event = self._with_confirmed(state, event, now_ms)
                state.apply(round_.last_index + 1, event)
                round_.events.append(_timed(event, time_ms))
                if isinstance(event, MasterElected):
                    self.liveness.elected(event.log)

        waiting, self._waiting = self._waiting, []
        for token, command in waiting:
            try:
                if self._must_wait(state, command, now_ms):
                    self._waiting.append((token, command))
                    continue
                answer: Answer = self._decide(state, command, round_, happen, now_ms)
            except Refused as refused:
                answer = refused.refusal
                if isinstance(command, ElectMaster):
                    self.refused_elections[command.log, answer.reason.value] += 1
            round_.answers.append((token, answer))
            round_.asked.append((token, command))
        self._supervise_logs(state, round_, happen, now_ms)
        if not round_.events:
            return round_ if round_.answers else None
        self._round = round_
        return round_

    def applied(self, index: int) -> list[tuple[Any, Answer]]:
        """Return the answers that may leave, because the metadata hold everything up to `index`."""
        if self._round is None or index < self._round.last_index:
            return []
        answers, self._round = self._round.answers, None
        if self._taken != self._metadata.settings_version:
            self._take_settings()
        return answers

    def not_stored(self) -> None:
        """The log refused the open round: its commands are decided again."""
        if self._round is not None:
            self._waiting = [*self._round.asked, *self._waiting]
            self._round = None

    # --- decisions --------------------------------------------------------------------------------------

    def _must_wait(self, state: Metadata, command: AnyCommand, now_ms: int) -> bool:
        """An operator's election away from a master that may hold a lease: the lease is not renewed, and
        the election waits until it has ended or the master has given it up (A-11). Then it waits briefly
        until enough members have reported what they hold, if the set does not count all (C-12). A copy that
        lacks records is refused while the master leads. Raises Refused."""
        if not isinstance(command, ElectMaster):
            return False
        is_withheld = command.log in self._withheld
        self._withheld.pop(command.log, None)
        log = state.log(command.log)
        if log is None or not log.elects or log.master_epoch > command.seen_epoch:
            return False
        if not self._moves_master(log, command, now_ms):
            return False
        if not self.liveness.may_be_leased(log.name, now_ms):
            over_ms = self.liveness.lease_over_ms(log.name)
            if now_ms - over_ms >= self.config.broker_timeout_ms or self._can_elect(log, command, now_ms):
                return False
            candidate = None if command.candidate is None else log.of_node(command.candidate)
            if candidate is not None and surely_lacks(log, self.liveness, candidate):
                return False
        elif not is_withheld and self._catching_up.must_wait(log, command, self.liveness, now_ms):
            return True
        if not self._can_elect(log, command, now_ms, provisional=True):
            return False  # it will be refused now
        self._withheld[command.log] = None
        return True

    def _can_elect(self, log: Log, command: ElectMaster, now_ms: int, *, provisional: bool = False) -> bool:
        """provisional: whether it might be possible later, when members have reported."""
        try:
            elect_master.elect(log, self.liveness, now_ms, command=command, provisional=provisional)
        except Refused:
            return False
        return True

    def _moves_master(self, log: Log, command: ElectMaster, now_ms: int) -> bool:
        """Return whether the command asks for a master other than the living one, which stays if any will
        do."""
        if not elect_master.has_living_master(log, self.liveness, now_ms):
            return True
        return command.candidate is not None and command.candidate != log.master_node

    def _decide(
        self,
        state: Metadata,
        command: AnyCommand,
        round_: Round,
        happen: Callable[..., None],
        now_ms: int,
    ) -> Answer:
        index = round_.last_index + 1
        if isinstance(command, ChangeOfLog) and self._is_repeat(state, command):
            return Done(state.applied_index, created=isinstance(command, CreateLog))
        if isinstance(command, CreateLog):
            return self._create(state, command, index, happen)
        if isinstance(command, ChangeControllers):
            return self._change_controllers(state, command, happen)
        log = state.log(command.log)
        if log is None:
            raise Refused(Reason.UNKNOWN_LOG, f"there is no log {command.log!r}")
        if command.generation is not None and command.generation != log.generation:
            raise Refused(Reason.OTHER_GENERATION, "meant for an earlier log of this name")
        of_a_copy = isinstance(command, ApplyForReplicaId | RegisterReplica | AlterSyncStateSet | StepDown)
        if of_a_copy and not log.elects:
            raise Refused(Reason.WRONG_MODE, f"log {log.name} has no replicas to look after")
        match command:
            case ApplyForReplicaId():
                replica_id, applied = registration.apply_for_id(log, command)
                return self._told(state, happen, applied, value=replica_id)
            case RegisterReplica():
                confirmed = self.liveness.confirmed(log, command.replica_id)
                return self._told(state, happen, registration.register(log, command, confirmed))
            case AlterSyncStateSet():
                return self._told(state, happen, sync_state_set.alter(log, command, self.liveness, now_ms))
            case StepDown():
                return self._step_down(state, log, command, happen, now_ms)
            case ElectMaster():
                return self._elect(state, log, command, happen, now_ms)
            case ChangeLog():
                return self._change(state, log, command, happen)
            case ChangeReplica():
                return self._change_replica(state, log, command, happen, now_ms)
            case DeleteLog():
                return self._delete(state, log, command, happen)

    @staticmethod
    def _is_repeat(state: Metadata, command: ChangeOfLog) -> bool:
        """Return whether the command was carried out before; later changes stay. A log that is being
        deleted by a command without an id answers for itself."""
        if command.change_id:
            return state.was_carried_out(command.log, command.change_id)
        log = state.log(command.log)
        carried_out = state.was_carried_out(command.log, "")
        return (
            isinstance(command, DeleteLog) and log is not None and log.state != LOG_DELETING and carried_out
        )

    @staticmethod
    def _told(
        state: Metadata, happen: Callable[..., None], event: AnyEvent | None, value: int | None = None
    ) -> Done:
        if event is not None:
            happen(event)
        return Done(state.applied_index, value=value)

    def _create(self, state: Metadata, command: CreateLog, index: int, happen: Callable[..., None]) -> Done:
        settings_of_logs.check_spec(command.spec, self.liveness.nodes)
        known = state.log(command.log)
        if known is not None:
            settings_of_logs.check_usable(known)
            if known.spec != command.spec:
                raise Refused(Reason.LOG_EXISTS, f"log {command.log} exists with other settings")
            return Done(state.applied_index)
        happen(
            LogCreated(
                log=command.log,
                spec=command.spec,
                log_id=self._make_log_id(command.log, index),
                generation=index,
                change_id=command.change_id,
            )
        )
        return Done(state.applied_index, created=True)

    def _change(self, state: Metadata, log: Log, command: ChangeLog, happen: Callable[..., None]) -> Done:
        spec = settings_of_logs.changed_spec(log, command.changes, command.version)
        settings_of_logs.check_change(log.spec, spec, (*self.liveness.nodes, *log.spec.replicas))
        at_once = log.voters if command.force else ()
        happen(replica_changes.changed(log, spec, change_id=command.change_id, at_once=at_once))
        return Done(state.applied_index, everywhere=True)

    def _change_replica(
        self, state: Metadata, log: Log, command: ChangeReplica, happen: Callable[..., None], now_ms: int
    ) -> Done:
        settings_of_logs.check_usable(log)
        changes = replica_changes.wanted_by(log, command, self.liveness, now_ms)
        if changes is None:
            return Done(state.applied_index)
        if command.change is ReplicaChange.REMOVE and not command.force:
            replica_changes.check_removal(log, command.node, self.liveness, now_ms)
        spec = settings_of_logs.changed_spec(log, changes, None)
        settings_of_logs.check_change(log.spec, spec, (*self.liveness.nodes, *log.spec.replicas))
        is_forced = command.force or command.change is ReplicaChange.CLEAN
        at_once = (command.node,) if is_forced else ()
        happen(replica_changes.changed(log, spec, change_id=command.change_id, at_once=at_once))
        return Done(state.applied_index, everywhere=True)

    def _change_controllers(
        self, state: Metadata, command: ChangeControllers, happen: Callable[..., None]
    ) -> Done:
        if state.was_carried_out(command.log, command.change_id):
            return Done(state.applied_index)
        if command.version is not None and command.version != state.settings_version:
            raise Refused(
                Reason.CONFIG_CHANGED, f"version {state.settings_version} holds, not {command.version}"
            )
        settings = {**state.settings, **command.changes}
        settings = {name: value for name, value in settings.items() if value is not None}
        try:
            check_changes(self._file_config, {**dict.fromkeys(command.changes), **settings})
        except ConfigError as error:
            raise Refused(Reason.INVALID, str(error)) from error
        happen(ControllersChanged(log=command.log, settings=settings, change_id=command.change_id))
        return Done(state.applied_index)

    def _delete(self, state: Metadata, log: Log, command: DeleteLog, happen: Callable[..., None]) -> Done:
        self._check_not_configured(log)
        if log.state == LOG_DELETING:
            raise Refused(Reason.LOG_DELETING, f"log {log.name} is being deleted")
        if command.version is not None and command.version != log.version:
            raise Refused(Reason.CONFIG_CHANGED, f"version {log.version} holds, not {command.version}")
        happen(LogDeletionBegun(log=log.name, change_id=command.change_id))
        return Done(state.applied_index)

    def _check_not_configured(self, log: Log) -> None:
        if log.generation < 0:
            raise Refused(
                Reason.CONFIGURED_LOG, f"log {log.name} is in the configuration file: remove it there"
            )

    def _step_down(
        self, state: Metadata, log: Log, command: StepDown, happen: Callable[..., None], now_ms: int
    ) -> Done:
        """The master of that epoch has given it up: elect a master; the same replica may win again."""
        if command.master_epoch != log.master_epoch or command.master != log.master:
            return Done(state.applied_index)  # carried out before, or outdated
        if command.leaving and log.master_node is not None:
            self.liveness.disconnected(log.master_node)
        self.liveness.given_up(log.name, now_ms, log.master_epoch, command.confirmed)
        if not command.leaving:
            failed = self._openings_failed.setdefault(log.name, {})
            failed[command.master] = failed.get(command.master, 0) + 1
        if log.name not in self._withheld:  # else the operator's election, which waits for this, comes next
            self._replace_master(state, log, happen, now_ms, steps_down=True)
        return Done(state.applied_index)

    def _elect(
        self, state: Metadata, log: Log, command: ElectMaster, happen: Callable[..., None], now_ms: int
    ) -> Done:
        settings_of_logs.check_usable(log)
        if not log.elects:
            raise Refused(Reason.WRONG_MODE, f"log {log.name} is not in controller mode")
        if command.candidate is not None and command.candidate not in log.nodes:
            raise Refused(Reason.NO_ELIGIBLE_REPLICA, f"{command.candidate} does not keep the log")
        if log.master_epoch > command.seen_epoch or not self._moves_master(log, command, now_ms):
            return Done(state.applied_index)
        self._elected(log, elect_master.elect(log, self.liveness, now_ms, command=command), happen)
        return Done(state.applied_index)

    # --- by itself --------------------------------------------------------------------------------------

    def _supervise_logs(
        self, state: Metadata, round_: Round, happen: Callable[..., None], now_ms: int
    ) -> None:
        """Decide what no command asks for: configured logs, failed masters, logs that no node keeps any
        more."""
        for name, spec in self._configured.items():
            known = state.log(name)
            if known is None:
                log_id = self._make_log_id(name, -1)
                happen(LogCreated(log=name, spec=spec, log_id=log_id, generation=-1))
            elif known.generation < 0:
                changed = self._configured_spec(known, spec)
                if changed is not None:
                    event = replica_changes.changed(known, changed)
                    happen(msgspec.structs.replace(event, configured=spec))
        for log in state:
            if log.state == LOG_DELETING:
                if self._is_given_up(log, now_ms):
                    happen(LogDeleted(log=log.name))
                    self._forget(log.name)
            elif log.elects and not self._let_leave(log, happen, now_ms):
                self._supervise_master(state, log, happen, now_ms)

    def _configured_spec(self, log: Log, configured: LogSpec) -> LogSpec | None:
        """As settings_of_logs.configured_spec; a change that cannot be is noted, and the settings hold."""
        self.configuration_errors.pop(log.name, None)
        try:
            return settings_of_logs.configured_spec(log, configured, self.liveness.nodes)
        except Refused as refused:
            self.configuration_errors[log.name] = refused.refusal.detail
            return None

    def _forget(self, name: str) -> None:
        """Forget a deleted log: the next one of that name has other replicas, and epochs from 1 on."""
        self._unmastered_ms.pop(name, None)
        self._openings_failed.pop(name, None)
        self._opening_since.pop(name, None)
        self._recorded_ms.pop(name, None)
        self._handing_over.pop(name, None)
        self._refused_epochs.pop(name, None)
        self._withheld.pop(name, None)
        self._catching_up.forget(name)

    def _let_leave(self, log: Log, happen: Callable[..., None], now_ms: int) -> bool:
        """Remove the nodes that a change has taken out, once the log can do without them; return whether
        something happened. A leaving master gives up its lease first, as for an operator's election."""
        if not replica_changes.may_leave(log, self.liveness, now_ms):
            self._stop_handing_over(log)
            return False
        if not replica_changes.is_master_leaving(log):
            happen(replica_changes.left(log))
            return True
        is_leased = self.liveness.may_be_leased(log.name, now_ms)
        try:
            event = elect_master.elect(
                log, self.liveness, now_ms, avoided=self._avoided(log), provisional=is_leased
            )
        except Refused:
            self._stop_handing_over(log)
            return False
        winner = log.replica(event.master)
        if winner is None or winner.node in log.leaving:
            self._stop_handing_over(log)
            return False
        if is_leased:
            self._withheld[log.name] = self._handing_over[log.name] = None
            return False
        self._stop_handing_over(log)
        self._elected(log, msgspec.structs.replace(event, reason=elect_master.REASON_LEAVING), happen)
        return True

    def _stop_handing_over(self, log: Log) -> None:
        """Grant leases again; a master that has given its own up requests an election."""
        if log.name in self._handing_over:
            del self._handing_over[log.name]
            self._withheld.pop(log.name, None)

    def _supervise_master(self, state: Metadata, log: Log, happen: Callable[..., None], now_ms: int) -> None:
        """Replace a master that is gone, or that does not open its epoch; note when it has, and from time to
        time what the copies have confirmed."""
        if elect_master.has_opened(log, self.liveness):
            self._openings_failed.pop(log.name, None)
            if log.is_opening or self._is_record_due(log, now_ms):
                happen(
                    SyncStateSetChanged(
                        log=log.name,
                        master_epoch=log.master_epoch,
                        sync_state_set=log.sync_state_set,
                        set_epoch=log.set_epoch + 1 if log.is_opening else log.set_epoch,
                        acks=log.set_acks,
                    )
                )
                return
        if not elect_master.has_living_master(log, self.liveness, now_ms):
            self._replace_master(state, log, happen, now_ms)
        elif log.is_opening and self._opens_too_slowly(log, now_ms):
            assert log.master is not None
            self._openings_failed.setdefault(log.name, {})[log.master] = _OPENINGS_TRIED
            self._replace_master(state, log, happen, now_ms, stays=log.master)

    def _is_record_due(self, log: Log, now_ms: int) -> bool:
        """True if the copies of an open log have confirmed more than its metadata record, for long enough."""
        since_ms = now_ms - self._recorded_ms.get(log.name, self._began_ms)
        return since_ms >= self.config.confirmed_interval_ms and bool(self.liveness.news_of_confirmed(log))

    def _with_confirmed(
        self, state: Metadata, event: SyncStateSetChanged, now_ms: int
    ) -> SyncStateSetChanged:
        """The event with what copies have confirmed: the next active controller must refuse copies that hold
        less than that (C-03)."""
        log = state.log(event.log)
        if log is None:
            return event
        self._recorded_ms[log.name] = now_ms
        return msgspec.structs.replace(event, confirmed=self.liveness.news_of_confirmed(log))

    def _opens_too_slowly(self, log: Log, now_ms: int) -> bool:
        """Return whether the master lives but cannot write its first record to its disk."""
        epoch, since_ms = self._opening_since.get(log.name, (0, 0))
        if epoch != log.master_epoch:
            self._opening_since[log.name] = (log.master_epoch, now_ms)
            return False
        return now_ms - since_ms >= self.config.opening_timeout_ms

    def _replace_master(
        self,
        state: Metadata,
        log: Log,
        happen: Callable[..., None],
        now_ms: int,
        *,
        stays: int | None = None,
        steps_down: bool = False,
    ) -> None:
        """Elect, or record that no replica can be elected, once no earlier master can act any more.

        stays: the living master, which is kept when no other replica can be elected. steps_down: the master
        requested it, and did not fall silent.
        """
        missed_ms = None if steps_down else elect_master.missed_master_ms(log, self.liveness, now_ms)
        if log.master_epoch == 0:
            if not self._may_begin(log, now_ms):
                return
        elif self.liveness.may_be_leased(log.name, now_ms):
            return
        try:
            event = elect_master.elect(
                log,
                self.liveness,
                now_ms,
                heard_after_ms=missed_ms,
                avoided=self._avoided(log),
            )
        except Refused as refused:
            if not may_become_complete(log, self.liveness, now_ms):
                self._note_refused(log, refused)
                if log.master is not None:
                    happen(MasterLost(log=log.name, master_epoch=log.master_epoch))
            return
        if event.master != stays:
            self._elected(log, event, happen)

    def _note_refused(self, log: Log, refused: Refused) -> None:
        """Count it once for each epoch, not at each scan."""
        if self._refused_epochs.get(log.name) != log.master_epoch:
            self._refused_epochs[log.name] = log.master_epoch
            self.refused_elections[log.name, refused.refusal.reason.value] += 1

    def _avoided(self, log: Log) -> list[int]:
        """Replicas that were elected and did not open their epoch, repeatedly."""
        failed = self._openings_failed.get(log.name, {})
        return [replica for replica, times in failed.items() if times >= _OPENINGS_TRIED]

    def _elected(self, log: Log, event: MasterElected, happen: Callable[..., None]) -> None:
        """Record the election; the set before the last one is restored first, if the winner belongs to it."""
        self._unmastered_ms.pop(log.name, None)
        restored = elect_master.restored_set(log, event)
        set_epoch = event.set_epoch
        if restored is not None:
            happen(restored)
            set_epoch = restored.set_epoch + 1
        lease_ms = self.config.lease_ms
        happen(msgspec.structs.replace(event, set_epoch=set_epoch, lease_ms=lease_ms))

    def _may_begin(self, log: Log, now_ms: int) -> bool:
        """Return whether the first election need not wait for the replica that the settings prefer, or for
        all."""
        since_ms = self._unmastered_ms.setdefault(log.name, now_ms)
        if now_ms - since_ms >= self.config.broker_timeout_ms:
            return True
        registered = [each.node for each in log.eligible() if self.liveness.has_copy(log, each, now_ms)]
        first = min(log.voters, key=log.spec.preference)
        return first in registered or registered == list(log.voters)

    def _is_given_up(self, log: Log, now_ms: int) -> bool:
        """Return whether every node that may be alive has applied the deletion and removed its copy."""
        return all(
            self.liveness.has_given_up(node, log.name, log.generation, log.version)
            or not self.liveness.may_live(node, now_ms)
            for node in log.nodes
        )


def _timed(event: AnyEvent, time_ms: int) -> AnyEvent:
    return msgspec.structs.replace(event, time_ms=time_ms)
