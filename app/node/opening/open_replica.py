"""Opening of one replica: recovery of its folders, and the construction of its driver.

DATA/logs/NAME/     segments, manifest, epochs (storage/log/commitlog.py), vote, checkpoint, state, group
DATA/journal/NAME/  the node's journal of the log

Every replication mode takes the same steps. Differences between the modes are in replica_modes.py.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from app.log.contract import NO_INDEX, Durability, GroupConfig, ReplicationCore
from app.log.state import LogState
from app.node.opening.trust import Trust
from app.node.replica.driver import LogDriver
from app.node.services import NodeServices, ReplicaEvents, ReplicaFiles
from app.node.state.checkpoints import is_whole, load_state
from storage.errors import CorruptFile, CorruptLog, StorageError, as_damage
from storage.file_system import FileSystem
from storage.log.checkpoint import CheckpointFile, SnapshotFile
from storage.log.clean_stop import CleanStop
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.hard_state import HardState, HardStateFile
from storage.log.journal import Journal, replace_journal
from storage.log.log_folder import MANIFEST_NAME
from storage.log.origin import FolderOrigin

logger = logging.getLogger(__name__)

Core = TypeVar("Core", bound=ReplicationCore)
MadeCore = TypeVar("MadeCore", bound=ReplicationCore, covariant=True)


@dataclass(frozen=True, kw_only=True)
class LogIdentity:
    """The log of a replica, and the durability that it opens with."""

    name: str
    log_id: int
    durability: Durability


@dataclass(frozen=True, kw_only=True)
class FoundFolder:
    """Content of a replica's folders before they are opened."""

    services: NodeServices
    log: LogIdentity
    clean_stop: CleanStop
    has_vote: bool
    has_log: bool
    has_journal: bool  # with at least one event

    @property
    def is_empty(self) -> bool:
        """True if this replica has left no trace on the disk."""
        return not (self.has_vote or self.has_log or self.has_journal)


@dataclass(frozen=True, kw_only=True)
class RecoveredReplica:
    """One replica's files, recovered: what a mode needs to make its core."""

    services: NodeServices
    log: LogIdentity
    files: ReplicaFiles
    state: LogState
    hard_state: HardState
    committed_index: int
    trust: Trust

    @property
    def folder(self) -> str:
        return self.services.log_folder(self.log.name)


class ReplicationMode(Protocol[MadeCore]):
    """Part of the opening that depends on the replication mode. Every method may block on the disk."""

    @property
    def state_type(self) -> type[LogState]:
        """The log's records and the state that they define."""
        ...

    @property
    def may_lose_committed(self) -> bool:
        """True if an unclean election may lose committed records (C-05)."""
        ...

    def judge(self, found: FoundFolder) -> Trust:
        """Return how far the replica is to be trusted; a doubt is durable on return. Raises DiskError."""
        ...

    def group(self, replica: RecoveredReplica) -> GroupConfig:
        """Return the group to use until the log names another one. Raises DiskError, StorageFull."""
        ...

    def core(self, replica: RecoveredReplica, group: GroupConfig) -> MadeCore:
        """Return the core of the replica. Raises CorruptFile when the vote contradicts the log."""
        ...


@dataclass(frozen=True)
class OpenReplica(Generic[Core]):
    """An open replica: its driver, and the core that the driver runs."""

    driver: LogDriver
    core: Core


def open_journal(
    files: FileSystem, data_folder: str, node_id: str, log_name: str, storage: CommitlogConfig
) -> Journal:
    """Recover a node's journal of a log. One that is damaged, or cannot be read, is set aside.

    Then a new journal is started. Raises DiskError.
    """
    folder = f"{data_folder}/journal/{log_name}"
    files.make_folders(folder)
    try:
        return Journal(files, folder, node_id, log_name, storage)
    except StorageError as error:
        if not isinstance(as_damage(error), CorruptLog | CorruptFile):
            raise
        logger.error(
            "journal damaged; a new journal is started", extra={"log": log_name, "damage": str(error)}
        )
    replace_journal(files, folder)
    return Journal(files, folder, node_id, log_name, storage)


