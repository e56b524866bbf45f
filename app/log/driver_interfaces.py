"""Interfaces between a driver and its I/O: all time, threads, network and scheduling pass through these.

app/node implements them on real clocks, files and sockets; tests/simulation on simulated ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from app.log.contract import CoreStatus, Durability
from storage.units import KIB, MIB


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall clock, milliseconds since 1970 UTC: for timestamps only."""
        ...

    def monotonic_ms(self) -> int:
        """Never decreases: for timeouts."""
        ...


class Scheduler(Protocol):
    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run after everything that has already arrived in this turn of the loop."""
        ...


class SyncSource(Protocol):
    """A file with bytes that are written but not yet durable: a log or a journal."""

    def start_sync(self) -> Any: ...
    def finish_sync(self, ticket: Any) -> None: ...


class Disk(Protocol):
    """The disk work of one log: one piece at a time, in order."""

    def submit(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` on a disk thread, then `then(result, error)` on the owner's loop."""
        ...

    def request_sync(self, source: SyncSource, then: Callable[[], None]) -> None:
        """Sync `source` soon, one sync of it at a time for everything written meanwhile (group commit).

        Requests for a source that already waits are merged. `then()` runs on the owner's loop, after
        `finish_sync`. A failed sync stops the node (R-11): `then` is never called.
        """
        ...


class Lanes(Protocol):
    """The disk of a node, where each log has a lane of its own."""

    def lane(self, name: str) -> Disk:
        """Return the lane of the log `name`; every caller with that name gets the same lane."""
        ...


class WorkerPool(Protocol):
    """Threads for work that takes the processor for long."""

    def run(self, work: Callable[[], Any], then: Callable[[Any, BaseException | None], None]) -> None:
        """Run `work` beside the loop, then `then(result, error)` on the owner's loop. Pieces of work run in
        any order, several at a time."""
        ...


class SpaceReserve(Protocol):
    """Disk space that the node holds back (app/node/reserve.py)."""

    @property
    def size_bytes(self) -> int: ...
    @property
    def in_use(self) -> bool: ...
    def release(self, *, keep_bytes: int = 0) -> bool:
        """Release a part of it, down to keep_bytes; return False if nothing more can be released."""
        ...


class Transport(Protocol):
    def send(self, target: str, log_id: int, message: Any) -> None:
        """Send a message, best effort: it may be lost, duplicated or late. Never blocks, never raises."""
        ...


@dataclass(frozen=True, slots=True)
class ReplicaStatus:
    """Status of a log at this node at one instant: of the core and of the log."""

    core: CoreStatus
    begin_index: int
    end_index: int
    next_index: int
    end_offset: int
    durability: Durability


class AppendLimits(Protocol):
    """Limits of what waits at a leader (D-29); the node's limits satisfy this protocol."""

    @property
    def max_pending_requests(self) -> int: ...
    @property
    def max_pending_bytes(self) -> int:
        """Bytes of records of appends that are not answered yet."""
        ...

    @property
    def max_idempotency_keys(self) -> int:
        """Idempotency keys that a log remembers; new keys beyond it are refused."""
        ...

    @property
    def max_producers(self) -> int:
        """Producers that a log remembers; new producers beyond it are refused."""
        ...

    @property
    def max_cursors(self) -> int:
        """Cursors of a log; new cursors beyond it are refused."""
        ...


@dataclass(frozen=True, kw_only=True)
class DriverConfig:
    """Settings of a driver. Milliseconds and bytes."""

    coalesce_max_bytes: int = 4 * MIB  # appends of one turn share batches up to this size
    checkpoint_interval_ms: int = 3_000  # D-20
    snapshot_interval_ms: int = 60_000  # of the log's state: limits what a restart replays
    hand_over_timeout_ms: int = 1_000  # longest time that a planned stop waits for the next leader
    state_chunk_bytes: int = 512 * KIB  # of the state that a replica requests from its leader
    read_timeout_ms: int = 10_000  # of a confirmed read whose index this replica does not reach
    sync_interval_ms: int = 10  # with `replicated` durability no append waits for the sync: delay at most
