"""Use of the log `__controller` at one node: controller, client of the active controller, and metadata.

Every node keeps a replica of that log: controllers vote in it, the others learn from it (C-01, C-10). So the
metadata reach every node by replication, and a node knows only committed metadata, which may be old.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Final

from app.controller.commands import AnyCommand, Done, Refusal
from app.controller.config import HEARTBEATS_IN_A_TIMEOUT
from app.controller.events import AnyEvent, LogDeleted, MasterElected, MasterLost
from app.controller.log_state import RECENT_EVENTS_MAX, MetadataLogState
from app.controller.messages import (
    AnyControllerMessage,
    BrokerHeartbeat,
    BrokerHeartbeatAnswer,
    CommandRequest,
)
from app.controller.metadata import CONTROLLER_LOG, Log
from app.controller.state_machine import Metadata
from app.errors import QuorumTimeout
from app.futures import settle
from app.log.contract import Durability
from app.log.events import Election, JournalEvent
from app.node.hosted_log import HostedLog
from app.node.metadata.controller_client import ControllerClient
from app.node.metadata.controller_server import ControllerServer, ControllerSetup
from app.node.metadata.heard_nodes import HeardNodes
from app.node.metadata.replica_managers import ReplicasManagers
from app.node.services import NodeServices
from app.raft.config import RaftConfig
from app.settings.model import LogSettings, Replication, Settings
from storage.format.batch import log_id_of

logger = logging.getLogger(__name__)

ASK_TIMEOUT_MS: Final = 5_000
_POLL_S: Final = 0.02
_LEAVE_S: Final = 1.0


def controller_log(settings: Settings) -> LogSettings:
    """Return the settings of the log of the metadata: controllers vote, the other nodes are its learners."""
    nodes = tuple(node.id for node in settings.nodes)
    return LogSettings(
        name=CONTROLLER_LOG,
        replication=Replication.RAFT,
        durability=Durability.FSYNC,
        replicas=nodes,
        learners=tuple(node for node in nodes if node not in settings.controllers),
    )


def controller_raft(settings: Settings) -> RaftConfig:
    """Return the Raft settings of the log of the metadata, which has shorter times than other logs: the
    masters' leases must outlast an election of the controller."""
    raft, timeout = settings.raft, settings.controller.election_timeout_ms
    heartbeat_ms = min(raft.heartbeat_interval_ms, timeout[0] // HEARTBEATS_IN_A_TIMEOUT)
    return replace(
        raft,
        election_timeout_ms=timeout,
        heartbeat_interval_ms=heartbeat_ms,
        tick_interval_ms=min(raft.tick_interval_ms, heartbeat_ms),
    )


def log_id_in(cluster_id: str, name: str, generation: int) -> int:
    """Return the id of a log: two generations of a name differ, so that their messages and files do not
    mix."""
    return log_id_of(cluster_id, name if generation < 0 else f"{name}@{generation}")


class MetadataService:
    """Owned by the event loop. `hosted`: the node's replica of `__controller`, set before the first tick."""

    hosted: HostedLog

    def __init__(
        self,
        settings: Settings,
        services: NodeServices,
        *,
        connected: Callable[[], Collection[str]],
        find: Callable[[str], HostedLog | None],
        record: Callable[[HostedLog, JournalEvent], None],
    ) -> None:
        """connected: nodes whose connection to this one is open. find: a log that this node knows.
        record(log, event): write an event to the node's journal of a log."""
        self._node_id = settings.node.id
        self._clock = services.clock
        self._transport = services.transport
        self._scheduler = services.scheduler
        self._find = find
        self._record = record
        self._log_id = log_id_of(settings.cluster_id, CONTROLLER_LOG)
        self.followed_index = -1  # index up to which the logs of this node follow the metadata
        # Since its replica was opened, this node has known everything committed at least once.
        self.is_newest = False
        self.is_current = False  # since the start it has been so, and its logs have followed
        self.elections: Counter[tuple[str, str, str]] = Counter()  # (log, clean, unclean or lost, reason)
        self._seen_metadata: tuple[int, int] | None = None  # identity of the object, and its index
        self._recent_events: deque[tuple[int, AnyEvent]] = deque(maxlen=RECENT_EVENTS_MAX)
        self.changed = asyncio.Event()  # the metadata may have changed: the waiting task clears it
        self.server = ControllerServer(
            setup=ControllerSetup(
                node_id=self._node_id,
                config=settings.controller,
                brokers=settings.brokers,
                configured={log.name: log.spec for log in settings.logs},
                make_log_id=lambda name, generation: log_id_in(settings.cluster_id, name, generation),
            ),
            replica=lambda: self.hosted.driver,
            connected=lambda: (self._node_id, *connected()),
            send=self._send,
            clock=services.clock,
            scheduler=services.scheduler,
        )
        self.client = ControllerClient(
            config=settings.controller,
            controllers=settings.controllers,
            leader=lambda: self.hosted.leader_id,
            send=self._send,
            reports=lambda: (self.followed_index, self.managers.reports()),
            heartbeat_answered=self._heartbeat_answered,
            clock=services.clock,
            random=services.random,
        )
        self._heard = HeardNodes(settings.controller.broker_timeout_ms, settings.brokers)
        self.managers = ReplicasManagers(
            services,
            settings.controller,
            metadata=lambda: self.metadata,
            controller=lambda: self.hosted.driver,
            client=self.client,
        )
        if self._node_id not in settings.brokers:
            self.client.stop()  # it keeps nothing that a heartbeat could report

    def _heartbeat_answered(self, answer: BrokerHeartbeatAnswer, sent_ms: int) -> None:
        self._heard.answered(answer.alive, self._clock.monotonic_ms())
        self.managers.heartbeat_answered(answer, sent_ms)

    def is_silent(self, node: str) -> bool:
        """Return True if the active controller no longer hears the node."""
        return self._heard.is_silent(node, self._clock.monotonic_ms())

    # --- the metadata -----------------------------------------------------------------------------------

    @property
    def metadata(self) -> Metadata | None:
        """The metadata committed as far as this node knows; None while its replica is repaired."""
        state = self._state
        return None if state is None else state.metadata

    @property
    def _state(self) -> MetadataLogState | None:
        driver = self.hosted.driver
        if driver is None:
            return None
        assert isinstance(driver.state, MetadataLogState)
        return driver.state

    @property
    def _metadata_index(self) -> int:
        metadata = self.metadata
        return -1 if metadata is None else metadata.applied_index

    def log(self, name: str) -> Log | None:
        metadata = self.metadata
        return None if metadata is None else metadata.log(name)

    # --- what the node calls ----------------------------------------------------------------------------

    def tick(self) -> None:
        self.server.tick()
        self._record_elections()
        is_followed = self.followed_index == self._metadata_index
        if self.is_newest is not self.hosted.caught_up:  # a repair of the replica begins again
            self.is_newest = self.hosted.caught_up
            self.changed.set()
        if not self.is_current and self.is_newest and is_followed:
            self.is_current = True
            self.changed.set()
        self.managers.tick()
        self.client.silent = self.hosted.removed  # the controllers must not wait for it
        self.client.tick()

    def take(self, source: str, message: AnyControllerMessage) -> None:
        """Handle a message of a node, including this one."""
        if isinstance(message, CommandRequest | BrokerHeartbeat):
            self.server.take(source, message)
        else:
            self.client.take(source, message)

    async def leave(self) -> None:
        """Before the node stops: let other replicas take over its masterships."""
        try:
            async with asyncio.timeout(_LEAVE_S):
                while not self.managers.leave():
                    self.changed.clear()
                    await self.changed.wait()
        except TimeoutError:
            logger.warning("the controllers could not be notified that this node stops")
        self.client.stop()

    async def ask(self, command: AnyCommand, timeout_ms: int = ASK_TIMEOUT_MS) -> Done | Refusal:
        """Send a command to the active controller; on return this node has the metadata of a Done, or the
        time limit has passed. Raises QuorumTimeout if no controller answers: then the outcome is unknown."""
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        future: asyncio.Future[Done | Refusal | None] = asyncio.get_running_loop().create_future()
        self.client.ask(command, partial(settle, future), timeout_ms)
        answer = await future
        if answer is None:
            raise QuorumTimeout(None, "no controller answered in time")
        while isinstance(answer, Done) and self.followed_index < answer.index:
            if self._clock.monotonic_ms() >= deadline_ms:
                break
            await asyncio.sleep(_POLL_S)
        return answer

    # --- within -----------------------------------------------------------------------------------------

    def _send(self, target: str, message: AnyControllerMessage) -> None:
        if target == self._node_id:
            self._scheduler.call_soon(lambda: self.take(target, message))
        else:
            self._transport.send(target, self._log_id, message)

    def _record_elections(self) -> None:
        """Count the elections and write them to the journals. The counts of a deleted log end with it."""
        state = self._state
        if state is None:
            return
        seen = (id(state.metadata), state.metadata.applied_index)
        if seen != self._seen_metadata:
            self._seen_metadata = seen
            self.changed.set()
        self._recent_events.extend(state.take_recent_events())
        # The logs are open by then.
        while self._recent_events and self._recent_events[0][0] <= self.followed_index:
            index, event = self._recent_events.popleft()
            if isinstance(event, MasterElected | MasterLost):
                self._count_election(event)
                self._record_election(state.metadata, index, event)
            elif isinstance(event, LogDeleted):
                for counts in (self.elections, self.server.refused_elections):
                    for key in [key for key in counts if key[0] == event.log]:
                        del counts[key]

    def _count_election(self, event: MasterElected | MasterLost) -> None:
        """Events that a restart reads again are not counted."""
        if self.is_current:
            kind, reason = "lost", "no-eligible-replica"
            if isinstance(event, MasterElected):
                kind, reason = "unclean" if event.unclean else "clean", event.reason
            self.elections[event.log, kind, reason] += 1

    def _record_election(self, metadata: Metadata, index: int, event: MasterElected | MasterLost) -> None:
        """Write an election to the journal of the log, as every node that keeps it does (docs/api.md §2).

        After a restart the last ones may be repeated: controller_index identifies them.
        """
        hosted, log = self._find(event.log), metadata.log(event.log)
        if hosted is None or hosted.journal is None or log is None:
            return
        self._record(hosted, _election(log, index, event))


def _election(log: Log, index: int, event: MasterElected | MasterLost) -> Election:
    """Return the event of a decision at `index` of the log of the controllers."""
    if isinstance(event, MasterLost):
        return Election(
            controller_index=index,
            master=None,
            replica_id=None,
            master_epoch=event.master_epoch,
            time_ms=event.time_ms,
        )
    replica = log.replica(event.master)
    return Election(
        controller_index=index,
        master=None if replica is None else replica.node,
        replica_id=event.master,
        master_epoch=event.master_epoch,
        time_ms=event.time_ms,
        set_epoch=event.set_epoch,
        reason=event.reason,
        unclean=event.unclean,
        lost=event.lost,
        former_set=list(event.former_set),
        former_acks=event.former_acks,
        lease_ms=event.lease_ms,
    )
