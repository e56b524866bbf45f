"""What all replicas of one node share: its files, disk, clock, connections and limits."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from app.log.contract import (
    AppendLimits,
    Clock,
    DriverConfig,
    Lanes,
    Scheduler,
    SpaceReserve,
    Transport,
)
from storage.errors import CorruptLog
from storage.file_system import FileSystem
from storage.log.commitlog import CommitlogConfig


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
    (R-11). driver: timing of all drivers. reserve: space for a full disk; None: no reserve.
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

    def log_folder(self, log_name: str) -> str:
        """Return the folder of a log's replica: DATA/logs/NAME."""
        return f"{self.data_folder}/logs/{log_name}"

    def journal_folder(self, log_name: str) -> str:
        """Return the folder of the node's journal of a log: DATA/journal/NAME."""
        return f"{self.data_folder}/journal/{log_name}"


@dataclass(frozen=True, kw_only=True)
class ReplicaEvents:
    """What a driver reports to its node, each at most once.

    healed(): a core that was not sound has become so; None: not reported. damaged(error): the log was found
    damaged, and this driver has ended; None: damage fails the node.
    """

    healed: Callable[[], None] | None = None
    damaged: Callable[[CorruptLog], None] | None = None
