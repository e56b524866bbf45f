"""Runs the core of one log: carries out what it decides, with the log, the disk, the network and the clients.

Callback style, one owner, no loop, thread or clock of its own: everything outside comes through the seams of
app/log/contract.py, so that the simulator runs this very code. Things happen in turns. A turn takes what has
arrived since the last one: messages, time, finished syncs, reads, and then all appends, which become as few
batches as fit. While a hard state or a truncation is on its way to the disk, everything else waits.
"""

import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from app.errors import NoLeader, ReadIndexUnavailable, TransferFailed
from app.log.commands import Command
from app.log.contract import (
    NO_INDEX,
    AppendFate,
    AppendRequest,
    CoreEvent,
    Durability,
    GroupConfig,
    LogOptions,
    Ready,
    ReplicaStatus,
    ReplicationCore,
    Reset,
    Role,
)
from app.log.state import Address, LogState
from app.node.replica.append_queue import Door
from app.node.replica.checkpoints import Checkpointer
from app.node.replica.commit_waiters import CommitWaiters, Waiter, answer
from app.node.replica.files import ReplicaFiles
from app.node.replica.group import LogGroup
from app.node.replica.inbox import Inbox
from app.node.replica.log_space import LogSpace
from app.node.replica.loosening import Loosening
from app.node.replica.open_appends import CommandDone, Done, OpenAppends
from app.node.replica.read_index_queue import ReadDone, ReadGate
from app.node.replica.state_transfer import StateTransfer
from app.node.replica.syncing import JournalWriter, LogSyncer
from app.node.replica.trimming import Trimmer
from app.node.services import NodeServices, ReplicaEvents
from app.raft.messages import StateChunk, StateRequest
from storage import errors as storage_errors
from storage.format.batch import Batch

logger = logging.getLogger(__name__)

MAX_INDEX = 2**63 - 1


def _nothing() -> None:
    """For whoever wants no answer."""


