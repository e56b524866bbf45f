"""The interface of every replication mode. Those of a driver's I/O: app/log/driver_interfaces.py.

A *core* (raft/, and ha/ for controller and classic mode) is a pure state machine over a log. The driver feeds
it events and carries out its decisions:

    core.step(source, message, now_ms)        a message arrived; also: time passed, a sync ended
    while (ready := core.ready()) is not None:
        hard state on disk, truncation, batches written, messages sent, answers given, in this order
        core.advance(ready, now_ms)           the log now is as the core requested

The driver carries out each `Ready` before it feeds the next event, so a core always sees the current log. A
written batch is not yet synced: the driver calls `core.synced` when `ReplicaLog.durable_index` has moved
(R-11).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from app.errors import CommitlogError
from app.log.control_records import AnyControlRecord
from app.log.events import JournalEvent
from app.log.producers import Producer
from storage.format.batch import BATCH_MAX_BYTES, Batch
from storage.format.records import RecordColumns, RecordTable
from storage.log.hard_state import HardState
from storage.units import MIB
from storage.units import NO_INDEX as NO_INDEX

if TYPE_CHECKING:
    from app.raft.messages import GroupNotice

APPEND_MAX_BYTES: Final = BATCH_MAX_BYTES - MIB  # of packed records; the rest is for header and marks


class Role(StrEnum):
    """Role of a replica in its group (docs/api.md §2)."""

    LEADER = "leader"
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    LEARNER = "learner"
    REMOVED = "removed"  # not a member of the group: another node answers for the log
    MASTER = "master"
    SLAVE = "slave"


class Acks(StrEnum):
    """Replicas that must hold an append before it is answered (docs/api.md §3)."""

    LEADER = "leader"
    QUORUM = "quorum"
    ALL = "all"


class Durability(StrEnum):
    """Meaning of `to hold` in a log: on disk, or written to the operating system (docs/api.md §3)."""

    FSYNC = "fsync"
    REPLICATED = "replicated"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Settings of a log that may change while it runs. preferred: the node that should lead, in Raft mode.
    unclean: a classic master opens an epoch without hearing the other replicas. raised_from: the smallest
    min_in_sync_replicas that the log had before it was raised, 0: never raised.

    min_in_sync_replicas: minimum size of the SyncStateSet (C-12), 1 for none. in_sync_replicas:
    number of members of the set that must hold an append, 0 for all. durability: of acknowledgements after
    the change; appends acknowledged under a weaker durability keep that one.
    """

    durability: Durability
    min_in_sync_replicas: int = 1
    preferred: str | None = None
    in_sync_replicas: int = 0
    unclean: bool = False
    raised_from: int = 0


class ReplicaLog(Protocol):
    """Read access of a core to its log. Indexes are inclusive, NO_INDEX for none; only the driver writes."""

    @property
    def begin_index(self) -> int: ...
    @property
    def first_index(self) -> int:
        """begin_index; of an empty log the index of its first record."""
        ...

    @property
    def end_index(self) -> int: ...
    @property
    def durable_index(self) -> int: ...
    @property
    def next_index(self) -> int:
        """end_index + 1; of an empty log the index of its first record."""
        ...

    @property
    def end_offset(self) -> int:
        """Byte position after the last batch, exclusive."""
        ...

    @property
    def last_term(self) -> int:
        """The term of the record at end_index, 0 of an empty log."""
        ...

    @property
    def last_position(self) -> tuple[int, int]:
        """Term and index of the last record; of an empty log those of its beginning: everything before it was
        committed, and the record at the beginning has that term (0: unknown)."""
        ...

    def term_at(self, index: int) -> int:
        """The term that wrote the record at `index`, which the log holds; NO_INDEX's term is 0."""
        ...

    def last_index_of_term_at_most(self, term: int) -> int:
        """The last index whose term is at most `term`, NO_INDEX if there is none (D-13)."""
        ...

    def floor_batch_end(self, index: int) -> int:
        """The largest last index of a batch that is at most `index`, NO_INDEX if there is none."""
        ...

    def batch_at(self, index: int) -> Batch:
        """The batch that holds the record at `index`."""
        ...

    def read_batches(
        self, from_index: int, max_bytes: int, until_index: int | None = None
    ) -> Sequence[Batch]:
        """Whole batches from the one that holds `from_index`; at least one, else within `max_bytes`."""
        ...

    def holds(self, batch: Batch) -> bool:
        """Return whether this very batch (index, term, content) is in the log (D-17)."""
        ...


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """The replicas of a log, in the order of the configuration."""

    voters: tuple[str, ...]
    learners: tuple[str, ...] = field(default=())

    @property
    def members(self) -> tuple[str, ...]:
        """Voters and learners."""
        return (*self.voters, *self.learners)


