"""Inputs of a replica: the services that all replicas of a node share, its own files, and its events."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from app.log.driver_interfaces import (
    AppendLimits,
    Clock,
    DriverConfig,
    Lanes,
    Scheduler,
    SpaceReserve,
    Transport,
    WorkerPool,
)
from app.node.workers import InPlace
from storage.errors import CorruptLog
from storage.file_system import FileSystem
from storage.log.checkpoint import CheckpointFile, SnapshotFile
from storage.log.clean_stop import CleanStop
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.hard_state import HardStateFile
from storage.log.journal import Journal
from storage.log.origin import FolderOrigin


class LogLimits(AppendLimits, Protocol):
    """Limits of a log on a node."""

    @property
    def idempotency_ms(self) -> int:
        """Minimum time for which a log remembers an idempotency key, milliseconds."""
        ...


@dataclass(frozen=True, kw_only=True)
class NodeServices:
    """Services of one node, made once and handed to every replica.

    data_folder: absolute path of DATA. version: of this program, for the journals. random: seeded by chance,
    so that no two incarnations of a node draw the same numbers. fail(what, error): stop the node at once
    (R-11). driver: timing of all drivers. reserve: space for a full disk; None: no reserve. workers: for work
    that takes the processor for long.
    """

    node_id: str
    version: str
    data_folder: str
    files: FileSystem
    storage: CommitlogConfig
    limits: LogLimits
    clock: Clock
    disk: Lanes
    transport: Transport
    scheduler: Scheduler
    random: Random
    fail: Callable[[str, BaseException], None]
    driver: DriverConfig = field(default_factory=DriverConfig)
    reserve: SpaceReserve | None = None
    workers: WorkerPool = field(default_factory=InPlace)

    def log_folder(self, log_name: str) -> str:
        """Return the folder of a log's replica: DATA/logs/NAME."""
        return f"{self.data_folder}/logs/{log_name}"


@dataclass(frozen=True, kw_only=True)
class ReplicaFiles:
    """The files of one replica, owned by its driver while that runs.

    DATA/logs/NAME/     log (segments, manifest, epochs), vote (hard_state), checkpoint, state (snapshot),
                        opened (clean_stop), origin
    DATA/journal/NAME/  journal: the events that this node has observed of the log

    safe_index: of the snapshot, as load_state found it.
    """

    log_name: str
    log_id: int
    log: Commitlog
    journal: Journal
    hard_state: HardStateFile
    checkpoint: CheckpointFile
    snapshot: SnapshotFile
    clean_stop: CleanStop
    origin: FolderOrigin
    safe_index: int


@dataclass(frozen=True, kw_only=True)
class ReplicaEvents:
    """Reports of a driver to its node, each at most once.

    healed(): a core that was not sound has become so; None: not reported. damaged(error): the log was found
    damaged, and this driver has ended; None: damage fails the node.
    """

    healed: Callable[[], None] | None = None
    damaged: Callable[[CorruptLog], None] | None = None
