"""Liveness of nodes and replicas as the active controller has heard it; never stored in the log (C-03).

A node is alive from a heartbeat on, until it has been silent for `broker_timeout_ms`, its connection has
closed, or it has confirmed none of the answers of that time: a node that is heard but cannot hear is useless
to its logs (C-05). A controller that has just become active has heard no node: then a node may be alive while
the previous controller could have heard it. Each report of a replica replaces the previous one, also if it
reports less: a truncation removes records.

The answer to a heartbeat grants its masters a lease (A-11). It counts from the sending of the heartbeat, and
thus ends before the time of the answer + the lease here; until then no other replica may be elected. The
master counts a tenth less, so that clocks that differ in rate by up to 10 % do no harm. Every lease of one
master epoch has the same length (`Log.lease_ms`), whatever the settings of the controllers are meanwhile.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Annotated, Any, Final

import msgspec

from app.controller.config import ControllerConfig
from app.controller.metadata import CONTROLLER_LOG, Confirmed, Log, Replica
from app.log.terms import TERM_MAX

_REMEMBERED_ANSWERS: Final = 64


def counted_lease_ms(lease_ms: int) -> int:
    """Return how long a master counts a lease that lasts `lease_ms` for the controllers."""
    return lease_ms * 9 // 10


class Report(msgspec.Struct, frozen=True, array_like=True):
    """Report of a replica: byte ends, exclusive; epoch: the last in its epoch file, 0 for none.

    replica_id: 0 while it has none. electable: whether it has all that a master needs, the log's state and
    every record that was not trimmed; a copy without them neither joins the SyncStateSet nor is elected,
    unless the election is unclean. has_room: False while its disk has no space for clients' records.
    """

    log: str
    generation: int
    replica_id: int
    epoch: Annotated[int, msgspec.Meta(ge=0, le=TERM_MAX)]
    max_offset: int
    confirm_offset: int
    electable: bool = True
    has_room: bool = True


class _Node:
    """connected: whether its connection is open. heard_ms: None before its first heartbeat to us.

    answers: (heartbeat id, when it was answered), as far as the node may still confirm them. answered_ms:
    when the newest answer left that the node has confirmed; before the first one, its first heartbeat.
    hears: whether it has confirmed any. confirmed: the newest answer that it has confirmed, (id, when it
    left). reports_after_ms: the present reports were written after that moment; None when that is not known.
    since_ms: when this controller became active, or the node joined. registering_ms: log -> since when the
    node has reported a copy of it that is not registered; CONTROLLER_LOG -> ... that it follows no metadata.
    """

    __slots__ = (
        "answered_ms",
        "answers",
        "confirmed",
        "connected",
        "heard_ms",
        "hears",
        "metadata_index",
        "registering_ms",
        "reports",
        "reports_after_ms",
        "since_ms",
    )

    def __init__(self, connected: bool, since_ms: int) -> None:
        self.connected = connected
        self.since_ms = since_ms
        self.heard_ms: int | None = None
        self.answers: deque[tuple[int, int]] = deque(maxlen=_REMEMBERED_ANSWERS)
        self.answered_ms = 0
        self.hears = False
        self.confirmed: tuple[int, int] | None = None
        self.reports_after_ms: int | None = None
        self.metadata_index = -1
        self.reports: dict[str, Report] = {}
        self.registering_ms: dict[str, int] = {}


class Liveness:
    """View of all nodes by one active controller. All times are its own monotonic milliseconds."""

    def __init__(
        self,
        config: ControllerConfig,
        nodes: Iterable[str],
        connected: Collection[str],
        now_ms: int,
        lease_ms_of: Callable[[str], int] | None = None,
    ) -> None:
        """Begin to be active. connected: nodes whose connection is open. lease_ms_of: how long the leases of
        a log last in its epoch; without it as configured."""
        self.config = config
        self._lease_ms_of = lease_ms_of or (lambda _log: config.lease_ms)
        self._nodes = {node: _Node(node in connected, now_ms) for node in nodes}
        self._began_ms = now_ms
        self._granted_ms: dict[str, int] = {}  # log -> when its master was last granted a lease
        self._confirmed: dict[tuple[str, int, int], Confirmed] = {}  # by log, generation, replica id
        self._given_up: dict[str, int] = {}  # log -> the last lease of its master was given up at
        self._handed_over: dict[str, tuple[int, int]] = {}  # log -> master epoch, what was acknowledged
        self._over_ms: dict[str, int] = {}  # log -> the last lease was over then, before its last election

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that may keep logs: the configured ones, and all that have joined or were heard since."""
        return tuple(self._nodes)

    def joined(self, nodes: Iterable[str], now_ms: int) -> None:
        """Take the members of the cluster. A new one may open its connection yet."""
        for node in nodes:
            if node not in self._nodes:
                self._nodes[node] = _Node(connected=True, since_ms=now_ms)

    def heard(
        self,
        node: str,
        metadata_index: int,
        reports: Iterable[Report],
        now_ms: int,
        answered: int | None = None,
    ) -> None:
        """Process a heartbeat. metadata_index: up to where the node knows the metadata.

        answered: the last answer that it has received, None if it does not report that: then it counts as
        hearing. A node outside the configuration has joined the cluster since.
        """
        self.joined((node,), now_ms)
        known = self._nodes[node]
        if known.heard_ms is None:
            known.answered_ms = now_ms
        known.connected = True
        known.heard_ms = now_ms
        if answered is None:
            known.answered_ms, known.hears = now_ms, True
        while known.answers and any(id == answered for id, _ in known.answers):
            known.confirmed = known.answers.popleft()
            known.answered_ms, known.hears = known.confirmed[1], True
        # A heartbeat that was overtaken by a later one contains an older answer than the newest.
        names_newest = known.confirmed is not None and known.confirmed[0] == answered
        known.reports_after_ms = known.confirmed[1] if known.confirmed and names_newest else None
        known.metadata_index = metadata_index
        known.reports = {report.log: report for report in reports}
        for report in known.reports.values():
            self._note_confirmed(report)
        registering = [report.log for report in known.reports.values() if not report.replica_id]
        registering += [CONTROLLER_LOG] if metadata_index < 0 else []
        known.registering_ms = {log: known.registering_ms.get(log, now_ms) for log in registering}

    def _note_confirmed(self, report: Report) -> None:
        """Remember how much of its log a copy had confirmed: a later incarnation must hold it still."""
        key = (report.log, report.generation, report.replica_id)
        held = Confirmed(report.replica_id, min(report.confirm_offset, report.max_offset), report.epoch)
        if report.replica_id and held.exceeds(self._confirmed.get(key)):
            self._confirmed[key] = held

    def keep_only(self, logs: Iterable[Log]) -> None:
        """Forget everything about logs that were deleted, and about earlier ones of the same names."""
        generations = {log.name: log.generation for log in logs}
        self._confirmed = {
            key: held for key, held in self._confirmed.items() if generations.get(key[0]) == key[1]
        }
        of_logs: tuple[dict[str, Any], ...] = (
            self._granted_ms,
            self._given_up,
            self._handed_over,
            self._over_ms,
        )
        for known in of_logs:
            for name in known.keys() - generations.keys():
                del known[name]

    def confirmed(self, log: Log, replica_id: int) -> Confirmed | None:
        """The most that the copy has reported as confirmed: to this controller, or what its log records of
        reports to those before; None without a report."""
        heard = self._confirmed.get((log.name, log.generation, replica_id))
        recorded = log.confirmed_by(replica_id)
        return heard if heard is not None and heard.exceeds(recorded) else recorded

    def changes_of_confirmed(self, log: Log) -> tuple[Confirmed, ...]:
        """Return the confirmed positions that copies of a log have reported and its metadata do not
        record."""
        found = (self.confirmed(log, replica.id) for replica in log.replicas)
        return tuple(each for each in found if each and each.exceeds(log.confirmed_by(each.replica_id)))

    def answers(self, node: str, id: int, now_ms: int) -> None:
        """Record that the answer to the heartbeat `id` leaves."""
        known = self._nodes.get(node)
        if known is not None:
            known.answers.append((id, now_ms))

    def disconnected(self, node: str) -> None:
        """The node's connection has closed: it is dead until it is heard again (C-05)."""
        known = self._nodes.get(node)
        if known is not None:
            known.connected = False

    def is_alive(self, node: str, now_ms: int) -> bool:
        """Return whether the node was heard recently, and has heard this controller."""
        known = self._nodes.get(node)
        if known is None or not known.connected or known.heard_ms is None:
            return False
        return not (self._is_silent(known.heard_ms, now_ms) or self._is_silent(known.answered_ms, now_ms))

    def _is_silent(self, heard_ms: int, now_ms: int) -> bool:
        """Return whether that was longer ago than a live node allows."""
        return now_ms - heard_ms >= self.config.broker_timeout_ms

    def can_hear(self, node: str) -> bool:
        """Return whether the node has confirmed an answer of this controller: it will learn of its
        election."""
        known = self._nodes.get(node)
        return known is not None and known.hears

    def may_be_granted(self, node: str) -> bool:
        """Return whether the node's last heartbeat confirmed a new answer: otherwise a lease or a smaller set
        that it may never learn of would prevent other elections."""
        known = self._nodes.get(node)
        limit_ms = 2 * self.config.heartbeat_interval_ms + self.config.retry_interval_ms
        return (
            known is not None
            and known.heard_ms is not None
            and known.heard_ms - known.answered_ms <= limit_ms
        )

    def heard_after(self, node: str, time_ms: int) -> bool:
        """Return whether the last heartbeat of the node arrived after that."""
        known = self._nodes.get(node)
        return known is not None and known.heard_ms is not None and known.heard_ms > time_ms

    def missed_ms(self, node: str, now_ms: int) -> int | None:
        """Return when the next heartbeat of a silent node was due; None for one that is heard."""
        known = self._nodes.get(node)
        heard_ms = None if known is None else known.heard_ms
        is_heard = heard_ms is not None and not self._is_silent(heard_ms, now_ms)
        if known is not None and known.connected and is_heard:
            return None
        since_ms = self._began_ms if known is None else known.since_ms
        due_ms = since_ms if heard_ms is None else heard_ms
        return due_ms + self.config.heartbeat_interval_ms + self.config.retry_interval_ms

    def may_live(self, node: str, now_ms: int) -> bool:
        """Return whether the node is alive, or had no time yet to report to this controller."""
        known = self._nodes.get(node)
        if known is None or not known.connected:
            return False
        if known.heard_ms is None:
            return not self._is_silent(known.since_ms, now_ms)
        return self.is_alive(node, now_ms)

    def alive(self, now_ms: int) -> tuple[str, ...]:
        return tuple(node for node in self._nodes if self.is_alive(node, now_ms))

    def has_copy(self, log: Log, replica: Replica, now_ms: int) -> bool:
        """Return whether the replica is alive: its node is, and reported this very copy (not one in
        repair)."""
        return self.is_alive(replica.node, now_ms) and self._report_of(log, replica) is not None

    def is_registering(self, log: Log, replica: Replica, now_ms: int) -> bool:
        """Return whether the replica's node is alive, and has opened a copy of the log that it has yet to
        register, or has followed no metadata since its start: then it may have yet to open the copy.

        Neither counts after `registering_timeout_ms`: its disk may be full.
        """
        if not self.is_alive(replica.node, now_ms):
            return False
        since_ms = self._nodes[replica.node].registering_ms
        newest_ms = max(
            (since_ms[each] for each in (log.name, CONTROLLER_LOG) if each in since_ms), default=None
        )
        return newest_ms is not None and now_ms - newest_ms < self.config.registering_timeout_ms

    def may_lead(self, log: Log, replica: Replica, now_ms: int) -> bool:
        """Return whether the replica is alive and has all that a master needs."""
        report = self._report_of(log, replica)
        return self.is_alive(replica.node, now_ms) and report is not None and report.electable

    def may_come_to_lead(self, log: Log, replica: Replica, now_ms: int) -> bool:
        """Return whether the replica may lead, or had no time yet to report so."""
        report = self._report_of(log, replica)
        return self.may_have_copy(log, replica, now_ms) and (report is None or report.electable)

    def may_have_copy(self, log: Log, replica: Replica, now_ms: int) -> bool:
        """Return whether the replica is alive, or had no time yet to report so."""
        if not self.may_live(replica.node, now_ms):
            return False
        return self._nodes[replica.node].heard_ms is None or self._report_of(log, replica) is not None

    def _report_of(self, log: Log, replica: Replica) -> Report | None:
        return self.report(replica.node, log.name, log.generation, replica.id)

    def report(self, node: str, log: str, generation: int, replica_id: int) -> Report | None:
        """Return the last report of this very replica, None if there is none at this controller."""
        known = self._nodes.get(node)
        report = None if known is None else known.reports.get(log)
        if report is None or (report.generation, report.replica_id) != (generation, replica_id):
            return None
        return report

    def has_given_up(self, node: str, log: str, generation: int, version: int) -> bool:
        """Return whether the node knows the metadata of `version` and keeps no copy of that log."""
        known = self._nodes.get(node)
        if known is None or known.heard_ms is None or known.metadata_index < version:
            return False
        report = known.reports.get(log)
        return report is None or report.generation != generation

    def all_know(self, index: int, now_ms: int) -> bool:
        """Return whether every living node knows the metadata up to `index`."""
        return all(
            known.metadata_index >= index
            for node, known in self._nodes.items()
            if self.is_alive(node, now_ms)
        )

    def granted(self, log: str, now_ms: int) -> None:
        """Record that a lease leaves for the master of a log."""
        self._granted_ms[log] = now_ms
        self._given_up.pop(log, None)
        self._handed_over.pop(log, None)
        self._over_ms.pop(log, None)

    def given_up(self, log: str, now_ms: int, master_epoch: int = 0, confirmed: int | None = None) -> None:
        """Record that the master acts no more: its lease is over. It may report this again.

        confirmed: byte after the last record that it has acknowledged in that epoch, None if unknown.
        """
        self._given_up.setdefault(log, now_ms)
        if confirmed is not None:
            self._handed_over.setdefault(log, (master_epoch, confirmed))

    def is_given_up(self, log: str) -> bool:
        """Return whether the master has given its epoch up, and no other is elected since."""
        return log in self._given_up

    def handed_over(self, log: str, master_epoch: int) -> int | None:
        """Return the byte after the last record acknowledged in that epoch or before, if its master
        reported it when it gave the epoch up."""
        epoch, confirmed = self._handed_over.get(log, (0, 0))
        return confirmed if epoch == master_epoch else None

    def elected(self, log: str) -> None:
        """Record an election: the end of the previous lease must not count for the next election."""
        self._over_ms[log] = self.lease_over_ms(log)
        self._given_up.pop(log, None)
        self._handed_over.pop(log, None)

    def lease_over_ms(self, log: str) -> int:
        """Return the time from which no master acts by a lease granted so far, by this controller or the
        previous one."""
        if log in self._over_ms:
            return self._over_ms[log]
        lease_end_ms = self._granted_ms.get(log, self._began_ms) + self._lease_ms_of(log)
        return min(lease_end_ms, self._given_up.get(log, lease_end_ms))

    def was_written_after_lease(self, node: str, log: str) -> bool:
        """True if the node's present reports were written after the last lease of the log's master had
        ended: it had received an answer by then that left after that."""
        known = self._nodes.get(node)
        after_ms = None if known is None else known.reports_after_ms
        return after_ms is not None and after_ms > self.lease_over_ms(log)

    def is_leased(self, log: str, now_ms: int) -> bool:
        """Return whether the master of the log holds a lease of this controller."""
        is_granted = log in self._granted_ms and log not in self._over_ms  # since the last election
        return is_granted and self.may_be_leased(log, now_ms)

    def may_be_leased(self, log: str, now_ms: int) -> bool:
        """Return whether a master of the log may still hold a lease, of this controller or the previous
        one."""
        if log in self._given_up:
            return False
        if log in self._over_ms:  # none was granted since the last election
            return now_ms <= self._over_ms[log]
        granted_ms = self._granted_ms.get(log, self._began_ms)
        return now_ms <= granted_ms + self._lease_ms_of(log)