class LogDriver:
    """One log at this node. Every method is called on the owner's loop; none blocks.

    Invariants: a Ready is carried out whole before the core hears of anything else; `state` is what the log
    says, batch by batch; every `done` is called exactly once, and nothing that it raises comes back.
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
        disk = services.disk.lane(files.log_name)
        self.log_name = files.log_name
        self.log_id = files.log_id
        self.node_id = services.node_id
        self.log = files.log
        self.journal = files.journal
        self._core = core
        self._state = state
        self._hard_state_file = files.hard_state
        self._clock = services.clock
        self._disk = disk
        self._transport = services.transport
        self._scheduler = services.scheduler
        self._durability = durability
        self._fail_node = services.fail
        self._damaged = events.damaged
        self._group = LogGroup(group, state, core, services.clock)
        self._healed = events.healed if not core.sound else None
        self._clean_stop = files.clean_stop
        self._version = services.version
        self._config = services.driver
        self._space = LogSpace(files.log_name, services.reserve)
        self._journal_writer = JournalWriter(
            files.log_name, files.log, files.journal, disk, services.clock, self._space
        )
        self._syncer = LogSyncer(files.log, disk, durability, self._config, self._log_synced)
        self._checkpointer = Checkpointer(
            files.log, files.checkpoint, files.snapshot, disk, self._config, self._fail
        )

        self._trimmer = Trimmer(files.log, state, self._checkpointer, disk, self._fail)
        self._transfer = StateTransfer(
            files.log_id,
            files.log,
            state,
            services.transport,
            self._state_is_whole,
            self._config.state_chunk_bytes,
        )
        self._waiters = CommitWaiters()
        self._gate = ReadGate(self._config.read_timeout_ms, self.when_committed)
        self._open = OpenAppends(services.node_id, durability, files.log)
        self._door = Door(
            node_id=services.node_id,
            log_id=files.log_id,
            core=core,
            log=files.log,
            state=state,
            clock=services.clock,
            limits=services.limits,
            config=self._config,
            open_appends=self._open,
            carry_out=self._carry_out,
            space=self._space,
            is_busy=lambda: self._waiting_for_disk,
        )

        self._inbox = Inbox()
        note = partial(files.clean_stop.opened, acks_unsynced=True)
        self._loosening = Loosening(files.log_name, durability, disk, note, self._loosened, self._fail)
        self._wanted: LogOptions | None = None  # the newest, since the start
        self._options: LogOptions | None = None  # not taken up yet
        self._tick_due = False
        self._synced = False
        self._turn_due = False
        self._waiting_for_disk = False
        self._unanswered: Ready | None = None  # what is being carried out, until its answers are given
        self._stopping: Callable[[], None] | None = None
        self._handed_over_ms = -math.inf  # a stop waits at most until then for the next leader
        self._ended = False
        self._seen_committed = NO_INDEX

    # --- what the node asks ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part. Incarnation: the wall clock at the start, ms."""
        data = {"version": self._version, "incarnation": self._clock.now_ms()}
        self._journal_writer.event(CoreEvent("start", self._core.term, data))
        self._guarded(self._start)

    def _start(self) -> None:
        self._judge_electable()
        self._group.look()
        self._core.start(self._clock.monotonic_ms())
        self._carry_out()

    def stop(self, done: Callable[[], None] | None = None) -> None:
        """Hand over the lead (R-09), answer whoever waits, save where a restart begins: then done()."""
        self._stopping = done or _nothing
        if self._ended:
            self._stopping()
        self._guarded(self._hand_over)

    def _hand_over(self) -> None:
        if self._core.role is Role.LEADER and not self._waiting_for_disk:
            now_ms = self._clock.monotonic_ms()
            with contextlib.suppress(TransferFailed):
                self._core.transfer(None, now_ms)
                self._handed_over_ms = now_ms + self._config.hand_over_timeout_ms
                self._carry_out()
        self._stop_if_free()

    def _stop_if_free(self) -> None:
        """Go on with the stop once the next leader is known, so that whoever waits here can be sent there."""
        if self._stopping is None or self._ended or self._waiting_for_disk:
            return
        known = self._core.leader_id is not None and not self._core.is_transferring
        if known or self._clock.monotonic_ms() >= self._handed_over_ms:
            self._stop(self._stopping)

    def _stop(self, done: Callable[[], None]) -> None:
        self._guarded(self._say_goodbye)
        self._ended = True
        self._trimmer.stop()

        def synced() -> None:
            self._checkpointer.save_all(self._state, self._core.committed_index)
            self._disk.submit(self._clean_stop.stopped, lambda _result, _error: done())

        self._disk.request_sync(self._syncer, synced)

    def _say_goodbye(self) -> None:
        self._door.refuse_all(NoLeader())
        self._gate.refuse_all()
        self._core.stop(self._clock.monotonic_ms())
        self._carry_out()
        self._gate.give_up(math.inf)
        self._journal_writer.event(CoreEvent("stop", self._core.term, {}))

    def abandon(self) -> None:
        """End at once, for the log is damaged: whoever waits is told, and a leader leads no longer.

        The disk threads still do what they were given; nothing more is written to this log afterwards.
        """
        if self._ended:
            return
        self._ended = True
        self._trimmer.stop()
        self._syncer.cutting = True
        self._door.refuse_all(NoLeader())
        self._gate.refuse_all()
        self._core.stop(self._clock.monotonic_ms())
        for ready in (self._unanswered, self._core.ready()):
            if ready is not None:
                for pending, fate in ready.answers:
                    self._open.settle(pending, fate, self._core.committed_index, self.log.next_index)
                for done, _index in ready.reads:
                    answer(done, ReadIndexUnavailable())
        self._gate.give_up(math.inf)
        self._waiters.wake(MAX_INDEX)
        if self._stopping is not None:
            self._stopping()

    def deliver(self, source: str, message: Any) -> None:
        """A message of a peer has come."""
        if not self._ended and self._inbox.put(source, message):
            self._ask_turn()

    @property
    def takes_more(self) -> bool:
        """False while so much waits here that connections should not be read."""
        return self._ended or not self._inbox.is_full

    @property
    def dropped_messages(self) -> int:
        """Messages of peers that found no room here since the start."""
        return self._inbox.dropped

    def tick(self) -> None:
        """Time has passed: the node's shared timer calls this each `tick_interval_ms`."""
        self._tick_due = True
        self._guarded(self._turn)

    def append(self, request: AppendRequest, done: Done) -> None:
        """Append at the leader; elsewhere NotLeader or NoLeader. done(result or refusal), exactly once.

        Raises ValueError for no records, or for more than APPEND_MAX_BYTES: the front door stops both.
        """
        self._door.append(request, done, NoLeader() if self._ended else None)
        self._ask_turn()

    def command(self, command: Command, done: CommandDone) -> None:
        """Decide and commit a command at the leader; elsewhere NotLeader or NoLeader. done exactly once."""
        self._door.command(command, done, NoLeader() if self._ended else None)
        self._ask_turn()

    def change_options(self, options: LogOptions) -> None:
        """The settings of the log have changed: they count from the next turn on."""
        self._wanted = self._options = options
        self._ask_turn()

    def transfer(self, to: str | None) -> str:
        """Begin to hand the lead to `to`, or to the best; return whom. Raises TransferFailed, AlreadyLeader.

        What became of it shows in leader_id: the old leader goes on when the new one does not come up.
        """
        if self._ended or self._waiting_for_disk:
            raise TransferFailed("this node does not lead, or stops")
        target = self._core.transfer(to, self._clock.monotonic_ms())
        self._guarded(self._carry_out)
        return target

    def read_index(self, done: ReadDone) -> None:
        """Ask for a linearizable read (R-08): done(index) once everything up to `index` is committed here."""
        if self._stopping is not None or self._ended:
            answer(done, ReadIndexUnavailable())
            return
        self._gate.ask(done, self._clock.monotonic_ms())
        self._ask_turn()

    def when_committed(self, index: int, done: Callable[[], None]) -> Waiter:
        """done() once `index` is committed here, within this call if it is already; Waiter.cancel forgets."""
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
    def runs_ahead(self) -> bool:
        """Whether what is committed here may be more than the leader knows of (a slave of classic HA)."""
        return self._core.runs_ahead

    @property
    def is_truncating(self) -> bool:
        """Whether the disk thread truncates or resets the log now: what a read finds may be half of it."""
        return self._syncer.cutting

    @property
    def state(self) -> LogState:
        """What the log says beside its records, with what is not committed yet."""
        return self._state

    @property
    def group(self) -> GroupConfig:
        """Who is in the group as this replica knows it."""
        return self._group.group

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Members that the log itself says how to reach; the same object until that changes."""
        return self._group.addresses

    @property
    def is_transferring(self) -> bool:
        """Whether this node is handing over the lead (R-09)."""
        return self._core.is_transferring

    @property
    def sound(self) -> bool:
        """False while this replica may lack what it once acknowledged: it follows, and has no vote."""
        return self._core.sound

    @property
    def knows_vote(self) -> bool:
        """False while this replica may have forgotten its term and vote."""
        return self._core.knows_vote

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
        """Linearizable reads that wait for a confirmation, or for their index."""
        return self._core.waiting_reads + self._gate.waiting_count

    def watermarks(self, term: int | None = None) -> dict[int, dict[str, int]]:
        """By term and peer, the leader with its durable end; {} for a term that is not held (docs/api.md
        §2)."""
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
        """Crash-only: an error in here is a broken invariant or disk, and the node stops."""
        if self._ended:
            return
        try:
            action()
        except Exception as error:
            self._fail(f"log {self.log_name}", error)

    def _fail(self, what: str, error: BaseException) -> None:
        """End this log if it is damaged and somebody can mend it, else the node."""
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
        if self._options is not None and not self._waiting_for_disk:
            self._take_options(self._options, now_ms)
            self._carry_out()
        if self._synced and not self._waiting_for_disk:
            self._synced = False
            core.synced(now_ms)
            self._carry_out()
        while self._inbox and not self._waiting_for_disk:
            source, message = self._inbox.take()
            self._take(source, message, now_ms)
            self._carry_out()
        if self._tick_due and not self._waiting_for_disk:
            self._tick_due = False
            self._keep_house(now_ms)
            core.tick(now_ms)
            self._carry_out()
        elif self._tick_due:
            self._gate.give_up(now_ms)
            self._door.tick(now_ms)
        if not self._waiting_for_disk and (readers := self._gate.take()):
            for done in readers:
                core.read_index(done, now_ms)
            self._carry_out()
        if self._door.has_waiting and not self._waiting_for_disk:
            self._door.enter(now_ms)
        self._stop_if_free()

    def _take_options(self, options: LogOptions, now_ms: int) -> None:
        self._options = None
        options = replace(options, durability=self._loosening.allowed(options.durability, now_ms))
        if options.durability is not self._durability:
            self._durability = options.durability
            self._syncer.change_durability(options.durability)
            self._open.change_durability(options.durability)
        self._core.apply_options(options, now_ms)
        self._core.synced(now_ms)

    def _loosened(self) -> None:
        """What is not synced may be acknowledged from now on, if that is wanted still."""
        self._options = self._wanted
        self._ask_turn()

    def _take(self, source: str, message: Any, now_ms: int) -> None:
        if isinstance(message, StateRequest):
            self._transfer.serve(source, message)
        elif isinstance(message, StateChunk):
            self._transfer.take(source, message, now_ms)
        else:
            self._core.step(source, message, now_ms)

    def _keep_house(self, now_ms: int) -> None:
        self._core.has_room = self._space.has_room(now_ms)
        self._loosening.tick(now_ms)
        self._syncer.tick(now_ms)
        self._gate.give_up(now_ms)
        self._door.tick(now_ms)
        self._transfer.tick(self._core.leader_id, now_ms)
        self._trimmer.look()
        self._checkpointer.tick(self._state, self._core.committed_index, now_ms)
        self._state.pass_time(now_ms)
        self._state.expire()

    # --- carrying out a Ready -------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Do what the core wants until it wants nothing more, or until the disk must be waited for."""
        while True:
            ready = self._core.ready()
            if ready is None:
                control = self._core.wants_control
                if control is None:
                    break
                if not self._core.electable:
                    self._accept_loss()
                self._door.open_term(control)
            elif ready.hard_state is None and ready.truncate is None:
                self._finish(ready)
            else:
                self._wait_for_disk(ready)
                return
        committed_index = self._core.committed_index
        if committed_index != self._seen_committed:
            self._seen_committed = committed_index
            self.log.settle(committed_index)
            self._state.committed(committed_index)
            if not self._core.electable:
                self._judge_electable()
            self._waiters.wake(committed_index)
        if self._healed is not None and self._core.sound:
            healed, self._healed = self._healed, None
            healed()

    def _wait_for_disk(self, ready: Ready) -> None:
        self._waiting_for_disk = True
        ready = self._unanswered = self._give_refusals(ready)
        self._syncer.cutting = ready.truncate is not None

        def work() -> None:
            if ready.hard_state is not None:
                self._hard_state_file.save(ready.hard_state)
            if isinstance(ready.truncate, Reset):
                self.log.reset(ready.truncate.base_index, ready.truncate.base_offset)
            elif ready.truncate is not None:
                self.log.truncate_after(ready.truncate.index)

        def then(_result: Any, error: BaseException | None) -> None:
            self._waiting_for_disk = self._syncer.cutting = False
            if error is not None:
                self._fail(f"log {self.log_name}: term, vote or truncation", error)
                return
            self._guarded(resume)

        def resume() -> None:
            self._undo_state(ready)
            self._finish(ready)
            self._carry_out()
            self._turn()

        self._disk.submit(work, then)

    def _give_refusals(self, ready: Ready) -> Ready:
        """Answer the callers that have lost their leader; return the rest. The disk may hang, and what these
        answers say does not depend on it."""
        kept = tuple(each for each in ready.answers if each[1] is AppendFate.ACKNOWLEDGED)
        for pending, fate in ready.answers:
            if fate is not AppendFate.ACKNOWLEDGED:
                self._open.settle(pending, fate, self._core.committed_index, self.log.next_index)
        for done, index in ready.reads:
            if index is None:
                answer(done, ReadIndexUnavailable())
        reads = tuple(each for each in ready.reads if each[1] is not None)
        return replace(ready, answers=kept, reads=reads)

    def _undo_state(self, ready: Ready) -> None:
        """What this replica knows of the committed past stays known, also when its log was emptied."""
        if ready.truncate is None:
            return
        kept_index = self._core.committed_index if isinstance(ready.truncate, Reset) else ready.truncate.index
        self._state.truncate_after(max(kept_index, self._state.committed_index))
        self._checkpointer.cut()
        self._transfer.cut()
        self._group.look()

    def _state_is_whole(self) -> None:
        self._checkpointer.demand()  # a restart could not rebuild it from the log
        self._judge_electable()
        self._group.look()

    def _judge_electable(self) -> None:
        """Find out whether this copy has what a leader needs."""
        transfer = self._transfer
        has_records = transfer.holds_untrimmed or not self._core.needs_all_records
        self._core.electable = transfer.is_whole and has_records

    def _accept_loss(self) -> None:
        """This copy leads though it lacks state or records: only an unclean election does that (C-05)."""
        first_index = self.log.first_index
        logger.warning("log %s: the state before index %d is lost", self.log_name, first_index)
        data = {"reason": "an unclean election: the state before the log is lost", "first_index": first_index}
        self._journal_writer.event(CoreEvent("corruption", self._core.term, data))
        self._transfer.accept_loss()
        self._checkpointer.demand()
        self._judge_electable()
        self._group.look()

    def _finish(self, ready: Ready) -> None:
        """Everything but what only a disk thread may do."""
        now_ms = self._clock.monotonic_ms()
        self._unanswered = ready
        stored = not ready.batches or self._store(ready.batches)
        if ready.truncate is not None:
            self._judge_electable()
        for target, message in ready.messages:
            self._transport.send(target, self.log_id, message)
        for pending, fate in ready.answers:
            self._open.settle(pending, fate, self._core.committed_index, self.log.next_index)
        for done, index in ready.reads:
            self._gate.give(done, index, now_ms)
        self._unanswered = None
        for event in ready.events:
            self._journal_writer.event(event)
        if stored:
            self._core.advance(ready, now_ms)
        else:
            self._core.abandon(ready, now_ms)

    def _store(self, batches: tuple[Batch, ...]) -> bool:
        """Write the batches, all or none; False when the disk has no room for them."""
        now_ms, leads = self._clock.monotonic_ms(), self._core.role in (Role.LEADER, Role.MASTER)
        if not self._space.write(self.log.append, batches, leads=leads, now_ms=now_ms):
            return False
        for batch in batches:
            self._state.apply(batch)
            if batch.is_control:
                self._journal_writer.control(batch)
        self._syncer.written(now_ms)
        self._group.look()
        return True

    def _log_synced(self) -> None:
        self._synced = True
        self._guarded(self._turn)
