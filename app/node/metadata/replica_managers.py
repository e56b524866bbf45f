"""ReplicasManagers of a node: carry out what the manager of each log in controller mode decides (C-10).

The decisions are in app/controller/replicas_manager.py; this module connects them to the disk, the driver and
the active controller.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

from app.controller.commands import AnyCommand, Done, Reason, Refusal
from app.controller.config import ControllerConfig
from app.controller.liveness import Report
from app.controller.messages import BrokerHeartbeatAnswer
from app.controller.replicas_manager import (
    ControllerRequest,
    CopyIdentity,
    HeartbeatNow,
    ReplicasManager,
    Save,
    SendToCore,
)
from app.controller.state_machine import Metadata
from app.ha.roles import MANAGER, HaView
from app.node.metadata.controller_client import ControllerClient
from app.node.metadata.replica_identity import IdentityFile
from app.node.replica.driver import LogDriver
from app.node.services import NodeServices
from storage.errors import StorageFull

logger = logging.getLogger(__name__)

_ASK_TIMEOUT_MS: Final = 2_000
_SAVE_RETRY_MS: Final = 1_000  # after the disk had no space for an identity


class ManagedReplica:
    """One copy: its manager, its driver, and the view of the core."""

    def __init__(
        self,
        manager: ReplicasManager,
        driver: LogDriver,
        view: HaView,
        identity_file: IdentityFile,
        is_open: Callable[[], bool],
    ) -> None:
        """is_open: false once the driver has ended, for any reason."""
        self.is_open = is_open
        self.manager = manager
        self.driver = driver
        self.view = view
        self.identity_file = identity_file
        self.saving: CopyIdentity | None = None
        self.save_after_ms = 0  # not before


class ReplicasManagers:
    """The managers of all copies of a node. Owned by the event loop."""

    def __init__(
        self,
        services: NodeServices,
        config: ControllerConfig,
        *,
        metadata: Callable[[], Metadata | None],
        controller: Callable[[], LogDriver | None],
        client: ControllerClient,
    ) -> None:
        """metadata: as this node knows them, None while they are not available. controller: the log that they
        are in."""
        self._services = services
        self._config = config
        self._metadata = metadata
        self._controller = controller
        self._client = client
        self._clock = services.clock
        self._replicas: dict[str, ManagedReplica] = {}

    def attach(
        self,
        log: str,
        generation: int,
        driver: LogDriver,
        view: HaView,
        address: str,
        is_open: Callable[[], bool],
    ) -> None:
        """Manage an open copy. address: of this node's HA listener. Reads a small file.

        A copy without an identity, or one that lost it because it may lack what it acknowledged, registers as
        another replica: outside of the SyncStateSet until it has caught up.
        """
        identity_file = IdentityFile(self._services.files, self._services.data_folder, log)
        manager = ReplicasManager(
            log=log,
            generation=generation,
            node=self._services.node_id,
            address=address,
            identity=identity_file.load(),
            config=self._config,
            random=self._services.random,
        )
        self._replicas[log] = ManagedReplica(manager, driver, view, identity_file, is_open)

    def detach(self, log: str) -> None:
        """The copy is closed. Answers to its requests are ignored from now on."""
        self._replicas.pop(log, None)

    def reports(self) -> tuple[Report, ...]:
        """Return the reports of the working copies: none while this node's copy of the metadata is
        repaired, because no role, set or deletion reaches them then, and another replica has to take over."""
        if self._metadata() is None:
            return ()
        return tuple(each.manager.report(each.view) for each in self._replicas.values() if each.is_open())

    def heartbeat_answered(self, answer: BrokerHeartbeatAnswer, sent_ms: int) -> None:
        granted = {log: place for place, (log, _) in enumerate(answer.granted)}
        withheld = {log: place for place, log in enumerate(answer.withheld)}
        for name, replica in self._replicas.items():
            grant, denial = _only(granted.get(name)), _only(withheld.get(name))
            replica.manager.heartbeat_answered(
                answer.granted[grant],
                answer.withheld[denial],
                answer.alive,
                sent_ms,
                answer.leases[grant],
                answer.withheld_epochs[denial],
            )
        self.tick()

    def tick(self) -> None:
        for name, replica in list(self._replicas.items()):
            self._step(name, replica)

    def leave(self) -> bool:
        """The node stops: give up every mastership; return whether the controller knows all of it by now."""
        metadata = self._metadata()
        for replica in self._replicas.values():
            replica.manager.leave()
        self.tick()
        return metadata is None or all(
            replica.manager.has_left(metadata.log(name)) for name, replica in self._replicas.items()
        )

    def _step(self, name: str, replica: ManagedReplica) -> None:
        metadata, controller = self._metadata(), self._controller()
        if metadata is None or controller is None or not replica.is_open():
            return
        manager, now_ms = replica.manager, self._clock.monotonic_ms()
        durable_index = max(controller.log.durable_index, controller.log.first_index - 1)
        for action in manager.step(metadata, replica.view, now_ms, durable_index):
            match action:
                case SendToCore():
                    replica.driver.deliver(MANAGER, action.message)
                case HeartbeatNow():
                    self._client.heartbeat_now()
                case ControllerRequest():
                    self._ask(name, replica, action.command)
                case Save():
                    self._save(name, replica, action.identity)

    def _ask(self, name: str, replica: ManagedReplica, command: AnyCommand) -> None:
        def answered(answer: Done | Refusal | None) -> None:
            if self._replicas.get(name) is replica:
                if isinstance(answer, Refusal):
                    is_loss = answer.reason is Reason.LOST_RECORDS
                    logger.log(
                        logging.ERROR if is_loss else logging.INFO,
                        "controller refused",
                        extra={"log": name, "reason": answer.reason.value, "detail": answer.detail},
                    )
                replica.manager.answered(command, answer, self._clock.monotonic_ms())
                self._step(name, replica)

        self._client.ask(command, answered, _ASK_TIMEOUT_MS)

    def _save(self, name: str, replica: ManagedReplica, identity: CopyIdentity) -> None:
        if replica.saving is not None or self._clock.monotonic_ms() < replica.save_after_ms:
            return
        replica.saving = identity

        def saved(_result: Any, error: BaseException | None) -> None:
            replica.saving = None
            if self._replicas.get(name) is not replica:
                return
            if error is None:
                replica.manager.saved(identity)
                self._step(name, replica)
            elif isinstance(error, StorageFull):
                logger.warning("log %s: the disk is full: its identity is not stored", name)
                replica.save_after_ms = self._clock.monotonic_ms() + _SAVE_RETRY_MS
            else:
                self._services.fail(f"identity of log {name}", error)

        self._services.disk.lane(name).submit(lambda: replica.identity_file.save(identity), saved)


def _only(place: int | None) -> slice:
    """Return the slice of that one place, or an empty one."""
    return slice(0) if place is None else slice(place, place + 1)
