"""From a node's folders to a driver of a log in controller or classic mode; as open_log.py does it for Raft.

The folders are the same. The vote file holds the newest master epoch that this replica knows, and its own id
if it has opened that epoch itself: an epoch is opened once (A-01).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from app.ha.auto_switch.core import AutoSwitchCore
from app.ha.classic.master import ClassicMasterCore
from app.ha.classic.slave import ClassicSlaveCore
from app.ha.config import HaConfig
from app.log.contract import (
    Clock,
    Disk,
    DriverConfig,
    Durability,
    GroupConfig,
    ReplicationCore,
    Scheduler,
    SpaceReserve,
    Transport,
)
from app.log.state import LogState
from app.node.metadata.replica_identity import IdentityFile
from app.node.open_log import LogLimits, open_journal
from app.node.replica.checkpoints import load_state
from app.node.replica.driver import LogDriver
from storage.errors import CorruptFile, CorruptLog
from storage.file_system import FileSystem
from storage.log.checkpoint import CheckpointFile, SnapshotFile
from storage.log.clean_stop import CleanStop
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.hard_state import HardState, HardStateFile
from storage.log.journal import Journal
from storage.log.log_folder import MANIFEST_NAME

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class HaNode:
    """What all logs of one node share. transport: carries HA messages and those between nodes (HaLink)."""

    files: FileSystem
    data_folder: str
    node_id: str
    storage: CommitlogConfig
    limits: LogLimits
    ha: HaConfig
    clock: Clock
    disk: Disk
    transport: Transport
    scheduler: Scheduler
    random: Random
    fail: Callable[[str, BaseException], None]
    version: str
    driver: DriverConfig | None = None
    reserve: SpaceReserve | None = None


class Replica:
    """One replica's files, recovered; what every mode needs before it makes its core."""

    def __init__(
        self,
        node: HaNode,
        log_name: str,
        log_id: int,
        durability: Durability,
        journal: Journal | None,
        *,
        sound: bool = True,
    ) -> None:
        """Raises CorruptLog, CorruptFile (this node must not take part in the log), DiskError,
        StorageFull."""
        files = node.files
        self._node = node
        self._name = log_name
        self.log_id = log_id
        self.durability = durability
        folder = f"{node.data_folder}/logs/{log_name}"
        files.make_folders(folder)
        self._journal = journal or open_journal(files, node.data_folder, node.node_id, log_name, node.storage)
        self._hard_state_file = HardStateFile(files, f"{folder}/vote")
        if not files.exists(f"{folder}/vote"):
            if self._journal.next_seq:  # not the first life of this replica: it may have opened an epoch
                raise CorruptFile(f"{folder}/vote", "missing")
            self._hard_state_file.save(HardState())
        self._checkpoint_file = CheckpointFile(files, f"{folder}/checkpoint")
        self._snapshot_file = SnapshotFile(files, f"{folder}/state")
        self.hard_state = self._hard_state_file.load()
        self.committed_index = self._checkpoint_file.load().committed_index
        if sound and self.hard_state.term and not files.exists(f"{folder}/{MANIFEST_NAME}"):
            raise CorruptLog(folder, 0, "all of the log is missing but its vote")
        self._clean_stop = CleanStop(files, folder)
        self._doubt(sound=sound)
        self.log = Commitlog.open(
            files, folder, log_id=log_id, config=node.storage, committed_index=self.committed_index
        )
        self._clean_stop.opened(acks_unsynced=durability is Durability.REPLICATED)
        self._state: LogState = load_state(
            self.log, self._snapshot_file, idempotency_ms=node.limits.idempotency_ms
        )

    def _doubt(self, *, sound: bool) -> None:
        """A copy that may lack what it acknowledged is another replica from here on (C-03): it does not claim
        the place in a SyncStateSet that it had. Durable on return."""
        if sound and not self._clean_stop.may_have_lost():
            return
        reason = "the power failed before the last records were synced" if sound else "records may be lost"
        logger.warning("%s: this copy is a new replica", reason, extra={"log": self._name})
        IdentityFile(self._node.files, self._node.data_folder, self._name).forget()

    def driver(
        self,
        core: ReplicationCore,
        replicas: tuple[str, ...],
        damaged: Callable[[CorruptLog], None] | None,
    ) -> LogDriver:
        node = self._node
        return LogDriver(
            log_name=self._name,
            log_id=self.log_id,
            node_id=node.node_id,
            core=core,
            log=self.log,
            state=self._state,
            journal=self._journal,
            hard_state_file=self._hard_state_file,
            checkpoint_file=self._checkpoint_file,
            snapshot_file=self._snapshot_file,
            clock=node.clock,
            disk=node.disk,
            transport=node.transport,
            scheduler=node.scheduler,
            durability=self.durability,
            limits=node.limits,
            fail=node.fail,
            version=node.version,
            group=GroupConfig(voters=replicas),
            config=node.driver,
            damaged=damaged,
            reserve=node.reserve,
            stopped=self._clean_stop.stopped,
            loosens=lambda: self._clean_stop.opened(acks_unsynced=True),
        )


