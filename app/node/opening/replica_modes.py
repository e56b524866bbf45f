"""Mode-dependent part of the opening of a replica: its doubts, its group and its core.

Raft: the vote file holds term and vote (R-01). A replica that may lack what it promised opens without a vote.
Controller and classic mode: the vote file holds the newest master epoch that this replica knows, and its own
id if it has opened that epoch itself: an epoch is opened once (A-01). A copy that may lack what it
acknowledged is a new replica (C-03).
"""

import logging
from dataclasses import dataclass, replace

from app.ha.auto_switch.core import AutoSwitchCore
from app.ha.classic.master import ClassicMasterCore
from app.ha.classic.opening import may_lack
from app.ha.classic.slave import ClassicSlaveCore
from app.ha.config import HaConfig
from app.log.contract import GroupConfig, LogOptions
from app.log.core_start import CoreStart
from app.log.state import LogState
from app.node.metadata.replica_identity import IdentityFile
from app.node.opening.open_replica import FoundFolder, RecoveredReplica
from app.node.opening.trust import Trust, judge_opening
from app.node.repair.marker import RepairMarker
from app.node.state.checkpoints import is_whole
from app.node.state.group_file import first_group, is_lost
from app.raft.config import RaftConfig
from app.raft.core import RaftCore
from storage.errors import CorruptFile
from storage.log.hard_state import HardState, HardStateFile
from storage.log.origin import FolderOrigin

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RaftMode:
    """A log in Raft mode.

    configured: the group, until the log names another one. sound: false when the disk may have lost what
    this replica acknowledged or voted: it only follows until it holds all that is committed. sound_if_alone:
    but it is sound if the log, once open, names no other voter: it has promised nothing to any other node. A
    log without its state may not name all of them.
    begins: an empty folder is that of a new log, and no disk was replaced. Without it, after a power
    failure, or in the copy of a folder, the replica may open without a vote (trust.py). predates_folder: the
    log existed before the data folder of this node. Then an empty folder is in doubt also if the settings
    name no other voter: others may have joined since (R-10).
    """

    configured: GroupConfig
    config: RaftConfig
    preferred_leader: str | None = None
    sound: bool = True
    sound_if_alone: bool = False
    begins: bool = False
    predates_folder: bool = False
    state_type: type[LogState] = LogState

    @property
    def may_lose_committed(self) -> bool:
        return False

    def judge(self, found: FoundFolder) -> Trust:
        services, name = found.services, found.log.name
        alone = self.configured.voters == (services.node_id,)
        origin = FolderOrigin(services.files, services.log_folder(name))
        trust = judge_opening(
            name,
            RepairMarker(services.files, services.data_folder, name),
            found.clean_stop,
            services.clock,
            sound=self.sound,
            sound_if_alone=self.sound_if_alone,
            is_empty=found.is_empty and not self.begins and (self.predates_folder or not alone),
            is_copy=origin.is_copy(),
            is_alone=alone,
        )
        origin.renew()
        return replace(trust, may_lack_vote=not trust.knows_vote or (found.is_empty and trust.sound))

    def group(self, replica: RecoveredReplica) -> GroupConfig:
        if replica.state.settled_membership is not None:
            return self.configured
        is_bound = replica.hard_state.term > 0 or replica.files.log.next_index > 0
        return first_group(replica.services.files, replica.folder, self.configured, is_bound=is_bound)

    def core(self, replica: RecoveredReplica, group: GroupConfig) -> RaftCore:
        services, log, hard_state = replica.services, replica.files.log, replica.hard_state
        if hard_state.term < log.last_term:
            raise CorruptFile(
                f"{replica.folder}/vote", f"term {hard_state.term} is older than the log's {log.last_term}"
            )
        sound = replica.trust.sound
        if replica.trust.sound_if_alone and is_whole(replica.state, log):
            members = replica.state.membership
            sound = sound or (group.voters if members is None else members.voters) == (services.node_id,)
        return RaftCore(
            _start_of(replica, group),
            log,
            config=self.config,
            sound=sound,
            knows_vote=replica.trust.knows_vote,
            knows_group=not is_lost(services.files, replica.folder),
            preferred_leader=self.preferred_leader,
        )


@dataclass(frozen=True, kw_only=True)
class _HaMode:
    """Common part of controller and classic mode."""

    replicas: tuple[str, ...]  # of the configuration
    config: HaConfig

    @property
    def state_type(self) -> type[LogState]:
        return LogState

    @property
    def may_lose_committed(self) -> bool:
        return True

    def group(self, _replica: RecoveredReplica) -> GroupConfig:
        return GroupConfig(voters=self.replicas)

    def _judge(self, found: FoundFolder, *, sound: bool) -> Trust:
        """A copy that may lack what it acknowledged forgets its identity (C-03): it does not claim the place
        in a SyncStateSet that it had."""
        if not sound or found.clean_stop.may_have_lost():
            reason = (
                "the power failed before the last records were synced" if sound else "records may be lost"
            )
            logger.warning("%s: this copy is a new replica", reason, extra={"log": found.log.name})
            services = found.services
            IdentityFile(services.files, services.data_folder, found.log.name).forget()
        # After its first incarnation a replica has a journal, and may have opened an epoch.
        return Trust(sound, sound_if_alone=False, knows_vote=True, may_lack_vote=not found.has_journal)


