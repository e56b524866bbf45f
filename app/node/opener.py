"""How each replication mode opens its logs at this node."""

import asyncio
import random
from collections.abc import Callable

from app.controller.log_state import MetadataLogState
from app.controller.metadata import CONTROLLER_LOG
from app.log.contract import Clock, GroupConfig, Lanes, SpaceReserve, Transport
from app.log.state import LogState
from app.node.clock import LoopScheduler
from app.node.hosted_log import HostedLog
from app.node.metadata.service import controller_raft
from app.node.open_ha_log import HaNode, open_auto_switch_log, open_classic_log
from app.node.open_log import open_raft_log
from app.node.replica.driver import LogDriver
from app.settings.model import Replication, Settings
from app.version import VERSION
from storage.errors import CorruptLog
from storage.file_system import FileSystem


class LogOpener:
    """What all logs of a node share."""

    def __init__(
        self,
        *,
        settings: Settings,
        files: FileSystem,
        clock: Clock,
        disk: Lanes,
        transport: Transport,
        ha_transport: Transport,
        ha_address: Callable[[], str],
        reserve: SpaceReserve,
        loop: asyncio.AbstractEventLoop,
        fail: Callable[[str, BaseException], None],
        healed: Callable[[HostedLog], None],
        damaged: Callable[[HostedLog, CorruptLog], None],
    ) -> None:
        """healed, damaged: as in open_raft_log, of that log. ha_transport, ha_address: for HA's modes."""
        self._settings = settings
        self._files = files
        self._clock = clock
        self._disk = disk
        self._transport = transport
        self._ha_transport = ha_transport
        self._ha_address = ha_address
        self._reserve = reserve
        self._loop = loop
        self._fail = fail
        self._healed = healed
        self._damaged = damaged

    def open(
        self, hosted: HostedLog, *, sound: bool, sound_if_alone: bool = False, begins: bool = False
    ) -> LogDriver:
        """Recover a log and build its driver; sound, sound_if_alone, begins: as in open_raft_log.

        Blocks: at the start nothing else runs yet, a repair does it in a thread. Raises CorruptLog,
        CorruptFile, DiskError.
        """
        if hosted.settings.replication is Replication.RAFT:
            return self._open_raft(hosted, sound=sound, sound_if_alone=sound_if_alone, begins=begins)
        return self._open_ha(hosted, sound=sound)

    def _open_raft(self, hosted: HostedLog, *, sound: bool, sound_if_alone: bool, begins: bool) -> LogDriver:
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
            disk=self._disk.lane(settings.name),
            transport=self._transport,
            scheduler=LoopScheduler(self._loop, self._fail),
            random=random.SystemRandom(),
            fail=self._fail,
            version=VERSION,
            preferred_leader=settings.preferred,
            sound=sound,
            sound_if_alone=sound_if_alone,
            begins=begins,
            healed=lambda: self._healed(hosted),
            damaged=lambda error: self._damaged(hosted, error),
            journal=hosted.journal,
            state_type=MetadataLogState if is_controller else LogState,
            reserve=self._reserve,
        )

    def _open_ha(self, hosted: HostedLog, *, sound: bool) -> LogDriver:
        """Controller and classic mode. sound: false when the copy may lack what it acknowledged; then in
        controller mode it is another replica (C-03)."""
        settings, name, log_id = self._settings, hosted.name, hosted.log_id
        log = hosted.settings
        node = HaNode(
            files=self._files,
            data_folder=str(settings.node.data.absolute()),
            node_id=settings.node.id,
            storage=settings.storage,
            limits=settings.limits,
            ha=settings.ha,
            clock=self._clock,
            disk=self._disk.lane(name),
            transport=self._ha_transport,
            scheduler=LoopScheduler(self._loop, self._fail),
            random=random.SystemRandom(),
            fail=self._fail,
            version=VERSION,
            reserve=self._reserve,
        )
        if log.replication is Replication.CLASSIC:
            return open_classic_log(
                node,
                log_name=name,
                log_id=log_id,
                replicas=log.replicas,
                master_id=log.replicas[0],
                master_address=settings.slaves_connect_to(log) or "",
                sync_slaves=log.sync_slaves,
                min_in_sync_replicas=log.min_in_sync_replicas,
                auto_in_sync_replicas=log.auto_in_sync_replicas,
                unclean=log.unclean,
                durability=log.durability,
                journal=hosted.journal,
                damaged=lambda error: self._damaged(hosted, error),
            )
        opened = open_auto_switch_log(
            node,
            log_name=name,
            log_id=log_id,
            address=self._ha_address(),
            replicas=log.replicas,
            durability=log.durability,
            min_in_sync_replicas=log.min_in_sync_replicas,
            sound=sound,
            journal=hosted.journal,
            damaged=lambda error: self._damaged(hosted, error),
        )
        hosted.ha = opened.core
        return opened.driver
