"""Epoch of a classic master: its own that continues, or the next one, which it opens (A-01, H-07). PURE.

The number of an epoch is durable before its control record, and the epoch is open once that record is. Before
it, the master waits for the other replicas (opening.py): so many of them must vouch that one holds each
synchronous append which this copy may lack.
"""

from typing import Final

from app.ha.classic.needs import SlaveNeeds
from app.ha.classic.opening import FoundCopy, Opening, may_lack
from app.ha.classic.slaves import Slave
from app.ha.log import HaLog, is_empty
from app.log.contract import NO_INDEX, LogOptions
from app.log.control_records import TermRecord
from app.log.events import TermKnown
from app.log.recorded_values import SyncFloor
from app.raft.state import MemberState, Outbox
from storage.format.batch import Batch
from storage.log.hard_state import HardState

_RETRY_MS: Final = 1_000  # between attempts to write the record on a full disk: each is undone by syncs


class MasterEpoch:
    """waiting: the reports that this master waits for, None: it waits for none. control: the record that
    opens the epoch, None: it is written or needs none. open_index: index of that record."""

    def __init__(
        self,
        member: MemberState,
        log: HaLog,
        outbox: Outbox,
        *,
        found: FoundCopy,
        needs: SlaveNeeds,
        options: LogOptions,
        grace_ms: int,
    ) -> None:
        """grace_ms: time of the other replicas to connect."""
        vote = found.vote
        self._member = member
        self._log = log
        self._outbox = outbox
        self._replicas = member.group.voters
        self._needs = needs
        self._unclean = options.unclean
        self._raised_from = options.raised_from
        self._recorded = found.floor
        self._grace_ms = grace_ms
        self._opened_term = vote.term if vote.voted_for == member.node_id else NO_INDEX
        self._is_new = found.begins and vote == HardState()
        self._may_lack = may_lack(vote)
        self.waiting: Opening | None = None
        self.control: TermRecord | None = None
        self.open_index = NO_INDEX
        self._before = found.floor  # `_recorded` without the record of this epoch
        self._retry_ms: int | None = None  # the disk has no space for that record: when it is tried again

    @property
    def is_open(self) -> bool:
        if self.waiting is not None or self.control is not None:
            return False
        return NO_INDEX < self.open_index <= self._log.durable_index

    @property
    def waits_for(self) -> str | None:
        """Return why the epoch is not open, for an operator; None: nothing prevents it."""
        if self._retry_ms is not None:
            return "the disk is full: there is no space for the record that opens the epoch"
        if self.waiting is None:
            return None
        if not self.may_proceed:
            return (
                "this copy lacks older records or the log's state before them: make another replica the "
                "master, or set unclean = true to lose them"
            )
        return self.waiting.reason

    @property
    def may_proceed(self) -> bool:
        return self._member.electable or self._is_mine

    @property
    def _is_mine(self) -> bool:
        """Return whether this copy has opened the newest epoch of the log (A-01).

        The name of its leader proves nothing: a replaced disk may have received the log from another replica.
        """
        epochs, member = self._log.epochs, self._member
        newest = bool(epochs) and (epochs[-1].leader, epochs[-1].term) == (member.node_id, member.term)
        return newest and self._opened_term == member.term

    # --- settings ------------------------------------------------------------------------------------------

    @property
    def _required(self) -> int:
        """Number of the other replicas that must vouch before an epoch is opened: all but those slaves that
        surely held each synchronous append which this copy may lack.

        By the settings, with the smallest floor that the log has had, and by the newest epoch of this copy:
        it holds everything that was acknowledged before that, and a later epoch with fewer needs the settings
        to be known here. A copy that may have lost what it acknowledged itself needs one more.
        """
        if self._is_mine or is_empty(self._log):
            return 0
        others, known = len(self._replicas) - 1, self._recorded
        if known is None:
            return others
        floor = self._raised_from - 1 if self._raised_from else self._needs.floor
        sure = min(self._needs.least(floor), known.sync_slaves) - self._may_lack
        return min(others, max(0, max(others, known.slaves) - sure))

    @property
    def _floor(self) -> tuple[int, int]:
        """(slaves that hold each synchronous append, at least; slaves) by the present settings."""
        return self._needs.least(self._needs.floor), len(self._replicas) - 1

    @property
    def _is_as_recorded(self) -> bool:
        known = self._recorded
        return known is not None and (known.sync_slaves, known.slaves) == self._floor

    @property
    def _term_record(self) -> TermRecord:
        sync_slaves, slaves = self._floor
        return TermRecord(leader=self._member.node_id, sync_slaves=sync_slaves, slaves=slaves)

    def apply_options(self, options: LogOptions) -> None:
        """The settings, and the needs of this epoch, have changed."""
        self._unclean = options.unclean
        self._raised_from = options.raised_from
        if self.control is not None:
            self.control = self._term_record
        if self.waiting is not None:
            self.waiting.require(self._required)
            if self._unclean:
                self._proceed()

    # --- opening -------------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> None:
        """Wait for the other replicas; then continue the epoch of this node, or open the next one."""
        if self._unclean or len(self._replicas) == 1:
            self._proceed()
        else:
            self._wait(now_ms)

    def _wait(self, now_ms: int) -> None:
        self.control = self._retry_ms = None
        may_have_held = not self._is_new and self._opened_term != self._member.term
        self.waiting = Opening(
            [replica for replica in self._replicas if replica != self._member.node_id],
            required=self._required,
            needs_all=is_empty(self._log) and may_have_held,
            grace_ms=self._grace_ms,
            now_ms=now_ms,
        )

    def verified(self, slave: Slave, *, empty: bool) -> None:
        """The slave holds only a beginning of this log; empty: nothing at all."""
        if self.waiting is None:
            return
        if empty:
            self.waiting.empty(slave.id)
        elif slave.history is not None and slave.history.in_doubt:
            self.waiting.doubted(slave.id)
        else:
            self.waiting.heard(slave.id)

    def object(self, slave: Slave, reason: str, now_ms: int) -> None:
        """The slave's log differs: a newer one may hold what this copy lacks, so the epoch waits."""
        log, history = self._log, slave.history
        newer = history is None or (history.epoch, history.end_offset) > (log.last_term, log.end_offset)
        if not newer:
            return
        if self.waiting is None and history is not None and not self._unclean:
            self._wait(now_ms)
        if self.waiting is not None:
            self.waiting.object(slave.id, reason)

    def tick(self, now_ms: int) -> None:
        if self._retry_ms is not None and now_ms >= self._retry_ms:
            self._retry_ms, self.control = None, self._term_record
        if self.waiting is not None and self.may_proceed and self.waiting.is_complete(now_ms):
            self._proceed()

    def _proceed(self) -> None:
        """Continue this node's epoch if its record still holds; or begin the next one, whose number is
        durable before its record."""
        member = self._member
        self.waiting = None
        if self._is_mine and self._is_as_recorded:
            self.open_index = self._log.end_index
        else:
            member.term += 1
            self._opened_term = member.term
            self._outbox.hard_state = HardState(member.term, member.node_id)
            self.control = self._term_record
        self._outbox.record(member.term, TermKnown(term=member.term, leader=member.node_id))

    def proposed(self, batch: Batch) -> None:
        """A batch enters the log: its record opens the epoch, if that is wanted."""
        if self.control is not None and batch.is_control:
            self._before, self._recorded = self._recorded, SyncFloor(batch.last_index, *self._floor)
            self.control = None
            self.open_index = batch.last_index

    def abandoned(self, first: Batch, now_ms: int) -> None:
        """Batches from this one on did not enter the log, for lack of space: the record is tried again later.
        At once would be without end: the driver writes what the core wants before it waits."""
        if first.base_index == self.open_index:
            self.open_index, self._recorded = NO_INDEX, self._before
            self._retry_ms = now_ms + _RETRY_MS
