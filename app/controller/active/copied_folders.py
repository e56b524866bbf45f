"""Registration of a copied folder: beside a master, the copy is a new replica (C-03). PURE."""

from app.controller.commands import Reason, Refused, RegisterReplica
from app.controller.liveness import Liveness
from app.controller.metadata import Log


def is_replaced(log: Log, command: RegisterReplica, liveness: Liveness, now_ms: int) -> bool:
    """Return whether the copy is a new replica.

    It may hold less than it has acknowledged, and more than any controller knows of that. A master of an open
    epoch holds everything, so it needs no other member. Without one the copy stays what it was: after a
    restore of all folders one of them has to lead (complete_copies.py). A master that was registered as a
    copy since it opened its epoch does not act any more, and may lack records itself, although it is granted
    leases. Before that the mark may be older than the election, and the master may open its epoch yet.

    Raises Refused while this controller hears the copy as a registered one: then the request is late, or the
    incarnation before is not known to have ended. Raises Refused also while the log has a master without a
    lease, until it is heard or the log has none: a master that opens its epoch, or returns, must not count
    what the folder before has acknowledged. The same while the set keeps the id of another lost copy: its
    master may need the members that are left to be elected again, until it has requested a set without that.
    """
    copy, master = log.current(command.replica_id), None if log.master is None else log.current(log.master)
    if copy is not None and liveness.has_copy(log, copy, now_ms):
        raise Refused(Reason.NOT_ALIVE, f"replica {copy.id} of {copy.node} is registered and alive")
    if master is None or master.id == command.replica_id:
        return False
    if master.id in log.copied and not log.is_opening:
        return False
    can_do_without = all(log.is_current(member) for member in log.sync_state_set)
    if can_do_without and liveness.has_copy(log, master, now_ms) and liveness.is_leased(log.name, now_ms):
        return True
    raise Refused(
        Reason.NOT_ALIVE,
        f"the folder of replica {command.replica_id} is a copy, and waits until {master.node} leads"
        " with a set of existing replicas, or is replaced",
    )
