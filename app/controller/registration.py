"""Replica ids: applied for by check code, then registered (C-03).

A node that crashes between any two steps goes on where it was: it made the check code durable before it
applied, so the same id is waiting for it; it made the id durable before it registered. A copy that was lost
has lost its check code with it: what the node makes anew gets another id, and the old one, which may be in
the SyncStateSet, is never taken for it.
"""

from app.controller.commands import ApplyForReplicaId, Reason, Refused, RegisterReplica
from app.controller.events import ReplicaIdApplied, ReplicaRegistered
from app.controller.metadata import Log, Replica


def apply_for_id(log: Log, command: ApplyForReplicaId) -> tuple[int, ReplicaIdApplied | None]:
    """The id that belongs to the check code, and the event if it is a new one. Raises Refused."""
    _check_node(log, command.node)
    newest = _newest(log, command.node)
    if newest is not None and newest.check_code == command.check_code:
        return newest.id, None
    event = ReplicaIdApplied(
        log=log.name,
        node=command.node,
        replica_id=log.next_replica_id,
        check_code=command.check_code,
    )
    return event.replica_id, event


def register(log: Log, command: RegisterReplica) -> ReplicaRegistered | None:
    """The event, None when the copy is registered at this address already. Raises Refused."""
    _check_node(log, command.node)
    newest = _newest(log, command.node)
    if newest is None or newest.id != command.replica_id:
        raise Refused(
            Reason.UNKNOWN_REPLICA, f"{command.node} has no replica {command.replica_id} (any more)"
        )
    if newest.check_code != command.check_code:
        raise Refused(Reason.CHECK_CODE, f"replica {command.replica_id} is another copy")
    if newest.address == command.address:
        return None
    return ReplicaRegistered(log=log.name, replica_id=newest.id, address=command.address)


def _check_node(log: Log, node: str) -> None:
    if node not in log.spec.replicas:
        raise Refused(Reason.NOT_A_REPLICA, f"{node} does not keep {log.name}")


def _newest(log: Log, node: str) -> Replica | None:
    return next((replica for replica in reversed(log.replicas) if replica.node == node), None)
