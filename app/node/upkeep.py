"""Work that a node repeats as long as it runs: the reserve, the scrub, retention of records and journals."""

from functools import partial

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
from app.settings.model import Settings


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
    ) -> None:
        self.scrubber = Scrubber(settings.scrub, services.files, disk, repairs.begin)
        self._reserve = reserve
        self._hosted = hosted
        self._journals = JournalKeeper(settings.journal, services.clock, disk, services.fail)
        clocks = PeerClocks(repairs.calls, services.clock)
        self._retention = RetentionKeeper(settings.retention, clocks, services.node_id)

    def start(self, tasks: TaskSupervisor) -> None:
        """Start the tasks; the supervisor restarts each that fails."""
        tasks.keep("reserve", self._reserve.keep)
        tasks.keep("scrub", partial(self.scrubber.run, self._hosted.by_id))
        tasks.keep("journal-retention", partial(self._journals.run, partial(list, self._hosted)))
        tasks.keep("retention", partial(self._retention.run, self._hosted.by_name))
