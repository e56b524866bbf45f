"""One node: opens its data folder, runs a driver for each log it keeps, and stops cleanly or at once."""

import asyncio
import logging
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, Final, get_args

from app.controller.messages import AnyControllerMessage
from app.futures import settle
from app.node.audit import AuditLog
from app.node.clock import LoopScheduler, SystemClock
from app.node.data_folder import DataFolder
from app.node.disk import DiskThreads
from app.node.hosted_log import HostedLog
from app.node.hosted_logs import HostedLogs
from app.node.hosting.ha_connections import HaConnections
from app.node.hosting.leaderless_logs import LeaderlessLogs
from app.node.hosting.log_journals import LogJournals
from app.node.hosting.log_lookup import LogLookup
from app.node.hosting.node_links import load_links
from app.node.hosting.node_logs import NodeLogs
from app.node.hosting.rival_groups import RivalGroups
from app.node.links.certificates import load_certificates, warn_before_the_end
from app.node.links.links import Links
from app.node.metadata.logs import MetadataLogs
from app.node.metadata.service import MetadataService, controller_log
from app.node.network.append_carrier import AppendCarrier
from app.node.network.append_messages import AppendMessage
from app.node.network.audit_messages import AuditMessage
from app.node.network.group_claims import GroupClaim
from app.node.network.http_forwarder import Forwarder
from app.node.network.node_directory import Directory
from app.node.network.peer_connections import RetryConfig
from app.node.network.peer_host import PeerIdentity
from app.node.network.peer_transport import PeerTransport
from app.node.network.repair_messages import PeerCall
from app.node.opening.opener import LogOpener
from app.node.repair.rollbacks import Rollbacks
from app.node.replica.driver import LogDriver
from app.node.request_waits import Waits
from app.node.reserve import disk_bytes_of
from app.node.services import NodeServices
from app.node.tasks import TaskSupervisor
from app.node.timer import NodeTimer, TickInterval
from app.node.upkeep import NodeUpkeep
from app.node.workers import WorkerThreads
from app.raft.messages import Heartbeat, PushRequest, RaftMessage, StateMessage
from app.settings.model import LogSettings, NodeSettings, Settings
from app.telemetry import Meter
from app.version import VERSION
from storage.format.batch import log_id_of

logger = logging.getLogger(__name__)

_STOP_TIMEOUT_S: Final = 10.0
_FLUSH_S: Final = 1.0  # for entries of the audit log
OF_REPLICATION: Final = frozenset(get_args(RaftMessage | StateMessage))
MemberCall = PeerCall | AnyControllerMessage  # messages that only a member of a log may send


