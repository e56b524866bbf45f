"""Parts of one replica."""

from dataclasses import dataclass

from app.log.contract import ReplicationCore
from app.log.driver_interfaces import Disk
from app.node.replica.commit_waiters import CommitWaiters
from app.node.replica.log_space import LogSpace
from app.node.replica.open_appends import OpenAppends
from app.node.replica.proposer import Proposer
from app.node.replica.read_gate import ReadGate
from app.node.replica.state_keeper import StateKeeper
from app.node.replica.syncing import JournalWriter, LogSyncer
from app.node.services import NodeServices, ReplicaFiles


@dataclass(frozen=True, kw_only=True)
class ReplicaParts:
    """Parts that the driver of a replica creates once, and its executor, queue, options and stop use too."""

    services: NodeServices
    files: ReplicaFiles
    disk: Disk  # the lane of the log
    core: ReplicationCore
    state: StateKeeper
    space: LogSpace
    journal: JournalWriter
    syncer: LogSyncer
    proposer: Proposer
    appends: OpenAppends
    reads: ReadGate
    waiters: CommitWaiters
