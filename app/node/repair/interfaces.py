"""Inputs and results of a repair, and the methods that it needs of its node (log_repair.py)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto
from typing import Final, Protocol

from msgspec import UNSET

from app.log.contract import NO_INDEX
from app.log.events import JournalEvent, Repair
from app.log.state import LogState
from app.node.repair.marker import RepairMarker
from app.node.replica.driver import LogDriver
from storage.errors import CorruptFile, CorruptLog
from storage.file_system import FileSystem
from storage.format.batch import Batch
from storage.log.commitlog import CommitlogConfig

Damaged = CorruptLog | CorruptFile
_REPORTED_MAX: Final = 100  # ranges listed in one event


class RepairState(StrEnum):
    SURVEYING = "surveying"
    FETCHING = "fetching"
    WAITING = "waiting"  # no peer can help yet
    OPENING = "opening"


class RangeOutcome(Enum):
    """Outcome of the repair of one range."""

    RESTORED = auto()
    SURVEY_AGAIN = auto()  # the log begins later, or the disk reads what it did not
    UNCOMMITTED = auto()  # the group has other records there, or none
    LOST = auto()


@dataclass(slots=True)
class RepairResult:
    """Progress of the repair: the data of the event `repair`."""

    stretches: list[dict[str, int]] = field(default_factory=list)
    batches: int = 0
    size_bytes: int = 0
    peers: dict[str, None] = field(default_factory=dict)
    small_files: dict[str, None] = field(default_factory=dict)
    set_aside: bool = False
    begin_index: int | None = None  # where the log begins now: all peers had trimmed a damaged range

    def as_event(self) -> Repair:
        return Repair(
            state="healed",
            stretches=self.stretches[:_REPORTED_MAX],
            batches=self.batches,
            bytes=self.size_bytes,
            peers=list(self.peers),
            small_files=list(self.small_files),
            set_aside=self.set_aside,
            begin_index=UNSET if self.begin_index is None else self.begin_index,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedCopy:
    """This node's copy of a log, which is offline.

    voters, learners: of the group, including this node. votes: the group elects; otherwise controllers or the
    configuration choose the leader, and the vote file only holds the epoch that this copy has opened.
    state_type: of the log's state. is_configured: voters and learners are those of the configuration, because
    the log was not open since the start: it may name others. settled_voters: what the function of this name
    returned when the log was open last. predates_folder(): the log existed before the data folder of this
    node, so the settings here may be older than its group; may block on the disk.
    """

    files: FileSystem
    folder: str
    log_name: str
    log_id: int
    node_id: str
    voters: Sequence[str]
    storage: CommitlogConfig
    marker: RepairMarker
    learners: Sequence[str] = ()
    votes: bool = True
    state_type: type[LogState] = LogState
    is_configured: bool = False
    settled_voters: Sequence[str] = ()
    predates_folder: Callable[[], bool] = lambda: False

    @property
    def is_of_pair(self) -> bool:
        """True if this copy is of one of two Raft voters, whose group is known to be committed. The other one
        holds all that both have committed, but settles nothing without this one: its answer decides what was
        never committed. The group before may have committed records without the other one."""
        settled = set(self.settled_voters)
        return self.votes and len(settled) == 2 and settled == set(self.voters) and self.node_id in settled


def settled_voters(state: LogState) -> tuple[str, ...]:
    """Return the voters that the newest membership record names, if it is known to be committed, else ().
    A committed group before it may have the same voters, and one between the two others."""
    newest = state.membership
    return newest.voters if newest is not None and newest == state.settled_membership else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundDamage:
    """The damage that was found first, and what the copy was before.

    sound: nothing that the copy acknowledged or voted before was missing. held_index: index up to which this
    replica may have acknowledged when the damage was found; damage up to it is not a torn tail.
    """

    cause: Damaged
    found_by: str
    sound: bool
    held_index: int = NO_INDEX


class OfflineCopy(Protocol):
    """A log under repair, which gives its peers what is intact."""

    async def term(self) -> int | None:
        """Return its saved term; TERM_UNKNOWN if that may be older than its last one, None if it is not known
        yet. Raises StorageError."""
        ...

    async def held(
        self, first_index: int, last_index: int, max_bytes: int, *, committed: bool
    ) -> Sequence[Batch]:
        """Return consecutive intact batches from `first_index` on. committed: no others. Raises
        StorageError."""
        ...


class RepairHost(Protocol):
    """Methods that the node provides for a repair; all except `open_log` run on the loop."""

    def record(self, event: JournalEvent) -> None:
        """Write an event to the journal of the log."""
        ...

    def open_log(self, *, sound: bool) -> LogDriver:
        """Open the log; blocks, in a thread. Raises CorruptLog, CorruptFile, DiskError."""
        ...

    def serve(self, driver: LogDriver) -> None:
        """Take part in replication with the opened log."""
        ...

    def fail(self, what: str, error: BaseException) -> None: ...