class Broker:
    """One node: its logs and what they share. `failed` is done when the node must stop at once (R-11)."""

    def __init__(self, settings: Settings) -> None:
        disk_bytes = disk_bytes_of(settings.node.data)
        settings = replace(settings, storage=settings.storage.fit_to(disk_bytes))
        self.settings = settings
        self.node: NodeSettings = settings.node
        self.nodes = Directory(settings.nodes)
        self.meter = Meter()
        self.clock = SystemClock()
        self.forwarder = Forwarder(settings.security)
        self.waits = Waits(settings.http.leader_wait_ms)
        self._chance = random.Random()  # seeded by the system; election timeouts need no secret
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[str] = self._loop.create_future()
        self.refused_calls = 0  # of peers that are members of no log
        self.tasks = TaskSupervisor(self._fail)
        self._hosted = HostedLogs()
        self.logs = self._hosted.by_name
        self._data = DataFolder(settings, disk_bytes)
        self.reserve = self._data.reserve
        self.syncs = self._data.syncs
        self.disk = DiskThreads(self._loop, self._fail, settings.disk.threads)
        self._workers = WorkerThreads(self._loop, self._fail)
        self.certificates = load_certificates(settings.security)
        links = load_links(settings, self.nodes.host_of)
        # The token of a client is checked once, by the node that it called: the leader must know that node.
        trusts_peers = settings.security.tokens_file is None or links.peer.proves_all
        self.takes_appends = trusts_peers and settings.tracing.endpoint is None
        self.rivals = RivalGroups(self.node.id, self._hosted)
        self.rivals.peers = self.transport = self._peer_transport(links.peer)
        self.carrier = AppendCarrier(self.transport, self._chance)
        services = self._services()
        journals = LogJournals(services, settings.journal.segment_max_bytes, self._hosted)
        self.metadata = self._new_metadata(services, journals)
        self.audit = AuditLog(services, self.metadata, self._hosted.get, settings.brokers, settings.security)
        self.ha = HaConnections(settings, self.transport, self.metadata.managers, self.tasks, links.ha)
        self._node_logs = self._new_node_logs(services, journals)
        self.repairs = self._node_logs.repairs
        self._upkeep = NodeUpkeep(
            settings, services, self.reserve, self.disk, self._hosted, self.repairs, self.syncs
        )
        self.metadata_logs = MetadataLogs(
            node_id=self.node.id,
            metadata=self.metadata,
            host=self._node_logs,
            hosted=self._hosted,
            folders=self._node_logs.folders,
        )
        self.lookup = LogLookup(self._hosted, self.metadata, self.metadata_logs, self.waits)
        rollbacks = Rollbacks(self._node_logs, services, journals.record, self.tasks)
        self._timer = self._new_timer(rollbacks)

    def _peer_transport(self, links: Links) -> PeerTransport:
        settings = self.settings
        return PeerTransport(
            PeerIdentity.of(settings),
            peers=[(peer.id, peer.peer_address) for peer in settings.nodes if peer.id != self.node.id],
            host=self,
            chance=self._chance,
            retry=RetryConfig.of(settings.raft),
            links=links,
            takes_appends=self.takes_appends,
        )

    def _services(self) -> NodeServices:
        """Return what the parts of this node share."""
        return NodeServices(
            node_id=self.node.id,
            version=VERSION,
            data_folder=self._data.path,
            files=self._data.files,
            storage=self.settings.storage,
            limits=self.settings.limits,
            clock=self.clock,
            disk=self.disk,
            transport=self.transport,
            scheduler=LoopScheduler(self._loop, self._fail),
            random=self._chance,
            fail=self._fail,
            reserve=self.reserve,
            workers=self._workers,
        )

    def _new_metadata(self, services: NodeServices, journals: LogJournals) -> MetadataService:
        return MetadataService(
            self.settings,
            services,
            connected=self.transport.connected,
            find=self._hosted.get,
            record=journals.record,
        )

    def _new_node_logs(self, services: NodeServices, journals: LogJournals) -> NodeLogs:
        return NodeLogs(
            LogOpener(self.settings, services, self.ha.link, self.ha_address),
            services,
            self.disk,
            self._hosted,
            journals,
            self.ha,
            self.tasks,
            self.waits,
        )

    def _new_timer(self, rollbacks: Rollbacks) -> NodeTimer:
        raft = self.settings.raft
        return NodeTimer(
            TickInterval(raft.tick_interval_ms / 1000, raft.heartbeat_interval_ms / 1000),
            self.clock,
            self._hosted,
            self.metadata,
            rollbacks,
            self.nodes,
            self.transport,
            self._fail,
        )

    # --- start and stop ---------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open everything and take part. Raises ConfigError, storage.errors.StorageError or OSError."""
        settings = self.settings
        self._data.claim()
        self._node_logs.folders.finish_removals()
        await self.ha.transport.start()
        self.metadata.hosted = self._host(controller_log(settings))
        for log in settings.logs:
            if log.ignored:
                keys, mode = ", ".join(log.ignored), log.replication.value
                logger.warning("log %s: %s: without effect in %s mode", log.name, keys, mode)
        configured = [self._host(log) for log in settings.logs]
        opened = await self._node_logs.open_all([self.metadata.hosted], settings.disk.threads)
        if isinstance(controller := opened[0][1], LogDriver):
            self.metadata_logs.follow_known(controller)
            self._node_logs.know_metadata(controller)
        opened += await self._node_logs.open_all(configured, settings.disk.threads)
        self.rivals.opened({log.name: each for log, each in opened if isinstance(each, LogDriver)})
        self.disk.start()
        self._workers.start()
        await self.forwarder.start()
        await self.transport.start()
        await self._node_logs.serve_all(opened)
        self.rivals.opened({})
        self._upkeep.start(self.tasks)
        await self.metadata_logs.follow()
        self._timer.start()
        self.tasks.keep("metadata", self.metadata_logs.run)
        self.tasks.keep("audit", self.audit.run)
        self.tasks.keep("rival-groups", self.rivals.run)
        leaderless = LeaderlessLogs(self.node.id, self._hosted, self.transport.is_connected)
        self.tasks.keep("leaderless-logs", leaderless.run)
        self.tasks.keep("certificates", lambda: warn_before_the_end(self.certificates, self.clock.now_ms))
        logger.info(
            "node started", extra={"node": self.node.id, "logs": len(self.logs), "data": self._data.path}
        )

    def _host(self, settings: LogSettings) -> HostedLog:
        hosted = HostedLog(settings, log_id_of(self.settings.cluster_id, settings.name))
        self._hosted.add(hosted)
        return hosted

    async def stop(self) -> None:
        """End cleanly: answer all requests, make everything durable, close. Call `begin_stop` before."""
        self.begin_stop()
        await self.audit.flush(_FLUSH_S)
        await self.metadata.leave()
        logs = list(self._hosted)
        drivers = [hosted.driver for hosted in logs if hosted.driver is not None]
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            stopping = []
            for driver in drivers:
                stopping.append(self._stopped(driver))
                await asyncio.sleep(0)  # as in NodeLogs.serve_all
            await asyncio.gather(*stopping)
            await self.disk.drain()
        self._timer.stop()
        self.carrier.stop()
        await self.tasks.stop()
        await self.ha.transport.stop()
        await self.transport.stop()
        await self.forwarder.stop()
        self.disk.stop(_STOP_TIMEOUT_S)
        self._workers.stop()
        closings = [driver.log.close for driver in drivers]
        closings += [hosted.journal.close for hosted in logs if hosted.journal is not None]
        with ThreadPoolExecutor(self.settings.disk.threads, thread_name_prefix="close") as pool:
            await asyncio.gather(*(self._loop.run_in_executor(pool, close) for close in closings))
        self._data.release()
        logger.info("node stopped", extra={"node": self.node.id})

    def begin_stop(self) -> None:
        """End long polls and streams."""
        self.waits.end()
        for hosted in self._hosted:
            hosted.wake()

    def _stopped(self, driver: LogDriver) -> asyncio.Future[None]:
        done: asyncio.Future[None] = self._loop.create_future()
        driver.stop(partial(settle, done, None))
        return done

    def _fail(self, what: str, error: BaseException) -> None:
        """Report that the node must stop (R-11): the server ends the process without a clean stop."""
        logger.critical("node fails: %s", what, exc_info=error)
        settle(self.failed, f"{what}: {error}")

    # --- app.node.network.peer_host.PeerHost ------------------------------------------------------------

    def ha_address(self) -> str:
        return self.ha.address

    def claims(self) -> dict[str, GroupClaim]:
        return self.rivals.claims()

    def claimed(self, peer_id: str, claims: dict[str, GroupClaim]) -> None:
        self.rivals.heard(peer_id, claims)

    def connection_lost(self, peer_id: str) -> None:
        self.carrier.lost(peer_id)

    def peer_lost(self, peer_id: str) -> None:
        self.metadata.server.disconnected(peer_id)

    def deliver(self, source: str, log_id: int, message: Any) -> None:
        """Take a message of a peer. One that is a member of no log, as a node that was removed and still has
        its certificate, may take part in replication alone: a member may not be known here yet (R-10)."""
        if type(message) in OF_REPLICATION:
            self._replicate(source, log_id, message)
        elif isinstance(message, AppendMessage):
            self.carrier.take(source, message, serves=self.is_member(source))
        else:
            self._take_call(source, log_id, message)

    def _replicate(self, source: str, log_id: int, message: RaftMessage | StateMessage) -> None:
        hosted = self._hosted.by_id.get(log_id)
        if hosted is None:
            return
        if type(message) is Heartbeat:
            self._timer.heard()
        if hosted.driver is not None:
            hosted.driver.deliver(source, message)
        elif hosted.journal is None and isinstance(message, PushRequest):
            self._node_logs.join(hosted)

    def _take_call(self, source: str, log_id: int, message: MemberCall) -> None:
        if not self.is_member(source):
            self._refuse_call(source)
        elif isinstance(message, AuditMessage):
            self.audit.take(source, log_id, message)
        elif isinstance(message, PeerCall):
            self.repairs.take(source, log_id, message)
        else:
            self.metadata.take(source, message)

    def _refuse_call(self, source: str) -> None:
        """Count a call, and log it rarely, or an outsider would fill the disk."""
        self.refused_calls += 1
        if self.refused_calls & (self.refused_calls - 1) == 0:
            extra = {"peer": source, "count": self.refused_calls}
            logger.warning("call of a peer refused: it is not a member of any log", extra=extra)

    def is_member(self, peer_id: str) -> bool:
        return self._hosted.have_member(peer_id)

    def forget_peer(self, peer_id: str) -> bool:
        return self.nodes.forget(peer_id)
