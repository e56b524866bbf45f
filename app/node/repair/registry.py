"""Registry of running repairs: a damaged log is taken offline, repaired (log_repair.py) and served again."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Protocol

from app.controller.log_state import MetadataLogState
from app.controller.metadata import CONTROLLER_LOG
from app.log.contract import NO_INDEX
from app.log.events import Corruption, JournalEvent, Repair
from app.log.state import LogState
from app.node.disk import DiskThreads
from app.node.hosted_log import HostedLog
from app.node.job_threads import in_thread
from app.node.network.peer_calls import PeerCalls
from app.node.network.repair_messages import DigestRequest, FetchRequest, PeerCall, TermRequest
from app.node.repair.interfaces import Damaged, DamagedCopy, FoundDamage, settled_voters
from app.node.repair.log_repair import LogRepair
from app.node.repair.marker import RepairMarker
from app.node.repair.server import RepairServer, reread
from app.node.repair.verify import Comparison, ReplicaState
from app.node.replica.driver import LogDriver
from app.node.services import NodeServices
from app.node.tasks import TaskSupervisor
from app.settings.model import Replication
from storage.errors import CorruptLog, StorageError, StorageFull, as_damage

logger = logging.getLogger(__name__)

HEAL_RETRY_S: Final = 2.0  # after the disk had no space for the end of a repair

Record = Callable[[HostedLog, JournalEvent], None]


class OpenLog(Protocol):
    def __call__(self, hosted: HostedLog, *, sound: bool, sound_if_alone: bool) -> LogDriver:
        """As LogOpener.open."""
        ...


class Repairs:
    """Owned by the event loop. A log is under repair at most once at a time."""

    def __init__(
        self,
        services: NodeServices,
        logs: Mapping[int, HostedLog],
        record: Record,
        *,
        disk: DiskThreads,
        open_log: OpenLog,
        predates_folder: Callable[[HostedLog], bool],
        serve: Callable[[HostedLog, LogDriver], None],
        tasks: TaskSupervisor,
    ) -> None:
        """logs: by id, as the node keeps it. record(hosted, event): write an event to a log's journal.
        predates_folder(hosted): as in DamagedCopy. serve(hosted, driver): the log is open again, take
        part."""
        self.record = record
        self._services = services
        self._files = services.files
        self._disk = disk
        self._logs = logs
        self._open_log = open_log
        self._predates_folder = predates_folder
        self._serve = serve
        self._tasks = tasks
        self.calls = PeerCalls(services.transport, services.random)
        self._server = RepairServer(services.files, services.clock, services.transport.send, self.report)

    def marker_of(self, hosted: HostedLog) -> RepairMarker:
        return self.marker_named(hosted.name)

    def marker_named(self, log_name: str) -> RepairMarker:
        return RepairMarker(self._files, self._services.data_folder, log_name)

    # --- messages ---------------------------------------------------------------------------------------

    def take(self, source: str, log_id: int, message: PeerCall) -> None:
        """Handle a request of a peer, or its answer to one of ours."""
        if not isinstance(message, FetchRequest | TermRequest | DigestRequest):
            self.calls.answered(source, log_id, message)
            return
        hosted = self._logs.get(log_id)
        driver, repair = (None, None) if hosted is None else (hosted.driver, hosted.repair)
        self._tasks.once("repair-answer", self._server.answer(source, log_id, driver, message, repair))

    # --- damage -----------------------------------------------------------------------------------------

    def report(self, error: StorageError, found_by: str) -> bool:
        """Begin the repair of a log that a storage error shows to be damaged, or that cannot be read; return
        whether there is one.

        Damage of a log's journal is not damage of the log.
        """
        damage = as_damage(error)
        if isinstance(damage, CorruptLog):
            for hosted in self._logs.values():
                folder = self._services.log_folder(hosted.name)
                if damage.path == folder or damage.path.startswith(f"{folder}/"):
                    self.begin(hosted, damage, found_by)
                    return True
        return False

    def begin(self, hosted: HostedLog, cause: Damaged, found_by: str) -> None:
        """Take the log offline, if it is not already, and repair it in the background.

        A rollback has the files of its log for itself: damage is found again when it opens the log.
        """
        if hosted.repair is not None or hosted.rollback is not None or hosted.journal is None:
            return
        is_configured = not hosted.knows_group
        group, marker = hosted.group, self.marker_of(hosted)
        sound = not hosted.in_doubt or marker.keeps_promises  # may raise: nothing has changed yet
        driver, hosted.driver, hosted.caught_up = hosted.driver, None, False
        hosted.repair = LogRepair(
            _Host(self, hosted),
            DamagedCopy(
                files=self._files,
                folder=self._services.log_folder(hosted.name),
                log_name=hosted.name,
                log_id=hosted.log_id,
                node_id=self._services.node_id,
                voters=group.voters,
                learners=group.learners,
                storage=self._services.storage,
                marker=marker,
                votes=hosted.settings.replication is Replication.RAFT,
                state_type=MetadataLogState if hosted.name == CONTROLLER_LOG else LogState,
                settled_voters=() if driver is None else settled_voters(driver.state),
                is_configured=is_configured,
                predates_folder=partial(self._predates_folder, hosted),
            ),
            FoundDamage(
                cause=cause,
                found_by=found_by,
                sound=sound,
                held_index=NO_INDEX if driver is None else driver.held_index,
            ),
            calls=self.calls,
            clock=self._services.clock,
        )
        hosted.repairs_begun += 1
        if driver is not None:
            driver.abandon()
        hosted.wake()
        self._tasks.critical(f"repair {hosted.name}", self._run(hosted, hosted.repair, driver))

    async def _run(self, hosted: HostedLog, repair: LogRepair, driver: LogDriver | None) -> None:
        await self._disk.lane(hosted.name).drain()  # after it no thread uses the log's files
        if driver is not None:
            await self._close(driver)
        await repair.run()
        if hosted.repair is repair:  # given up
            hosted.repair = None

    async def reread(self, driver: LogDriver, first_index: int, last_index: int) -> None:
        """Read a log of this node again, as `app.node.repair.server.reread` does."""
        await reread(self._files, driver, first_index, last_index)

    async def _close(self, driver: LogDriver) -> None:
        """Close the files of a log whose driver has ended."""
        try:
            await in_thread(driver.close)
        except StorageError as error:  # its content is not used any more
            logger.warning("log %s: not closed cleanly: %s", driver.log_name, error)

    # --- and back ---------------------------------------------------------------------------------------

    def opened(self, hosted: HostedLog, driver: LogDriver) -> None:
        """A repair has restored the log; it serves from now on, and votes once it is sound."""
        assert hosted.repair is not None
        hosted.repair_result, hosted.repair, hosted.in_doubt = hosted.repair.result, None, True
        self._serve(hosted, driver)

    def open_marked(self, hosted: HostedLog, *, sound: bool) -> LogDriver:
        """Open a marked log; blocks. sound: everything that it ever promised is restored. The only voter
        of a group has promised nothing to another node: once its log opens it is sound, unless it lacks a
        record that may have named other voters. Raises CorruptLog, CorruptFile, DiskError."""
        return self._open_log(hosted, sound=sound, sound_if_alone=not self.marker_of(hosted).lacks_records)

    def healed(self, hosted: HostedLog, before: Callable[[], None] = lambda: None) -> None:
        """The replica holds all that its leader has committed: the note is removed, and it votes again.

        before: what must be durable first; it may block.
        """
        marker = self.marker_of(hosted)

        def work() -> bool:
            before()
            intact = marker.intact
            marker.remove()
            return intact

        def then(intact: Any, error: BaseException | None) -> None:
            if isinstance(error, StorageFull):
                logger.warning(
                    "log %s: the disk is full: the record of its repair is removed later", hosted.name
                )
                self._tasks.once("heal", self._heal_later(hosted, hosted.driver, before))
            elif error is not None:
                self._services.fail(f"log {hosted.name}: note of a repair", error)
            elif hosted.repair is None and intact:
                hosted.in_doubt = False  # no file was damaged: nothing was repaired
                logger.info("replica votes again", extra={"log": hosted.name})
            elif hosted.repair is None:
                self._record_healed(hosted)

        self._disk.lane(hosted.name).submit(work, then)

    async def _heal_later(
        self, hosted: HostedLog, driver: LogDriver | None, before: Callable[[], None]
    ) -> None:
        """Repeat what had no space, unless the log was closed or is repaired again meanwhile."""
        await asyncio.sleep(HEAL_RETRY_S)
        if driver is not None and hosted.driver is driver:
            self.healed(hosted, before)

    def _record_healed(self, hosted: HostedLog) -> None:
        result, hosted.repair_result, hosted.in_doubt = hosted.repair_result, None, False
        healed = Repair(state="healed") if result is None else result.as_event()
        logger.warning("log repaired", extra={"log": hosted.name, **healed.data})
        self.record(hosted, healed)

    def differs(self, hosted: HostedLog, found: Comparison) -> None:
        """Two replicas hold different committed records: this cannot be repaired automatically, so it is
        logged and recorded."""
        corruption = Corruption(
            found_by="verify",
            first_difference=found.first_difference,
            groups=found.groups,
            damaged=[each.node for each in found.replicas if each.state is ReplicaState.DAMAGED],
        )
        logger.error("replicas differ", extra={"log": hosted.name, **corruption.data})
        self.record(hosted, corruption)


class _Host:
    """app.node.repair.interfaces.RepairHost for one log."""

    def __init__(self, repairs: Repairs, hosted: HostedLog) -> None:
        self._repairs = repairs
        self._hosted = hosted

    def record(self, event: JournalEvent) -> None:
        self._repairs.record(self._hosted, event)

    def open_log(self, *, sound: bool) -> LogDriver:
        return self._repairs.open_marked(self._hosted, sound=sound)

    def serve(self, driver: LogDriver) -> None:
        self._repairs.opened(self._hosted, driver)

    def fail(self, what: str, error: BaseException) -> None:
        self._repairs._services.fail(what, error)
