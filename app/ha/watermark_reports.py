"""Reports of a master about the position of every replica, for the journal. PURE."""

from collections.abc import Callable, Mapping

from app.ha.parts import CoreParts
from app.log.contract import NO_INDEX
from app.log.events import Watermarks


class WatermarkReports:
    """Records the watermarks of a master's replicas in the journal, as Raft's leader does (D-22)."""

    def __init__(self, parts: CoreParts, marks: Callable[[], Mapping[str, int]], now_ms: int) -> None:
        """marks: returns, by node, the last index that its copy has acknowledged."""
        self._member = parts.member
        self._log = parts.log
        self._outbox = parts.outbox
        self._config = parts.config
        self._marks = marks
        self._recorded_ms = now_ms
        self._recorded: tuple[int, dict[str, int]] = (NO_INDEX, {})

    def tick(self, now_ms: int) -> None:
        """Record them after a long interval, or after a short one if a position has changed."""
        config, quiet_ms = self._config, now_ms - self._recorded_ms
        if quiet_ms >= config.ha_watermarks_interval_ms or (
            quiet_ms >= config.ha_watermarks_moving_interval_ms and self._recorded != self._current()
        ):
            self.record(now_ms, is_repeat=True)

    def record(self, now_ms: int, *, is_repeat: bool = False) -> None:
        """Record them now. is_repeat: as in CoreEvent."""
        self._recorded_ms = now_ms
        self._recorded = self._current()
        committed_index, peers = self._recorded
        watermarks = Watermarks(
            role=self._member.role.value,
            begin_index=self._log.begin_index,
            end_index=self._log.end_index,
            committed_index=committed_index,
            peers=peers,
        )
        self._outbox.record(self._member.term, watermarks, is_repeat=is_repeat)

    def _current(self) -> tuple[int, dict[str, int]]:
        return (self._member.committed_index, dict(self._marks()))
