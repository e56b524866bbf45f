"""Queue of appends and commands at the leader of a log: they wait for the next turn, and become batches.

Everything that has arrived since the last turn shares batches, as far as it fits (group commit). A turn
writes about TURN_BYTES, so that other logs and heartbeats do not wait for more. During a transfer of
leadership all wait until the next leader is known: then they enter here, or are sent to it (R-09).
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from app.errors import (
    CommitlogError,
    LeaderPendingFull,
    LeaderTransferring,
    NoLeader,
    NotLeader,
    RequestOutstanding,
    StorageFull,
)
from app.log.commands import Command, CommandResult
from app.log.contract import (
    Acks,
    AppendRequest,
    ChangeKind,
    GroupConfig,
)
from app.log.schema_gate import SchemaGate
from app.log.state import Claim
from app.node.replica.append_checks import (
    Coalescing,
    check_conditions,
    check_memory,
    check_quota,
    check_repeat,
    check_storable,
)
from app.node.replica.commit_waiters import answer
from app.node.replica.confirmed_answers import ConfirmedAnswer
from app.node.replica.open_appends import AppendDone, CommandDone, OpenAppend, OpenCommand
from app.node.replica.ready_executor import ReadyExecutor
from app.node.replica.replica_parts import ReplicaParts
from storage.format.records import encode_control
from storage.units import KIB, MIB

COMMAND_TIMEOUT_MS = 5_000
COMMANDS_MAX = 1_000
GATHER_MAX_MS = 20
GATHER_MAX_BYTES = 512 * KIB  # beyond it a batch is worth its own frames and sync
TURN_BYTES = 4 * MIB  # of packed records that one turn writes, and at least one batch: some 10 ms


class AppendQueue:
    """Owned by one driver."""

    def __init__(self, parts: ReplicaParts, executor: ReadyExecutor, ask_turn: Callable[[], None]) -> None:
        """ask_turn(): schedule the next turn of the driver."""
        services = parts.services
        self._executor = executor
        self._node_id = services.node_id
        self._core = parts.core
        self._log = parts.files.log
        self._state = parts.state.state
        self._clock = services.clock
        self._limits = services.limits
        self._open = parts.appends
        self._proposer = parts.proposer
        self._space = parts.space
        self._syncer = parts.syncer
        self._appends: deque[OpenAppend] = deque()
        self._queued_count = 0  # of self._appends, the members of groups
        self._queued_bytes = 0
        self._commands: deque[OpenCommand] = deque()
        self._batch = Coalescing(services.driver.coalesce_max_bytes)
        self._gate = SchemaGate(services.clock.monotonic_ms, services.workers, ask_turn)
        self._is_checking = False
        self._has_rest = False  # the last turn has written enough
        self._decided: list[ConfirmedAnswer] = []  # in this turn
        self._confirming: list[ConfirmedAnswer] = []  # their basis is not confirmed yet

    # --- the queue --------------------------------------------------------------------------------------

    def append(self, request: AppendRequest, done: AppendDone, refusal: CommitlogError | None) -> OpenAppend:
        """Queue an append, or answer it at once with the refusal given. Raises ValueError (LogDriver)."""
        check_storable(request)
        size_bytes = request.records.size_bytes
        append = self._open.add(request, done, self._clock.monotonic_ms())
        if refusal is not None:
            self._open.refuse(append, refusal)
        elif self._appends and self._is_full(size_bytes):
            self._open.refuse(append, LeaderPendingFull())
        else:
            self._appends.append(append)
            self._queued_count += request.appends
            self._queued_bytes += size_bytes
        return append

    def grow(self, append: OpenAppend, size_bytes: int, now_ms: int) -> bool:
        """As LogDriver.grow."""
        is_open = append.is_queued and append.check is None and now_ms < append.arrived_ms + GATHER_MAX_MS
        if not is_open or self._is_full(size_bytes):
            return False
        self._open.grow(append, size_bytes, now_ms)
        self._queued_count += 1
        self._queued_bytes += size_bytes
        return True

    def _is_full(self, size_bytes: int) -> bool:
        limits = self._limits
        return (
            self._queued_count >= limits.max_pending_requests
            or self._queued_bytes + size_bytes > limits.max_pending_bytes
        )

    def command(self, command: Command, done: CommandDone, refusal: CommitlogError | None) -> None:
        if refusal is None and len(self._commands) >= COMMANDS_MAX:
            refusal = LeaderPendingFull()
        if refusal is not None:
            answer(done, refusal)
        else:
            self._commands.append(OpenCommand(command, done, self._clock.monotonic_ms() + COMMAND_TIMEOUT_MS))

    @property
    def has_waiting(self) -> bool:
        return bool(self._appends or self._commands or self._decided)

    @property
    def needs_turn(self) -> bool:
        """True if a turn is due: the last one has written enough, or the next append is not completely
        checked yet, and not by the workers."""
        return self._has_rest or (self._waits_for_check and not self._is_checked_aside)

    @property
    def _waits_for_check(self) -> bool:
        return self._is_checking and bool(self._appends)

    @property
    def _is_checked_aside(self) -> bool:
        check = self._appends[0].check if self._appends else None
        return check is not None and check.runs_aside

    def refuse_all(self, refusal: CommitlogError) -> None:
        for append in (*self._batch.appends, *self._appends):
            if append.check is not None:
                append.check.is_dropped = True
            self._open.refuse(append, refusal)
        for command in self._commands:
            answer(command.done, refusal)
        for decided in self._decided:
            decided.fail(refusal)
        self._decided.clear()
        self._batch.start()
        self._appends.clear()
        self._commands.clear()
        self._queued_count = self._queued_bytes = 0

    def tick(self, now_ms: int) -> None:
        """Refuse what has waited until its deadline: for the next leader, for a term that is written, for the
        log's state that is rebuilt, or for a confirmation. Nothing of it was applied."""
        self._confirming = [each for each in self._confirming if each.waits_until(now_ms)]
        self._decided = [each for each in self._decided if each.waits_until(now_ms)]
        refusal: Callable[[], CommitlogError]
        if self._core.pauses_appends:
            refusal = LeaderTransferring
        elif self._executor.is_busy:
            reason = "a term or a truncation is being written, or the log's state is being rebuilt"
            refusal = partial(NoLeader, f"{reason}: nothing was applied")
        elif self._waits_for_check:
            refusal = partial(LeaderPendingFull, "earlier records are checked against the schema of the log")
        else:
            return
        appends, commands = self._appends, self._commands
        self._appends = deque(append for append in appends if append.deadline_ms > now_ms)
        self._commands = deque(command for command in commands if command.deadline_ms > now_ms)
        for append in appends:
            if append.deadline_ms <= now_ms:
                self._uncount(append)
                if append.check is not None:
                    append.check.is_dropped = True
                self._open.refuse(append, refusal())
        for command in commands:
            if command.deadline_ms <= now_ms:
                answer(command.done, refusal())

    # --- a turn -----------------------------------------------------------------------------------------

    def enter(self, now_ms: int) -> None:
        """Write the queue to the log, about TURN_BYTES of it, until a hard state or a truncation must be
        written first."""
        self._has_rest = False
        if self._core.pauses_appends or self._gathers(now_ms):
            return
        while self._commands and not self._executor.is_busy:
            self._admit_command(self._commands.popleft())
        rejects = self._gate.refresh(self._state.schemas)
        self._is_checking = False
        entered_bytes = 0
        while self._appends and not self._executor.is_busy:
            if entered_bytes >= TURN_BYTES:
                self._has_rest = True
                break
            if rejects and not self._check_next():
                self._is_checking = True
                break
            request = self._appends[0].request
            if self._batch.decides_about(request) or not self._batch.has_room_for(request):
                self._flush()  # its outcome may affect the next append: all checks run again
                continue
            append = self._appends.popleft()
            append.is_queued = False
            self._uncount(append)
            entered_bytes += request.records.packed_bytes
            try:
                self._admit(append, now_ms)
            except CommitlogError as refusal:
                self._open.refuse(append, refusal)
            except Exception:
                if append.claim is None:  # the core does not have it: it waits again, until refuse_all
                    self._appends.appendleft(append)
                    self._queued_count += append.request.appends
                    self._queued_bytes += append.request.records.size_bytes
                raise
        if not self._executor.is_busy:
            self._flush()
        if not self._executor.is_busy:
            self._confirm_decided(now_ms)

    def _uncount(self, append: OpenAppend) -> None:
        """The append has left the queue."""
        self._queued_count -= append.request.appends
        self._queued_bytes -= append.request.records.size_bytes

    def _gathers(self, now_ms: int) -> bool:
        """Return whether the appends wait for others until the sync in progress ends, or a short time.

        A batch written now would be synced after that one anyway, and a batch costs each node far more than
        another append in it. Once as many wait as are unanswered, the followers should not be idle.
        """
        limits, opened = self._limits, self._open
        if not self._appends or not self._syncer.delays_answers:
            return False
        if self._commands or self._decided or self._is_checking:
            return False
        return (
            self._queued_count < opened.count - self._queued_count
            and self._queued_bytes < GATHER_MAX_BYTES
            and now_ms < self._appends[0].arrived_ms + GATHER_MAX_MS
            and opened.count <= limits.max_pending_requests  # beyond, they are refused at once: D-29
            and opened.size_bytes <= limits.max_pending_bytes
        )

    def _check_next(self) -> bool:
        """Check the records of the next append against the schema; return whether that is complete."""
        append = self._appends[0]
        append.check, complete = self._gate.check(append.request.records, append.check)
        return complete

    def _check_leads(self) -> None:
        core = self._core
        if not core.accepts_appends:
            if core.leader_id in (None, self._node_id):
                raise NoLeader(None if core.refusal is None else core.refusal.detail)
            raise NotLeader(core.leader_id)

    def _admit(self, append: OpenAppend, now_ms: int) -> None:
        """Add the append to the batch of this turn, or find the answer of its first attempt."""
        core, request, batch = self._core, append.request, self._batch
        if request.stream is not None and request.stream.broken:
            raise RequestOutstanding("an earlier append of the stream was refused", has_first=False)
        self._check_leads()
        try:
            claim = check_repeat(self._state, request, batch)
        except CommitlogError as failed:
            self._decide_refusal(append, failed)
            return
        if claim is not None:
            self._join(append, claim, now_ms)
            return
        refusal = core.refusal
        if core.takes_unreplicated and request.acks is Acks.LEADER:
            refusal = None
        if refusal is not None and not isinstance(refusal, StorageFull):
            raise refusal
        next_index = self._log.next_index + batch.count
        data_end = next_index if batch.count else self._state.data_end
        try:
            check_conditions(self._state, request, term=core.term, next_index=next_index, data_end=data_end)
            self._gate.judge(append.check)
        except CommitlogError as failed:
            self._decide_refusal(append, failed)
            return
        no_room = refusal or self._space.refusal(now_ms)
        if no_room is not None:
            raise no_room
        check_memory(self._limits, self._state, batch, request)
        waiting = self._open.count - self._queued_count - request.appends
        waiting_bytes = self._open.size_bytes - self._queued_bytes - request.records.size_bytes
        check_quota(self._limits, waiting, waiting_bytes, request)
        batch.add(append)

    def _decide_refusal(self, append: OpenAppend, refusal: CommitlogError) -> None:
        """Refuse an append by the log's state, once that is confirmed. Its stream ends here."""
        if append.request.stream is not None:
            append.request.stream.broken = True

        def fail(other: CommitlogError) -> None:
            self._open.refuse(append, other)

        self._decide(lambda: self._open.refuse(append, refusal), fail, append.deadline_ms)

    def _decide(
        self,
        give: Callable[[], None],
        fail: Callable[[CommitlogError], None],
        deadline_ms: int,
        *,
        is_refusal: bool = True,
    ) -> None:
        """Keep an answer that the log's state decided, including the batch of this turn."""
        end_index = self._log.next_index + self._batch.count - 1
        self._decided.append(
            ConfirmedAnswer(
                give,
                fail,
                end_index=end_index,
                term=self._core.term,
                deadline_ms=deadline_ms,
                needs_commit=self._core.may_truncate or not is_refusal,
            )
        )

    def _confirm_decided(self, now_ms: int) -> None:
        """Give the answers decided in this turn, or let them wait for the commit of their basis."""
        if not self._decided:
            return
        decided, self._decided = self._decided, []
        core = self._core
        for each in decided:
            try:
                self._check_leads()
            except CommitlogError as refusal:
                each.fail(refusal)
                continue
            if core.term != each.term:
                each.fail(NoLeader("the term changed: nothing was applied"))
            elif each.needs_commit:
                pending = each.pending() if each.end_index > core.committed_index else None
                core.read_index(each.reader(), now_ms)
                if pending is not None:
                    core.join(pending, now_ms)
                self._confirming.append(each)
            else:
                each.give()
        self._executor.carry_out()

    def _join(self, append: OpenAppend, claim: Claim, now_ms: int) -> None:
        """Answer a retry as the first append: now, or when that has its acks."""
        append.claim = claim
        self._core.join(append.pending(claim.first_index, claim.last_index), now_ms)
        self._executor.carry_out()

    def _admit_command(self, command: OpenCommand) -> None:
        """Decide the command, and write its record. If nothing has to change, answer after the commit."""
        try:
            self._check_leads()
        except CommitlogError as refusal:
            answer(command.done, refusal)
            return
        try:
            record = command.command.control(self._state, self)
        except CommitlogError as refusal:
            self._decide_command(command, refusal)
            return
        if record is None:
            self._decide_command(command, CommandResult(self._log.end_index, self._core.term, False))
            return
        self._proposer.propose(encode_control(record), [command], control=True)
        self._executor.carry_out()

    def _decide_command(self, command: OpenCommand, result: CommandResult | CommitlogError) -> None:
        self._decide(
            lambda: answer(command.done, result),
            lambda refusal: answer(command.done, refusal),
            command.deadline_ms,
            is_refusal=isinstance(result, CommitlogError),
        )

    def _flush(self) -> None:
        """Write the batch of this turn, if there is one."""
        batch = self._batch
        if not batch.appends:
            return
        try:
            self._check_leads()
        except CommitlogError as refusal:
            appends = batch.appends
            batch.start()
            for append in appends:
                self._open.refuse(append, refusal)
            return
        appends, body, marks, next_index = batch.appends, batch.body(), batch.marks, self._log.next_index
        batch.start()
        self._proposer.propose(body, appends, marks=marks)
        self._executor.carry_out()
        if self._log.next_index == next_index:
            self._withdraw_decided(next_index)

    def _withdraw_decided(self, first_index: int) -> None:
        """The batch that begins at first_index was not stored: nothing that was decided on it counts."""
        decided, self._decided = self._decided, []
        for each in decided:
            if each.end_index >= first_index:
                each.fail(StorageFull(self._node_id))
            else:
                self._decided.append(each)

    # --- what a command reads: app.log.commands.LeaderView------------------------------------------------

    @property
    def begin_index(self) -> int:
        return self._log.begin_index

    @property
    def committed_index(self) -> int:
        return self._core.committed_index

    @property
    def max_cursors(self) -> int:
        return self._limits.max_cursors

    def changed_group(self, kind: ChangeKind, node_id: str) -> GroupConfig | None:
        return self._core.change(kind, node_id, self._clock.monotonic_ms())
