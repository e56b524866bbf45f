"""How each replication mode opens its logs at this node."""

import asyncio
import random
from collections.abc import Callable

from app.controller.log_state import MetadataLogState
from app.log_state import LogState
from app.node.clock import LoopScheduler
from app.node.driver import LogDriver
from app.node.hosted_log import HostedLog
from app.node.metadata_service import CONTROLLER_LOG, controller_raft
from app.node.open_log import open_raft_log
from app.replication import Clock, Disk, GroupConfig, Transport
from app.settings import Settings
from app.version import VERSION
from storage.errors import CorruptLog
from storage.file_system import FileSystem


class LogOpener:
    """What all logs of a node share. `open` blocks, and may be called in a thread."""

    def __init__(
        self,
        *,
        settings: Settings,
        files: FileSystem,
        clock: Clock,
        disk: Disk,
        transport: Transport,
        loop: asyncio.AbstractEventLoop,
        fail: Callable[[str, BaseException], None],
        healed: Callable[[HostedLog], None],
        damaged: Callable[[HostedLog, CorruptLog], None],
    ) -> None:
        """healed, damaged: as in open_raft_log, of that log."""
        self._settings = settings
        self._files = files
        self._clock = clock
        self._disk = disk
        self._transport = transport
        self._loop = loop
        self._fail = fail
        self._healed = healed
        self._damaged = damaged

    def open(self, hosted: HostedLog, *, sound: bool) -> LogDriver:
        """Recover a log and build its driver. Raises CorruptLog, CorruptFile, DiskError."""
        return self._open_raft(hosted, sound=sound)

    def _open_raft(self, hosted: HostedLog, *, sound: bool) -> LogDriver:
        settings = hosted.settings
        is_controller = settings.name == CONTROLLER_LOG
        voters = tuple(node for node in settings.replicas if node not in settings.learners)
        return open_raft_log(
            files=self._files,
            data_folder=str(self._settings.node.data.absolute()),
            log_name=settings.name,
            log_id=hosted.log_id,
            node_id=self._settings.node.id,
            group=GroupConfig(voters=voters, learners=settings.learners),
            durability=settings.durability,
            raft=controller_raft(self._settings) if is_controller else self._settings.raft,
            storage=self._settings.storage,
            limits=self._settings.limits,
            clock=self._clock,
            disk=self._disk,
            transport=self._transport,
            scheduler=LoopScheduler(self._loop),
            random=random.SystemRandom(),
            fail=self._fail,
            version=VERSION,
            preferred_leader=settings.preferred,
            sound=sound,
            healed=lambda: self._healed(hosted),
            damaged=lambda error: self._damaged(hosted, error),
            journal=hosted.journal,
            state_type=MetadataLogState if is_controller else LogState,
        )
