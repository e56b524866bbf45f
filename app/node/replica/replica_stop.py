"""Clean stop of a replica: others lead, or hold what it holds, then what a restart needs is saved."""

import math
from collections.abc import Callable
from functools import partial

from app.node.replica.ready_executor import ReadyExecutor
from app.node.replica.replica_parts import ReplicaParts


class ReplicaStop:
    """Owned by the log's driver, which ends between `is_due` and `save`."""

    def __init__(self, parts: ReplicaParts, executor: ReadyExecutor) -> None:
        self._core = parts.core
        self._clock = parts.services.clock
        self._disk = parts.disk
        self._files = parts.files
        self._state = parts.state
        self._syncer = parts.syncer
        self._executor = executor
        self._hand_over_timeout_ms = parts.services.driver.hand_over_timeout_ms
        self._deadline_ms = -math.inf  # of the wait for the others
        self._done: Callable[[], None] | None = None

    @property
    def is_wanted(self) -> bool:
        """True from `begin` on."""
        return self._done is not None

    def begin(self, done: Callable[[], None]) -> None:
        """Stop; done(): the replica has stopped."""
        self._done = done

    def hand_over(self) -> None:
        """Begin to hand over to the others (R-09, H-07), if the core may be called."""
        if not self._executor.is_busy:
            now_ms = self._clock.monotonic_ms()
            self._core.hand_over(now_ms)
            if self._core.is_transferring:
                self._deadline_ms = now_ms + self._hand_over_timeout_ms
            self._executor.carry_out()

    @property
    def is_due(self) -> bool:
        """True once the next leader is known, so that waiting requests can be sent to it, or is late."""
        if self._done is None or self._executor.is_busy:
            return False
        is_known = self._core.leader_id is not None and not self._core.is_transferring
        return is_known or self._clock.monotonic_ms() >= self._deadline_ms

    def save(self) -> None:
        """Sync the log, save the checkpoint and the state, and note the clean stop; then done()."""
        self._disk.request_sync(self._syncer, partial(self._synced, self._done or (lambda: None)))

    def end(self) -> None:
        """The driver has ended without a `save`: call done, if a stop was begun."""
        if self._done is not None:
            self._done()

    def _synced(self, done: Callable[[], None]) -> None:
        self._state.save_all()
        self._disk.submit(self._note, lambda _result, _error: done())

    def _note(self) -> None:
        """Blocks: in the disk thread."""
        self._files.clean_stop.stopped()
        self._files.origin.renew_if_noted()
