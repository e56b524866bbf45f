"""Replicas that provably hold everything that was acknowledged (C-05, C-12).

A set counts all of its members, or `acks` of them: then each acknowledged record is on at least so many of
them, and a single member may lack it. PURE.

With n members of which k hold each record, any n - k + 1 of them include a holder. So a member holds
everything when so many members, itself included, are known to hold no more than it does. Logs compare by the
epoch of their last record, then by their end: a copy whose last record is of a newer epoch follows a master
that held everything, and two copies that end in one epoch are prefixes of one master's log. What a member
reported counts only if it was written after the last lease had ended: from then on nothing was acknowledged,
so the report covers every acknowledgement that the member was part of (A-11).

A member whose folder is a copy may lack what it has acknowledged. So only the reports of the others count, if
there are enough of them. Otherwise all members have to report, and the one that holds most is complete: after
a restore of all folders there is nothing newer. If one of them is lost, none is proven to be complete: its
folder may have been a newer copy that was found to lack records.

A master that gives its epoch up reports the end of what it has acknowledged. A member whose log reaches that
point in the master's epoch holds everything; no other report is needed.
"""

from collections.abc import Sequence

from app.controller.liveness import Liveness, Report
from app.controller.metadata import Log, Replica
from app.ha.roles import acks_needed


def complete_copies(log: Log, liveness: Liveness) -> tuple[int, ...]:
    """Return the ids of the replicas that a clean election can make master, ascending.

    While the master has not opened its epoch: itself, as it was elected so, and the complete copies of the
    set before.
    """
    found = {*_complete(log, log.sync_state_set, log.set_acks, liveness, handed_over=not log.is_opening)}
    if log.is_opening:
        found.difference_update(log.copied)
        found.update(_complete(log, log.former_set, log.former_acks, liveness, handed_over=False))
    return tuple(sorted(found))


def surely_lacks(log: Log, liveness: Liveness, replica: Replica) -> bool:
    """True if the copy lacks acknowledged records and gets none before the next election (C-12).

    The last lease has ended, and the copy has reported since that it ends before the point up to which the
    last master has acknowledged: no other report can prove that it holds everything.
    """
    confirmed = liveness.handed_over(log.name, log.master_epoch)
    report = _report_of(log, replica.id, liveness)
    if confirmed is None or report is None or not liveness.was_written_after_lease(replica.node, log.name):
        return False
    return (report.epoch, report.max_offset) < (log.master_epoch, confirmed)


def confirmed_end(log: Log, liveness: Liveness) -> int:
    """Return the byte up to which the master has reported its epoch as confirmed, 0 without such a report."""
    report = None if log.master is None else _report_of(log, log.master, liveness)
    return 0 if report is None or report.epoch != log.master_epoch else report.confirm_offset


def held_end(log: Log, liveness: Liveness, replica: Replica) -> int:
    """Return the end of the master's epoch that the copy has reported, 0 if it ends in another epoch."""
    report = _report_of(log, replica.id, liveness)
    return 0 if report is None or report.epoch != log.master_epoch else report.max_offset


def counts_all(log: Log) -> bool:
    """True if every member of the sets that count holds everything: no proof is needed."""
    sets = [_proving(log, log.sync_state_set, log.set_acks), _proving(log, log.former_set, log.former_acks)]
    return all(reports == 1 for _members, reports in sets)


def reports_needed(log: Log) -> int:
    """Return how many members must be heard after the last lease for a clean election; 1 for any member."""
    return _proving(log, *_counted_set(log))[1]


def may_become_complete(log: Log, liveness: Liveness, now_ms: int) -> bool:
    """True if so many members of the set live, or had no time yet to report, that one may win a clean
    election; who has reported after the last lease counts too, dead or alive.

    Once all of them have reported, only those that are proven to hold everything may still win it.
    """
    members, reports = _proving(log, *_counted_set(log))
    heard = _reports(log, members, liveness)
    awaited = [
        member for member in members if member not in heard and _may_report(log, member, liveness, now_ms)
    ]
    able = [
        member
        for member in log.holders
        if (replica := log.current(member)) is not None and liveness.may_come_to_lead(log, replica, now_ms)
    ]
    if not awaited:
        complete = complete_copies(log, liveness)
        able = [member for member in able if member in complete]
    is_likely = len(heard) + len(awaited) >= reports
    return bool(able) and (is_likely or _winner_may_lead(log, liveness, now_ms))


def _may_report(log: Log, member: int, liveness: Liveness, now_ms: int) -> bool:
    """Return whether the copy exists, and is alive or had no time yet to report so."""
    replica = log.current(member)
    return replica is not None and liveness.may_have_copy(log, replica, now_ms)


def _winner_may_lead(log: Log, liveness: Liveness, now_ms: int) -> bool:
    """True if the winner of the last election, whose epoch is not open yet, may win the next one too."""
    winners = [log.current(member) for member in log.sync_state_set]
    return log.is_opening and any(
        winner is not None and liveness.may_come_to_lead(log, winner, now_ms) for winner in winners
    )


def counted_acks(log: Log) -> int:
    """Return how many members of the set that counts hold each acknowledged record, 0 for all."""
    return _counted_set(log)[1]


def _counted_set(log: Log) -> tuple[tuple[int, ...], int]:
    """The set by which the last acknowledgements were counted, and its acks."""
    return (log.former_set, log.former_acks) if log.is_opening else (log.sync_state_set, log.set_acks)


def _proving(log: Log, members: Sequence[int], acks: int) -> tuple[Sequence[int], int]:
    """Return the members that can prove what was acknowledged, and how many of them have to report."""
    reports = len(members) - acks_needed(len(members), acks) + 1
    existing = [member for member in members if log.is_current(member)]
    sure = log.originals(existing)
    if len(sure) == len(existing):
        return members, reports
    return (sure, reports) if len(sure) >= reports else (existing, len(members))


def _complete(
    log: Log, members: Sequence[int], acks: int, liveness: Liveness, *, handed_over: bool
) -> list[int]:
    """handed_over: whether the master's word about what it has acknowledged is about this set."""
    members, reports = _proving(log, members, acks)
    if reports == 1:
        return list(members)
    confirmed = liveness.handed_over(log.name, log.master_epoch) if handed_over else None
    heard = _reports(log, members, liveness)
    found = []
    for member in members:
        report = _report_of(log, member, liveness)
        if report is None:
            continue
        reaches = (
            confirmed is not None and report.epoch == log.master_epoch and report.max_offset >= confirmed
        )
        not_ahead = sum(end <= heard[member] for end in heard.values()) if member in heard else 0
        if reaches or not_ahead >= reports:
            found.append(member)
    return found


def _reports(log: Log, members: Sequence[int], liveness: Liveness) -> dict[int, tuple[int, int]]:
    """Return epoch and end of the log by member, for those heard after the last lease had ended."""
    heard = {}
    for member in members:
        replica, report = log.replica(member), _report_of(log, member, liveness)
        if replica is None or report is None:
            continue
        if liveness.was_written_after_lease(replica.node, log.name):
            heard[member] = (report.epoch, report.max_offset)
    return heard


def _report_of(log: Log, member: int, liveness: Liveness) -> Report | None:
    """The last report of a copy that exists still."""
    replica = log.current(member)
    if replica is None:
        return None
    return liveness.report(replica.node, log.name, log.generation, member)
