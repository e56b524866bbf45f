"""Work that a node repeats as long as it runs: the reserve, the scrub, retention of records and journals, and
a look for a disk that hangs."""

import logging
from functools import partial
from typing import Final

from app.node.disk import DiskThreads
from app.node.hosted_logs import HostedLogs
from app.node.repair.registry import Repairs
from app.node.repair.scrub import Scrubber
from app.node.reserve import Reserve
from app.node.retention.clocks import PeerClocks
from app.node.retention.journals import JournalKeeper
from app.node.retention.records import RetentionKeeper
from app.node.services import NodeServices
from app.node.tasks import TaskSupervisor
from app.pauses import rest
from app.settings.model import Settings
from storage.watched_files import WatchedSyncs

logger = logging.getLogger(__name__)

SLOW_SYNC_S: Final = 3.0  # time after which a sync is reported


class SlowSyncs:
    """Log one warning when a sync of the node's files has waited too long, and one when none does any more.

    Nothing else shows that a disk hangs: calls wait for it, and other nodes go on without this one.
    """

    def __init__(self, syncs: WatchedSyncs) -> None:
        self._syncs = syncs
        self._slow: tuple[float, str] | None = None  # the longest wait since the warning, and its file

    async def run(self) -> None:
        """Check once a second, as long as the node runs."""
        while True:
            await rest(1.0)
            self.check()

    def check(self) -> None:
        waited_s, path = self._syncs.longest()
        if waited_s >= SLOW_SYNC_S:
            if self._slow is None:
                text = "the disk hangs or is slow: a sync of %s has waited for %.0f s"
                logger.warning(text, path, waited_s)
            self._slow = max(self._slow or (0.0, ""), (waited_s, path))
        elif self._slow is not None:
            waited_s, path = self._slow
            logger.warning("the disk answers again: a sync of %s took at least %.0f s", path, waited_s)
            self._slow = None


class NodeUpkeep:
    """The periodic work of a node; each piece is a kept task of its own (tasks.py)."""

    def __init__(
        self,
        settings: Settings,
        services: NodeServices,
        reserve: Reserve,
        disk: DiskThreads,
        hosted: HostedLogs,
        repairs: Repairs,
        syncs: WatchedSyncs,
    ) -> None:
        self._scrubber = Scrubber(settings.scrub, services.files, disk, repairs.begin)
        self._reserve = reserve
        self._slow_syncs = SlowSyncs(syncs)
        self._hosted = hosted
        self._journals = JournalKeeper(settings.journal, services.clock, disk, services.fail)
        clocks = PeerClocks(repairs.calls, services.clock)
        self._retention = RetentionKeeper(settings.retention, clocks, services.node_id)

    def start(self, tasks: TaskSupervisor) -> None:
        """Start the tasks; the supervisor restarts each that fails."""
        tasks.keep("reserve", self._reserve.keep)
        tasks.keep("slow-syncs", self._slow_syncs.run)
        tasks.keep("scrub", partial(self._scrubber.run, self._hosted.by_id))
        tasks.keep("journal-retention", partial(self._journals.run, partial(list, self._hosted)))
        tasks.keep("retention", partial(self._retention.run, self._hosted.by_name))
