"""ElectMaster: the choice of a log's master (C-05).

A clean election is won by a replica that holds everything that was ever acknowledged: a member of the
SyncStateSet and, if the set does not count all of its members, one of which that is proven
(complete_copies.py). While the last winner has not opened its epoch the previous set qualifies as well: the
winner is granted no lease until then, so nothing can have been acknowledged since (A-11). Before one of them
is elected the previous set is restored, so every clean election is won by a member of the set. Before the
first epoch of a log is open every replica qualifies: nothing was ever acknowledged.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import msgspec

from app.controller.commands import ElectMaster, Reason, Refused
from app.controller.complete_copies import (
    complete_copies,
    counted_acks,
    counts_all,
    may_become_complete,
    reports_needed,
)
from app.controller.events import MasterElected, SyncStateSetChanged
from app.controller.liveness import Liveness
from app.controller.metadata import Log, Replica

NONE_AVOIDED: Final[Mapping[int, int]] = MappingProxyType({})
REASON_FIRST = "first"  # the log never had a master
REASON_MASTER_LOST = "master-lost"
REASON_OPERATOR = "operator"
REASON_LEAVING = "leaving"  # the master's node is removed from the log
REASON_DISK_FULL = "disk-full"  # the master's disk has no space, and another member's has


def has_living_master(log: Log, liveness: Liveness, now_ms: int) -> bool:
    """Return whether the master's copy still exists and may be alive."""
    replica = None if log.master is None else log.current(log.master)
    return replica is not None and liveness.may_have_copy(log, replica, now_ms)


def has_opened(log: Log, liveness: Liveness) -> bool:
    """Return whether the master reports records of its own epoch."""
    report = None
    if log.master is not None and log.master_node is not None:
        report = liveness.report(log.master_node, log.name, log.generation, log.master)
    return report is not None and report.epoch >= log.master_epoch and report.max_offset > 0


def missed_master_ms(log: Log, liveness: Liveness, now_ms: int) -> int | None:
    """Return when the silent master was due to be heard; None while it is heard, or without a master.

    A replica that was not heard after that may have died with it: it is not elected.
    """
    return None if log.master_node is None else liveness.missed_ms(log.master_node, now_ms)


def elect(
    log: Log,
    liveness: Liveness,
    now_ms: int,
    *,
    command: ElectMaster | None = None,
    heard_after_ms: int | None = None,
    avoided: Mapping[int, int] = NONE_AVOIDED,
    provisional: bool = False,
) -> MasterElected:
    """Choose a new master: of the SyncStateSet, or unclean if that is allowed and no member of it lives.

    command: of an operator, None when the controller acts by itself. heard_after_ms: a replica that was not
    heard after that is not elected, None for no limit. avoided: replicas that could not open an epoch, and
    how often: those that failed least are preferred. provisional: assume that every member holds everything,
    to see which could be elected once that is proven. Raises Refused.
    """
    copies = [
        each
        for each in log.copies()
        if liveness.has_copy(log, each, now_ms)
        and liveness.can_hear(each.node)
        and (heard_after_ms is None or liveness.heard_after(each.node, heard_after_ms))
    ]
    living = [each for each in copies if not log.is_learner(each.node)]
    able = [each for each in living if liveness.may_lead(log, each, now_ms)]
    holds_nothing = _holds_nothing(log, liveness, copies)
    if log.lost_history:
        waits = command is None or not command.unclean
        clean = _newest_of_all(log, liveness, copies, able, now_ms, waits=waits)
    elif log.master_epoch == 0 or holds_nothing:
        clean = able
    else:
        complete = log.holders if provisional else complete_copies(log, liveness)
        clean = [each for each in able if each.id in complete]
    candidates = _candidates(log, liveness, command, clean, living, now_ms)
    if not candidates:
        way_out = "" if command is None else _way_out(log, liveness, command, living, now_ms)
        raise Refused(Reason.NO_ELIGIBLE_REPLICA, _why_none(log, liveness, copies) + way_out)
    chosen = _preferred(log, liveness, candidates, avoided)
    unclean = chosen not in clean
    former_set = () if unclean else _former_set(log, chosen, clean, holds_nothing=holds_nothing)
    return _elected(log, liveness, chosen, former_set, unclean=unclean, by_operator=command is not None)


