"""Runs the core of one log: carries out what it decides, with the log, the disk, the network and the clients.

Callback style, one owner, no loop, thread or clock of its own: everything outside comes through the seams of
app/replication.py, so that the simulator runs this very code. Things happen in turns. A turn takes what has
arrived since the last one: messages, time, finished syncs, reads, and then all appends, which become as few
batches as fit. While a hard state or a truncation is on its way to the disk, everything else waits.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from app.errors import (
    CommitlogError,
    LeaderPendingFull,
    NoLeader,
    NotLeader,
    QuorumTimeout,
    ReadIndexUnavailable,
    RequestOutstanding,
    StorageFull,
    TermChanged,
)
from app.log_state import Claim, LogState
from app.node.admission import (
    Coalescing,
    Done,
    OpenAppend,
    Stamped,
    check_conditions,
    check_quota,
    check_repeat,
)
from app.node.checkpoints import Checkpointer
from app.node.waiters import CommitWaiters, Waiter, answer
from app.replication import (
    NO_INDEX,
    AppendFate,
    AppendLimits,
    AppendRequest,
    AppendResult,
    Clock,
    CoreEvent,
    Disk,
    DriverConfig,
    Durability,
    PendingAppend,
    Ready,
    ReplicaStatus,
    ReplicationCore,
    Reset,
    Role,
    Scheduler,
    Transport,
)
from storage import errors as storage_errors
from storage.batch import AppendMark, Batch, EncodedBody, stamp
from storage.checkpoint import CheckpointFile, SnapshotFile
from storage.commitlog import Commitlog, SyncTicket
from storage.hard_state import HardStateFile
from storage.journal import Journal
from storage.records import encode_body, encode_control

logger = logging.getLogger(__name__)

EXPIRE_INTERVAL_MS = 60_000


class _LogSync:
    """The log as the disk syncs it: out of the way of a cut, which makes everything durable itself."""

    def __init__(self, log: Commitlog) -> None:
        self._log = log
        self.cutting = False

    def start_sync(self) -> SyncTicket | None:
        return None if self.cutting else self._log.start_sync()

    def finish_sync(self, ticket: SyncTicket) -> None:
        if not self.cutting:
            self._log.finish_sync(ticket)


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
        self._checkpointer = Checkpointer(log, checkpoint_file, snapshot_file, disk, self._config, self._fail)

        self._inbox: deque[tuple[str, Any]] = deque()
        self._appends: deque[OpenAppend] = deque()
        self._open_bytes = 0  # of all appends that are not answered yet
        self._readers: list[Callable[[int | CommitlogError], None]] = []
        self._tick_due = False
        self._synced = False
        self._turn_due = False
        self._waiting_for_disk = False
        self._ended = False
        self._waiters = CommitWaiters()
        self._seen_committed = NO_INDEX
        self._expired_ms = 0
        self._batch = Coalescing(self._config.coalesce_max_bytes)
        self._log_sync = _LogSync(log)
        self._log_sync_asked = False
        self._journal_sync_asked = self._journal_dirty = False
        self._sync_due_ms: int | None = None

    # --- what the node asks ---------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take part. Incarnation: the wall clock at the start, ms."""
        data = {"version": self._version, "incarnation": self._clock.now_ms()}
        self._journal_event(CoreEvent("start", self._core.term, data))
        self._guarded(self._start)

    def _start(self) -> None:
        self._core.start(self._clock.monotonic_ms())
        self._carry_out()

    def stop(self, done: Callable[[], None] | None = None) -> None:
        """Give up the lead, answer whoever waits, save where a restart begins; done() when it is durable."""
        if not self._ended:
            self._guarded(self._stop)
        self._ended = True
        self._disk.submit(lambda: None, lambda _result, _error: done() if done is not None else None)

    def _stop(self) -> None:
        for append in self._appends:
            self._refuse(append, NoLeader())
        self._appends.clear()
        self._core.stop(self._clock.monotonic_ms())
        if not self._waiting_for_disk:
            self._carry_out()
        self._journal_event(CoreEvent("stop", self._core.term, {}))
        self._checkpointer.save_all(self._state, self._core.committed_index)

    def deliver(self, source: str, message: Any) -> None:
        """A message of a peer has come."""
        self._inbox.append((source, message))
        self._ask_turn()

    def tick(self) -> None:
        """Time has passed: the node's shared timer calls this each `tick_interval_ms`."""
        self._tick_due = True
        self._guarded(self._turn)

    def append(self, request: AppendRequest, done: Done) -> None:
        """Append at the leader; elsewhere NotLeader or NoLeader. done(result or refusal), exactly once."""
        append = OpenAppend(request, done, self._clock.monotonic_ms() + request.timeout_ms)
        self._open_bytes += append.size_bytes
        if self._ended:
            self._refuse(append, NoLeader())
        elif len(self._appends) >= self._limits.max_pending_requests:
            self._refuse(append, LeaderPendingFull())
        else:
            self._appends.append(append)
            self._ask_turn()

    def read_index(self, done: Callable[[int | CommitlogError], None]) -> None:
        """Ask for a linearizable read (R-08): done(index) once everything up to `index` is committed here."""
        if self._ended:
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
        if self._sync_due_ms is not None and now_ms >= self._sync_due_ms:
            self._sync_due_ms = None
            self._ask_log_sync()
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
        self._log_sync.cutting = ready.truncate is not None

        def work() -> None:
            if ready.hard_state is not None:
                self._hard_state_file.save(ready.hard_state)
            if isinstance(ready.truncate, Reset):
                self.log.reset(ready.truncate.base_index, ready.truncate.base_offset)
            elif ready.truncate is not None:
                self.log.truncate_after(ready.truncate.index)

        def then(_result: Any, error: BaseException | None) -> None:
            self._waiting_for_disk = self._log_sync.cutting = False
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
            self._answer_append(pending, fate)
        for done, index in ready.reads:
            self._answer_reader(done, index)
        for event in ready.events:
            self._journal_event(event)
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
                self._journal_epoch(batch)
        if self._durability is Durability.FSYNC:
            self._ask_log_sync()
        elif self._sync_due_ms is None:
            self._sync_due_ms = self._clock.monotonic_ms() + self._config.sync_interval_ms
        return True

    def _ask_log_sync(self) -> None:
        if not self._log_sync_asked:
            self._log_sync_asked = True
            self._disk.request_sync(self._log_sync, self._log_synced)

    def _log_synced(self) -> None:
        self._log_sync_asked = False
        if self.log.durable_index < self.log.end_index and self._durability is Durability.FSYNC:
            self._ask_log_sync()
        self._synced = True
        self._guarded(self._turn)

    # --- appends --------------------------------------------------------------------------------------

    def _admit_appends(self, now_ms: int) -> None:
        wall_ms = self._clock.now_ms()
        while self._appends and not self._waiting_for_disk:
            append = self._appends.popleft()
            try:
                self._admit(append, now_ms, wall_ms)
            except CommitlogError as refusal:
                self._refuse(append, refusal)
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
        check_quota(self._limits, waiting, self._open_bytes - append.size_bytes, request)
        batch.add(append)

    def _join(self, append: OpenAppend, claim: Claim, now_ms: int) -> None:
        """A repeat: it gets the first one's answer, now or when that has its acks."""
        append.claim = claim
        pending = PendingAppend(
            claim.first_index, claim.last_index, append.request.acks, append.deadline_ms, append
        )
        self._core.join(pending, now_ms)
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
        stamped = Stamped(term, batch.offset, batch.next_offset, batch.timestamp_ms)
        first_index, pendings = batch.base_index, []
        for append in appends:
            next_index = first_index + append.request.records.count
            append.result = stamped
            pendings.append(
                PendingAppend(first_index, next_index - 1, append.request.acks, append.deadline_ms, append)
            )
            first_index = next_index
        self._core.propose(batch, pendings, self._clock.monotonic_ms())

    # --- answers --------------------------------------------------------------------------------------

    def _refuse(self, append: OpenAppend, refusal: CommitlogError) -> None:
        self._open_bytes -= append.size_bytes
        answer(append.done, refusal)

    def _answer_append(self, pending: PendingAppend, fate: AppendFate) -> None:
        append: OpenAppend = pending.token
        if fate is AppendFate.ACKNOWLEDGED:
            self._open_bytes -= append.size_bytes
            answer(append.done, self._result(append, pending))
        elif fate is AppendFate.TERM_CHANGED:
            self._refuse(append, TermChanged())
        elif fate is AppendFate.REFUSED:
            self._refuse(append, StorageFull())
        elif append.claim is not None:
            self._refuse(append, RequestOutstanding())
        else:
            self._refuse(append, QuorumTimeout(pending.first_index))

    def _result(self, append: OpenAppend, pending: PendingAppend) -> AppendResult:
        source = append.claim or append.result
        if source is None:
            raise storage_errors.InvariantError("an append was acknowledged that was never stamped")
        return AppendResult(
            first_index=pending.first_index,
            last_index=pending.last_index,
            count=pending.last_index - pending.first_index + 1,
            term=source.term,
            first_offset=source.first_offset,
            next_offset=source.next_offset,
            timestamp_ms=source.timestamp_ms,
            committed_index=self._core.committed_index,
            next_index=self.log.next_index,
            leader=self.node_id,
            acks=append.request.acks,
            durability=self._durability,
            replayed=append.claim is not None,
        )

    def _answer_reader(self, done: Callable[[int | CommitlogError], None], index: int | None) -> None:
        if index is None:
            answer(done, ReadIndexUnavailable())
        else:
            self.when_committed(index, lambda: done(index))

    # --- the journal ----------------------------------------------------------------------------------

    def _journal_epoch(self, batch: Batch) -> None:
        """A control record that opened an epoch: tell it as API.md §2 shows an epoch."""
        for epoch in reversed(self.log.epochs):
            if epoch.start_index == batch.base_index:
                data = {
                    "epoch": epoch.epoch,
                    "term": epoch.term,
                    "leader": epoch.leader,
                    "start_index": epoch.start_index,
                    "start_offset": epoch.start_offset,
                    "end_index": None,
                    "end_offset": None,
                    "started_ms": epoch.started_ms,
                }
                self._journal_event(CoreEvent("epoch", epoch.term, data))
            if epoch.start_index <= batch.base_index:
                return

    def _journal_event(self, event: CoreEvent) -> None:
        try:
            self.journal.append(event.kind, event.term, event.data, self._clock.now_ms())
        except storage_errors.StorageFull:
            logger.warning("log %s: no room for the event %s %s", self.log_name, event.kind, event.data)
            return
        self._journal_dirty = True
        if not self._journal_sync_asked:
            self._sync_journal()

    def _sync_journal(self) -> None:
        """Make the events durable, one sync at a time: what is written meanwhile waits for the next one."""
        self._journal_sync_asked, self._journal_dirty = self._journal_dirty, False
        if self._journal_sync_asked:
            self._disk.request_sync(self.journal, self._sync_journal)
