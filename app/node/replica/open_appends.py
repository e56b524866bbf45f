"""Open appends: from the request until the answer, each answered once."""

from collections.abc import Callable

from app.errors import (
    CommitlogError,
    FlushSlaveTimeout,
    QuorumTimeout,
    RequestOutstanding,
    StorageFull,
    TermChanged,
)
from app.log.commands import Command, CommandResult
from app.log.contract import (
    NO_INDEX,
    Acks,
    AppendFate,
    AppendRequest,
    AppendResult,
    Durability,
    PendingAppend,
)
from app.log.schema_gate import RecordCheck
from app.log.state import Claim
from app.node.replica.commit_waiters import answer
from app.node.replica.confirmed_answers import ConfirmedAnswer
from storage.errors import InvariantError
from storage.format.batch import Batch
from storage.log.commitlog import Commitlog

AppendDone = Callable[[AppendResult | CommitlogError], None]
CommandDone = Callable[[CommandResult | CommitlogError], None]


class OpenAppend:
    """An append, or a group of them, without an answer yet. claim: of the first one, if this is a retry.
    check: against the schema of the log, if that rejects records. is_queued: it has not entered the log."""

    __slots__ = ("arrived_ms", "check", "claim", "deadline_ms", "done", "is_queued", "request", "stamped")

    def __init__(self, request: AppendRequest, done: AppendDone, now_ms: int) -> None:
        self.request = request
        self.done = done
        self.arrived_ms = now_ms  # monotonic
        self.deadline_ms = now_ms + request.timeout_ms
        self.is_queued = True
        self.check: RecordCheck | None = None
        self.claim: Claim | None = None
        self.stamped: Stamped | None = None

    @property
    def count(self) -> int:
        return self.request.records.count

    def pending(self, first_index: int, last_index: int) -> PendingAppend:
        """Return the part that the core keeps while it waits for the acks."""
        return PendingAppend(first_index, last_index, self.request.acks, self.deadline_ms, self)


class OpenCommand:
    """A command of app/log/commands.py without an answer yet; it became, or may become, a record."""

    __slots__ = ("command", "deadline_ms", "done", "stamped")
    count = 1

    def __init__(self, command: Command, done: CommandDone, deadline_ms: int) -> None:
        self.command = command
        self.done = done
        self.deadline_ms = deadline_ms  # monotonic
        self.stamped: Stamped | None = None

    def pending(self, first_index: int, last_index: int) -> PendingAppend:
        """Return the part that the core keeps while it waits for the acks."""
        return PendingAppend(first_index, last_index, Acks.QUORUM, self.deadline_ms, self)

    def settle(self, pending: PendingAppend, fate: AppendFate, term: int, node_id: str) -> None:
        if fate is AppendFate.ACKNOWLEDGED:
            answer(self.done, CommandResult(pending.last_index, term, True))
        elif fate is AppendFate.TERM_CHANGED:
            answer(self.done, TermChanged())
        elif fate is AppendFate.REFUSED:
            answer(self.done, StorageFull(node_id))
        else:
            answer(self.done, QuorumTimeout(pending.first_index))


class Stamped:
    """Common part of the answers of one batch's appends. leader: of its term, None until it is asked for."""

    __slots__ = ("first_offset", "leader", "next_offset", "term", "timestamp_ms")

    def __init__(self, batch: Batch) -> None:
        self.term = batch.term
        self.first_offset = batch.offset
        self.next_offset = batch.next_offset
        self.timestamp_ms = batch.timestamp_ms
        self.leader: str | None = None


