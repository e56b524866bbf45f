"""Opens the logs of a node: the mode of each by its settings, with the services that all share."""

from collections.abc import Callable
from dataclasses import replace

from app.controller.log_state import MetadataLogState
from app.controller.metadata import CONTROLLER_LOG
from app.log.contract import GroupConfig
from app.log.driver_interfaces import Transport
from app.log.state import LogState
from app.node.hosted_log import CONFIGURED, HostedLog
from app.node.metadata.service import controller_raft
from app.node.opening.open_replica import LogIdentity, open_replica
from app.node.opening.replica_modes import AutoSwitchMode, ClassicMode, RaftMode
from app.node.replica.driver import LogDriver
from app.node.services import NodeServices, ReplicaEvents
from app.settings.model import Replication, Settings


class LogOpener:
    """Opens replicas of one node. Any thread may use it, for one log at a time."""

    def __init__(
        self,
        settings: Settings,
        services: NodeServices,
        ha_transport: Transport,
        ha_address: Callable[[], str],
    ) -> None:
        """ha_transport: carries messages of masters and slaves, and those between nodes. ha_address(): of the
        node's HA listener, once it listens."""
        self._settings = settings
        self._services = services
        self._ha_services = replace(services, transport=ha_transport)
        self._ha_address = ha_address

    def open(
        self,
        hosted: HostedLog,
        events: ReplicaEvents,
        *,
        sound: bool,
        sound_if_alone: bool = False,
        begins: bool = False,
        predates_folder: bool = False,
    ) -> LogDriver:
        """Recover a log and create its driver; sound, sound_if_alone, begins, predates_folder: as in
        RaftMode.

        A log of the file does not begin before RivalGroups has compared what the nodes report of it (R-10).
        In controller mode a copy that is not sound is a new replica (C-03); in classic mode it has opened no
        epoch.

        Blocks: at the start of a node nothing else runs yet, a repair calls it in a thread. Raises
        CorruptLog, CorruptFile, DiskError, StorageFull.
        """
        settings = hosted.settings
        log = LogIdentity(name=settings.name, log_id=hosted.log_id, durability=settings.durability)
        if settings.replication is Replication.RAFT:
            raft = replace(
                self._raft(hosted),
                sound=sound,
                sound_if_alone=sound_if_alone,
                begins=begins,
                predates_folder=predates_folder,
            )
            driver = open_replica(self._services, log, raft, journal=hosted.journal, events=events).driver
            driver.let_found(hosted.generation != CONFIGURED)
            return driver
        if settings.replication is Replication.CLASSIC:
            classic = replace(self._classic(hosted), sound=sound, begins=begins)
            return open_replica(self._ha_services, log, classic, journal=hosted.journal, events=events).driver
        auto_switch = AutoSwitchMode(
            replicas=settings.replicas,
            config=self._settings.ha,
            address=self._ha_address(),
            min_in_sync_replicas=settings.min_in_sync_replicas,
            sound=sound,
        )
        opened = open_replica(self._ha_services, log, auto_switch, journal=hosted.journal, events=events)
        hosted.ha = opened.core
        return opened.driver

    def _raft(self, hosted: HostedLog) -> RaftMode:
        settings = hosted.settings
        is_controller = settings.name == CONTROLLER_LOG
        voters = tuple(node for node in settings.replicas if node not in settings.learners)
        return RaftMode(
            configured=GroupConfig(voters=voters, learners=settings.learners),
            config=controller_raft(self._settings) if is_controller else self._settings.raft,
            preferred_leader=settings.preferred,
            state_type=MetadataLogState if is_controller else LogState,
        )

    def _classic(self, hosted: HostedLog) -> ClassicMode:
        log = hosted.settings
        return ClassicMode(
            replicas=log.replicas,
            config=self._settings.ha,
            master_id=log.replicas[0],
            master_address=self._settings.slaves_connect_to(log) or "",
            sync_slaves=log.sync_slaves,
            min_in_sync_replicas=log.min_in_sync_replicas,
            auto_in_sync_replicas=log.auto_in_sync_replicas,
            unclean=log.unclean,
            raised_from=log.raised_from,
        )
