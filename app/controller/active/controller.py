"""The active controller: commands, and changes that it observes, become events (C-02, C-05).

It decides on a copy of the metadata that includes its whole log and the events of the same round; one round
is open at a time. The round's events are appended for one index and one term (`Round`), so they are stored
directly after the state that they were decided on, or not at all. Answers leave when the round is applied;
the outcome of a lost round is unknown, and it is not answered.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from app.controller import registration, replica_changes, settings_of_logs, sync_state_set
from app.controller.active import copied_folders, log_commands
from app.controller.active.masters import Masters
from app.controller.active.rounds import Answer, Happen, MakeLogId, Round
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
    Refused,
    RegisterReplica,
    StepDown,
)
from app.controller.config import ControllerConfig, changed_config
from app.controller.events import (
    AnyEvent,
    LogCreated,
    LogDeleted,
    LogDeletionBegun,
    MasterElected,
    SyncStateSetChanged,
)
from app.controller.liveness import Liveness, Report, counted_lease_ms
from app.controller.messages import BrokerHeartbeatAnswer
from app.controller.metadata import LOG_DELETING, Log, LogSpec
from app.controller.state_machine import Metadata
from app.errors import ConfigError


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
        keeping = (node for log in metadata for node in log.nodes)
        known = dict.fromkeys((*brokers, *keeping))
        self.liveness = Liveness(config, known, connected, now_ms, self._lease_ms_of)
        self._take_settings()
        self._waiting: list[tuple[Any, AnyCommand]] = []
        self._round: Round | None = None
        self.masters = Masters(self.liveness, now_ms)
        self.configuration_errors: dict[str, str] = {}  # log -> why it does not take what the file has now
        self._scanned_ms = now_ms - config.scan_interval_ms

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
        may_be_granted = self.liveness.may_be_granted(node)
        granted, withheld, withheld_epochs, leases = [], [], [], []
        for log in self._metadata:
            if not log.elects or log.master is None or log.master_node != node:
                continue
            report = self.liveness.report(node, log.name, log.generation, log.master)
            if self.masters.is_withheld(log.name):
                withheld.append(log.name)
                withheld_epochs.append(log.master_epoch)
            elif report is None or log.is_opening or not may_be_granted:
                continue
            elif self.liveness.is_given_up(log.name):
                continue  # it does not act in this epoch any more: a lease would only delay the election
            elif not self._is_electing(log.name):
                granted.append((log.name, log.master_epoch))
                leases.append(counted_lease_ms(self._lease_ms_of(log.name)))
                self.masters.granted(log, now_ms)
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
                    event = self.masters.with_confirmed(state, event, now_ms)
                state.apply(round_.last_index + 1, event)
                round_.events.append(msgspec.structs.replace(event, time_ms=time_ms))
                if isinstance(event, MasterElected):
                    self.liveness.elected(event.log)

        waiting, self._waiting = self._waiting, []
        for token, command in waiting:
            try:
                if self.masters.must_wait(state, command, now_ms):
                    self._waiting.append((token, command))
                    continue
                answer: Answer = self._decide(state, command, round_, happen, now_ms)
            except Refused as refused:
                answer = refused.refusal
                if isinstance(command, ElectMaster):
                    self.masters.refused(command.log, refused)
            round_.answers.append((token, answer))
            round_.asked.append((token, command))
        self._supervise_logs(state, happen, now_ms)
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

    def _decide(
        self,
        state: Metadata,
        command: AnyCommand,
        round_: Round,
        happen: Happen,
        now_ms: int,
    ) -> Answer:
        if isinstance(command, log_commands.ChangeOfLog) and log_commands.is_repeat(state, command):
            return Done(state.applied_index, created=isinstance(command, CreateLog))
        if isinstance(command, CreateLog):
            return log_commands.create(
                state, command, round_.last_index + 1, self.liveness.nodes, self._make_log_id, happen
            )
        if isinstance(command, ChangeControllers):
            return log_commands.change_controllers(state, command, self._file_config, happen)
        log = state.log(command.log)
        if log is None:
            raise Refused(Reason.UNKNOWN_LOG, f"log {command.log!r} does not exist")
        if command.generation is not None and command.generation != log.generation:
            raise Refused(Reason.OTHER_GENERATION, "meant for an earlier log of this name")
        of_a_copy = isinstance(command, ApplyForReplicaId | RegisterReplica | AlterSyncStateSet | StepDown)
        if of_a_copy and not log.elects:
            raise Refused(
                Reason.WRONG_MODE, f"log {log.name!r} is not in controller mode: it has no SyncStateSet"
            )
        match command:
            case ApplyForReplicaId():
                replica_id, applied = registration.apply_for_id(log, command)
                return self._done(state, happen, applied, value=replica_id)
            case RegisterReplica():
                confirmed = self.liveness.confirmed(log, command.replica_id)
                registered = registration.register(log, command, confirmed)
                if command.is_copy and copied_folders.is_replaced(log, command, self.liveness, now_ms):
                    happen(*registration.replaced(log, command))
                    raise Refused(
                        Reason.LOST_RECORDS,
                        f"the folder of replica {command.replica_id} is a copy, and may be older than what it"
                        " has acknowledged; it has to register as another replica",
                    )
                led = log.master_epoch if log.master == command.replica_id else 0
                return self._done(state, happen, registered, value=led)
            case AlterSyncStateSet():
                return self._done(state, happen, sync_state_set.alter(log, command, self.liveness, now_ms))
            case StepDown():
                return self.masters.step_down(state, log, command, happen, now_ms)
            case ElectMaster():
                return self.masters.elect(state, log, command, happen, now_ms)
            case ChangeLog():
                return log_commands.change(state, log, command, self.liveness.nodes, happen)
            case ChangeReplica():
                return log_commands.change_replica(state, log, command, self.liveness, happen, now_ms)
            case DeleteLog():
                return log_commands.delete(state, log, command, happen)

    @staticmethod
    def _done(state: Metadata, happen: Happen, event: AnyEvent | None, value: int | None = None) -> Done:
        if event is not None:
            happen(event)
        return Done(state.applied_index, value=value)

    # --- observed changes -------------------------------------------------------------------------------

    def _supervise_logs(self, state: Metadata, happen: Happen, now_ms: int) -> None:
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
        was_deleted = False
        for log in state:
            if log.state == LOG_DELETING:
                if self._is_given_up(log, now_ms):
                    happen(LogDeleted(log=log.name))
                    self.masters.forget(log.name)
                    was_deleted = True
            elif log.elects and not self.masters.let_leave(log, happen, now_ms):
                self.masters.supervise(state, log, happen, now_ms)
        if was_deleted:
            self.liveness.keep_only(state)

    def _configured_spec(self, log: Log, configured: LogSpec) -> LogSpec | None:
        """Return settings_of_logs.configured_spec; an impossible change is noted and ignored."""
        self.configuration_errors.pop(log.name, None)
        try:
            return settings_of_logs.configured_spec(log, configured, self.liveness.nodes)
        except Refused as refused:
            self.configuration_errors[log.name] = refused.refusal.detail
            return None

    def _is_given_up(self, log: Log, now_ms: int) -> bool:
        """Return whether every node that may be alive has applied the deletion and removed its copy."""
        return all(
            self.liveness.has_given_up(node, log.name, log.generation, log.version)
            or not self.liveness.may_live(node, now_ms)
            for node in log.nodes
        )
