"""The way into a log at its leader: appends and commands wait here for their turn, and become batches.

Everything that has come since the last turn shares batches, as far as it fits (group commit). While the lead
is handed over, all wait for the next leader to be known: then they enter here, or go there (R-09).
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

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
    NO_INDEX,
    Acks,
    AppendLimits,
    AppendRequest,
    ChangeKind,
    Clock,
    DriverConfig,
    GroupConfig,
    ReplicationCore,
)
from app.log.state import Claim, LogState
from app.node.replica.append_checks import (
    Coalescing,
    check_conditions,
    check_memory,
    check_quota,
    check_repeat,
)
from app.node.replica.commit_waiters import answer
from app.node.replica.confirmed_answers import ConfirmedAnswer
from app.node.replica.log_space import LogSpace
from app.node.replica.open_appends import CommandDone, Done, OpenAppend, OpenAppends, OpenCommand, Stamped
from storage.format.batch import BATCH_MAX_BYTES, AppendMark, EncodedBody, stamp
from storage.format.records import encode_body, encode_control
from storage.log.commitlog import Commitlog

APPEND_MAX_BYTES = BATCH_MAX_BYTES - 1024 * 1024  # packed; the rest is for header and marks
COMMAND_TIMEOUT_MS = 5_000
COMMANDS_MAX = 1_000


class Door:
    """Owned by one driver. `carry_out` does what the core wants; `is_busy`: it waits for the disk."""

    def __init__(
        self,
        *,
        node_id: str,
        log_id: int,
        core: ReplicationCore,
        log: Commitlog,
        state: LogState,
        clock: Clock,
        limits: AppendLimits,
        config: DriverConfig,
        open_appends: OpenAppends,
        carry_out: Callable[[], None],
        space: LogSpace,
        is_busy: Callable[[], bool],
    ) -> None:
        self._node_id = node_id
        self._log_id = log_id
        self._core = core
        self._log = log
        self._state = state
        self._clock = clock
        self._limits = limits
        self._open = open_appends
        self._carry_out = carry_out
        self._space = space
        self._is_busy = is_busy
        self._appends: deque[OpenAppend] = deque()
        self._queued_bytes = 0  # of self._appends
        self._commands: deque[OpenCommand] = deque()
        self._batch = Coalescing(config.coalesce_max_bytes)
        self._stamped_ms = 0  # of the last batch, ms since 1970
        self._decided: list[ConfirmedAnswer] = []  # in this turn
        self._confirming: list[ConfirmedAnswer] = []  # what they rest on is not confirmed yet

    # --- what waits

    def append(self, request: AppendRequest, done: Done, refusal: CommitlogError | None) -> None:
        """Queue an append, or answer it at once with the refusal given. Raises ValueError (LogDriver)."""
        size_bytes, packed_bytes = request.records.size_bytes, request.records.packed_bytes
        if not request.records.count or packed_bytes > APPEND_MAX_BYTES:
            raise ValueError(f"{request.records.count} records of {packed_bytes} bytes are no append")
        append = self._open.add(request, done, self._clock.monotonic_ms())
        if refusal is not None:
            self._open.refuse(append, refusal)
        elif self._appends and (
            len(self._appends) >= self._limits.max_pending_requests
            or self._queued_bytes + size_bytes > self._limits.max_pending_bytes
        ):
            self._open.refuse(append, LeaderPendingFull())
        else:
            self._appends.append(append)
            self._queued_bytes += size_bytes

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

    def refuse_all(self, refusal: CommitlogError) -> None:
        for append in (*self._batch.appends, *self._appends):
            self._open.refuse(append, refusal)
        for command in self._commands:
            answer(command.done, refusal)
        for decided in self._decided:
            decided.fail(refusal)
        self._decided.clear()
        self._batch.start()
        self._appends.clear()
        self._commands.clear()
        self._queued_bytes = 0

    def tick(self, now_ms: int) -> None:
        """Refuse what has waited until its deadline: for the next leader, for the disk that writes a term, or
        for a confirmation. Nothing of it was applied."""
        self._confirming = [each for each in self._confirming if each.waits_until(now_ms)]
        self._decided = [each for each in self._decided if each.waits_until(now_ms)]
        refusal: Callable[[], CommitlogError]
        if self._core.pauses_appends:
            refusal = LeaderTransferring
        elif self._is_busy():
            refusal = partial(NoLeader, "the disk is writing a term or a truncation: nothing was applied")
        else:
            return
        appends, commands = self._appends, self._commands
        self._appends = deque(append for append in appends if append.deadline_ms > now_ms)
        self._commands = deque(command for command in commands if command.deadline_ms > now_ms)
        for append in appends:
            if append.deadline_ms <= now_ms:
                self._queued_bytes -= append.request.records.size_bytes
                self._open.refuse(append, refusal())
        for command in commands:
            if command.deadline_ms <= now_ms:
                answer(command.done, refusal())

    # --- entering

    def enter(self, now_ms: int) -> None:
        """Let in what waits, as long as the driver need not wait for the disk."""
        if self._core.pauses_appends:
            return
        while self._commands and not self._is_busy():
            self._admit_command(self._commands.popleft(), now_ms)
        while self._appends and not self._is_busy():
            request = self._appends[0].request
            if self._batch.decides_about(request) or not self._batch.has_room_for(request):
                self._flush()  # its outcome may decide about the next append: all is checked again
                continue
            append = self._appends.popleft()
            self._queued_bytes -= append.request.records.size_bytes
            try:
                self._admit(append, now_ms)
            except CommitlogError as refusal:
                self._open.refuse(append, refusal)
            except Exception:
                if append.claim is None:  # it is not in the core's hands: it waits again, until refuse_all
                    self._appends.appendleft(append)
                    self._queued_bytes += append.request.records.size_bytes
                raise
        if not self._is_busy():
            self._flush()
        if not self._is_busy():
            self._confirm_decided(now_ms)

    def _check_leads(self) -> None:
        core = self._core
        if not core.accepts_appends:
            if core.leader_id in (None, self._node_id):
                raise NoLeader(None if core.refusal is None else core.refusal.detail)
            raise NotLeader(core.leader_id)

    def _admit(self, append: OpenAppend, now_ms: int) -> None:
        """Put the append into the batch of this turn, or find the answer of its first time."""
        core, request, batch = self._core, append.request, self._batch
        if request.stream is not None and request.stream.broken:
            raise RequestOutstanding("an earlier append of the stream was refused")
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
        except CommitlogError as failed:
            self._decide_refusal(append, failed)
            return
        no_room = refusal or self._space.refusal(now_ms)
        if no_room is not None:
            raise no_room
        check_memory(self._limits, self._state, batch, request)
        waiting = core.pending_appends + len(batch.appends)
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
        self, give: Callable[[], None], fail: Callable[[CommitlogError], None], deadline_ms: int
    ) -> None:
        """The log's state as it is, with the batch of this turn in it, has decided an answer."""
        end_index = self._log.next_index + self._batch.count - 1
        self._decided.append(
            ConfirmedAnswer(give, fail, end_index=end_index, term=self._core.term, deadline_ms=deadline_ms)
        )

    def _confirm_decided(self, now_ms: int) -> None:
        """Give the answers that were decided in this turn, or let them wait for what they rest on."""
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
            elif self._log.end_index < each.end_index:  # the batch of this turn was refused
                each.fail(StorageFull())
            elif core.may_truncate:
                pending = each.pending() if each.end_index > core.committed_index else None
                core.read_index(each.reader(), now_ms)
                if pending is not None:
                    core.join(pending, now_ms)
                self._confirming.append(each)
            else:
                each.give()
        self._carry_out()

    def _join(self, append: OpenAppend, claim: Claim, now_ms: int) -> None:
        """A repeat: it gets the first one's answer, now or when that has its acks."""
        append.claim = claim
        self._core.join(append.pending(claim.first_index, claim.last_index), now_ms)
        self._carry_out()

    def _admit_command(self, command: OpenCommand, now_ms: int) -> None:
        """Decide the command, and write its record; what is so already is answered once it is committed."""
        try:
            self._check_leads()
        except CommitlogError as refusal:
            answer(command.done, refusal)
            return
        try:
            value = command.command.control(self._state, self)
        except CommitlogError as refusal:
            self._decide_command(command, refusal)
            return
        if value is None:
            self._decide_command(command, CommandResult(self._log.end_index, self._core.term, False))
            return
        self._propose(encode_control(value), [command], control=True)
        self._carry_out()

    def _decide_command(self, command: OpenCommand, result: CommandResult | CommitlogError) -> None:
        self._decide(
            lambda: answer(command.done, result),
            lambda refusal: answer(command.done, refusal),
            command.deadline_ms,
        )

    def _flush(self) -> None:
        """Write the batch of this turn, if there is one."""
        batch = self._batch
        if batch.records is None:
            return
        try:
            self._check_leads()
        except CommitlogError as refusal:
            appends = batch.appends
            batch.start()
            for append in appends:
                self._open.refuse(append, refusal)
            return
        appends, body, marks = batch.appends, encode_body(batch.records), batch.marks
        batch.start()
        self._propose(body, appends, marks=marks)
        self._carry_out()

    def open_term(self, value: dict[str, Any]) -> None:
        """Write the control record that the core wants. No timestamp after it is below the log's last."""
        if self._log.end_index != NO_INDEX:
            self._stamped_ms = self._log.batch_at(self._log.end_index).timestamp_ms
        self._propose(encode_control(value), [], control=True)

    def _propose(
        self,
        body: EncodedBody,
        waiting: Sequence[OpenAppend | OpenCommand],
        *,
        marks: Sequence[AppendMark] = (),
        control: bool = False,
    ) -> None:
        """Stamp a batch for the log's end and hand it to the core."""
        log, term = self._log, self._core.term
        self._stamped_ms = max(self._stamped_ms, self._clock.now_ms())
        batch = stamp(
            body,
            log_id=self._log_id,
            base_index=log.next_index,
            term=term,
            timestamp_ms=self._stamped_ms,
            offset=log.end_offset,
            previous_chain=log.last_chain,
            control=control,
            marks=marks,
        )
        stamped, first_index, pendings = Stamped(batch), batch.base_index, []
        for each in waiting:
            next_index = first_index + each.count
            each.stamped = stamped
            pendings.append(each.pending(first_index, next_index - 1))
            first_index = next_index
        self._core.propose(batch, pendings, self._clock.monotonic_ms())

    # --- what a command may look at

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
