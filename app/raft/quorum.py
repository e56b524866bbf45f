"""Quorum ack checker (D-22 to D-29): watermarks of the peers, committed index, waiting appends."""

from collections.abc import Iterable, Mapping, Sequence

from app.log.contract import NO_INDEX, Acks, AppendFate, PendingAppend, ReplicaLog
from app.log.events import Watermarks
from app.log.pending_appends import PendingAppends
from app.raft.config import RaftConfig
from app.raft.state import MemberState, Outbox, is_of_term


def quorum_index(watermarks: Iterable[int]) -> int:
    """Return the highest index that a majority of the voters holds (D-24).

    watermarks: one per voter, including the leader; inclusive, NO_INDEX for none. The record at the result
    may still be of an older term: the caller checks R-05.
    """
    ordered = sorted(watermarks, reverse=True)
    return ordered[len(ordered) // 2]


class QuorumChecker:
    """Active while its member leads; watermarks and waiting appends belong to the current term only (D-23).

    Invariant: no waiting append is at or below what its acks need, once `check` has run.
    """

    def __init__(self, state: MemberState, log: ReplicaLog, outbox: Outbox, config: RaftConfig) -> None:
        self._state = state
        self._log = log
        self._outbox = outbox
        self._config = config
        self._watermarks: dict[str, int] = {}
        self._unsound: dict[str, None] = {}  # peers whose acknowledgements do not count
        self._pending = PendingAppends()
        self._last_leak_check_ms = 0
        self._published_ms = 0
        self._published: tuple[int, dict[str, int]] = (NO_INDEX, {})
        self.needs_check = False

    @property
    def watermarks(self) -> Mapping[str, int]:
        """peer -> last acknowledged index of the current term; empty unless this member leads."""
        return self._watermarks

    def open_term(self, now_ms: int) -> None:
        """This member starts to lead: there are no acknowledgements in this term yet."""
        group = self._state.group
        self._unsound = {}  # a peer has no watermark before its first answer
        self._watermarks = dict.fromkeys(group.members, NO_INDEX)
        self._watermarks[self._state.node_id] = self._state.held_index(self._log)
        self._last_leak_check_ms = now_ms
        self.needs_check = True
        self._publish(now_ms)

    def regroup(self) -> None:
        """The group has changed: new members have acknowledged nothing, former members do not count
        (R-10)."""
        group, marks = self._state.group, self._watermarks
        own = {self._state.node_id: marks[self._state.node_id]}
        peers = {peer: marks.get(peer, NO_INDEX) for peer in group.members}
        self._watermarks = peers | own
        self.needs_check = True

    def close_term(self, now_ms: int) -> None:
        """Leadership is lost: the outcome of waiting appends is unknown (D-23)."""
        self._publish(now_ms)
        self._outbox.answers += self._pending.close()
        self._watermarks = {}
        self.needs_check = False

    def set_watermark(self, peer: str, index: int) -> None:
        """Record what the peer holds (D-03); less than before, if its log was lost."""
        self._watermarks[peer] = index
        self.needs_check = True

    def raise_watermark(self, peer: str, index: int) -> None:
        """The member has acknowledged everything up to `index` (D-10)."""
        if index > self._watermarks[peer]:
            self._watermarks[peer] = index
            self.needs_check = True

    def wrote(self) -> None:
        """This leader has written more; with `fsync` it holds more only after a sync."""
        self.raise_watermark(self._state.node_id, self._state.held_index(self._log))

    def set_sound(self, peer: str, sound: bool) -> None:
        """Record whether the peer's acknowledgements count."""
        if sound is not (peer not in self._unsound):
            if sound:
                del self._unsound[peer]
            else:
                self._unsound[peer] = None
            self.needs_check = True

    def is_sound(self, peer: str) -> bool:
        """Return whether the peer's acknowledgements count."""
        return peer not in self._unsound

    def _counted(self, voter: str) -> int:
        return NO_INDEX if voter in self._unsound else self._watermarks[voter]

    def add(self, appends: Sequence[PendingAppend]) -> None:
        """Add new appends of one batch, in index order, after all that wait."""
        self._pending.add(appends)

    def join(self, append: PendingAppend) -> None:
        """Add an append that is already in the log at its place among those that wait."""
        self._pending.join(append)
        self.needs_check = True

    def drop(self, first_index: int) -> None:
        """The batch from `first_index` on was never stored: refuse its appends."""
        self._outbox.answers += self._pending.drop(first_index)

    def check(self) -> None:
        """Commit what a majority holds (D-24, R-05) and answer the appends that waited for it (D-25).

        A majority of the witnesses must hold it, too, or at least the group's record and one of this term:
        the first alone does not keep them from electing a leader of a term in between, which lacks it.
        """
        self.needs_check = False
        state = self._state
        self._watermarks[state.node_id] = state.held_index(self._log)
        index = quorum_index(self._counted(voter) for voter in state.group.voters)
        if witnesses := state.needed_witnesses:
            held = quorum_index(self._counted(voter) for voter in witnesses)
            knows_group = held >= state.group_index and is_of_term(self._log, held, state.term)
            index = index if knows_group else min(index, held)
        if index > state.committed_index and is_of_term(self._log, index, state.term):
            state.committed_index = index
        self._release()

    def tick(self, now_ms: int) -> None:
        if now_ms - self._last_leak_check_ms >= self._config.leak_check_interval_ms:  # D-27
            self._last_leak_check_ms = now_ms
            self._release()
        self._outbox.answers += self._pending.time_out(now_ms, AppendFate.TIMED_OUT)  # D-26
        quiet_ms = now_ms - self._published_ms
        if quiet_ms >= self._config.watermarks_interval_ms or (
            quiet_ms >= self._config.watermarks_moving_interval_ms
            and self._published != (self._state.committed_index, self._watermarks)
        ):
            self._publish(now_ms, is_repeat=True)

    def _publish(self, now_ms: int, *, is_repeat: bool = False) -> None:
        """Record the position of every member in the journal (D-22)."""
        state, log = self._state, self._log
        self._published_ms = now_ms
        self._published = (state.committed_index, dict(self._watermarks))
        watermarks = Watermarks(
            role=state.role.value,
            begin_index=log.begin_index,
            end_index=log.end_index,
            committed_index=state.committed_index,
            peers=dict(self._watermarks),
        )
        self._outbox.record(state.term, watermarks, is_repeat=is_repeat)

    def _release(self) -> None:
        """Answer every append whose acks are complete, in the order of indexes."""
        if not self._pending.wait:
            return
        marks = self._watermarks
        committed = self._state.committed_index
        reached = {
            Acks.LEADER: marks[self._state.node_id],
            Acks.QUORUM: committed,
            Acks.ALL: min(committed, *(self._counted(voter) for voter in self._state.group.voters)),
        }
        self._outbox.answers += self._pending.release(reached)