class OpenAppends:
    """Counts all unanswered appends and their bytes, and answers them."""

    def __init__(self, node_id: str, durability: Durability, log: Commitlog) -> None:
        self.count = 0  # a group counts as many as it has
        self.size_bytes = 0
        self._node_id = node_id
        self._durability = durability
        self._log = log
        self._unsynced_index = NO_INDEX  # the last one that was pushed with `replicated` in this incarnation

    def change_durability(self, durability: Durability) -> None:
        """Set what answers report from now on. Peers may acknowledge what is in the log now by the weaker of
        both durabilities, or have done so: they are asked for it with each push."""
        if self._durability is Durability.REPLICATED:
            self._unsynced_index = self._log.end_index
        self._durability = durability

    def add(self, request: AppendRequest, done: AppendDone, now_ms: int) -> OpenAppend:
        self.count += request.appends
        self.size_bytes += request.records.size_bytes
        return OpenAppend(request, done, now_ms)

    def grow(self, append: OpenAppend, size_bytes: int, now_ms: int) -> None:
        """Another append joins a group. The deadline becomes its own: no member may time out early."""
        self.count += 1
        self.size_bytes += size_bytes
        append.request.appends += 1
        append.deadline_ms = now_ms + append.request.timeout_ms

    def refuse(self, append: OpenAppend, refusal: CommitlogError) -> None:
        self._answer(append, refusal)

    def settle(self, pending: PendingAppend, fate: AppendFate, committed_index: int, next_index: int) -> None:
        """Answer an append whose wait has ended. committed_index, next_index: of the log at this instant."""
        append: OpenAppend | OpenCommand | ConfirmedAnswer = pending.token
        if isinstance(append, ConfirmedAnswer):
            append.settle(fate)
        elif isinstance(append, OpenCommand):
            append.settle(pending, fate, self._log.last_term, self._node_id)
        elif fate is AppendFate.ACKNOWLEDGED:
            self._answer(append, self._result(append, pending, committed_index, next_index))
        elif fate is AppendFate.TERM_CHANGED:
            self._answer(append, TermChanged())
        elif fate is AppendFate.REFUSED:
            self._answer(append, StorageFull(self._node_id))
        elif fate is AppendFate.TOO_FEW_SLAVES:
            self._answer(append, FlushSlaveTimeout(pending.first_index))
        elif append.claim is not None:
            self._answer(append, RequestOutstanding())
        else:
            self._answer(append, QuorumTimeout(pending.first_index))

    def _answer(self, append: OpenAppend, result: AppendResult | CommitlogError) -> None:
        """Answer an append. After a failure, or an unknown outcome, no later append of its stream may
        enter."""
        stream = append.request.stream
        if stream is not None and isinstance(result, CommitlogError):
            stream.broken = True
        append.is_queued = False
        self.count -= append.request.appends
        self.size_bytes -= append.request.records.size_bytes
        answer(append.done, result)

    def _result(
        self, append: OpenAppend, pending: PendingAppend, committed_index: int, next_index: int
    ) -> AppendResult:
        source: Claim | Stamped | None = append.claim or append.stamped
        if source is None:
            raise InvariantError("an append was acknowledged that was never stamped")
        if isinstance(source, Claim):
            leader = self._leader_of(source.term)
        else:
            leader = source.leader = source.leader or self._leader_of(source.term)
        return AppendResult(
            first_index=pending.first_index,
            last_index=pending.last_index,
            count=pending.last_index - pending.first_index + 1,
            term=source.term,
            first_offset=source.first_offset,
            next_offset=source.next_offset,
            timestamp_ms=source.timestamp_ms,
            committed_index=committed_index,
            next_index=next_index,
            leader=leader,
            acks=append.request.acks,
            durability=self._durability_at(pending.last_index),
            replayed=append.claim is not None,
        )

    def _durability_at(self, index: int) -> Durability:
        return Durability.REPLICATED if index <= self._unsynced_index else self._durability

    def _leader_of(self, term: int) -> str:
        """Return the leader of the batch's term: every term opens with a record that names its leader.

        After a trim of its records a term is unknown: then the node that answers the retry takes its place.
        """
        epochs = self._log.epochs
        for epoch in reversed(epochs):
            if epoch.term == term:
                return epoch.leader
        if epochs and term < epochs[0].term:
            return self._node_id
        raise InvariantError(f"the log holds a record of term {term} and not its opening")
