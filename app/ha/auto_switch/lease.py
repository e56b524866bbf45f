"""The lease of one replica, under which it acts as master (A-11). PURE."""


class HeldLease:
    """End of the lease, and figures about it for metrics. Times are monotonic milliseconds."""

    def __init__(self) -> None:
        self._until_ms: int | None = None
        self._is_bound = False  # to the epoch that it was granted for
        self._ticked_ms: int | None = None
        self._had_it = False  # at the last tick, as master
        self.lapses = 0  # leases that ended while this replica was master, since it was opened
        self.below_floor_ms = 0  # time as master with fewer than min_in_sync_replicas in the set

    def is_over(self, now_ms: int) -> bool:
        """Return whether there is no lease at that time."""
        return self._until_ms is None or now_ms > self._until_ms

    def remaining_ms(self, now_ms: int) -> int:
        """Return the remaining time of the lease, 0 without one."""
        return 0 if self._until_ms is None else max(0, self._until_ms - now_ms)

    def bind(self, *, is_bound: bool) -> None:
        """A lease was granted; is_bound: for one epoch. Once bound, it ends with its epoch."""
        self._is_bound = self._is_bound or is_bound

    def extend(self, until_ms: int) -> bool:
        """The lease lasts until then. Return whether that is later than before."""
        if self._until_ms is not None and until_ms <= self._until_ms:
            return False
        self._until_ms = until_ms
        return True

    def begin_epoch(self) -> None:
        """This replica is master of another epoch: a lease that was bound to the former one is over."""
        if self._is_bound:
            self._until_ms, self._is_bound = None, False

    def measure(self, now_ms: int, *, is_open: bool, has_lease: bool, below_floor: bool) -> None:
        """Count lapsed leases, and the time below the floor. is_open: as master of an open epoch."""
        passed_ms = now_ms - (self._ticked_ms or now_ms)
        self.lapses += is_open and self._had_it and not has_lease
        if is_open and below_floor:
            self.below_floor_ms += passed_ms
        self._ticked_ms, self._had_it = now_ms, has_lease
