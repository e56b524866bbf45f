"""From a node's folders to a driver that can start: recovery of one log and all that belongs to it.

DATA/logs/NAME/     segments, manifest, epochs (storage/log/commitlog.py), vote, checkpoint, state, group
DATA/journal/NAME/  the node's journal of the log
"""

import logging
from collections.abc import Callable
from random import Random
from typing import Any, Protocol

from app.log.contract import (
    AppendLimits,
    Clock,
    Disk,
    DriverConfig,
    Durability,
    GroupConfig,
    Scheduler,
    SpaceReserve,
    Transport,
)
from app.log.state import LogState
from app.node.opening import judge_opening
from app.node.repair.marker import RepairMarker
from app.node.replica.checkpoints import load_state
from app.node.replica.driver import LogDriver
from app.node.replica.group_file import first_group
from app.raft.config import RaftConfig
from app.raft.core import RaftCore
from storage.errors import CorruptFile, CorruptLog, StorageFull
from storage.file_system import FileSystem
from storage.log.checkpoint import CheckpointFile, SnapshotFile
from storage.log.clean_stop import CleanStop
from storage.log.commitlog import Commitlog, CommitlogConfig
from storage.log.hard_state import HardState, HardStateFile
from storage.log.journal import Journal, begin_anew
from storage.log.log_folder import MANIFEST_NAME

logger = logging.getLogger(__name__)


class LogLimits(AppendLimits, Protocol):
    @property
    def idempotency_ms(self) -> int:
        """For how long an idempotency key is remembered at least."""
        ...


def open_journal(
    files: FileSystem, data_folder: str, node_id: str, log_name: str, storage: CommitlogConfig
) -> Journal:
    """Recover a node's journal of a log; a damaged one is set aside, and begun anew. Raises DiskError."""
    folder = f"{data_folder}/journal/{log_name}"
    files.make_folders(folder)
    try:
        return Journal(files, folder, node_id, log_name, storage)
    except (CorruptLog, CorruptFile) as error:
        logger.error(
            "journal damaged; a new journal is started", extra={"log": log_name, "damage": str(error)}
        )
    begin_anew(files, folder, node_id, log_name, storage)
    return Journal(files, folder, node_id, log_name, storage)


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
    preferred_leader: str | None = None,
    sound: bool = True,
    sound_if_alone: bool = False,
    begins: bool = False,
    healed: Callable[[], None] | None = None,
    damaged: Callable[[CorruptLog], None] | None = None,
    journal: Journal | None = None,
    state_type: type[LogState] = LogState,
    reserve: SpaceReserve | None = None,
) -> LogDriver:
    """Recover one replica and put its parts together; `LogDriver.start` begins.

    sound: false when the disk may have lost what this replica acknowledged or voted: it only follows, and
    `healed` is called once it holds all that is committed. sound_if_alone: but it is sound if the log, once
    open, names no other voter: it has promised nothing to anybody. begins: an empty folder is that of a new
    log, and no disk was replaced. Without it, or after a power failure, the replica may open without a vote
    (opening.py). damaged: the log was found damaged while
    it ran, and its driver has ended. journal: open already, None: it is opened here. state_type: what the log
    says beside its records, for a log that says more than others. random: seeded by chance, so that no two
    lives of a node draw the same. Raises CorruptLog, CorruptFile (this node must not take part in the log),
    DiskError.
    """
    folder = f"{data_folder}/logs/{log_name}"
    files.make_folders(folder)
    if journal is None:
        journal = open_journal(files, data_folder, node_id, log_name, storage)
    marker, clean_stop = RepairMarker(files, data_folder, log_name), CleanStop(files, folder)
    hard_state_file = HardStateFile(files, f"{folder}/vote")
    has_vote, has_log = (files.exists(f"{folder}/{name}") for name in ("vote", MANIFEST_NAME))
    is_first = not (has_vote or has_log or journal.next_seq)
    trust = judge_opening(
        log_name,
        marker,
        clean_stop,
        clock,
        sound=sound,
        sound_if_alone=sound_if_alone,
        is_empty=is_first and not begins and group.voters != (node_id,),
    )
    if not has_vote:
        if trust.knows_vote and not (is_first and trust.sound):  # it may have voted
            raise CorruptFile(f"{folder}/vote", "missing")
        hard_state_file.save(HardState())
    sound = trust.sound
    checkpoint_file = CheckpointFile(files, f"{folder}/checkpoint")
    snapshot_file = SnapshotFile(files, f"{folder}/state")
    hard_state = hard_state_file.load()
    if hard_state.term and sound and not files.exists(f"{folder}/{MANIFEST_NAME}"):
        raise CorruptLog(folder, 0, "all of the log is missing but its vote")
    committed_index = checkpoint_file.load().committed_index
    log = Commitlog.open(files, folder, log_id=log_id, config=storage, committed_index=committed_index)
    clean_stop.opened(acks_unsynced=durability is Durability.REPLICATED)
    if hard_state.term < log.last_term:
        raise CorruptFile(f"{folder}/vote", f"term {hard_state.term} is older than the log's {log.last_term}")
    state = load_state(log, snapshot_file, idempotency_ms=limits.idempotency_ms, state_type=state_type)
    if state.settled_membership is None:
        is_bound = hard_state.term > 0 or log.next_index > 0
        group = first_group(files, folder, group, is_bound=is_bound)
    if trust.sound_if_alone:
        members = state.membership
        sound = sound or (group.voters if members is None else members.voters) == (node_id,)
    core = RaftCore(
        node_id=node_id,
        group=group,
        log=log,
        durability=durability,
        hard_state=hard_state,
        committed_index=committed_index,
        config=raft,
        random=random,
        sound=sound,
        knows_vote=trust.knows_vote,
        preferred_leader=preferred_leader,
    )

    def removed(_result: Any, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, StorageFull):
            fail(f"log {log_name}: note of a doubt", error)

    return LogDriver(
        log_name=log_name,
        log_id=log_id,
        node_id=node_id,
        core=core,
        log=log,
        state=state,
        journal=journal,
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
        group=group,
        config=config,
        healed=healed or (lambda: disk.submit(marker.remove, removed)),
        damaged=damaged,
        reserve=reserve,
        stopped=clean_stop.stopped,
        loosens=lambda: clean_stop.opened(acks_unsynced=True),
    )
