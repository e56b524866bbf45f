"""State and group of a log at one replica: they follow the log, and are saved and transferred."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from app.log.contract import (
    NO_INDEX,
    CoreEvent,
    GroupConfig,
    ReplicationCore,
    Reset,
    TruncateAfter,
)
from app.log.driver_interfaces import Clock
from app.log.events import Corruption
from app.log.state import Address, LogState, Membership
from app.node.replica.syncing import JournalWriter
from app.node.services import NodeServices, ReplicaFiles
from app.node.state.checkpoints import Checkpointer
from app.node.state.state_transfer import BeginEpoch, StateTransfer
from app.node.state.trimming import Trimmer
from app.raft.messages import GroupNotice, StateChunk, StateRequest

logger = logging.getLogger(__name__)

NO_ADDRESSES: Final[Mapping[str, Address]] = {}


class StateKeeper:
    """Owned by one driver. Invariants: `state` is what the log defines, batch by batch; the core knows the
    newest group that the log names, and whether this copy has what a leader needs."""

    def __init__(
        self,
        services: NodeServices,
        files: ReplicaFiles,
        core: ReplicationCore,
        state: LogState,
        configured: GroupConfig,
        fail: Callable[[str, BaseException], None],
    ) -> None:
        """configured: the group until the log names another one. fail(what, error): the disk has failed, or
        the log is damaged."""
        disk, config = services.disk.lane(files.log_name), services.driver
        self.state = state
        self.group = LogGroup(configured, state, core, services.clock)
        self.checkpointer = Checkpointer(
            files.log, files.checkpoint, files.snapshot, disk, config, fail, safe_index=files.safe_index
        )
        self.trimmer = Trimmer(files.log, state, self.checkpointer, disk, fail)
        self.transfer = StateTransfer(
            files.log_id, files.log, state, services.transport, self._become_whole, config.state_chunk_bytes
        )
        self._begin_epoch = BeginEpoch(
            services.node_id, files.log_id, files.log, services.transport, disk, fail
        )
        self._node_id = services.node_id
        self._log_name = files.log_name
        self._log = files.log
        self._core = core

    def start(self) -> None:
        """Inform the core what this copy has, before it starts."""
        self.judge_electable()
        self.group.refresh()

    def stop(self) -> None:
        """Start no more work on the log's files."""
        self.trimmer.stop()

    def forget(self) -> None:
        """Let go of everything: the log is closed."""
        self.transfer.forget()
        self.state.become(type(self.state)())

    def tick(self, now_ms: int) -> None:
        """Do what is due. now_ms: monotonic."""
        core = self._core
        self.transfer.tick(core.leader_id, now_ms, self._peers if core.leader_id is None else ())
        if self.transfer.is_whole:  # a leader of an earlier version would answer with the state
            self._begin_epoch.tick(core.leader_id, core.term, now_ms)
        self.trimmer.trim()
        self.checkpointer.tick(self.state, core.committed_index, now_ms)
        self.state.pass_time(now_ms)
        self.state.expire()
        if not core.electable:  # the state may have been saved
            self.judge_electable()

    def serve(self, source: str, request: StateRequest) -> None:
        """Answer another replica that lacks the state, or the epoch of its beginning.

        In the modes with a master, a state that is ahead of this log is not sent: another node may ask
        the next master before this has learned that it is the one.
        """
        if request.begin_term:
            self._begin_epoch.serve(source, request)
        elif self.state.applied_index < self._log.next_index or not self._core.needs_all_records:
            self.transfer.serve(source, request)

    def take(self, source: str, chunk: StateChunk, now_ms: int) -> None:
        """Take a piece of the state, or the epoch of the log's beginning. now_ms: monotonic."""
        if chunk.id < 0:
            self._begin_epoch.take(chunk)
        else:
            self.transfer.take(source, chunk, now_ms)

    @property
    def _peers(self) -> tuple[str, ...]:
        """Members that may send the state while there is no leader. In the modes with a master a slave may
        take for committed what the next master does not hold."""
        if self._core.needs_all_records:
            return ()
        group = self.group.group
        return tuple(name for name in group.members if name != self._node_id)

    def save_all(self) -> None:
        """Save the state and the checkpoint at a clean stop. The log must be durable by then."""
        self.checkpointer.save_all(self.state, self._core.committed_index)

    def committed(self, committed_index: int) -> None:
        """Record that everything up to `committed_index` is committed."""
        self.state.committed(committed_index)
        if not self._core.electable:
            self.judge_electable()

    def truncated(self, truncate: TruncateAfter | Reset) -> None:
        """The log was truncated. The committed past of this replica stays known, also if its log was
        emptied."""
        kept_index = self._core.committed_index if isinstance(truncate, Reset) else truncate.index
        self.state.truncate_after(max(kept_index, self.state.committed_index))
        self.checkpointer.log_truncated()
        self.transfer.log_truncated()
        self.group.refresh()

    def judge_electable(self) -> None:
        """Inform the core whether this copy has what a leader needs: the state, and all records.

        In the modes with a master also durably: a copy that is in the SyncStateSet, and has lost the state by
        a crash, is not elected, and no other copy may be there to send it again.
        """
        is_kept = self.checkpointer.safe_index >= self._log.first_index - 1
        self._core.electable = self._has_all and (is_kept or not self._core.needs_all_records)

    @property
    def lacks_records(self) -> bool:
        """True if records before this log are at the master: the copy began with a later one (A-09, H-06)."""
        return self._core.needs_all_records and not self.transfer.holds_untrimmed

    @property
    def _has_all(self) -> bool:
        """Return whether this copy has what a leader needs, in memory at least."""
        return self.transfer.is_whole and not self.lacks_records

    def epoch_began(self, first_index: int) -> None:
        """Forget what was received in an earlier epoch and is ahead of the log, in the modes with a master.

        An unclean election may have lost it: the records that take their indexes are others, and would be
        passed over. first_index: where the records of the new epoch begin, as far as this replica knows.
        While the state is_rebuilding, the caller waits (`rebuild`).
        """
        if not self._core.needs_all_records:
            return
        if self.transfer.epoch_began(first_index, self._core.committed_index):
            self.checkpointer.log_truncated()
            self.rebuild()

    @property
    def is_rebuilding(self) -> bool:
        """As StateTransfer.is_rebuilding."""
        return self.transfer.is_rebuilding

    def rebuild(self) -> None:
        """Apply a slice of the log to the state that is being rebuilt."""
        if self.transfer.rebuild():
            self._adopted()

    def begin_to_lead(self, journal: JournalWriter) -> None:
        """Leave nothing in the state that the log lacks: a received one may know records that never arrived.

        Those that were not committed are undone. Committed ones are lost by an unclean election, and a retry
        must not be answered with their places. While the state is_rebuilding, the caller waits (`rebuild`).
        """
        last_index = self._log.next_index - 1
        if last_index < self.state.committed_index or not self._has_all:
            self._accept_loss(journal)
        elif last_index < self.state.applied_index:
            self.truncated(TruncateAfter(last_index))

    def _accept_loss(self, journal: JournalWriter) -> None:
        """Lead although this copy lacks state or records. Only an unclean election makes it lead (C-05)."""
        first_index = self._log.first_index
        logger.warning("log %s: the state before index %d is lost", self._log_name, first_index)
        reason = "an unclean election: the state before the log is lost"
        journal.record(CoreEvent(self._core.term, Corruption(reason=reason, first_index=first_index)))
        self.checkpointer.log_truncated()
        self.checkpointer.demand()  # a restart could not rebuild the state from the log
        self.transfer.accept_loss(self._core.committed_index)
        self.rebuild()

    def _become_whole(self) -> None:
        """The state of another replica is adopted."""
        self.checkpointer.demand()  # as after a loss
        self._adopted()

    def _adopted(self) -> None:
        """Another state is adopted. One that was received knows less as committed than this replica, if the
        log has grown since its first piece was requested."""
        self.state.committed(self._core.committed_index)
        self.judge_electable()
        self.group.refresh()


