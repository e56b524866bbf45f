"""Commands that create, change and delete logs, and that change the controllers' settings (C-05). PURE.

Each function records the events that follow from one command, and returns its answer. Raises Refused.
"""

from collections.abc import Collection

from app.controller import replica_changes, settings_of_logs
from app.controller.active.rounds import Happen, MakeLogId
from app.controller.commands import (
    ChangeControllers,
    ChangeLog,
    ChangeReplica,
    CreateLog,
    DeleteLog,
    Done,
    Reason,
    Refused,
    ReplicaChange,
)
from app.controller.config import ControllerConfig, check_changes
from app.controller.events import ControllersChanged, LogCreated, LogDeletionBegun
from app.controller.liveness import Liveness
from app.controller.metadata import LOG_DELETING, Log
from app.controller.state_machine import Metadata
from app.errors import ConfigError

ChangeOfLog = CreateLog | ChangeLog | ChangeReplica | DeleteLog


def is_repeat(state: Metadata, command: ChangeOfLog) -> bool:
    """Return whether the command was carried out before; later changes stay. A log that is being
    deleted by a command without an id answers for itself."""
    if command.change_id:
        return state.was_carried_out(command.log, command.change_id)
    log = state.log(command.log)
    carried_out = state.was_carried_out(command.log, "")
    return isinstance(command, DeleteLog) and log is not None and log.state != LOG_DELETING and carried_out


def create(
    state: Metadata,
    command: CreateLog,
    index: int,
    nodes: Collection[str],
    make_log_id: MakeLogId,
    happen: Happen,
) -> Done:
    """index: of the event, which becomes the log's generation. nodes: that keep logs."""
    settings_of_logs.check_spec(command.spec, nodes)
    known = state.log(command.log)
    if known is not None:
        settings_of_logs.check_usable(known)
        if known.spec != command.spec:
            names = known.spec.names_of_other_settings(command.spec)
            raise Refused(Reason.LOG_EXISTS, f"log {command.log!r} exists with other settings: {names}")
        return Done(state.applied_index)
    happen(
        LogCreated(
            log=command.log,
            spec=command.spec,
            log_id=make_log_id(command.log, index),
            generation=index,
            change_id=command.change_id,
        )
    )
    return Done(state.applied_index, created=True)


def change(state: Metadata, log: Log, command: ChangeLog, nodes: Collection[str], happen: Happen) -> Done:
    spec = settings_of_logs.changed_spec(log, command.changes, command.version)
    settings_of_logs.check_change(log.spec, spec, (*nodes, *log.spec.replicas))
    at_once = log.voters if command.force else ()
    happen(replica_changes.changed(log, spec, change_id=command.change_id, at_once=at_once))
    return Done(state.applied_index, everywhere=True)


def change_replica(
    state: Metadata, log: Log, command: ChangeReplica, liveness: Liveness, happen: Happen, now_ms: int
) -> Done:
    settings_of_logs.check_usable(log)
    changes = replica_changes.wanted_by(log, command, liveness, now_ms)
    if changes is None:
        return Done(state.applied_index)
    if command.change is ReplicaChange.REMOVE and not command.force:
        replica_changes.check_removal(log, command.node, liveness, now_ms)
    spec = settings_of_logs.changed_spec(log, changes, None)
    settings_of_logs.check_change(log.spec, spec, (*liveness.nodes, *log.spec.replicas))
    is_forced = command.force or command.change is ReplicaChange.CLEAN
    at_once = (command.node,) if is_forced else ()
    happen(replica_changes.changed(log, spec, change_id=command.change_id, at_once=at_once))
    return Done(state.applied_index, everywhere=True)


def change_controllers(
    state: Metadata, command: ChangeControllers, config: ControllerConfig, happen: Happen
) -> Done:
    """config: of this controller's file, without changes at run time."""
    if state.was_carried_out(command.log, command.change_id):
        return Done(state.applied_index)
    settings_of_logs.check_version(state.settings_version, command.version)
    settings = {**state.settings, **command.changes}
    settings = {name: value for name, value in settings.items() if value is not None}
    try:
        check_changes(config, {**dict.fromkeys(command.changes), **settings})
    except ConfigError as error:
        raise Refused(Reason.INVALID, str(error)) from error
    happen(ControllersChanged(log=command.log, settings=settings, change_id=command.change_id))
    return Done(state.applied_index)


def delete(state: Metadata, log: Log, command: DeleteLog, happen: Happen) -> Done:
    _check_not_configured(log)
    if log.state == LOG_DELETING:
        raise Refused(Reason.LOG_DELETING, f"log {log.name!r} is being deleted")
    settings_of_logs.check_version(log.version, command.version)
    happen(LogDeletionBegun(log=log.name, change_id=command.change_id))
    return Done(state.applied_index)


def _check_not_configured(log: Log) -> None:
    if log.generation < 0:
        detail = f"log {log.name!r} is in the configuration file: remove it there"
        raise Refused(Reason.CONFIGURED_LOG, detail)