def _candidates(
    log: Log,
    liveness: Liveness,
    command: ElectMaster | None,
    clean: Sequence[Replica],
    living: Sequence[Replica],
    now_ms: int,
) -> Sequence[Replica]:
    """Return the replicas that may be elected: those of `clean`, or of `living` for an unclean election."""
    candidates = clean
    unclean_asked = command is not None and command.unclean
    is_allowed = log.spec.unclean or unclean_asked or liveness.config.elect_unclean
    has_hope = bool(clean)
    if not (clean or log.lost_history):  # a set that is not the last one gives no hope (_newest_of_all)
        has_hope = may_become_complete(log, liveness, now_ms) or (
            command is None and _is_any_starting(log, liveness, now_ms)
        )
    if is_allowed and not has_hope:
        candidates = living
    wanted = None if command is None else command.candidate
    if wanted is not None:
        if unclean_asked and all(each.node != wanted for each in clean):
            candidates = living
        candidates = [each for each in candidates if each.node == wanted]
    return candidates


def _is_any_starting(log: Log, liveness: Liveness, now_ms: int) -> bool:
    """Return whether a member of the set starts at this moment, as after a restart of all nodes: it is not
    registered, or had no time yet to be heard and to hear."""
    for replica in map(log.current, log.holders):
        if replica is None:
            continue
        is_known = liveness.has_copy(log, replica, now_ms) and liveness.can_hear(replica.node)
        is_new = liveness.may_have_copy(log, replica, now_ms) and not is_known
        if is_new or liveness.is_registering(log, replica, now_ms):
            return True
    return False


def _elected(
    log: Log,
    liveness: Liveness,
    chosen: Replica,
    former_set: tuple[int, ...],
    *,
    unclean: bool,
    by_operator: bool,
) -> MasterElected:
    """Return the event of an election."""
    if by_operator:
        reason = REASON_OPERATOR
    else:
        reason = REASON_FIRST if log.master_epoch == 0 or log.lost_history else REASON_MASTER_LOST
    return MasterElected(
        log=log.name,
        master=chosen.id,
        master_epoch=log.master_epoch + 1,
        set_epoch=log.set_epoch + 1,
        reason=reason,
        unclean=unclean,
        lost=_what_is_lost(log, liveness, chosen) if unclean else None,
        former_set=former_set,
        former_acks=0 if unclean or log.lost_history else counted_acks(log),
    )


def _preferred(
    log: Log, liveness: Liveness, candidates: Sequence[Replica], avoided: Mapping[int, int]
) -> Replica:
    """Return the candidate to elect: the best by rank of those that failed least, leaving nodes last."""
    fewest = min(avoided.get(each.id, 0) for each in candidates)
    able = [each for each in candidates if avoided.get(each.id, 0) == fewest]
    staying = [each for each in able if each.node not in log.leaving]
    return min(staying or able, key=lambda each: _rank(log, liveness, each))


def _newest_of_all(
    log: Log, liveness: Liveness, copies: list[Replica], able: list[Replica], now_ms: int, *, waits: bool
) -> list[Replica]:
    """Return the replicas that hold everything of a log whose masters are not known any more (C-09).

    The last master and its set held all that was acknowledged, with records of the newest epoch. So of all
    copies the one with the newest epoch, and the largest offset in it, holds that; none can be missing, and
    none can have lost its disk. That counts for learners too: one may have been promoted since these
    metadata. waits: whether to raise Refused while a node may yet report.
    """
    missing = _missing_nodes(log, copies)
    if waits and any(liveness.may_live(node, now_ms) for node in missing):
        raise Refused(Reason.NO_ELIGIBLE_REPLICA, f"{', '.join(missing)} may hold acknowledged records")
    if missing or _lost_copies(log, liveness, copies):
        return []
    ends = {each.id: _end_of(log, liveness, each) for each in copies}
    newest = max(ends.values())
    return [each for each in able if ends[each.id] == newest]


def _missing_nodes(log: Log, copies: Sequence[Replica]) -> list[str]:
    """Return the nodes of the log without one of these copies."""
    return [node for node in log.nodes if all(each.node != node for each in copies)]


def _lost_copies(log: Log, liveness: Liveness, copies: Sequence[Replica]) -> list[str]:
    """Return the nodes with an empty copy in place of one that was registered before: what that held is
    lost."""
    earlier = {each.node for each in log.replicas if each.registered and not log.is_current(each.id)}
    return [each.node for each in copies if each.node in earlier and _end_of(log, liveness, each) == (0, 0)]


def _end_of(log: Log, liveness: Liveness, replica: Replica) -> tuple[int, int]:
    """Epoch and byte end of a replica's log, as it reported them last."""
    report = liveness.report(replica.node, log.name, log.generation, replica.id)
    return (0, 0) if report is None else (report.epoch, report.max_offset)


def restored_set(log: Log, event: MasterElected) -> SyncStateSetChanged | None:
    """Return the set before the last election, to be restored before `event`; None if the set has the
    winner."""
    if event.unclean or not log.holders or event.master in log.sync_state_set:
        return None
    return SyncStateSetChanged(
        log=log.name,
        master_epoch=log.master_epoch,
        sync_state_set=tuple(sorted({*log.holders, event.master})),
        set_epoch=log.set_epoch + 1,
        restored=True,
        acks=counted_acks(log),
    )