class LogGroup:
    """The group of a log: of its newest membership record, otherwise of the configuration (R-10).

    Invariant: the core knows the newest group that the log names.
    """

    def __init__(self, configured: GroupConfig, state: LogState, core: ReplicationCore, clock: Clock) -> None:
        """configured: used until the log names another one."""
        self._configured = configured
        self._state = state
        self._core = core
        self._clock = clock
        self._membership: Membership | None = None  # the group that the core knows
        self._notice: GroupNotice | None = None
        self._noticed: Mapping[str, Address] = NO_ADDRESSES  # the addresses in it
        self._named: Membership | GroupNotice | None = None
        self._group = configured  # as `_named` states it

    @property
    def group(self) -> GroupConfig:
        """The newest group known: of the log, or of a peer that does not count this replica as a member."""
        named = self._core.notice or self._membership
        if named is None:
            return self._configured
        if named is not self._named:
            self._named = named
            self._group = GroupConfig(voters=named.voters, learners=named.learners)
        return self._group

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Addresses of members from the log, or from the peer; the same object until they change."""
        notice = self._core.notice
        if notice is not None:
            if notice is not self._notice:
                self._notice = notice
                self._noticed = {node: Address(*address) for node, address in notice.nodes.items()}
            return self._noticed
        return NO_ADDRESSES if self._membership is None else self._membership.nodes

    def refresh(self) -> None:
        """Inform the core of the group, if the log names a new one. After a start, or with the state of
        another replica, the group before it is adopted first: until the newest one is committed, voters of
        that may campaign, and may be its witnesses."""
        newest, known = self._state.membership, self._membership
        if newest == known:
            return
        replaced = self._state.replaced_membership
        if known is None or (replaced is not None and replaced.since > known.since):
            self._adopt(replaced)
        self._adopt(newest)

    def _adopt(self, membership: Membership | None) -> None:
        self._membership = membership
        if membership is None:
            group, index, nodes = self._configured, NO_INDEX, NO_ADDRESSES
        else:
            group = GroupConfig(voters=membership.voters, learners=membership.learners)
            index, nodes = membership.since, membership.nodes
        settled = membership == self._state.settled_membership
        self._core.configure(group, index, self._clock.monotonic_ms(), nodes, settled=settled)
