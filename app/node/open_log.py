"""From a node's folders to a driver that can start: recovery of one log and all that belongs to it.

DATA/logs/NAME/     segments, manifest, epochs (storage/commitlog.py), vote, checkpoint, state
DATA/journal/NAME/  the node's journal of the log
"""

from collections.abc import Callable
from random import Random
from typing import Protocol

from app.node.checkpoints import load_state
from app.node.driver import LogDriver
from app.raft.config import RaftConfig
from app.raft.core import RaftCore
from app.replication import (
    AppendLimits,
    Clock,
    Disk,
    DriverConfig,
    Durability,
    GroupConfig,
    Scheduler,
    Transport,
)
from storage.checkpoint import CheckpointFile, SnapshotFile
from storage.commitlog import Commitlog, CommitlogConfig
from storage.errors import CorruptFile
from storage.file_system import FileSystem
from storage.hard_state import HardStateFile
from storage.journal import Journal


class LogLimits(AppendLimits, Protocol):
    @property
    def idempotency_ms(self) -> int:
        """For how long an idempotency key is remembered at least."""
        ...


def open_raft_log(
    *,
    files: FileSystem,
    data_folder: str,
    log_name: str,
    log_id: int,
    node_id: str,
    group: GroupConfig,
    durability: Durability,
    raft: RaftConfig,
    storage: CommitlogConfig,
    limits: LogLimits,
    clock: Clock,
    disk: Disk,
    transport: Transport,
    scheduler: Scheduler,
    random: Random,
    fail: Callable[[str, BaseException], None],
    version: str,
    config: DriverConfig | None = None,
) -> LogDriver:
    """Recover one replica and put its parts together; `LogDriver.start` begins.

    random: seeded by chance, so that no two lives of a node draw the same. Raises CorruptLog, CorruptFile
    (this node must not take part in the log) and DiskError.
    """
    folder = f"{data_folder}/logs/{log_name}"
    journal_folder = f"{data_folder}/journal/{log_name}"
    files.make_folders(folder)
    files.make_folders(journal_folder)
    hard_state_file = HardStateFile(files, f"{folder}/vote")
    checkpoint_file = CheckpointFile(files, f"{folder}/checkpoint")
    snapshot_file = SnapshotFile(files, f"{folder}/state")
    hard_state = hard_state_file.load()
    committed_index = checkpoint_file.load().committed_index
    log = Commitlog.open(files, folder, log_id=log_id, config=storage, committed_index=committed_index)
    if hard_state.term < log.last_term:
        raise CorruptFile(f"{folder}/vote", f"term {hard_state.term} is older than the log's {log.last_term}")
    state = load_state(log, snapshot_file, idempotency_ms=limits.idempotency_ms)
    core = RaftCore(
        node_id=node_id,
        group=group,
        log=log,
        durability=durability,
        hard_state=hard_state,
        committed_index=committed_index,
        config=raft,
        random=random,
    )
    return LogDriver(
        log_name=log_name,
        log_id=log_id,
        node_id=node_id,
        core=core,
        log=log,
        state=state,
        journal=Journal(files, journal_folder, node_id, log_name, storage),
        hard_state_file=hard_state_file,
        checkpoint_file=checkpoint_file,
        snapshot_file=snapshot_file,
        clock=clock,
        disk=disk,
        transport=transport,
        scheduler=scheduler,
        durability=durability,
        limits=limits,
        fail=fail,
        version=version,
        config=config,
    )
