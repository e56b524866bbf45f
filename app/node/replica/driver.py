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

A call of the core that may give a Ready is followed by `ReadyExecutor.carry_out`.
"""

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from app.errors import NoLeader, ReadIndexUnavailable, TransferFailed
from app.log.commands import Command
from app.log.contract import (
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
from app.node.replica.loosening import Loosening
from app.node.replica.open_appends import AppendDone, CommandDone, OpenAppend, OpenAppends
from app.node.replica.proposer import Proposer
from app.node.replica.read_index_queue import ReadDone, ReadGate
from app.node.replica.ready_executor import MAX_INDEX, ReadyExecutor, ReplicaParts
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
        self._disk = disk
        self._scheduler = services.scheduler
        self._durability = durability
        self._fail_node = services.fail
        self._damaged = events.damaged
        self._clean_stop = files.clean_stop
        self._origin = files.origin
        self._version = services.version
        self._hand_over_timeout_ms = config.hand_over_timeout_ms
        self._state = StateKeeper(services, files, core, state, group, self._fail)
        self._space = LogSpace(log_name, services.node_id, services.reserve)
        self._journal_writer = JournalWriter(
            log_name, files.log, files.journal, disk, services.clock, self._space
        )
        self._syncer = LogSyncer(files.log, disk, durability, config, self._log_synced)
        self._waiters = CommitWaiters()
        self._reads = ReadGate(config.read_timeout_ms, self.when_committed)
        self._appends = OpenAppends(services.node_id, durability, files.log)
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
            appends=self._appends,
            reads=self._reads,
            waiters=self._waiters,
        )
        self._executor = ReadyExecutor(
            parts, disk_done=self._disk_done, healed=None if core.sound else events.healed
        )
        self._queue = AppendQueue(parts, self._executor, self._ask_turn)
        note = partial(files.clean_stop.opened, acks_unsynced=True)
        self._loosening = Loosening(log_name, durability, disk, note, self._loosened, self._fail)
        self._inbox = Inbox()
        self._wanted: LogOptions | None = None  # the newest, since the start
        self._options: LogOptions | None = None  # not processed yet
        self._tick_due = False
        self._synced = False
        self._turn_due = False
        self._stopping: Callable[[], None] | None = None
        self._handed_over_ms = -math.inf  # deadline of a stop's wait for the next leader
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
        self._stopping = done or (lambda: None)
        if self._ended:
            self._stopping()
        self._guarded(self._hand_over)

    def _hand_over(self) -> None:
        if self._core.role is Role.LEADER and not self._executor.is_busy:
            now_ms = self._clock.monotonic_ms()
            with contextlib.suppress(TransferFailed):
                self._core.transfer(None, now_ms)
                self._handed_over_ms = now_ms + self._hand_over_timeout_ms
                self._executor.carry_out()
        self._stop_if_free()

    def _stop_if_free(self) -> None:
        """Continue the stop once the next leader is known, so that waiting requests can be sent to it."""
        if self._stopping is None or self._ended or self._executor.is_busy:
            return
        known = self._core.leader_id is not None and not self._core.is_transferring
        if known or self._clock.monotonic_ms() >= self._handed_over_ms:
            self._stop(self._stopping)

    def _stop(self, done: Callable[[], None]) -> None:
        self._guarded(self._leave)
        self._ended = True
        self._state.stop()

        def synced() -> None:
            self._state.save_all()
            self._disk.submit(self._note_stop, lambda _result, _error: done())

        self._disk.request_sync(self._syncer, synced)

    def _note_stop(self) -> None:
        """Record the clean stop. Blocks: in the disk thread."""
        self._clean_stop.stopped()
        self._origin.renew_if_noted()

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
        if self._stopping is not None:
            self._stopping()

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
        self._wanted = self._options = options
        self._ask_turn()

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
        if self._stopping is not None or self._ended:
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
        log = self.log
        return log.durable_index if self._durability is Durability.FSYNC else log.end_index

    def status(self) -> ReplicaStatus:
        log = self.log
        return ReplicaStatus(
            self._core.status(),
            log.begin_index,
            log.end_index,
            log.next_index,
            log.end_offset,
            self._durability,
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
        except Exception as another:
            self._fail_node(what, another)
        else:
            self._damaged(error)

    def _turn(self) -> None:
        core, now_ms = self._core, self._clock.monotonic_ms()
        if self._options is not None and not self._executor.is_busy:
            self._take_options(self._options, now_ms)
            self._executor.carry_out()
        if self._synced and not self._executor.is_busy:
            self._synced = False
            core.synced(now_ms)
            self._executor.carry_out()
        while self._inbox and not self._executor.is_busy:
            source, message = self._inbox.take()
            self._take(source, message, now_ms)
            self._executor.carry_out()
        if self._tick_due and not self._executor.is_busy:
            self._tick_due = False
            self._tick_parts(now_ms)
            core.tick(now_ms)
            self._executor.carry_out()
        elif self._tick_due:
            self._reads.give_up(now_ms)
            self._queue.tick(now_ms)
        if not self._executor.is_busy and (readers := self._reads.take()):
            for done in readers:
                core.read_index(done, now_ms)
            self._executor.carry_out()
        if self._queue.has_waiting and not self._executor.is_busy:
            self._queue.enter(now_ms)
            if self._queue.is_checking:
                self._ask_turn()
        self._stop_if_free()

    def _take_options(self, options: LogOptions, now_ms: int) -> None:
        self._options = None
        options = replace(options, durability=self._loosening.allowed(options.durability, now_ms))
        if options.durability is not self._durability:
            self._durability = options.durability
            self._syncer.change_durability(options.durability)
            self._appends.change_durability(options.durability)
        self._core.apply_options(options, now_ms)
        self._core.synced(now_ms)

    def _loosened(self) -> None:
        """Let the log acknowledge unsynced records from now on, if the settings still permit it."""
        self._options = self._wanted
        self._ask_turn()

    def _take(self, source: str, message: Any, now_ms: int) -> None:
        if isinstance(message, StateRequest):
            self._state.serve(source, message)
        elif isinstance(message, StateChunk):
            self._state.take(source, message, now_ms)
        else:
            self._core.step(source, message, now_ms)

    def _tick_parts(self, now_ms: int) -> None:
        self._core.has_room = self._space.has_room(now_ms)
        self._loosening.tick(now_ms)
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