class ChangeKind(StrEnum):
    """A change of a group's membership (R-10)."""

    ADD = "add"  # as a learner
    PROMOTE = "promote"  # to a voter
    REMOVE = "remove"


@dataclass(slots=True)
class AppendStream:
    """Appends of one ordered stream. After one failed, or its outcome is unknown, the stream is `broken`:
    no later append of it enters the log."""

    broken: bool = False


class AppendRequest(msgspec.Struct):
    """One client's append: its records are consecutive in one batch, or none is stored.

    records: rows to be packed with those of other appends, or a table that stays a batch of its own; at most
    APPEND_MAX_BYTES packed. digest: of the decoded records and conditions, 16 bytes; only with a key or a
    producer. timeout_ms: 1 to 60 000; after it the outcome is unknown (D-26). appends: number of clients'
    appends in it, for the limits: a group of them grows while it is queued (LogDriver.grow).
    """

    records: RecordColumns | RecordTable
    acks: Acks = Acks.QUORUM
    timeout_ms: int = 5_000
    match_index: int | None = None
    match_term: int | None = None
    fencing_token: str | None = None
    idempotency_key: str | None = None
    producer: Producer | None = None
    digest: bytes = b""
    stream: AppendStream | None = None
    appends: int = 1


class AppendResult(msgspec.Struct, frozen=True):
    """Answer to an append that is as durable as `acks` requires (docs/api.md §2). Offsets are byte
    positions."""

    first_index: int
    last_index: int
    count: int
    term: int
    first_offset: int
    next_offset: int
    timestamp_ms: int
    committed_index: int
    next_index: int
    leader: str
    acks: Acks
    durability: Durability
    replayed: bool = False


class PendingAppend(msgspec.Struct):
    """An append that is in the leader's log and waits for its acks. `token` belongs to the driver."""

    first_index: int
    last_index: int
    acks: Acks
    deadline_ms: int
    token: Any


class AppendFate(StrEnum):
    """Result of the wait of a pending append."""

    ACKNOWLEDGED = "acknowledged"
    TERM_CHANGED = "term-changed"  # D-23, outcome unknown
    TIMED_OUT = "quorum-timeout"  # D-26, outcome unknown
    TOO_FEW_SLAVES = "flush-slave-timeout"  # H-07: the master keeps it
    REFUSED = "refused"  # it was never stored: Core.abandon


@dataclass(frozen=True, slots=True)
class TruncateAfter:
    """Remove every record after `index` (a batch's last index, or NO_INDEX: all)."""

    index: int


@dataclass(frozen=True, slots=True)
class Reset:
    """Empty the log; its next record has `base_index` and is at byte `base_offset` (D-12 3, 4, 7).

    base_term: of that record if it is known to be committed, otherwise 0.
    """

    base_index: int
    base_offset: int
    base_term: int = 0


@dataclass(frozen=True, slots=True)
class CoreEvent:
    """An event of a core for the node's journal, in the term of the core. is_repeat: it may state the same as
    the one before of its kind."""

    term: int
    event: JournalEvent
    is_repeat: bool = False

    @property
    def kind(self) -> str:
        return self.event.kind

    @property
    def data(self) -> dict[str, Any]:
        return self.event.data