def _former_set(
    log: Log, chosen: Replica, clean: Sequence[Replica], *, holds_nothing: bool
) -> tuple[int, ...]:
    """Return the replicas that may replace the winner of a clean election until it has opened its epoch;
    empty for none.

    None after an unclean election: a slave may remove acknowledged records before it follows the winner. A
    set that is not known to be the last one proves nothing: then those that hold as much as the winner. In a
    log that holds nothing these are all replicas; the winner alone is named too, and waits for its lease
    until its epoch is open.
    """
    if holds_nothing:
        return tuple(sorted({*log.holders, *(each.id for each in clean)}))
    holders = tuple(sorted(each.id for each in clean)) if log.lost_history else log.holders
    return () if holders in ((), (chosen.id,)) else holders


def _holds_nothing(log: Log, liveness: Liveness, copies: Sequence[Replica]) -> bool:
    """Return whether nothing of the log was ever acknowledged (A-11).

    A copy with records of an epoch that these metadata have not given contradicts that: the controllers have
    lost their metadata, or the copy was made from a backup.
    """
    return log.never_open and all(_end_of(log, liveness, each)[0] <= log.master_epoch for each in copies)


def _rank(log: Log, liveness: Liveness, replica: Replica) -> tuple[int, int, tuple[int, int, int]]:
    """Sort key, the smaller the better: larger epoch, larger max offset, then the preference (C-05)."""
    report = liveness.report(replica.node, log.name, log.generation, replica.id)
    epoch, max_offset = (0, 0) if report is None else (report.epoch, report.max_offset)
    return (-epoch, -max_offset, log.spec.preference(replica.node))


def _what_is_lost(log: Log, liveness: Liveness, chosen: Replica) -> dict[str, Any]:
    """Return, for the record of an unclean election, the last known position of the set, and the new
    master."""
    lost: dict[str, Any] = {"master": log.master_node, "sync_state_set": list(log.set_nodes)}
    for member in log.holders:
        replica = log.replica(member)
        report = replica and liveness.report(replica.node, log.name, log.generation, member)
        if report:
            lost["max_offset"] = max(lost.get("max_offset", 0), report.max_offset)
            lost["confirm_offset"] = max(lost.get("confirm_offset", 0), report.confirm_offset)
    report = liveness.report(chosen.node, log.name, log.generation, chosen.id)
    lost["from_offset"] = None if report is None else report.max_offset
    return lost


def _way_out(
    log: Log, liveness: Liveness, command: ElectMaster, living: Sequence[Replica], now_ms: int
) -> str:
    """Return what an unclean election would do in place of a refused one; empty if it is refused too."""
    unclean = msgspec.structs.replace(command, unclean=True)
    candidates = _candidates(log, liveness, unclean, (), living, now_ms)
    if command.unclean or not candidates:
        return ""
    chosen = _preferred(log, liveness, candidates, NONE_AVOIDED)
    lost = _what_is_lost(log, liveness, chosen)
    is_known = "max_offset" in lost and not log.lost_history
    of_set = f", the replicas in sync at byte {lost['max_offset']}" if is_known else ""
    return (
        f"; with `unclean` (--unclean) {chosen.node} becomes master, and the records that it lacks are lost:"
        f" its log ends at byte {lost['from_offset']}{of_set}"
    )


def _why_none(log: Log, liveness: Liveness, copies: list[Replica]) -> str:
    members = ", ".join(log.nodes_of(log.holders)) or "none"
    living = [each.node for each in copies if not log.is_learner(each.node)]
    detail = f"in sync: {members}; alive and able to lead: {', '.join(living) or 'none'}"
    if log.lost_history:
        missing = ", ".join(_missing_nodes(log, copies))
        if missing:
            return f"{missing} may hold acknowledged records: start it, or remove it by force; {detail}"
        lost = _lost_copies(log, liveness, copies)
        if lost:
            return (
                f"{', '.join(lost)} may have held acknowledged records on a disk that was replaced; {detail}"
            )
        newest = max(copies, key=lambda each: (_end_of(log, liveness, each), not log.is_learner(each.node)))
        if log.is_learner(newest.node):
            return f"{newest.node} is a learner and may hold acknowledged records: promote it; {detail}"
    copied = ", ".join(log.nodes_of(tuple(each for each in log.holders if each in log.copied)))
    if copied:
        detail += f"; copied folders, which may be older: {copied}"
    if counts_all(log):
        return detail
    held = ", ".join(log.nodes_of(complete_copies(log, liveness))) or "none"
    return f"{detail}; {reports_needed(log)} members must be heard; proven to hold everything: {held}"
