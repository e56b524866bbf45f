"""Shared state of all parts of one Raft core: the member, and the contents of its next Ready."""

from dataclasses import dataclass
from typing import Any

from app.log.contract import (
    NO_INDEX,
    AppendFate,
    CoreEvent,
    Durability,
    GroupConfig,
    PendingAppend,
    Ready,
    ReplicaLog,
    Reset,
    Role,
    TruncateAfter,
)
from app.log.events import JournalEvent
from storage.format.batch import Batch
from storage.log.hard_state import HardState


@dataclass(slots=True)
class MemberState:
    """State of the member. Only core.py sets role, term, vote and leader; committed_index never decreases.

    sound: it holds all that it ever acknowledged or voted. An unsound member's acknowledgements and confirmed
    reads do not count, and its vote counts only when every voter grants (elections.py). electable: it holds
    the log's state; without that it does not campaign. may_found: false while other nodes report another
    group of the log: then a member neither campaigns nor votes before a record names its group. knows_group:
    `group` is that of the log's first opening, if no record names another one. is_named: a record of the log
    names the group. group_index: of the record that names another group than the configured one, NO_INDEX for
    none. former_voters: of the group that the newest one replaced; () if the newest was known to be committed
    when it was adopted.
    noticed_index: of a record that a peer knows to be committed, and that removes this member; NO_INDEX for
    none. stated_index and stated_by: the highest committed index that a leader has stated, as far as no later
    leader has shown that it is lost (EntryHandler.adopt_committed), and the last leader; NO_INDEX and None
    before the first one. A restart forgets both. leader_syncs: the leader that it follows promises `fsync`.
    unsynced_index: the last record that it may have acknowledged before it was synced, by an earlier setting,
    in the modes with a master; NO_INDEX for none.
    """

    node_id: str
    group: GroupConfig
    durability: Durability
    role: Role
    term: int
    voted_for: str | None
    committed_index: int
    leader_id: str | None = None
    sound: bool = True
    electable: bool = True
    may_found: bool = True
    knows_group: bool = True
    is_named: bool = False
    group_index: int = NO_INDEX
    former_voters: tuple[str, ...] = ()
    noticed_index: int = NO_INDEX
    stated_index: int = NO_INDEX
    stated_by: str | None = None
    leader_syncs: bool = False
    unsynced_index: int = NO_INDEX

    @property
    def leads(self) -> bool:
        return self.role is Role.LEADER

    @property
    def may_take_part(self) -> bool:
        """False for a member by which a second group of the log could begin."""
        return self.may_found or self.is_named

    @property
    def majority(self) -> int:
        """Number of voters that form a quorum."""
        return len(self.group.voters) // 2 + 1

    @property
    def every_voter(self) -> tuple[str, ...]:
        """Voters of the newest group, and of the former one until the newest is known to be committed.

        A voter that the newest group removes may lead without that record, and what it has committed may be
        held by one other voter. If that one forgets, the remaining voters of the newest group prove nothing.
        """
        if self.group_index <= self.committed_index:
            return self.group.voters
        return tuple(dict.fromkeys((*self.group.voters, *self.former_voters)))

    @property
    def needed_witnesses(self) -> tuple[str, ...]:
        """Voters of which a majority, too, must hold a record to commit it, and vote for a leader, until the
        record of the newest group is known to be committed (Standing.configure); () for none."""
        if self.group_index <= self.committed_index:
            return ()
        return self.former_voters if set(self.former_voters) <= set(self.group.members) else ()

    @property
    def needed_index(self) -> int:
        """Index that every candidate must hold, because the log is known to be committed up to it.

        What a leader has stated counts while that is no voter of the group here: the group is an old one, and
        all its voters may have begun again, as a new disk and a removed node that was added again. A voter
        shows by its own vote what it holds.
        """
        is_old = self.stated_by not in self.group.voters
        return max(self.committed_index, self.noticed_index, self.stated_index if is_old else NO_INDEX)

    def held_index(self, log: ReplicaLog) -> int:
        """The last index that this member may acknowledge: on disk with `fsync`, otherwise written (R-11).

        The stricter of its own setting and its leader's counts: a changed one does not reach all at once.

        A change of the group counts on disk only. A member that a power failure makes forget who votes could
        elect itself without the new voters, although they hold what was acknowledged since (R-10).
        """
        durable_index = log.durable_index
        if self.durability is Durability.FSYNC or (self.leader_syncs and not self.leads):
            return durable_index
        if durable_index < self.group_index <= log.end_index:
            return max(durable_index, self.group_index - 1)
        return log.end_index


def committed_at_open(log: ReplicaLog, committed_index: int) -> int:
    """Return the index up to which an opened log is known to be committed (D-20).

    committed_index: of the checkpoint, which may be seconds old. Only committed records are trimmed, and a
    reset has a beginning before which the leader has trimmed, so everything before the first record was
    committed.
    """
    return max(min(committed_index, log.end_index), log.first_index - 1)


def is_of_term(log: ReplicaLog, index: int, term: int) -> bool:
    """Return whether the log holds the record at `index`, written in `term`. NO_INDEX is not a record."""
    return index != NO_INDEX and log.begin_index <= index <= log.end_index and log.term_at(index) == term


class Outbox:
    """Collects the parts of the next Ready."""

    def __init__(self) -> None:
        self.hard_state: HardState | None = None
        self.truncate: TruncateAfter | Reset | None = None
        self.batches: list[Batch] = []
        self.messages: list[tuple[str, Any]] = []
        self.answers: list[tuple[PendingAppend, AppendFate]] = []
        self.reads: list[tuple[Any, int | None]] = []
        self.events: list[CoreEvent] = []

    @property
    def is_writing(self) -> bool:
        """True if a change of the log is pending: its present content is out of date."""
        return bool(self.truncate or self.batches)

    def send(self, target: str, message: Any) -> None:
        self.messages.append((target, message))

    def record(self, term: int, event: JournalEvent, *, is_repeat: bool = False) -> None:
        """Record an event in the node's journal. is_repeat: as in CoreEvent."""
        self.events.append(CoreEvent(term, event, is_repeat))

    def take(self) -> Ready | None:
        """Return everything collected and start empty; None if there is nothing."""
        if not (
            self.messages
            or self.batches
            or self.answers
            or self.hard_state
            or self.truncate
            or self.reads
            or self.events
        ):
            return None
        ready = Ready(
            self.hard_state,
            self.truncate,
            tuple(self.batches),
            tuple(self.messages),
            tuple(self.answers),
            tuple(self.reads),
            tuple(self.events),
        )
        self.__init__()  # type: ignore[misc]
        return ready