class Ready(msgspec.Struct, frozen=True):
    """Actions of the driver, in the order of the fields. Empty fields are None or ()."""

    hard_state: HardState | None = None  # on disk (fsynced) before anything below
    truncate: TruncateAfter | Reset | None = None  # durable before `batches`
    batches: tuple[Batch, ...] = ()  # written at the log's end, not yet synced
    messages: tuple[tuple[str, Any], ...] = ()  # (peer id, message): may leave before the own fsync ends
    answers: tuple[tuple[PendingAppend, AppendFate], ...] = ()
    reads: tuple[tuple[Any, int | None], ...] = ()  # (token, read index); None: leadership was not confirmed
    events: tuple[CoreEvent, ...] = ()


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Progress of one peer at its leader (docs/api.md §2). `lag_bytes` is None when unknown.

    heard_ms: monotonic time of its last answer, at the earliest the beginning of the leadership; None while
    its HA connection is open. is_node: False for a slave that names no node (H-02): its id is a connection's.
    """

    id: str
    state: str
    watermark: int
    pending: int
    lag_bytes: int | None
    acked_offset: int | None = None  # byte after what it has acknowledged (HA)
    bytes_per_s: int | None = None  # bytes per second sent to it, over about a second (HA)
    in_sync: bool | None = None
    reason: str | None = None  # reason for which it is refused
    heard_ms: int | None = None
    is_node: bool = True
    has_room: bool = True  # False while it reports to its leader that its disk is full (Raft)


@dataclass(frozen=True, slots=True)
class MasterLink:
    """A slave's connection to its master. state: CONNECTING, TRANSFER, WAITING (for the next attempt).

    reported_offset: byte end that it reported last, None before a report. reason: why the last connection
    ended, None while it has one.
    """

    state: str
    reported_offset: int | None
    bytes_per_s: int
    reason: str | None


@dataclass(frozen=True, slots=True)
class CoreStatus:
    """State of a core at one instant, for status, routing and metrics."""

    role: Role
    term: int
    leader_id: str | None
    committed_index: int
    peers: tuple[PeerStatus, ...] = ()
    learners: tuple[str, ...] = ()
    master: str | None = None
    epoch: int = 0
    sync_state_set: tuple[str, ...] | None = None
    confirm_offset: int | None = None
    acks_needed: int | None = None  # slaves that must hold a synchronous append now (classic mode)
    waits_for: str | None = None  # why a classic master has not opened its epoch
    without_lease: bool = False  # a master in controller mode that accepts and confirms nothing now
    below_floor_ms: int | None = None  # time as master with fewer than min_in_sync_replicas in sync
    link: "MasterLink | None" = None  # of a slave


class ReplicationCore(Protocol):
    """A replication mode. Pure: the same events give the same decisions. Times are monotonic milliseconds."""

    @property
    def role(self) -> Role: ...
    @property
    def term(self) -> int: ...
    @property
    def leader_id(self) -> str | None: ...
    @property
    def committed_index(self) -> int: ...
    @property
    def accepts_appends(self) -> bool:
        """True if this replica accepts appends now (it leads, and its term is open)."""
        ...

    @property
    def due_ms(self) -> float:
        """Time of the next tick that must not wait for the long interval of a quiet node; inf: none."""
        ...

    def start(self, now_ms: int) -> None: ...
    def step(self, source: str, message: Any, now_ms: int) -> None: ...
    def tick(self, now_ms: int) -> None: ...
    def propose(self, batch: Batch, appends: Sequence[PendingAppend], now_ms: int) -> None:
        """Append a batch that the driver stamped with this core's term at the log's end."""
        ...

    @property
    def wants_control(self) -> AnyControlRecord | None:
        """The control record that the core wants appended next (R-05), None for none.

        The driver stamps it and gives it to `propose` without appends.
        """
        ...

    def join(self, append: PendingAppend, now_ms: int) -> None:
        """Wait for the acks of an append that is already in the log: a retry by key (docs/api.md §3)."""
        ...

    @property
    def refusal(self) -> CommitlogError | None:
        """The refusal of new appends although this replica leads (C-12); None when they are accepted."""
        ...

    @property
    def is_transferring(self) -> bool:
        """True if this leader transfers leadership (R-09), or stops while slaves lack records (H-07)."""
        ...

    @property
    def pauses_appends(self) -> bool:
        """True if appends wait until the next leader is known (R-09), or this node stops (H-07)."""
        ...

    @property
    def sound(self) -> bool:
        """False while this replica may lack what it acknowledged (its disk was damaged): it has no vote."""
        ...

    @property
    def knows_vote(self) -> bool:
        """False while this replica may have lost its term and vote; then it is not sound either."""
        ...

    takes_unreplicated: bool  # appends with acks=leader are accepted in spite of `refusal`

    electable: bool
    """Set by the driver: false while this copy lacks what a leader needs: the log's state (keys, cursors),
    and with needs_all_records every record that was not trimmed."""

    @property
    def needs_all_records(self) -> bool:
        """True if a copy can begin after records that its leader holds: such a copy must not lead."""
        ...

    has_room: bool  # set by the driver: false while its disk has no space for clients' records
    may_found: bool  # set by the driver: false while other nodes report another group of a new log
    may_truncate: bool  # whether an uncommitted record at a leader can be truncated: not in classic mode

    runs_ahead: bool  # its committed index may exceed what its leader knows to be committed (H-08)

    def transfer(self, to: str | None, now_ms: int) -> str:
        """Transfer leadership to `to`, or to the most up-to-date peer; return its id. Raises
        TransferFailed, AlreadyLeader."""
        ...

    def hand_over(self, now_ms: int) -> None:
        """This node is about to stop: a Raft leader transfers leadership if a voter can (R-09); a classic
        master takes no more appends, and waits for the slaves in sync (H-07)."""
        ...

    def change(self, kind: ChangeKind, node_id: str, now_ms: int) -> GroupConfig | None:
        """Return the group after a change, for a membership record; None if it is already so (R-10).

        Raises ChangeInProgress, NotCaughtUp, WouldLoseQuorum, NotFound, InvalidRequest.
        """
        ...

    def configure(
        self,
        group: GroupConfig,
        index: int,
        now_ms: int,
        nodes: Mapping[str, tuple[str, str]] = ...,
        *,
        settled: bool = False,
    ) -> None:
        """Adopt the group of the log's newest membership record, at `index` (NO_INDEX: the configured group).

        nodes: id -> (base URL, host:port for peers) of the members whose addresses the record gives. settled:
        the record is known to be committed, perhaps beyond the committed index here: no former voter is
        needed.
        """
        ...

    @property
    def notice(self) -> "GroupNotice | None":
        """The group as known by a peer that does not count this replica as a member, else None (R-10)."""
        ...

    def apply_options(self, options: LogOptions, now_ms: int) -> None:
        """Adopt changed settings of the log from now on. A call of `synced` follows."""
        ...

    @property
    def waiting_reads(self) -> int:
        """Number of reads that wait for a confirmation (R-08)."""
        ...

    def read_index(self, token: Any, now_ms: int) -> None:
        """Ask for the index that a linearizable read must see; the answer is in Ready.reads (R-08)."""
        ...

    def synced(self, now_ms: int) -> None: ...
    def ready(self) -> Ready | None: ...
    def advance(self, ready: Ready, now_ms: int) -> None: ...
    def abandon(self, ready: Ready, now_ms: int) -> None:
        """The batches of `ready` could not be written (disk full): the core continues as if it had not
        asked for them."""
        ...

    def stop(self, now_ms: int) -> None:
        """Give up leadership and answer all waiting callers; the core is not used afterwards."""
        ...

    def status(self) -> CoreStatus: ...
    def watermarks(self, term: int | None = None) -> dict[int, dict[str, int]]: ...
