"""Who lives, as the active controller has heard: never in the log, gone with the active controller (C-03).

A node is alive from a heartbeat on, until it has been silent for `broker_timeout_ms` or its connection has
closed. A controller that has just become active has heard nobody: then a node may live as long as it could
have been heard by the one before. What a replica reports replaces what it reported before, also when it is
less: a truncation takes records away.

The answer to a heartbeat grants its masters a lease (A-11). It counts from the sending of the heartbeat, and
thus ends before the time of the answer + `lease_ms` here; until then nobody else may be elected.
"""

from collections.abc import Collection, Iterable

import msgspec

from app.controller.config import ControllerConfig
from app.controller.metadata import Log, Replica


class Report(msgspec.Struct, frozen=True, array_like=True):
    """What a replica says of itself: byte ends, exclusive; epoch: the last in its epoch file, 0 for none.

    replica_id: 0 while it has none. electable: whether it has all that a master needs, the log's state and
    every record that was not trimmed; a copy without them neither joins the SyncStateSet nor is elected,
    unless the election is unclean.
    """

    log: str
    generation: int
    replica_id: int
    epoch: int
    max_offset: int
    confirm_offset: int
    electable: bool = True


class _Node:
    """connected: whether its connection is open. heard_ms: None before its first heartbeat to us."""

    __slots__ = ("connected", "heard_ms", "metadata_index", "reports")

    def __init__(self, connected: bool) -> None:
        self.connected = connected
        self.heard_ms: int | None = None
        self.metadata_index = -1
        self.reports: dict[str, Report] = {}


class Liveness:
    """What one active controller knows of all nodes. All times are its own monotonic milliseconds."""

    def __init__(
        self, config: ControllerConfig, nodes: Iterable[str], connected: Collection[str], now_ms: int
    ) -> None:
        """Begin to be active. connected: nodes whose connection is open."""
        self._config = config
        self._nodes = {node: _Node(node in connected) for node in nodes}
        self._began_ms = now_ms
        self._granted_ms: dict[str, int] = {}  # log -> when its master was last granted a lease
        self._given_up: dict[str, int] = {}  # log -> the last lease of its master was given up at

    def heard(self, node: str, metadata_index: int, reports: Iterable[Report], now_ms: int) -> None:
        """A heartbeat has come. metadata_index: up to where the node knows the metadata."""
        known = self._nodes.get(node)
        if known is not None:
            known.connected = True
            known.heard_ms = now_ms
            known.metadata_index = metadata_index
            known.reports = {report.log: report for report in reports}

    def disconnected(self, node: str) -> None:
        """The node's connection has closed: it is not alive until it is heard again (C-05)."""
        known = self._nodes.get(node)
        if known is not None:
            known.connected = False

    def is_alive(self, node: str, now_ms: int) -> bool:
        """Whether the node was heard, and lately."""
        known = self._nodes.get(node)
        if known is None or not known.connected or known.heard_ms is None:
            return False
        return now_ms - known.heard_ms < self._config.broker_timeout_ms

    def may_live(self, node: str, now_ms: int) -> bool:
        """Whether the node is alive, or had no time yet to say so to us."""
        known = self._nodes.get(node)
        if known is None or not known.connected:
            return False
        heard_ms = self._began_ms if known.heard_ms is None else known.heard_ms
        return now_ms - heard_ms < self._config.broker_timeout_ms

    def alive(self, now_ms: int) -> tuple[str, ...]:
        return tuple(node for node in self._nodes if self.is_alive(node, now_ms))

    def has_copy(self, log: Log, replica: Replica, now_ms: int) -> bool:
        """Whether the replica is alive: its node is, and said so of this very copy (not one in repair)."""
        return self.is_alive(replica.node, now_ms) and self._report_of(log, replica) is not None

    def may_lead(self, log: Log, replica: Replica, now_ms: int) -> bool:
        """Whether the replica is alive and has all that a master needs."""
        report = self._report_of(log, replica)
        return self.is_alive(replica.node, now_ms) and report is not None and report.electable

    def may_come_to_lead(self, log: Log, replica: Replica, now_ms: int) -> bool:
        """Whether the replica may lead, or had no time yet to report so to us."""
        report = self._report_of(log, replica)
        return self.may_have_copy(log, replica, now_ms) and (report is None or report.electable)

    def may_have_copy(self, log: Log, replica: Replica, now_ms: int) -> bool:
        """Whether the replica is alive, or had no time yet to say so to us."""
        if not self.may_live(replica.node, now_ms):
            return False
        return self._nodes[replica.node].heard_ms is None or self._report_of(log, replica) is not None

    def _report_of(self, log: Log, replica: Replica) -> Report | None:
        return self.report(replica.node, log.name, log.generation, replica.id)

    def report(self, node: str, log: str, generation: int, replica_id: int) -> Report | None:
        """The last report of this very replica, None when it has not reported to this controller."""
        known = self._nodes.get(node)
        report = None if known is None else known.reports.get(log)
        if report is None or (report.generation, report.replica_id) != (generation, replica_id):
            return None
        return report

    def has_given_up(self, node: str, log: str, generation: int, version: int) -> bool:
        """Whether the node knows the metadata of `version` and keeps no copy of that log."""
        known = self._nodes.get(node)
        if known is None or known.heard_ms is None or known.metadata_index < version:
            return False
        report = known.reports.get(log)
        return report is None or report.generation != generation

    def all_know(self, index: int, now_ms: int) -> bool:
        """Whether every living node knows the metadata up to `index`."""
        return all(
            known.metadata_index >= index
            for node, known in self._nodes.items()
            if self.is_alive(node, now_ms)
        )

    def granted(self, log: str, now_ms: int) -> None:
        """A lease leaves for the master of a log."""
        self._granted_ms[log] = now_ms
        self._given_up.pop(log, None)

    def given_up(self, log: str, now_ms: int) -> None:
        """The master says that it acts no more: whatever lease it had is over."""
        self._given_up[log] = now_ms

    def elected(self, log: str) -> None:
        """A master is elected: if it is the one before, it goes on with what is left of its lease."""
        self._given_up.pop(log, None)

    def may_be_leased(self, log: str, now_ms: int) -> bool:
        """Whether a master of the log may still hold a lease, of this controller or the one before."""
        if log in self._given_up:
            return False
        granted_ms = self._granted_ms.get(log, self._began_ms)
        return now_ms <= granted_ms + self._config.lease_ms
