"""Driver of one log: feeds messages, time and requests to its core, in turns, and carries out its decisions.

It has one owner and works by callbacks, without a loop, thread or clock of its own: all I/O passes through
the interfaces of app/log/driver_interfaces.py, so the simulator runs the same code. A turn takes what has
arrived since the last one: messages, time, finished syncs, reads, and then all appends, which become as few
batches as possible. While a hard state or a truncation is being written, everything else waits.

    driver          passes messages, time, syncs and reads to the core
    append_queue    checks appends and commands, and reads and joins at the core what must be confirmed
    proposer        stamps their batches and proposes them to the core
    ready_executor  takes each Ready of the core, carries it out, and reports that to the core
    state_keeper    configures the core when the log names another group
    replica_options applies changed settings of the log
    replica_stop    transfers leadership before a clean stop

A call of the core that may give a Ready is followed by `ReadyExecutor.carry_out`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from app.errors import NoLeader, ReadIndexUnavailable, TransferFailed
from app.log.commands import Command
from app.log.contract import (
    NO_INDEX,
    AppendRequest,
    CoreEvent,
    Durability,
    GroupConfig,
    LogOptions,
    ReplicationCore,
    Role,
)
from app.log.driver_interfaces import ReplicaStatus
from app.log.events import Started, Stopped
from app.log.state import Address, LogState
from app.node.replica.append_queue import AppendQueue
from app.node.replica.commit_waiters import CommitWaiters, Waiter, answer
from app.node.replica.inbox import Inbox
from app.node.replica.log_space import LogSpace
from app.node.replica.open_appends import AppendDone, CommandDone, OpenAppend, OpenAppends
from app.node.replica.proposer import Proposer
from app.node.replica.read_gate import ReadDone, ReadGate
from app.node.replica.ready_executor import MAX_INDEX, ReadyExecutor
from app.node.replica.replica_options import ReplicaOptions
from app.node.replica.replica_parts import ReplicaParts
from app.node.replica.replica_stop import ReplicaStop
from app.node.replica.state_keeper import StateKeeper
from app.node.replica.syncing import JournalWriter, LogSyncer
from app.node.services import NodeServices, ReplicaEvents, ReplicaFiles
from app.raft.messages import StateChunk, StateRequest
from storage import errors as storage_errors


class LogDriver:
    """One log at this node. Every method is called on the owner's loop; none blocks.

    Invariants: every `done` is called exactly once, and nothing that it raises reaches replication; after an
    error nothing is written to the log any more.
    """

    def __init__(
        self,
        services: NodeServices,
        files: ReplicaFiles,
        core: ReplicationCore,
        state: LogState,
        *,
        group: GroupConfig,
        durability: Durability,
        events: ReplicaEvents | None = None,
    ) -> None:
        """group: of the configuration, until the log names another one. durability: that the log opened with.
        services.fail is called at most once."""
        events = events or ReplicaEvents()
        log_name, config = files.log_name, services.driver
        disk = services.disk.lane(log_name)
        self.log_name = log_name
        self.log_id = files.log_id
        self.node_id = services.node_id
        self.log = files.log
        self.journal = files.journal
        self._core = core
        self._clock = services.clock
        self._scheduler = services.scheduler
        self._fail_node = services.fail
        self._damaged = events.damaged
        self._version = services.version
        self._state = StateKeeper(services, files, core, state, group, self._fail)
        self._space = LogSpace(log_name, services.node_id, services.reserve)
        self._journal_writer = JournalWriter(
            log_name, files.log, files.journal, disk, services.clock, self._space
        )
        self._syncer = LogSyncer(files.log, disk, durability, config, self._log_synced)
        self._waiters = CommitWaiters()
        self._reads = ReadGate(config.read_timeout_ms, self.when_committed)
        parts = ReplicaParts(
            services=services,
            files=files,
            disk=disk,
            core=core,
            state=self._state,
            space=self._space,
            journal=self._journal_writer,
            syncer=self._syncer,
            proposer=Proposer(files, core, services.clock),
            appends=OpenAppends(services.node_id, durability, files.log),
            reads=self._reads,
            waiters=self._waiters,
        )
        self._executor = ReadyExecutor(
            parts,
            disk_done=self._disk_done,
            ask_turn=self._ask_turn,
            healed=None if core.sound else events.healed,
        )
        self._queue = AppendQueue(parts, self._executor, self._ask_turn)
        self._options = ReplicaOptions(parts, durability, self._ask_turn, self._fail)
        self._stop = ReplicaStop(parts, self._executor)
        self._inbox = Inbox()
        self._tick_due = False
        self._synced = False
        self._turn_due = False
        self._ended = False

    # --- what the node asks ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part. Incarnation: the wall clock at the start, ms."""
        start = Started(version=self._version, incarnation=self._clock.now_ms())
        self._journal_writer.record(CoreEvent(self._core.term, start))
        self._guarded(self._start)

    def _start(self) -> None:
        self._state.start()
        self._core.start(self._clock.monotonic_ms())
        self._executor.carry_out()

    def stop(self, done: Callable[[], None] | None = None) -> None:
        """Transfer leadership (R-09), answer all requests, save the checkpoint and the state: then done()."""
        self._stop.begin(done or (lambda: None))
        if self._ended:
            self._stop.end()
        self._guarded(self._hand_over)

    def _hand_over(self) -> None:
        self._stop.hand_over()
        self._stop_if_due()

    def _stop_if_due(self) -> None:
        if self._stop.is_due and not self._ended:
            self._guarded(self._leave)
            self._ended = True
            self._state.stop()
            self._stop.save()

    def _leave(self) -> None:
        self._queue.refuse_all(NoLeader())
        self._reads.refuse_all()
        self._core.stop(self._clock.monotonic_ms())
        self._executor.carry_out()
        self._reads.give_up(math.inf)
        self._journal_writer.record(CoreEvent(self._core.term, Stopped()))

    def abandon(self) -> None:
        """End at once: the log is damaged. All waiting requests are answered, and a leader stands down.

        The disk threads finish the submitted work; nothing more is written to this log afterwards.
        """
        if self._ended:
            return
        self._ended = True
        self._state.stop()
        self._syncer.is_truncating = True
        self._queue.refuse_all(NoLeader())
        self._reads.refuse_all()
        self._core.stop(self._clock.monotonic_ms())
        self._executor.abandon()
        self._reads.give_up(math.inf)
        self._waiters.wake(MAX_INDEX)
        self._stop.end()

    def close(self) -> None:
        """Close the log of a driver that has ended, and let go of the state. Raises StorageError.

        A driver and its parts refer to one another, so they stay until the collector of cycles finds them,
        which may take days in a quiet node: batches and keys may have hundreds of megabytes.
        """
        try:
            self.log.close()
        finally:
            self._state.forget()

    @property
    def has_ended(self) -> bool:
        """True once it does not serve the log any more: another driver may, with other records."""
        return self._ended

    def deliver(self, source: str, message: Any) -> None:
        """Queue a message of a peer for a turn; it may be dropped (Inbox)."""
        if not self._ended and self._inbox.put(source, message):
            self._ask_turn()

    @property
    def takes_more(self) -> bool:
        """False while so many messages wait that connections should not be read."""
        return self._ended or not self._inbox.is_full

    @property
    def dropped_messages(self) -> int:
        """Number of messages of peers that were dropped since the start because too many waited."""
        return self._inbox.dropped

    def tick(self) -> None:
        """Advance time: the node's shared timer calls this every `tick_interval_ms`."""
        self._tick_due = True
        self._guarded(self._turn)

    def append(self, request: AppendRequest, done: AppendDone) -> OpenAppend:
        """Append at the leader; elsewhere NotLeader or NoLeader. done(result or refusal), exactly once.

        Raises ValueError for no records, or for more than APPEND_MAX_BYTES: the routes refuse both.
        """
        append = self._queue.append(request, done, NoLeader() if self._ended else None)
        self._ask_turn()
        return append

    def grow(self, append: OpenAppend, size_bytes: int, now_ms: int) -> bool:
        """Let another client's append join one that waits for its turn: the caller adds its records, of
        `size_bytes`, to the request of that one. False: it has to be an append of its own.

        All members have the same acks and timeout_ms, and no conditions, key, producer or stream.
        """
        return self._queue.grow(append, size_bytes, now_ms)

    def command(self, command: Command, done: CommandDone) -> None:
        """Decide and commit a command at the leader; elsewhere NotLeader or NoLeader. done exactly once."""
        self._queue.command(command, done, NoLeader() if self._ended else None)
        self._ask_turn()

    def change_options(self, options: LogOptions) -> None:
        """Change the settings of the log: they apply from the next turn on."""
        self._options.change(options)

    def transfer(self, to: str | None) -> str:
        """Begin to transfer leadership to `to`; None: to the best voter. Return the target.

        leader_id shows the outcome: the old leader continues if the new one does not take over. Raises
        TransferFailed, AlreadyLeader.
        """
        if self._ended or self._executor.is_busy:
            raise TransferFailed("this node does not lead, or stops")
        target = self._core.transfer(to, self._clock.monotonic_ms())
        self._guarded(self._executor.carry_out)
        return target

    def read_index(self, done: ReadDone) -> None:
        """Request a linearizable read (R-08): done(index) once everything up to `index` is committed here."""
        if self._stop.is_wanted or self._ended:
            answer(done, ReadIndexUnavailable())
            return
        self._reads.ask(done, self._clock.monotonic_ms())
        self._ask_turn()

    def when_committed(self, index: int, done: Callable[[], None]) -> Waiter:
        """Call done() once `index` is committed here, within this call if it is. Waiter.cancel removes it."""
        waiter = self._waiters.add(index, done)
        self._waiters.wake(self._core.committed_index)
        return waiter

    @property
    def role(self) -> Role:
        return self._core.role

    @property
    def term(self) -> int:
        return self._core.term

    @property
    def leader_id(self) -> str | None:
        return self._core.leader_id

    @property
    def committed_index(self) -> int:
        return self._core.committed_index

    @property
    def due_ms(self) -> float:
        """Time of the next `tick` that must not wait for the long interval of a quiet node; inf: none."""
        return self._core.due_ms

    @property
    def runs_ahead(self) -> bool:
        """True if the committed index here may exceed the leader's (a slave of classic HA)."""
        return self._core.runs_ahead

    @property
    def lacks_records(self) -> bool:
        """True if records before this copy's beginning are at the master, and no trim has removed them."""
        return self._state.lacks_records

    @property
    def is_truncating(self) -> bool:
        """True if the disk thread is truncating or resetting the log: a read may see a part of it."""
        return self._syncer.is_truncating

    @property
    def state(self) -> LogState:
        """The state that the records define, including uncommitted ones."""
        return self._state.state

    @property
    def group(self) -> GroupConfig:
        """The group as this replica knows it."""
        return self._state.group.group

    @property
    def is_unborn(self) -> bool:
        """True before the first record of the log: only the configuration names the group."""
        return self.log.end_index == NO_INDEX and self.state.membership is None

    def let_found(self, may_found: bool) -> None:
        """Set whether this replica may take part in the beginning of the log's group."""
        self._core.may_found = may_found

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Addresses of members that the log contains; the same object until they change."""
        return self._state.group.addresses

    @property
    def is_transferring(self) -> bool:
        """True if this node is transferring leadership (R-09)."""
        return self._core.is_transferring

    @property
    def sound(self) -> bool:
        """False while this replica may lack what it once acknowledged: it follows, and has no vote."""
        return self._core.sound

    @property
    def knows_vote(self) -> bool:
        """False while this replica may have lost its term and vote."""
        return self._core.knows_vote

    @property
    def held_index(self) -> int:
        """The last index that this replica may have acknowledged: synced with `fsync`, else written."""
        return self._options.held_index

    def status(self) -> ReplicaStatus:
        log = self.log
        return ReplicaStatus(
            self._core.status(),
            log.begin_index,
            log.end_index,
            log.next_index,
            log.end_offset,
            self._options.durability,
        )

    @property
    def waiting_reads(self) -> int:
        """Number of linearizable reads that wait for a confirmation, or for their index."""
        return self._core.waiting_reads + self._reads.waiting_count

    def watermarks(self, term: int | None = None) -> dict[int, dict[str, int]]:
        """Return them by term and peer; the leader's is its durable end; {} for a term that is not held."""
        return self._core.watermarks(term)

    # --- turns ----------------------------------------------------------------------------------------

    def _ask_turn(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self._scheduler.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._turn_due = False
        self._guarded(self._turn)

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run `action`. Crash-only: an error in it is a broken invariant or a disk failure."""
        if self._ended:
            return
        try:
            action()
        except Exception as error:
            self._fail(f"log {self.log_name}", error)

    def _fail(self, what: str, error: BaseException) -> None:
        """End this log if it is damaged and can be repaired, otherwise stop the node."""
        if self._ended:
            return
        error = storage_errors.as_damage(error)
        if not isinstance(error, storage_errors.CorruptLog) or self._damaged is None:
            self._ended = True
            self._fail_node(what, error)
            return
        try:
            self.abandon()
            self._damaged(error)
        except Exception as another:
            self._fail_node(what, another)

    def _turn(self) -> None:
        self._executor.rebuild()
        core, now_ms = self._core, self._clock.monotonic_ms()
        if self._options.is_due and not self._executor.is_busy:
            self._options.apply(now_ms)
            self._executor.carry_out()
        if self._synced and not self._executor.is_busy:
            self._synced = False
            core.synced(now_ms)
            self._executor.carry_out()
        while self._inbox and not self._executor.is_busy:
            source, message = self._inbox.take()
            self._take(source, message, now_ms)
            self._executor.carry_out()
        if not self._executor.is_busy and (readers := self._reads.take()):
            for done in readers:
                core.read_index(done, now_ms)
            self._executor.carry_out()
        if self._tick_due and not self._executor.is_busy:
            self._tick_due = False
            self._tick_parts(now_ms)
            core.tick(now_ms)
            self._executor.carry_out()
        elif self._tick_due:
            self._reads.give_up(now_ms)
            self._queue.tick(now_ms)
        if self._queue.has_waiting and not self._executor.is_busy:
            self._queue.enter(now_ms)
            if self._queue.needs_turn:
                self._ask_turn()
        self._stop_if_due()

    def _take(self, source: str, message: Any, now_ms: int) -> None:
        if isinstance(message, StateRequest):
            self._state.serve(source, message)
        elif isinstance(message, StateChunk):
            self._state.take(source, message, now_ms)
        else:
            self._core.step(source, message, now_ms)

    def _tick_parts(self, now_ms: int) -> None:
        self._core.has_room = self._space.has_room(now_ms)
        self._options.tick(now_ms)
        self._syncer.tick(now_ms)
        self._reads.give_up(now_ms)
        self._queue.tick(now_ms)
        self._state.tick(now_ms)

    # --- answers of the disk --------------------------------------------------------------------------

    def _disk_done(self, error: BaseException | None) -> None:
        if error is not None:
            self._fail(f"log {self.log_name}: term, vote or truncation", error)
        else:
            self._guarded(self._resume)

    def _resume(self) -> None:
        self._executor.resume()
        self._turn()

    def _log_synced(self) -> None:
        self._synced = True
        self._guarded(self._turn)
