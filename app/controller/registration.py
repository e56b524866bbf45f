"""Replica ids: applied for with a check code, then registered (C-03).

A node that crashes between any two steps continues where it was: it saved the check code before it applied,
so the same id is reserved for it; it saved the id before it registered. A lost copy has lost its check code
too: what the node creates next gets another id, and is never confused with the old one, which may be in the
SyncStateSet.
"""

from app.controller.commands import ApplyForReplicaId, Reason, Refused, RegisterReplica
from app.controller.events import ReplicaIdApplied, ReplicaRegistered
from app.controller.metadata import Confirmed, Log, Replica


def apply_for_id(log: Log, command: ApplyForReplicaId) -> tuple[int, ReplicaIdApplied | None]:
    """Return the id that belongs to the check code, and the event if it is a new one. Raises Refused.

    A late repeat of an earlier copy gets a new id, which no copy will register: it replaces none.
    """
    _check_node(log, command.node)
    for replica in _known(log, command.node):
        if replica.check_code == command.check_code:
            return replica.id, None
    event = ReplicaIdApplied(
        log=log.name,
        node=command.node,
        replica_id=log.next_replica_id,
        check_code=command.check_code,
    )
    return event.replica_id, event


def register(
    log: Log, command: RegisterReplica, confirmed: Confirmed | None = None
) -> ReplicaRegistered | None:
    """Return the event, None if the copy is already registered at this address. Raises Refused.

    confirmed: the most that this copy has reported as confirmed, None if unknown.
    """
    _check_node(log, command.node)
    found = next((each for each in _known(log, command.node) if each.id == command.replica_id), None)
    if found is None:
        raise Refused(
            Reason.UNKNOWN_REPLICA, f"{command.node} has no replica {command.replica_id} (any more)"
        )
    if found.check_code != command.check_code:
        raise Refused(Reason.CHECK_CODE, f"replica {command.replica_id} is another copy")
    if confirmed is not None:
        _check_confirmed(log, command, confirmed)
    _check_epoch(log, command)
    if found.address == command.address and not command.is_copy:
        return None
    return ReplicaRegistered(
        log=log.name, replica_id=found.id, address=command.address, is_copy=command.is_copy
    )


def _check_confirmed(log: Log, command: RegisterReplica, confirmed: Confirmed) -> None:
    """Refuse a copy that lacks what it had confirmed: it is another copy. A recorded unclean election
    after that excuses it (A-04). Raises Refused."""
    is_excused = command.max_offset is None or log.unclean_epoch > confirmed.epoch
    if not is_excused and (command.max_offset or 0) < confirmed.offset:
        raise Refused(
            Reason.LOST_RECORDS,
            f"replica {command.replica_id} had confirmed {confirmed.offset} bytes and holds"
            f" {command.max_offset}: its folder is an older copy, or its disk lost records;"
            " it has to register as another replica",
        )


def _check_epoch(log: Log, command: RegisterReplica) -> None:
    """A member of the set held the record that opened the newest epoch. One that has older epochs alone is an
    older copy: as master it would open that epoch again (A-01). Raises Refused."""
    held = log.opening_held_by(command.replica_id)
    if command.log_epoch is None or log.unclean_epoch > held or command.log_epoch >= held:
        return
    raise Refused(
        Reason.LOST_RECORDS,
        f"replica {command.replica_id} held records of epoch {held} and its newest are of epoch"
        f" {command.log_epoch}: its folder is an older copy, or its disk lost records; it has to register as"
        " another replica",
    )


def replaced(log: Log, command: RegisterReplica) -> tuple[ReplicaIdApplied, ReplicaRegistered]:
    """Return the events by which the copy of a folder is a replica no more.

    Another id of the node takes its place at once: no copy has it, and the node applies for a later one.
    """
    replica_id, code = log.next_replica_id, command.check_code
    return (
        ReplicaIdApplied(log=log.name, node=command.node, replica_id=replica_id, check_code=code),
        ReplicaRegistered(log=log.name, replica_id=replica_id, address=command.address),
    )


def _check_node(log: Log, node: str) -> None:
    if node not in log.nodes:
        raise Refused(Reason.NOT_A_REPLICA, f"{node} does not keep {log.name}")


def _known(log: Log, node: str) -> list[Replica]:
    """Return the copy that the node has registered, and a later one that it has applied for, newest first."""
    registered = log.of_node(node)
    since = 0 if registered is None else registered.id
    return [each for each in reversed(log.replicas) if each.node == node and each.id >= since]
