"""Settings of a log that change while its replica runs: they apply from the driver's next turn on."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from app.log.contract import NO_INDEX, Durability, LogOptions
from app.node.replica.replica_parts import ReplicaParts
from app.node.replica.weaker_durability import WeakerDurability


class ReplicaOptions:
    """Owned by the log's driver."""

    def __init__(
        self,
        parts: ReplicaParts,
        durability: Durability,
        ask_turn: Callable[[], None],
        fail: Callable[[str, BaseException], None],
    ) -> None:
        """durability: that the log opened with. ask_turn(): schedule the next turn of the driver. fail(what,
        error): the disk has failed."""
        self.durability = durability  # in force
        # Index up to which an earlier setting let records be acknowledged unsynced, and the log's truncations
        # by then: each of them syncs what it leaves.
        self._unsynced = (NO_INDEX, 0)
        self._log = parts.files.log
        self._core = parts.core
        self._syncer = parts.syncer
        self._appends = parts.appends
        self._ask_turn = ask_turn
        note = partial(parts.files.clean_stop.opened, acks_unsynced=True)
        self._weaker = WeakerDurability(
            parts.files.log_name, durability, parts.disk, note, self._note_is_durable, fail
        )
        self._newest: LogOptions | None = None  # since the start
        self._due: LogOptions | None = None  # not applied yet

    def change(self, options: LogOptions) -> None:
        """Apply changed settings at the next turn."""
        self._newest = self._due = options
        self._ask_turn()

    @property
    def is_due(self) -> bool:
        """True if `apply` has something to do."""
        return self._due is not None

    def apply(self, now_ms: int) -> None:
        """Apply what is due. The core may give a Ready then. now_ms: monotonic."""
        options, self._due = self._due, None
        if options is None:
            return
        options = replace(options, durability=self._weaker.allowed(options.durability, now_ms))
        if options.durability is not self.durability:
            if self.durability is Durability.REPLICATED:
                self._unsynced = (self._log.end_index, self._log.truncation_count)
            self.durability = options.durability
            self._syncer.change_durability(options.durability)
            self._appends.change_durability(options.durability)
        self._core.apply_options(options, now_ms)
        self._core.synced(now_ms)

    @property
    def held_index(self) -> int:
        """As LogDriver.held_index."""
        log, (unsynced_index, truncation_count) = self._log, self._unsynced
        if self.durability is not Durability.FSYNC:
            return log.end_index
        is_same_log = log.truncation_count == truncation_count
        return max(log.durable_index, unsynced_index) if is_same_log else log.durable_index

    def tick(self, now_ms: int) -> None:
        """Do what is due. now_ms: monotonic."""
        self._weaker.tick(now_ms)

    def _note_is_durable(self) -> None:
        """Let the log acknowledge unsynced records from now on, if the settings still permit it."""
        self._due = self._newest
        self._ask_turn()
