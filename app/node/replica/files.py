"""Open files of one replica."""

from dataclasses import dataclass

from storage.log.checkpoint import CheckpointFile, SnapshotFile
from storage.log.clean_stop import CleanStop
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardStateFile
from storage.log.journal import Journal


@dataclass(frozen=True, kw_only=True)
class ReplicaFiles:
    """The files of one replica, owned by its driver while that runs.

    DATA/logs/NAME/     log (segments, manifest, epochs), vote (hard_state), checkpoint, state (snapshot),
                        opened (clean_stop)
    DATA/journal/NAME/  journal: the events that this node has observed of the log
    """

    log_name: str
    log_id: int
    log: Commitlog
    journal: Journal
    hard_state: HardStateFile
    checkpoint: CheckpointFile
    snapshot: SnapshotFile
    clean_stop: CleanStop
