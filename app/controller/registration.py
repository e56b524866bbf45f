"""Replica ids: applied for by check code, then registered (C-03).

A node that crashes between any two steps goes on where it was: it made the check code durable before it
applied, so the same id is waiting for it; it made the id durable before it registered. A copy that was lost
has lost its check code with it: what the node makes anew gets another id, and the old one, which may be in
the SyncStateSet, is never taken for it.
"""

from app.controller.commands import ApplyForReplicaId, Reason, Refused, RegisterReplica
from app.controller.events import ReplicaIdApplied, ReplicaRegistered
from app.controller.metadata import Confirmed, Log, Replica


def apply_for_id(log: Log, command: ApplyForReplicaId) -> tuple[int, ReplicaIdApplied | None]:
    """The id that belongs to the check code, and the event if it is a new one. Raises Refused.

    A late repeat of an earlier copy gets a new id, which no copy will register: it displaces none.
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
    """The event, None when the copy is registered at this address already. Raises Refused.

    confirmed: the most that this copy has reported as confirmed, None when it is not known.
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
    if found.address == command.address:
        return None
    return ReplicaRegistered(log=log.name, replica_id=found.id, address=command.address)


def _check_confirmed(log: Log, command: RegisterReplica, confirmed: Confirmed) -> None:
    """A copy that lacks what it had confirmed is another one. A recorded unclean election after that excuses
    it (A-04). Raises Refused."""
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
    is_excused = command.log_epoch is None or log.unclean_epoch > log.opened_epoch
    if is_excused or command.replica_id not in log.holders or (command.log_epoch or 0) >= log.opened_epoch:
        return
    raise Refused(
        Reason.LOST_RECORDS,
        f"replica {command.replica_id} held records of epoch {log.opened_epoch} and its newest are of epoch"
        f" {command.log_epoch}: its folder is an older copy, or its disk lost records; it has to register as"
        " another replica",
    )


def _check_node(log: Log, node: str) -> None:
    if node not in log.nodes:
        raise Refused(Reason.NOT_A_REPLICA, f"{node} does not keep {log.name}")


def _known(log: Log, node: str) -> list[Replica]:
    """The copy that the node has registered, and the one that it has applied for since, newest first."""
    registered = log.of_node(node)
    since = 0 if registered is None else registered.id
    return [each for each in reversed(log.replicas) if each.node == node and each.id >= since]
