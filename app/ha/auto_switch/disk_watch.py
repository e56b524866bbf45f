"""Detection of a master whose disk hangs. PURE."""

from app.ha.auto_switch.master_side import MasterSide
from app.ha.parts import CoreParts
from app.log.contract import NO_INDEX, Durability


class DiskWatch:
    """Time since the durable end of the log last moved while records of an open master waited for it."""

    def __init__(self, parts: CoreParts) -> None:
        self._member = parts.member
        self._log = parts.log
        self._timeout_ms = parts.config.ha_disk_timeout_ms
        self._durable_index = NO_INDEX  # at the last check
        self._since_ms = 0

    def hangs(self, now_ms: int, master: MasterSide | None) -> bool:
        """Return whether records of an open master have waited too long for its disk.

        It acknowledges nothing without it, and another member of the set could lead. One that was asked for
        may be in the set already: the answer reaches this node by a log on the same disk. The controllers
        judge the opening.
        """
        durable_index = self._log.durable_index
        is_open = master is not None and master.open
        if not is_open or durable_index >= self._log.end_index or durable_index != self._durable_index:
            self._durable_index, self._since_ms = durable_index, now_ms
        return (
            now_ms - self._since_ms >= self._timeout_ms
            and self._member.durability is Durability.FSYNC
            and master is not None
            and len(master.set.counted) > 1
        )
