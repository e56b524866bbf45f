"""Changes of the nodes that keep a log, while it runs: what a change is, and when it is complete.

A change names the nodes wanted. Nodes that it adds are replicas at once: they receive the log, and join the
SyncStateSet when they hold all of it (C-08). Nodes that it takes out, or makes learners, are `leaving`: they
act as replicas, as members and masters too, until the log can do without them. They leave together, in one
event, when

- every member of the set counts for acknowledgements, also if the settings ask for fewer (`acting_spec`),
- every node that came with the change (`arriving`) is in the SyncStateSet,
- without them the set has a living member, and at least `min_in_sync_replicas` of them,
- the set is known to be the last one (a rebuild of the controllers may have lost it, C-09), and
- none of them is master: another member is elected first, after the master has given up its lease (A-11).

A change by force waits for nothing. It may take the last copy of acknowledged records, and then only an
unclean election brings another master. In Raft mode the log itself names its members (R-10): a change is
here the settings alone.
"""

from collections.abc import Collection, Sequence
from typing import Any, Final

from app.controller.commands import ChangeReplica, Reason, Refused, ReplicaChange
from app.controller.complete_copies import counts_all
from app.controller.events import LogChanged
from app.controller.liveness import Liveness
from app.controller.metadata import Log, LogSpec

_CONTROLLER: Final = "controller"


def changed(log: Log, spec: LogSpec, *, change_id: str = "", at_once: Collection[str] = ()) -> LogChanged:
    """Return the event by which the log gets these settings. at_once: nodes that leave without waiting."""
    leaving: tuple[str, ...] = ()
    arriving: tuple[str, ...] = ()
    if spec.replication == _CONTROLLER:
        wanted = [node for node in spec.replicas if node not in spec.learners]
        leaving = tuple(node for node in log.voters if node not in wanted and node not in at_once)
        if leaving:
            arriving = tuple(node for node in wanted if node not in log.voters or node in log.arriving)
    return LogChanged(
        log=log.name,
        spec=spec,
        change_id=change_id,
        configured=(log.configured or log.spec) if log.generation < 0 else None,
        leaving=leaving,
        arriving=arriving,
    )


def without(spec: LogSpec, node: str) -> dict[str, Any]:
    """Return the changes of the settings that remove a node."""
    return {
        "replicas": tuple(each for each in spec.replicas if each != node),
        "learners": tuple(each for each in spec.learners if each != node),
        "priorities": {each: number for each, number in spec.priorities.items() if each != node},
    }


def wanted_by(log: Log, command: ChangeReplica, liveness: Liveness, now_ms: int) -> dict[str, Any] | None:
    """Return the changes of the settings that the command requests; None if there are none. Raises
    Refused."""
    spec, node = log.spec, command.node
    named, learns = node in spec.replicas, node in spec.learners
    if log.spec.replication != _CONTROLLER:
        raise Refused(Reason.WRONG_MODE, f"log {log.name!r} is not in controller mode")
    if command.change is ReplicaChange.ADD:
        if named:
            return None
        return {"replicas": (*spec.replicas, node), "learners": (*spec.learners, node)}
    if node not in log.nodes:
        raise Refused(Reason.NOT_A_REPLICA, f"{node} keeps no replica of log {log.name!r}")
    match command.change:
        case ReplicaChange.PROMOTE:
            if named and not learns:
                return None
            replicas = spec.replicas if named else (*spec.replicas, node)
            return {"replicas": replicas, "learners": tuple(each for each in spec.learners if each != node)}
        case ReplicaChange.DEMOTE:
            if learns:
                return None
            replicas = spec.replicas if named else (*spec.replicas, node)
            return {"replicas": replicas, "learners": (*spec.learners, node)}
        case ReplicaChange.CLEAN:
            check_gone(log, node, liveness, now_ms, force=command.force)
    if not named and not command.force and command.change is ReplicaChange.REMOVE:
        return None  # it is leaving
    if spec.replicas == (node,):
        raise Refused(Reason.INVALID, f"{node} is the only replica: delete the log instead")
    return without(spec, node)


def check_gone(log: Log, node: str, liveness: Liveness, now_ms: int, *, force: bool) -> None:
    """Check that the metadata of a node's copy may be removed: the node is dead, and acknowledged records
    have other holders. Raises Refused."""
    if force:
        return
    if liveness.may_live(node, now_ms):
        raise Refused(Reason.NODE_ALIVE, f"{node} is alive: remove it, or clean its metadata by force")
    _check_history(log, node)
    originals = log.nodes_of(log.originals(log.holders))
    if log.holders and all(each == node for each in originals):
        what = "has the last copy in sync" if originals else "may have the last copy of acknowledged records"
        raise Refused(Reason.LAST_IN_SYNC, f"{node} {what}: by force the records that only it holds are lost")


def check_removal(log: Log, node: str, liveness: Liveness, now_ms: int) -> None:
    """Check that a replica can leave now, or as soon as another is master. Raises Refused."""
    _check_history(log, node)
    if node in log.voters:
        why = why_not_without(log, (node,), liveness, now_ms)
        if why is not None:
            raise Refused(Reason.LAST_IN_SYNC, why)


def _check_history(log: Log, node: str) -> None:
    """Refuse to give a copy up while it is not known which ones hold the acknowledged records (C-09). Raises
    Refused."""
    if log.lost_history:
        raise Refused(
            Reason.LAST_IN_SYNC,
            f"the last SyncStateSet is not known, and {node} may hold the only copy of acknowledged records "
            "until the log has a master; by force they are lost",
        )


def is_master_leaving(log: Log) -> bool:
    """Return whether the log waits for another master before its leaving nodes go."""
    return log.master_node is not None and log.master_node in log.leaving


def may_leave(log: Log, liveness: Liveness, now_ms: int) -> bool:
    """Return whether the leaving nodes may go, or transfer the mastership if one of them is master."""
    if not log.leaving or log.is_opening or log.lost_history or not log.elects:
        return False
    in_sync = log.set_nodes
    if not counts_all(log) and any(node in in_sync for node in log.leaving):
        return False
    if log.master_epoch and any(node not in in_sync for node in log.arriving):
        return False
    return why_not_without(log, log.leaving, liveness, now_ms) is None


def left(log: Log) -> LogChanged:
    """Return the event by which the leaving nodes go."""
    return LogChanged(log=log.name, spec=log.spec, change_id=log.changed_by, configured=log.configured)


def why_not_without(log: Log, nodes: Sequence[str], liveness: Liveness, now_ms: int) -> str | None:
    """Return why the set must keep some of the nodes; None when it can do without them."""
    # Without a member that surely holds everything any copy may be elected, unclean.
    is_lost = bool(log.sync_state_set) and not log.originals(log.sync_state_set)
    if not (is_lost or any(node in nodes for node in log.set_nodes)):
        return None
    staying = [
        replica.node
        for member in log.originals(log.sync_state_set)
        if (replica := log.current(member)) is not None
        and replica.node not in nodes
        and liveness.may_lead(log, replica, now_ms)
    ]
    floor = max(1, log.spec.min_in_sync_replicas)
    if len(staying) >= floor:
        return None
    rest = ", ".join(staying) or "none"
    return f"without {', '.join(nodes)} the living replicas in sync are: {rest}; the log needs {floor}"