@dataclass(frozen=True, kw_only=True)
class AutoSwitchMode(_HaMode):
    """A log in controller mode. It waits for a role (app/ha/roles.py), which its manager delivers.

    address: of this node's HA listener, as the other nodes reach it. sound: false when damage may have taken
    what this copy acknowledged: then it is a new replica. A repair that has restored everything, or that
    found only small files damaged, leaves its identity.
    """

    address: str
    min_in_sync_replicas: int = 1
    sound: bool = True

    def judge(self, found: FoundFolder) -> Trust:
        """Return the trust. A copied folder is noted in its identity: the controllers decide whether it is a
        new replica (C-03). Its manager reads the identity once the copy is served: an unreadable one is
        repaired before."""
        trust, services = self._judge(found, sound=self.sound), found.services
        identity = IdentityFile(services.files, services.data_folder, found.log.name)
        identity.load()
        origin = FolderOrigin(services.files, services.log_folder(found.log.name))
        if origin.is_copy():
            logger.warning("the folder is a copy, perhaps an older one", extra={"log": found.log.name})
            identity.note_copy()
        origin.renew()
        return trust

    def core(self, replica: RecoveredReplica, group: GroupConfig) -> AutoSwitchCore:
        return AutoSwitchCore(
            _start_of(replica, group),
            replica.files.log,
            address=self.address,
            config=self.config,
            min_in_sync_replicas=self.min_in_sync_replicas,
        )


@dataclass(frozen=True, kw_only=True)
class ClassicMode(_HaMode):
    """A log in classic mode: its core is the master's or a slave's, by configuration.

    master_address: where the master takes slaves of this log. sync_slaves, min_in_sync_replicas,
    auto_in_sync_replicas, unclean, raised_from: as in ClassicMasterCore and LogOptions. sound: false when a
    repair may have lost records of this copy. begins: as in RaftMode; without it the master of an empty
    folder waits for all replicas.
    """

    master_id: str
    master_address: str
    sync_slaves: int
    min_in_sync_replicas: int = 1
    auto_in_sync_replicas: bool = False
    unclean: bool = False
    raised_from: int = 0
    sound: bool = True
    begins: bool = False

    def judge(self, found: FoundFolder) -> Trust:
        """Return the trust; a slave's copy, and one that may lack records which it held, have opened no epoch
        from now on: durable on return. The vote file of a slave has its master, that of a copy which may lack
        records has no id.

        As the master each opens the next epoch, once it has heard those that may hold what it lacks.
        """
        trust = self._judge(found, sound=self.sound)
        services, folder = found.services, found.services.log_folder(found.log.name)
        origin = FolderOrigin(services.files, folder)
        is_slave = self.master_id != services.node_id
        may_have_lost = not self.sound or found.clean_stop.may_have_lost()
        if origin.is_copy():
            may_have_lost = True
            logger.warning("the folder is a copy, perhaps an older one", extra={"log": found.log.name})
        has_lost = found.has_vote and may_have_lost
        if has_lost or (is_slave and (found.has_vote or trust.may_lack_vote)):
            vote = HardStateFile(services.files, f"{folder}/vote")
            known = vote.load()
            has_lost = has_lost or may_lack(known)
            vote.save(HardState(max(known.term, 1)) if has_lost else HardState(known.term, self.master_id))
        origin.renew()
        return trust

    def core(self, replica: RecoveredReplica, group: GroupConfig) -> ClassicMasterCore | ClassicSlaveCore:
        start, log = _start_of(replica, group), replica.files.log
        if self.master_id == start.node_id:
            return ClassicMasterCore(
                start,
                log,
                config=self.config,
                sync_slaves=self.sync_slaves,
                auto_in_sync_replicas=self.auto_in_sync_replicas,
                options=LogOptions(
                    durability=start.durability,
                    min_in_sync_replicas=self.min_in_sync_replicas,
                    unclean=self.unclean,
                    raised_from=self.raised_from,
                ),
                recorded=replica.state.sync_floor if is_whole(replica.state, log) else None,
                begins=self.begins and self.sound,
            )
        return ClassicSlaveCore(
            start, log, master_id=self.master_id, master_address=self.master_address, config=self.config
        )


def _start_of(replica: RecoveredReplica, group: GroupConfig) -> CoreStart:
    return CoreStart(
        node_id=replica.services.node_id,
        log_id=replica.log.log_id,
        group=group,
        durability=replica.log.durability,
        hard_state=replica.hard_state,
        committed_index=replica.committed_index,
        random=replica.services.random,
    )