@dataclass(frozen=True, slots=True)
class AutoSwitchLog:
    """A log in controller mode: the manager delivers roles to `driver` and reads `core` (app/ha/roles.py)."""

    driver: LogDriver
    core: AutoSwitchCore


def open_auto_switch_log(
    node: HaNode,
    *,
    log_name: str,
    log_id: int,
    address: str,
    replicas: tuple[str, ...],
    durability: Durability,
    min_in_sync_replicas: int = 1,
    sound: bool = True,
    journal: Journal | None = None,
    damaged: Callable[[CorruptLog], None] | None = None,
) -> AutoSwitchLog:
    """Recover one replica; `driver.start` begins. It waits for a role.

    address: of this node's HA listener, as the others reach it. replicas: of the configuration. sound: false
    when damage may have taken what this copy acknowledged; then it is another replica from here on. A repair
    that has brought everything back, or that found small files alone damaged, leaves its identity.
    journal, damaged: as in open_raft_log. Raises CorruptLog, CorruptFile, DiskError.
    """
    replica = Replica(node, log_name, log_id, durability, journal, sound=sound)
    core = AutoSwitchCore(
        node_id=node.node_id,
        address=address,
        log_id=log_id,
        group=GroupConfig(voters=replicas),
        log=replica.log,
        durability=durability,
        hard_state=replica.hard_state,
        committed_index=replica.committed_index,
        config=node.ha,
        min_in_sync_replicas=min_in_sync_replicas,
        random=node.random,
    )
    return AutoSwitchLog(replica.driver(core, replicas, damaged), core)


def open_classic_log(
    node: HaNode,
    *,
    log_name: str,
    log_id: int,
    replicas: tuple[str, ...],
    master_id: str,
    master_address: str,
    sync_slaves: int,
    durability: Durability,
    min_in_sync_replicas: int = 1,
    auto_in_sync_replicas: bool = False,
    unclean: bool = False,
    journal: Journal | None = None,
    damaged: Callable[[CorruptLog], None] | None = None,
) -> LogDriver:
    """Recover one replica of a classic log: its core is the master's or a slave's, by configuration.

    master_address: where the master takes slaves of this log. sync_slaves, min_in_sync_replicas,
    auto_in_sync_replicas, unclean: as in ClassicMasterCore. Raises CorruptLog, CorruptFile, DiskError.
    """
    replica = Replica(node, log_name, log_id, durability, journal)
    core: ClassicMasterCore | ClassicSlaveCore
    if master_id == node.node_id:
        core = ClassicMasterCore(
            node_id=node.node_id,
            replicas=replicas,
            log=replica.log,
            durability=durability,
            hard_state=replica.hard_state,
            committed_index=replica.committed_index,
            config=node.ha,
            sync_slaves=sync_slaves,
            min_in_sync_replicas=min_in_sync_replicas,
            auto_in_sync_replicas=auto_in_sync_replicas,
            unclean=unclean,
        )
    else:
        core = ClassicSlaveCore(
            node_id=node.node_id,
            replicas=replicas,
            master_id=master_id,
            master_address=master_address,
            log_id=log_id,
            log=replica.log,
            durability=durability,
            committed_index=replica.committed_index,
            config=node.ha,
            random=node.random,
        )
    return replica.driver(core, replicas, damaged)
