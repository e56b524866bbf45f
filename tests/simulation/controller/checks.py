"""Invariants of a group in controller mode, checked after every step (C, A)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from app.controller.events import AnyEvent, MasterElected, decode_event, encode_event
from app.controller.metadata import Log
from app.controller.state_machine import Metadata
from app.ha.roles import acks_needed
from app.log.contract import NO_INDEX, Acks, AppendResult
from tests.simulation.controller.plan import LOG_NAME
from tests.simulation.controller.records import ConfirmedRecords
from tests.simulation.controller.unclean_reads import UncleanReads
from tests.simulation.world.promises import Violation
from tests.simulation.world.world import Life
from tests.support.committed import broken_promise, values_in

if TYPE_CHECKING:
    from tests.simulation.controller.cluster import HaCluster
    from tests.simulation.controller.node import HaSimNode


class HaChecker:
    """The events that any controller has committed, taken in once, in order: what every node must agree with.

    Drivers swallow what a client raises, so what `acknowledged` finds is kept until the step is over.
    """

    def __init__(self, cluster: HaCluster) -> None:
        self.truth = Metadata()
        self.counts: Counter[str] = Counter()
        self.receipts: dict[str, None] = {}  # values that were written down before they went
        self.records = ConfirmedRecords()
        self.unclean_reads = UncleanReads()
        self._trimmed_index = NO_INDEX  # the largest beginning of any log
        self._excused: dict[str, None] = {}  # values that were on disks that are gone, with their receipts
        self.acted: HaSimNode | None = None  # the node of the last step
        self._cluster = cluster
        self._plan = cluster.plan
        self._events: dict[int, bytes] = {}
        self._snapshots: dict[int, bytes] = {}
        self._compared: dict[str, tuple[Metadata, int, bytes]] = {}  # by node: metadata, index, snapshot
        self._elected: dict[int, str] = {}  # epoch -> node
        self._complete_epoch = 0  # whose master was found to hold all that was confirmed before
        self._seen: dict[str, tuple[Life, int, int, int]] = {}  # life, committed and end index, epoch
        self._held_once: dict[int, int] = {}  # by replica id: what a copy held that is gone, or lost its end
        self._problem: str | None = None

    def copy_is_lost(self, node: HaSimNode) -> None:
        """The node's copy of the log goes, or loses its end: what it has acknowledged may be on its way.

        Where an unclean election may follow, its receipts and records may be the only ones of what was lost.
        """
        if node.copy_id:
            held = max(self._held_once.get(node.copy_id, NO_INDEX), node.held_index)
            self._held_once[node.copy_id] = held
        if self._plan.unclean:
            self._excused.update(dict.fromkeys(node.receipts()))
            self._excused.update(dict.fromkeys(values_in(node.log)))

    def rebuilt(self, metadata: Metadata) -> None:
        """The controllers begin again with this copy of the metadata."""
        self.truth = metadata
        self._events.clear()
        self._snapshots.clear()
        self._compared.clear()

    # --- the controllers' events ------------------------------------------------------------------------

    def _learn(self, node: HaSimNode) -> None:
        state = node.state
        for index, event in state.take_recent_events():
            encoded = encode_event(event)
            known = self._events.setdefault(index, encoded)
            if known != encoded:
                raise Violation(f"{node.name}: event {index} is {event}, was {decode_event(known)}")
            if index > self.truth.applied_index:
                if isinstance(event, MasterElected):
                    self._check_election(event)
                self._apply(index, event)
        metadata = state.metadata
        index = metadata.applied_index
        expected = self._snapshots.get(index)
        if expected is None:
            return
        compared = self._compared.get(node.name)
        if compared is not None and compared[0] is metadata and compared[1:] == (index, expected):
            return
        if metadata.snapshot() != expected:
            raise Violation(f"{node.name}: other metadata at {index} than another controller")
        self._compared[node.name] = (metadata, index, expected)

    def _apply(self, index: int, event: AnyEvent) -> None:
        before = self.truth.log(LOG_NAME)
        self.truth.apply(index, event)
        self._snapshots = {
            index: self.truth.snapshot()
        }  # the first replica that confirms more decides; all others must be equal
        after = self.truth.log(LOG_NAME)
        if before is None or after is None:
            return
        if after.master_epoch < before.master_epoch or after.set_epoch < before.set_epoch:
            raise Violation(f"an epoch falls: {before} -> {after}")
        if after.master is not None and after.master not in after.sync_state_set:
            raise Violation(f"the master is not in the set: {after}")
        self.counts["set changes"] += after.sync_state_set != before.sync_state_set

    def _check_election(self, event: MasterElected) -> None:
        """C-04, C-05, A-11 at the moment when an election is committed."""
        log = self.truth.log(LOG_NAME)
        assert log is not None
        replica = log.replica(event.master)
        if event.master_epoch != log.master_epoch + 1 or event.set_epoch <= log.set_epoch:
            raise Violation(f"{event} after master epoch {log.master_epoch}, set epoch {log.set_epoch}")
        if replica is None or not log.is_current(event.master) or log.is_learner(replica.node):
            raise Violation(f"{event}: no replica that may lead")
        inside = event.master in log.sync_state_set or not log.sync_state_set
        if not inside and not (event.unclean and self._plan.unclean):
            raise Violation(f"{event} elects from outside the set {log.sync_state_set}")
        for other in self._cluster.brokers:
            if other.acknowledges and other.name != replica.node:
                raise Violation(f"{other.name} holds a lease while {replica.node} is elected")
        self._elected[event.master_epoch] = replica.node
        self.counts["elections"] += 1
        self.counts[f"elections: {event.reason}"] += 1
        self.counts["unclean elections"] += event.unclean
        if log.master_epoch and self._elected.get(log.master_epoch) != replica.node:
            self.counts["master changes"] += 1

    # --- one node ---------------------------------------------------------------------------------------

    def check(self, node: HaSimNode) -> None:
        """After each thing that a node does."""
        self.acted = node
        node.note_copy()
        self._learn(node)
        if node.is_broker:
            self._check_log(node)
        if self._problem is not None:
            raise Violation(self._problem)

    def forget(self, node: HaSimNode) -> None:
        """The node has another, empty copy from here on."""
        self._seen.pop(node.name, None)

    def _check_log(self, node: HaSimNode) -> None:
        if node.core.wanted_rollback is not None:
            self.counts["rollbacks"] += 1
            node.roll_back()
        committed, end, epoch = node.driver.committed_index, node.log.end_index, node.core.epoch
        life, before, end_before, epoch_before = self._seen.get(node.name, (node.life, NO_INDEX, NO_INDEX, 0))
        if life is node.life and epoch < epoch_before:
            raise Violation(f"{node.name}: its epoch fell from {epoch_before} to {epoch}")
        self._trimmed_index = max(self._trimmed_index, node.log.begin_index)
        is_empty = end == NO_INDEX or committed < node.log.begin_index  # trimmed, or about to begin elsewhere
        if is_empty:
            committed = before if life is node.life else NO_INDEX
        elif life is node.life and committed < before:
            raise Violation(f"{node.name}: committed index fell from {before} to {committed}")
        elif committed > end:
            raise Violation(f"{node.name}: {committed} committed past its end")
        self.counts["truncations"] += life is node.life and end < end_before
        self._seen[node.name] = (node.life, committed, end, epoch)
        if not is_empty and (life is not node.life or committed > before):
            self._check_committed(node, committed)
        if node.is_master:
            self._check_master(node, epoch)

    def _check_master(self, node: HaSimNode, epoch: int) -> None:
        """One master an epoch, the elected one, and it holds all that was ever confirmed."""
        owner = self._elected.get(epoch)
        if owner != node.name:
            raise Violation(f"{node.name} is master of epoch {epoch}, which was given to {owner}")
        log, index = self.truth.log(LOG_NAME), self.records.committed_index
        if self._plan.unclean and log is not None and log.master_epoch == epoch:
            history = self.unclean_reads.history(log.unclean_epoch)
            history.take(node.log, node.driver.committed_index)
        if self._plan.unclean or log is None or log.master_epoch != epoch or not node.acknowledges:
            return
        if index > node.log.end_index:
            raise Violation(f"{node.name} is master without {index}")
        if self._complete_epoch < epoch and index >= max(node.log.begin_index, 0):
            self._complete_epoch = epoch
            self.records.take(node.name, node.log.batch_at(index))

    def _check_committed(self, node: HaSimNode, committed: int) -> None:
        """Check that a confirmed record never changes on any replica (A-04, A-12).

        As many members of the SyncStateSet as required hold it (C-08)."""
        if self._plan.unclean:
            return
        records = self.records
        rises = committed > records.committed_index
        index = max(min(records.committed_index + 1, committed), node.log.begin_index, 0)
        while index <= committed:
            batch = node.log.batch_at(index)
            records.take(node.name, batch)
            index = batch.next_index
        if rises:
            self._check_members(node, committed)
        state = node.driver.state
        if state.applied_index >= committed:
            shown = [(each.index, each.version) for each in state.schemas.until(committed)]
            if shown != [each for each in records.schemas if each[0] <= committed]:
                raise Violation(f"{node.name} shows the schemas {shown}, confirmed are {records.schemas}")
            self.counts["schemas shown"] += bool(shown)

    def _check_members(self, node: HaSimNode, index: int) -> None:
        log = self.truth.log(LOG_NAME)
        if log is None:
            return
        holders = self._holders(log, index, node)
        if len(holders) < acks_needed(len(log.sync_state_set), log.set_acks):
            raise Violation(f"{node.name} confirmed {index}; of {log.sync_state_set} only {holders} hold it")
        for member in holders:
            if self._copy_of(log, member) != member:
                # A retry is acknowledged later, when that master may know of the later copy.
                self._held_once[member] = max(self._held_once.get(member, NO_INDEX), index)

    def _copy_of(self, log: Log, member: int) -> int:
        """Return the replica id of the copy that the member's node has now."""
        replica = log.replica(member)
        return 0 if replica is None else self._cluster.nodes[replica.node].copy_id

    def _holders(self, log: Log, index: int, master: HaSimNode) -> list[int]:
        """The members of the set that hold the index, or held it when they were lost, or whose node holds it
        in a later copy, of which that master does not know yet (MasterSide._answer)."""
        known = [replica.id for replica in master.core._replicas]
        return [member for member in log.sync_state_set if self._held_by(log, member, known) >= index]

    def _held_by(self, log: Log, member: int, known: Sequence[int]) -> int:
        """The last index that a copy holds as durably as the log asks for, or held when it was lost."""
        held = self._held_once.get(member, NO_INDEX)
        replica = log.replica(member)
        node = None if replica is None else self._cluster.nodes[replica.node]
        if node is None or (node.copy_id != member and (node.copy_id < member or node.copy_id in known)):
            return held
        return max(held, node.held_index)

    # --- acknowledgements -------------------------------------------------------------------------------

    def acknowledged(self, node: HaSimNode, result: AppendResult) -> None:
        """C-12: every member of the set that the controllers have holds it; A-11: by its one master."""
        self.counts["appends"] += 1
        log = self.truth.log(LOG_NAME)
        assert log is not None
        if node.core.epoch != log.master_epoch or not node.is_master:
            self._problem = f"{node.name} acknowledges in epoch {node.core.epoch}, not {log.master_epoch}"
        elif result.acks is Acks.LEADER:
            return
        elif not node.acknowledges:
            self._problem = f"{node.name} acknowledges while it is fenced"
        elif self._is_below_floor(log, node.floor, result):
            self._problem = f"{result} with the set {log.set_nodes} below its floor"
        holders = self._holders(log, result.last_index, node)
        if len(holders) < acks_needed(len(log.sync_state_set), log.set_acks):
            members = log.sync_state_set
            self._problem = f"{result.last_index} is acknowledged, of {members} only {holders} hold it"
        if self._plan.unclean:
            history = self.unclean_reads.history(log.unclean_epoch)
            history.acknowledged_index = max(history.acknowledged_index, result.last_index)
        self.counts["acks by a part"] += len(holders) < len(log.sync_state_set)

    def _is_below_floor(self, log: Log, floor: int, result: AppendResult) -> bool:
        """A master that does not know yet that a member's copy was replaced takes the new one for it: then as
        many nodes hold the record."""
        if result.replayed or len(log.sync_state_set) >= floor:
            return False
        return sum(each.held_index >= result.last_index for each in self._cluster.brokers) < floor

    @property
    def unclean_epoch(self) -> int:
        """The epoch of the last unclean election, 0 for none."""
        log = self.truth.log(LOG_NAME)
        return 0 if log is None else log.unclean_epoch

    def check_reads(self) -> None:
        """Check the pages of this step where unclean elections are allowed."""
        problem = self.unclean_reads.problem(self.unclean_epoch)
        if problem is not None:
            raise Violation(problem)

    def finish(self, promised: dict[str, int]) -> None:
        """At the end, of the logs as they are: what was acknowledged is there, or in a receipt."""
        for node in self._cluster.brokers:
            self.receipts.update(dict.fromkeys(node.receipts()))
        if self.receipts and not self._plan.unclean:
            raise Violation("a receipt without an unclean election")
        for node in self._cluster.brokers:
            self._check_acknowledged(node, promised)

    def _check_acknowledged(self, node: HaSimNode, promised: dict[str, int]) -> None:
        """Skip trimmed records, and those before the beginning that an unclean election has set."""
        begin = max(node.log.begin_index, self._trimmed_index) if self._plan.unclean else node.log.begin_index
        kept = {value: index for value, index in promised.items() if index >= begin}
        problem = broken_promise(
            node.name,
            node.log,
            node.driver.committed_index,
            self.records.committed,
            kept,
            lambda value: self._plan.unclean and (value in self.receipts or value in self._excused),
        )
        if problem is not None:
            raise Violation(problem)
