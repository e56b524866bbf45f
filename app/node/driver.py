"""Runs the core of one log: carries out what it decides, with the log, the disk, the network and the clients.

Callback style, one owner, no loop, thread or clock of its own: everything outside comes through the seams of
app/replication.py, so that the simulator runs this very code. Things happen in turns. A turn takes what has
arrived since the last one: messages, time, finished syncs, reads, and then all appends, which become as few
batches as fit. While a hard state or a truncation is on its way to the disk, everything else waits.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from app.errors import (
    CommitlogError,
    LeaderPendingFull,
    NoLeader,
    NotLeader,
    ReadIndexUnavailable,
)
from app.log_state import Claim, LogState
from app.node.admission import (
    Coalescing,
    check_conditions,
    check_quota,
    check_repeat,
)
from app.node.answers import Done, OpenAppend, OpenAppends, Stamped
from app.node.checkpoints import Checkpointer
from app.node.syncing import JournalWriter, LogSyncer
from app.node.waiters import CommitWaiters, Waiter, answer
from app.replication import (
    NO_INDEX,
    AppendLimits,
    AppendRequest,
    Clock,
    CoreEvent,
    Disk,
    DriverConfig,
    Durability,
    Ready,
    ReplicaStatus,
    ReplicationCore,
    Reset,
    Role,
    Scheduler,
    Transport,
)
from storage import errors as storage_errors
from storage.batch import BATCH_MAX_BYTES, AppendMark, Batch, EncodedBody, stamp
from storage.checkpoint import CheckpointFile, SnapshotFile
from storage.commitlog import Commitlog
from storage.hard_state import HardStateFile
from storage.journal import Journal
from storage.records import encode_body, encode_control

logger = logging.getLogger(__name__)

EXPIRE_INTERVAL_MS = 60_000
APPEND_MAX_BYTES = BATCH_MAX_BYTES - 1024 * 1024  # packed; the rest is for header and marks


def _nothing() -> None:
    """For whoever wants no answer."""


class LogDriver:
    """One log at this node. Every method is called on the owner's loop; none blocks.

    Invariants: a Ready is carried out whole before the core hears of anything else; `state` is what the log
    says, batch by batch; every `done` is called exactly once, and nothing that it raises comes back.
    """

    def __init__(
        self,
        *,
        log_name: str,
        log_id: int,
        node_id: str,
        core: ReplicationCore,
        log: Commitlog,
        state: LogState,
        journal: Journal,
        hard_state_file: HardStateFile,
        checkpoint_file: CheckpointFile,
        snapshot_file: SnapshotFile,
        clock: Clock,
        disk: Disk,
        transport: Transport,
        scheduler: Scheduler,
        durability: Durability,
        limits: AppendLimits,
        fail: Callable[[str, BaseException], None],
        version: str,
        config: DriverConfig | None = None,
    ) -> None:
        """fail(what, error): the node must stop at once (R-11); called once. version: for the journal."""
        self.log_name = log_name
        self.log_id = log_id
        self.node_id = node_id
        self.log = log
        self.journal = journal
        self._core = core
        self._state = state
        self._hard_state_file = hard_state_file
        self._clock = clock
        self._disk = disk
        self._transport = transport
        self._scheduler = scheduler
        self._durability = durability
        self._limits = limits
        self._fail_node = fail
        self._version = version
        self._config = config or DriverConfig()
        self._journal_writer = JournalWriter(log_name, log, journal, disk, clock)
        self._syncer = LogSyncer(log, disk, durability, self._config, self._log_synced)
        self._checkpointer = Checkpointer(log, checkpoint_file, snapshot_file, disk, self._config, self._fail)

        self._inbox: deque[tuple[str, Any]] = deque()
        self._appends: deque[OpenAppend] = deque()
        self._queued_bytes = 0  # of self._appends
        self._open = OpenAppends(durability, log)
        self._readers: list[Callable[[int | CommitlogError], None]] = []
        self._confirmed_reads: deque[tuple[int, Waiter, Callable[[int | CommitlogError], None]]] = deque()
        self._tick_due = False
        self._synced = False
        self._turn_due = False
        self._waiting_for_disk = False
        self._stopping: Callable[[], None] | None = None
        self._ended = False
        self._waiters = CommitWaiters()
        self._seen_committed = NO_INDEX
        self._expired_ms = 0
        self._batch = Coalescing(self._config.coalesce_max_bytes)

    # --- what the node asks ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part. Incarnation: the wall clock at the start, ms."""
        data = {"version": self._version, "incarnation": self._clock.now_ms()}
        self._journal_writer.event(CoreEvent("start", self._core.term, data))
        self._guarded(self._start)

    def _start(self) -> None:
        self._core.start(self._clock.monotonic_ms())
        self._carry_out()

    def stop(self, done: Callable[[], None] | None = None) -> None:
        """Give up the lead, answer whoever waits, save where a restart begins; done() when it is durable."""
        self._stopping = done or _nothing
        if not self._waiting_for_disk:
            self._stop(self._stopping)

    def _stop(self, done: Callable[[], None]) -> None:
        self._guarded(self._say_goodbye)
        self._ended = True

        def synced() -> None:
            self._checkpointer.save_all(self._state, self._core.committed_index)
            self._disk.submit(_nothing, lambda _result, _error: done())

        self._disk.request_sync(self._syncer, synced)

    def _say_goodbye(self) -> None:
        for append in self._appends:
            self._open.refuse(append, NoLeader())
        for reader in self._readers:
            answer(reader, ReadIndexUnavailable())
        self._appends.clear()
        self._readers.clear()
        self._core.stop(self._clock.monotonic_ms())
        self._carry_out()
        self._give_up_reads(math.inf)
        self._journal_writer.event(CoreEvent("stop", self._core.term, {}))

    def deliver(self, source: str, message: Any) -> None:
        """A message of a peer has come."""
        if not self._ended:
            self._inbox.append((source, message))
            self._ask_turn()

    def tick(self) -> None:
        """Time has passed: the node's shared timer calls this each `tick_interval_ms`."""
        self._tick_due = True
        self._guarded(self._turn)

    def append(self, request: AppendRequest, done: Done) -> None:
        """Append at the leader; elsewhere NotLeader or NoLeader. done(result or refusal), exactly once.

        Raises ValueError for no records, or for more than APPEND_MAX_BYTES: the front door stops both.
        """
        size_bytes, packed_bytes = request.records.size_bytes, request.records.packed_bytes
        if not request.records.count or packed_bytes > APPEND_MAX_BYTES:
            raise ValueError(f"{request.records.count} records of {packed_bytes} bytes are no append")
        append = self._open.add(request, done, self._clock.monotonic_ms())
        if self._stopping is not None or self._ended:
            self._open.refuse(append, NoLeader())
        elif self._appends and (
            len(self._appends) >= self._limits.max_pending_requests
            or self._queued_bytes + size_bytes > self._limits.max_pending_bytes
        ):
            self._open.refuse(append, LeaderPendingFull())
        else:
            self._appends.append(append)
            self._queued_bytes += size_bytes
            self._ask_turn()

    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None:
        """Ask for a linearizable read (R-08): done(index) once everything up to `index` is committed here."""
        if self._stopping is not None or self._ended:
            answer(done, ReadIndexUnavailable())
            return
        self._readers.append(done)
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

    def watermarks(self, term: int | None = None) -> dict[int, dict[str, int]]:
        """By term and peer, the leader with its durable end; {} for a term that is not held (API.md §2)."""
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
        if not self._ended:
            self._ended = True
            self._fail_node(what, error)

    def _turn(self) -> None:
        core, now_ms = self._core, self._clock.monotonic_ms()
        if self._synced and not self._waiting_for_disk:
            self._synced = False
            core.synced(now_ms)
            self._carry_out()
        while self._inbox and not self._waiting_for_disk:
            source, message = self._inbox.popleft()
            core.step(source, message, now_ms)
            self._carry_out()
        if self._tick_due and not self._waiting_for_disk:
            self._tick_due = False
            self._keep_house(now_ms)
            core.tick(now_ms)
            self._carry_out()
        if self._readers and not self._waiting_for_disk:
            readers, self._readers = self._readers, []
            for done in readers:
                core.read_index(done, now_ms)
            self._carry_out()
        if self._appends and not self._waiting_for_disk:
            self._admit_appends(now_ms)

    def _keep_house(self, now_ms: int) -> None:
        self._syncer.tick(now_ms)
        self._give_up_reads(now_ms)
        self._checkpointer.tick(self._state, self._core.committed_index, now_ms)
        if now_ms - self._expired_ms >= EXPIRE_INTERVAL_MS:
            self._expired_ms = now_ms
            self._state.expire(self._clock.now_ms())

    # --- carrying out a Ready -------------------------------------------------------------------------

    def _carry_out(self) -> None:
        """Do what the core wants until it wants nothing more, or until the disk must be waited for."""
        while True:
            ready = self._core.ready()
            if ready is None:
                control = self._core.wants_control
                if control is None:
                    break
                self._propose(encode_control(control), [], control=True)
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
            self._waiters.wake(committed_index)

    def _wait_for_disk(self, ready: Ready) -> None:
        self._waiting_for_disk = True
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
            if self._stopping is None:
                self._turn()
            elif not self._waiting_for_disk:
                self._stop(self._stopping)

        self._disk.submit(work, then)

    def _undo_state(self, ready: Ready) -> None:
        if isinstance(ready.truncate, Reset):  # what this replica knows of the committed past stays known
            self._state.truncate_after(self._core.committed_index)
        elif ready.truncate is not None:
            self._state.truncate_after(ready.truncate.index)
        if ready.truncate is not None:
            self._checkpointer.cut()

    def _finish(self, ready: Ready) -> None:
        """Everything but what only the disk thread may do."""
        now_ms = self._clock.monotonic_ms()
        stored = not ready.batches or self._store(ready.batches)
        for target, message in ready.messages:
            self._transport.send(target, self.log_id, message)
        for pending, fate in ready.answers:
            self._open.settle(pending, fate, self._core.committed_index, self.log.next_index)
        for done, index in ready.reads:
            self._answer_reader(done, index)
        for event in ready.events:
            self._journal_writer.event(event)
        if stored:
            self._core.advance(ready, now_ms)
        else:
            self._core.abandon(ready, now_ms)

    def _store(self, batches: tuple[Batch, ...]) -> bool:
        """Write the batches, all or none; False when the disk has no room for them."""
        try:
            self.log.append(batches)
        except storage_errors.StorageFull:
            logger.warning("log %s: the disk is full", self.log_name)
            return False
        for batch in batches:
            self._state.apply(batch)
            if batch.is_control:
                self._journal_writer.control(batch)
        self._syncer.written(self._clock.monotonic_ms())
        return True

    def _log_synced(self) -> None:
        self._synced = True
        self._guarded(self._turn)

    # --- appends --------------------------------------------------------------------------------------

    def _admit_appends(self, now_ms: int) -> None:
        wall_ms = self._clock.now_ms()
        while self._appends and not self._waiting_for_disk:
            append = self._appends.popleft()
            self._queued_bytes -= append.request.records.size_bytes
            try:
                self._admit(append, now_ms, wall_ms)
            except CommitlogError as refusal:
                self._open.refuse(append, refusal)
        self._flush()

    def _admit(self, append: OpenAppend, now_ms: int, wall_ms: int) -> None:
        """Put the append into the batch of this turn, or find the answer of its first time."""
        core, request, batch = self._core, append.request, self._batch
        if not core.accepts_appends:
            raise NoLeader if core.leader_id in (None, self.node_id) else NotLeader(core.leader_id)
        if batch.decides_about(request) or not batch.has_room_for(request):
            self._flush()
        claim = check_repeat(self._state, request, batch, wall_ms)
        if claim is not None:
            self._join(append, claim, now_ms)
            return
        next_index = self.log.next_index + batch.count
        check_conditions(self._state, request, term=core.term, next_index=next_index)
        waiting = core.pending_appends + len(batch.appends)
        waiting_bytes = self._open.size_bytes - self._queued_bytes - request.records.size_bytes
        check_quota(self._limits, waiting, waiting_bytes, request)
        batch.add(append)

    def _join(self, append: OpenAppend, claim: Claim, now_ms: int) -> None:
        """A repeat: it gets the first one's answer, now or when that has its acks."""
        append.claim = claim
        self._core.join(append.pending(claim.first_index, claim.last_index), now_ms)
        self._carry_out()

    def _flush(self) -> None:
        """Write the batch of this turn, if there is one."""
        batch = self._batch
        if batch.records is None:
            return
        appends, body, marks = batch.appends, encode_body(batch.records), batch.marks
        batch.start()
        self._propose(body, appends, marks=marks)
        self._carry_out()

    def _propose(
        self,
        body: EncodedBody,
        appends: list[OpenAppend],
        *,
        marks: Sequence[AppendMark] = (),
        control: bool = False,
    ) -> None:
        """Stamp a batch for the log's end and hand it to the core."""
        log, term = self.log, self._core.term
        batch = stamp(
            body,
            log_id=self.log_id,
            base_index=log.next_index,
            term=term,
            timestamp_ms=self._clock.now_ms(),
            offset=log.end_offset,
            previous_chain=log.last_chain,
            control=control,
            marks=marks,
        )
        stamped, first_index, pendings = Stamped(batch), batch.base_index, []
        for append in appends:
            next_index = first_index + append.request.records.count
            append.stamped = stamped
            pendings.append(append.pending(first_index, next_index - 1))
            first_index = next_index
        self._core.propose(batch, pendings, self._clock.monotonic_ms())

    # --- answers --------------------------------------------------------------------------------------

    def _answer_reader(self, done: Callable[[int | CommitlogError], None], index: int | None) -> None:
        if index is None:
            answer(done, ReadIndexUnavailable())
            return
        waiter = self.when_committed(index, lambda: done(index))
        if waiter.done is not None:  # confirmed, but this replica has not got that far
            deadline_ms = self._clock.monotonic_ms() + self._config.read_timeout_ms
            self._confirmed_reads.append((deadline_ms, waiter, done))

    def _give_up_reads(self, now_ms: float) -> None:
        """Tell the readers whose index did not come until now_ms, so that nobody waits for ever."""
        while self._confirmed_reads and self._confirmed_reads[0][0] <= now_ms:
            _, waiter, done = self._confirmed_reads.popleft()
            if waiter.done is not None:
                waiter.cancel()
                answer(done, ReadIndexUnavailable())