def open_replica(
    services: NodeServices,
    log: LogIdentity,
    mode: ReplicationMode[Core],
    *,
    journal: Journal | None = None,
    events: ReplicaEvents | None = None,
) -> OpenReplica[Core]:
    """Recover one replica and create its driver; `LogDriver.start` begins. Blocks.

    journal: the node's journal of the log if it is open already; None opens it. Raises CorruptLog,
    CorruptFile (this node must not take part in the log), DiskError, StorageFull.
    """
    files = services.files
    files.make_folders(services.log_folder(log.name))
    if journal is None:
        journal = open_journal(files, services.data_folder, services.node_id, log.name, services.storage)
    recovered = _recover(services, log, mode, journal)
    with _closed_on_error(recovered.files.log):
        group = mode.group(recovered)
        _check_state(recovered, group)
        core = mode.core(recovered, group)
    driver = LogDriver(
        services,
        recovered.files,
        core,
        recovered.state,
        group=group,
        durability=log.durability,
        events=events,
    )
    return OpenReplica(driver, core)


def _check_state(recovered: RecoveredReplica, group: GroupConfig) -> None:
    """Check that the state is there if nothing can restore it: the records before the beginning are trimmed,
    and no other replica has it. Without it this copy would never lead. Raises CorruptFile."""
    if _is_alone(recovered, group) and not is_whole(recovered.state, recovered.files.log):
        raise CorruptFile(recovered.files.snapshot.path, "missing")


def _is_alone(recovered: RecoveredReplica, group: GroupConfig) -> bool:
    """Return whether nothing names another member: neither the group nor the log. A trim leaves the newest
    records, and keeps the epoch of the beginning; a reset by the leader of others does neither."""
    log, membership = recovered.files.log, recovered.state.membership
    members = {*group.members, *(epoch.leader for epoch in log.epochs)}
    if membership is not None:
        members.update((*membership.voters, *membership.learners))
    return members <= {recovered.services.node_id} and log.end_index != NO_INDEX and log.knows_begin_epoch


@contextmanager
def _closed_on_error(log: Commitlog) -> Iterator[None]:
    """Close the files of a log that is not used after all: an opening that fails is often repeated."""
    try:
        yield
    except Exception:
        with suppress(StorageError):
            log.close()
        raise


def _recover(
    services: NodeServices, log: LogIdentity, mode: ReplicationMode[Core], journal: Journal
) -> RecoveredReplica:
    """Judge the replica's folder, recover its files, and load its state. Raises as `open_replica`."""
    files, folder = services.files, services.log_folder(log.name)
    clean_stop = CleanStop(files, folder)
    hard_state_file = HardStateFile(files, f"{folder}/vote")
    found = FoundFolder(
        services=services,
        log=log,
        clean_stop=clean_stop,
        has_vote=files.exists(f"{folder}/vote"),
        has_log=files.exists(f"{folder}/{MANIFEST_NAME}"),
        has_journal=journal.next_seq > 0,
    )
    trust = mode.judge(found)
    if not found.has_vote:
        if not trust.may_lack_vote:
            raise CorruptFile(f"{folder}/vote", "missing")
        if not files.exists(f"{folder}/vote"):  # the judgement may have written it
            hard_state_file.save(HardState())
    checkpoint_file = CheckpointFile(files, f"{folder}/checkpoint")
    snapshot_file = SnapshotFile(files, f"{folder}/state")
    hard_state = hard_state_file.load()
    if hard_state.term and trust.sound and not found.has_log:
        raise CorruptLog(folder, 0, "all of the log is missing but its vote")
    committed_index = checkpoint_file.load().committed_index
    commitlog = Commitlog.open(
        files, folder, log_id=log.log_id, config=services.storage, committed_index=committed_index
    )
    with _closed_on_error(commitlog):
        clean_stop.opened(acks_unsynced=log.durability is Durability.REPLICATED)
        state, safe_index = load_state(
            commitlog,
            snapshot_file,
            idempotency_ms=services.limits.idempotency_ms,
            state_type=mode.state_type,
            may_lose_committed=mode.may_lose_committed,
        )
    return RecoveredReplica(
        services=services,
        log=log,
        files=ReplicaFiles(
            log_name=log.name,
            log_id=log.log_id,
            log=commitlog,
            journal=journal,
            hard_state=hard_state_file,
            checkpoint=checkpoint_file,
            snapshot=snapshot_file,
            clean_stop=clean_stop,
            origin=FolderOrigin(files, folder),
            safe_index=safe_index,
        ),
        state=state,
        hard_state=hard_state,
        committed_index=committed_index,
        trust=trust,
    )
