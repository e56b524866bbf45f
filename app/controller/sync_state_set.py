"""AlterSyncStateSet: the members that count as in sync (C-06).

A request for the present set is accepted too, under a new set epoch: so a master whose request was refused,
or got no answer, learns which of its requests were carried out (C-12).
"""

from app.controller.commands import AlterSyncStateSet, Reason, Refused
from app.controller.events import SyncStateSetChanged
from app.controller.liveness import Liveness
from app.controller.metadata import Log


def alter(
    log: Log, command: AlterSyncStateSet, liveness: Liveness, now_ms: int
) -> SyncStateSetChanged | None:
    """Decide about a master's request; None: this very command was carried out before.

    Only replicas that are alive may be in the set, also those that were in it: a master that must do without
    one requests a smaller set. A master that is heard and does not hear, as with a network that fails in one
    direction, alters nothing: it misses the acks of its slaves too, and as the only member of the set it
    would keep others from being elected. Raises Refused with the reason.
    """
    wanted = tuple(sorted(set(command.wanted)))
    if log.master is None:
        raise Refused(Reason.NO_MASTER, "the log has no master")
    if command.master_epoch != log.master_epoch:
        raise Refused(
            Reason.STALE_MASTER_EPOCH,
            f"the current master epoch is {log.master_epoch}, got {command.master_epoch}",
        )
    if command.master != log.master:
        raise Refused(Reason.NOT_MASTER, f"the master is replica {log.master}, not {command.master}")
    is_this = wanted == log.sync_state_set and command.acks == log.set_acks
    if command.set_epoch == log.set_epoch - 1 and is_this:
        return None
    if command.set_epoch != log.set_epoch:
        raise Refused(
            Reason.STALE_SET_EPOCH, f"the current set epoch is {log.set_epoch}, got {command.set_epoch}"
        )
    if command.acks < 0:
        raise Refused(Reason.INVALID, f"acks must be 0 for all members, or positive, got {command.acks}")
    if log.master not in wanted:
        raise Refused(Reason.MASTER_NOT_IN_SET, "the master is not in the set")
    if log.master_node is not None and not liveness.may_be_granted(log.master_node):
        raise Refused(Reason.NOT_ALIVE, f"{log.master_node} does not confirm answers to its heartbeats")
    for member in wanted:
        _check_member(log, member, liveness, now_ms)
    return SyncStateSetChanged(
        log=log.name,
        master_epoch=log.master_epoch,
        sync_state_set=wanted,
        set_epoch=log.set_epoch + 1,
        acks=command.acks,
    )


def _check_member(log: Log, member: int, liveness: Liveness, now_ms: int) -> None:
    replica = log.current(member)
    if replica is None:
        raise Refused(Reason.NOT_REGISTERED, f"replica {member} is not registered")
    if log.is_learner(replica.node):
        raise Refused(Reason.LEARNER, f"{replica.node} is a learner")
    if replica.node not in log.nodes:
        raise Refused(Reason.NOT_A_REPLICA, f"{replica.node} does not keep the log")
    if not liveness.has_copy(log, replica, now_ms):
        raise Refused(Reason.NOT_ALIVE, f"{replica.node} is not alive")
    if not liveness.may_lead(log, replica, now_ms):
        raise Refused(Reason.NOT_ELECTABLE, f"{replica.node} lacks the log's state or older records")
