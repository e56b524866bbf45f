"""Detection of a master whose disk hangs. PURE."""

from app.ha.auto_switch.master_side import MasterSide
from app.ha.parts import CoreParts
from app.log.contract import NO_INDEX, Durability


class DiskWatch:
    """Time since the disk of an open master last made progress while records waited for it."""

    def __init__(self, parts: CoreParts) -> None:
        self._member = parts.member
        self._log = parts.log
        self._timeout_ms = parts.config.ha_disk_timeout_ms
        self._progress = NO_INDEX  # at the last check
        self._since_ms = 0

    def hangs(self, now_ms: int, master: MasterSide | None) -> bool:
        """Return whether records of an open master have waited too long for its disk.

        It acknowledges nothing without it, and another member could lead. One that was asked for may be in
        the set already: the answer arrives in a log on the same disk. With `replicated` the disk counts once
        a member is lost, because the smaller set must be on it. The controllers judge the opening.
        """
        member, durable_index, end_index = self._member, self._log.durable_index, self._log.end_index
        is_open = master is not None and master.open
        waits, progress = is_open and durable_index < end_index, durable_index
        if member.durability is Durability.REPLICATED:
            waits = waits and member.committed_index < end_index
            progress += member.committed_index
        if not waits or progress != self._progress:
            self._progress, self._since_ms = progress, now_ms
        return (
            now_ms - self._since_ms >= self._timeout_ms and master is not None and len(master.set.counted) > 1
        )
