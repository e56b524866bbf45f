"""ElectMaster: who becomes master of a log (C-05)."""

from typing import Any

from app.controller.commands import ElectMaster, Reason, Refused
from app.controller.events import MasterElected
from app.controller.liveness import Liveness
from app.controller.metadata import Log, Replica

REASON_FIRST = "first"  # the log never had a master
REASON_MASTER_LOST = "master-lost"
REASON_OPERATOR = "operator"


def has_living_master(log: Log, liveness: Liveness, now_ms: int) -> bool:
    """Whether the master's copy exists still and may be alive."""
    replica = None if log.master is None else log.replica(log.master)
    if replica is None or not log.is_current(replica.id):
        return False
    return liveness.may_have_copy(log, replica, now_ms)


def members_may_live(log: Log, liveness: Liveness, now_ms: int) -> bool:
    """Whether a member of the SyncStateSet may lead, or had no time yet to report so."""
    members = (log.replica(member) for member in log.sync_state_set if log.is_current(member))
    return any(each is not None and liveness.may_come_to_lead(log, each, now_ms) for each in members)


def elect(log: Log, liveness: Liveness, now_ms: int, *, command: ElectMaster | None = None) -> MasterElected:
    """Choose a new master: of the SyncStateSet, or unclean where that is allowed and nobody of it lives.

    command: of an operator, None when the controller acts by itself. Raises Refused.
    """
    living = [each for each in log.eligible() if liveness.has_copy(log, each, now_ms)]
    able = [each for each in living if liveness.may_lead(log, each, now_ms)]
    clean = able if log.master_epoch == 0 else [each for each in able if each.id in log.sync_state_set]
    candidates = clean
    unclean_asked = command is not None and command.unclean
    if not (clean or members_may_live(log, liveness, now_ms)) and (log.spec.unclean or unclean_asked):
        candidates = living
    wanted = None if command is None else command.candidate
    if wanted is not None:
        if unclean_asked and all(each.node != wanted for each in clean):
            candidates = living
        candidates = [each for each in candidates if each.node == wanted]
    if not candidates:
        raise Refused(Reason.NO_ELIGIBLE_REPLICA, _why_nobody(log, living))
    chosen = min(candidates, key=lambda each: _rank(log, liveness, each))
    unclean = chosen not in clean
    if command is not None:
        reason = REASON_OPERATOR
    else:
        reason = REASON_FIRST if log.master_epoch == 0 else REASON_MASTER_LOST
    return MasterElected(
        log=log.name,
        master=chosen.id,
        master_epoch=log.master_epoch + 1,
        set_epoch=log.set_epoch + 1,
        reason=reason,
        unclean=unclean,
        lost=_what_is_lost(log, liveness, chosen) if unclean else None,
    )


def _rank(log: Log, liveness: Liveness, replica: Replica) -> tuple[int, int, int, int]:
    """The smaller the better: larger epoch, larger max offset, preferred, order of the settings."""
    report = liveness.report(replica.node, log.name, log.generation, replica.id)
    epoch, max_offset = (0, 0) if report is None else (report.epoch, report.max_offset)
    return (
        -epoch,
        -max_offset,
        int(replica.node != log.spec.preferred),
        log.spec.replicas.index(replica.node),
    )


def _what_is_lost(log: Log, liveness: Liveness, chosen: Replica) -> dict[str, Any]:
    """For the record of an unclean election: how far the set was last heard to be, and the new master."""
    lost: dict[str, Any] = {"master": log.master_node, "sync_state_set": list(log.set_nodes)}
    for member in log.sync_state_set:
        replica = log.replica(member)
        report = replica and liveness.report(replica.node, log.name, log.generation, member)
        if report:
            lost["max_offset"] = max(lost.get("max_offset", 0), report.max_offset)
            lost["confirm_offset"] = max(lost.get("confirm_offset", 0), report.confirm_offset)
    report = liveness.report(chosen.node, log.name, log.generation, chosen.id)
    lost["from_offset"] = None if report is None else report.max_offset
    return lost


def _why_nobody(log: Log, living: list[Replica]) -> str:
    members = ", ".join(log.set_nodes) or "nobody"
    alive = ", ".join(each.node for each in living) or "nobody"
    return f"in sync: {members}; alive and able to lead: {alive}"
