"""Carries out what the core of a log decides: to the log, the disk, the peers, the journal and the clients.

Work that only a disk thread may do (a hard state or a truncation) is done first and alone: until it is
durable the executor is busy, and nothing else happens in the log. So it is while the log's state is rebuilt
from the log, a piece in each turn of the loop: other logs, and what the node promises in time, do not wait.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from app.errors import ReadIndexUnavailable
from app.log.contract import (
    NO_INDEX,
    AppendFate,
    Ready,
    Reset,
    Role,
)
from app.node.replica.commit_waiters import answer
from app.node.replica.replica_parts import ReplicaParts
from storage.format.batch import Batch

MAX_INDEX: Final = 2**63 - 1


class ReadyExecutor:
    """Owned by one driver. Invariant: a Ready is carried out completely before the core gets other input.

    is_busy: a hard state or a truncation is being written, or the state is being rebuilt; the executor must
    not be called, except for `rebuild`.
    """

    def __init__(
        self,
        parts: ReplicaParts,
        *,
        disk_done: Callable[[BaseException | None], None],
        ask_turn: Callable[[], None],
        healed: Callable[[], None] | None,
    ) -> None:
        """disk_done(error): the disk has written a hard state or a truncation, or has failed; on success the
        driver calls `resume`. ask_turn(): schedule a turn of the driver, which calls `rebuild`. healed():
        called once, when the core has become sound; None: not called."""
        self.is_busy = False
        self._core = parts.core
        self._log = parts.files.log
        self._log_id = parts.files.log_id
        self._hard_state_file = parts.files.hard_state
        self._clock = parts.services.clock
        self._transport = parts.services.transport
        self._disk = parts.disk
        self._state = parts.state
        self._space = parts.space
        self._journal = parts.journal
        self._syncer = parts.syncer
        self._proposer = parts.proposer
        self._appends = parts.appends
        self._reads = parts.reads
        self._waiters = parts.waiters
        self._disk_done = disk_done
        self._ask_turn = ask_turn
        self._healed = healed
        self._unanswered: Ready | None = None  # being carried out, until its answers are given
        self._waits = False  # the unanswered Ready, for the state
        self._seen_committed = NO_INDEX

    def carry_out(self) -> None:
        """Do what the core wants until it wants nothing more, or until it must wait for the disk."""
        core = self._core
        while True:
            ready = core.ready()
            if ready is None:
                control = core.wants_control
                if control is None:
                    break
                self._state.begin_to_lead(self._journal)
                self._proposer.open_term(control)  # its Ready waits for the state
            elif ready.hard_state is None and ready.truncate is None:
                self._begin_epoch(ready)
                if self._waits_for_state():
                    return
                self._finish(ready)
            else:
                self._wait_for_disk(ready)
                return
        committed_index = core.committed_index
        if committed_index != self._seen_committed:
            self._seen_committed = committed_index
            self._log.settle(committed_index)
            self._state.committed(committed_index)
            self._waiters.wake(committed_index)
        if self._healed is not None and core.sound:
            healed, self._healed = self._healed, None
            healed()

    def resume(self) -> None:
        """Continue after the disk: `disk_done` was called without an error."""
        ready = self._unanswered
        if ready is not None:
            if ready.truncate is not None:
                self._state.truncated(ready.truncate)
            self._begin_epoch(ready)
            if self._waits_for_state():
                return
            self._finish(ready)
        self.carry_out()

    def rebuild(self) -> None:
        """Apply a piece of the log to the state, if that is being rebuilt; once it is complete, continue with
        the Ready that waits for it."""
        ready = self._unanswered
        if not self._waits or ready is None:
            return
        self._state.rebuild()
        if not self._waits_for_state():
            self._finish(ready)
            self.carry_out()

    def _waits_for_state(self) -> bool:
        """Return whether nothing may happen before the state is rebuilt: then a turn is due."""
        self._waits = self.is_busy = self._state.is_rebuilding
        if self._waits:
            self._ask_turn()
        return self._waits

    def _begin_epoch(self, ready: Ready) -> None:
        """Forget what the records of a new epoch may contradict, before they are stored."""
        self._unanswered = ready
        if ready.hard_state is not None:
            self._state.epoch_began(self._log.next_index)
        term = self._core.term  # in classic mode a slave learns of an epoch by its records
        if ready.batches and ready.batches[-1].term > term and not self._state.is_rebuilding:
            first = next(batch for batch in ready.batches if batch.term > term)
            self._state.epoch_began(first.base_index)

    def abandon(self) -> None:
        """Give the answers that the core has decided and that were not given yet: the driver has ended."""
        for ready in (self._unanswered, self._core.ready()):
            if ready is not None:
                self._answer_appends(ready)
                for done, _index in ready.reads:
                    answer(done, ReadIndexUnavailable())

    def _wait_for_disk(self, ready: Ready) -> None:
        self.is_busy = True
        ready = self._unanswered = self._give_refusals(ready)
        self._syncer.is_truncating = ready.truncate is not None

        def work() -> None:
            if ready.hard_state is not None:
                self._hard_state_file.save(ready.hard_state)
            if isinstance(ready.truncate, Reset):
                reset = ready.truncate
                self._log.reset(reset.base_index, reset.base_offset, reset.base_term)
            elif ready.truncate is not None:
                self._log.truncate_after(ready.truncate.index)

        def then(_result: Any, error: BaseException | None) -> None:
            self.is_busy = self._syncer.is_truncating = False
            self._disk_done(error)

        self._disk.submit(work, then)

    def _give_refusals(self, ready: Ready) -> Ready:
        """Answer the callers that have lost their leader; return the rest. The disk may hang, and these
        answers do not depend on it."""
        kept = tuple(each for each in ready.answers if each[1] is AppendFate.ACKNOWLEDGED)
        for pending, fate in ready.answers:
            if fate is not AppendFate.ACKNOWLEDGED:
                self._appends.settle(pending, fate, self._core.committed_index, self._log.next_index)
        for done, index in ready.reads:
            if index is None:
                answer(done, ReadIndexUnavailable())
        reads = tuple(each for each in ready.reads if each[1] is not None)
        return msgspec.structs.replace(ready, answers=kept, reads=reads)

    def _finish(self, ready: Ready) -> None:
        """Do everything except the work of the disk thread."""
        now_ms = self._clock.monotonic_ms()
        stored = not ready.batches or self._store(ready.batches, now_ms)
        if ready.truncate is not None:
            self._state.judge_electable()
        for target, message in ready.messages:
            self._transport.send(target, self._log_id, message)
        self._answer_appends(ready)
        for done, index in ready.reads:
            self._reads.give(done, index, now_ms)
        self._unanswered = None
        for event in ready.events:
            self._journal.record(event)
        if stored:
            self._core.advance(ready, now_ms)
        else:
            self._core.abandon(ready, now_ms)

    def _answer_appends(self, ready: Ready) -> None:
        for pending, fate in ready.answers:
            self._appends.settle(pending, fate, self._core.committed_index, self._log.next_index)

    def _store(self, batches: tuple[Batch, ...], now_ms: int) -> bool:
        """Write the batches, all or none; return False if the disk has no space for them."""
        leads = self._core.role in (Role.LEADER, Role.MASTER)
        if not self._space.write(self._log.append, batches, leads=leads, now_ms=now_ms):
            return False
        for batch in batches:
            self._state.state.apply(batch)
            if batch.is_control:
                self._journal.control(batch)
                self._state.group.refresh()  # after each: the core knows the group before it
        self._syncer.written(now_ms)
        return True
