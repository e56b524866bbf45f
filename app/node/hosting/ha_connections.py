"""Masters and slaves at a node: its HA listener, the logs that take connections, and their roles."""

from functools import partial

from app.log.driver_interfaces import Transport
from app.node.hosted_log import HostedLog
from app.node.links.links import Links
from app.node.metadata.replica_managers import ReplicasManagers
from app.node.network.ha_connection import Protocol
from app.node.network.ha_transport import HaLink, HaTransport
from app.node.network.peer_transport import PeerTransport
from app.node.replica.driver import LogDriver
from app.node.tasks import TaskSupervisor
from app.settings.model import Replication, Settings


class HaConnections:
    """Owned by the event loop."""

    def __init__(
        self,
        settings: Settings,
        peers: PeerTransport,
        managers: ReplicasManagers,
        tasks: TaskSupervisor,
        links: Links,
    ) -> None:
        """peers: carries the messages between nodes, and knows where the HA listeners of the others are.
        managers: give copies in controller mode their roles. links: how connections prove themselves."""
        self._settings = settings
        self._peers = peers
        self._managers = managers
        self._tasks = tasks
        self.transport = HaTransport(settings.node.ha_listen, links)
        self.link: Transport = HaLink(self.transport, peers)  # for the drivers of HA logs

    @property
    def address(self) -> str:
        """host:port where this node takes slaves, once it is started."""
        return self._settings.node.ha_address or self.transport.address

    def attach(self, hosted: HostedLog, driver: LogDriver) -> None:
        """Let slaves and masters of a log in controller or classic mode connect, and its role follow the
        metadata."""
        settings, node_id = hosted.settings, self._settings.node.id
        classic = settings.replication is Replication.CLASSIC
        master_id = settings.replicas[0]
        self.transport.attach(
            hosted.log_id,
            Protocol.CLASSIC if classic else Protocol.AUTO_SWITCH,
            driver.deliver,
            name=hosted.name,
            place=settings.replicas.index(node_id) + 1 if node_id in settings.replicas else 0,
            by_number=self._settings.ha.speaks_by_number(self.address),
            master=partial(self._peers.peer_ha_address, master_id),
            takes_more=lambda: driver.takes_more,
            replicas=settings.replicas if classic else (),
        )
        if settings.ha_listen is not None and master_id == node_id:
            listening = self.transport.listen_for(hosted.log_id, settings.ha_listen)
            self._tasks.critical(f"HA listener of {hosted.name}", listening)
        if hosted.ha is not None:
            self._managers.attach(
                hosted.name,
                hosted.generation,
                driver,
                hosted.ha,
                self.address,
                lambda: hosted.driver is driver,
            )

    def detach(self, hosted: HostedLog) -> None:
        """End the connections of a log, and give it no roles any more."""
        self.transport.detach(hosted.log_id)
        self._managers.detach(hosted.name)
