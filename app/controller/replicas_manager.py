"""ReplicasManager of one log at one node: turns metadata into a role, and what the core wants into requests.

It registers its copy (C-03), adopts the role in the metadata (C-10), passes leases on (A-11), and requests
the SyncStateSet that its core wants (C-06), or an election if its core cannot be the master that the metadata
name. Everything that it receives may be old: metadata arrive in the order of their indexes, and an answer
counts only for the open request.

PURE: `step` returns the actions to carry out now; the shell carries them out and reports back.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import msgspec

from app.controller.commands import (
    AlterSyncStateSet,
    AnyCommand,
    ApplyForReplicaId,
    Done,
    Reason,
    Refusal,
    RegisterReplica,
    StepDown,
)
from app.controller.config import ControllerConfig
from app.controller.liveness import Report
from app.controller.metadata import Log
from app.controller.state_machine import Metadata
from app.ha.roles import (
    HaView,
    KnownReplica,
    Lease,
    MasterRole,
    RoleMessage,
    SlaveRole,
    SyncStateSetUpdate,
)
from app.log.contract import NO_INDEX, Role

_DOUBLED_MAX: Final = 8  # times: the patience with a disk that does not take the metadata


class CopyIdentity(msgspec.Struct, frozen=True, array_like=True):
    """The identity beside a copy. replica_id: 0 until the controller has assigned one. is_copy: the folder is
    a copy of the one that the last incarnation used, and was not registered since by the metadata here."""

    check_code: str
    replica_id: int = 0
    is_copy: bool = False


@dataclass(frozen=True, slots=True)
class Save:
    """Make the identity durable, then call `saved`."""

    identity: CopyIdentity


@dataclass(frozen=True, slots=True)
class ControllerRequest:
    """Send to the active controller until it answers or the time limit passes; then call `answered`."""

    command: AnyCommand


@dataclass(frozen=True, slots=True)
class SendToCore:
    """Pass this to the core, after everything passed before."""

    message: RoleMessage


@dataclass(frozen=True, slots=True)
class HeartbeatNow:
    """Send a heartbeat at once: about a new copy, or a new master, which has no lease yet."""


Action = Save | ControllerRequest | SendToCore | HeartbeatNow


class ReplicasManager:
    """One copy of one log in controller mode. All times are the node's monotonic milliseconds.

    Invariants: at most one request is open; roles are passed only to a registered copy, in the order of the
    metadata, from its registration on; it is master only of epochs that were elected after that; a lease is
    passed only while the metadata here name this copy as master of its epoch.
    """

    def __init__(
        self,
        *,
        log: str,
        generation: int,
        node: str,
        address: str,
        identity: CopyIdentity | None,
        config: ControllerConfig,
        random: Random,
    ) -> None:
        """address: of the node's HA listener. identity: as found on disk. random: draws check codes."""
        self.log = log
        self.generation = generation
        self._node = node
        self._address = address
        self._identity = identity
        self._config = config
        self._random = random
        self._saving = False
        self._registered = False  # in this incarnation
        self._registered_index = NO_INDEX  # of the metadata that contain the registration
        self._registered_ms = 0  # when that was answered
        self._current_version: int | None = None  # of the metadata here that had this very copy last
        self._open: AnyCommand | None = None
        self._pause_until_ms = 0
        self._sent_role: MasterRole | SlaveRole | None = None  # without the set
        self._sent_set_epoch = 0
        self._known_set = (0, NO_INDEX)  # set epoch here, and an index of the metadata that contain it
        self._known_opening = (0, NO_INDEX)  # the same of the newest master epoch that is open by them
        self._lease: tuple[int, int] | None = None  # (master epoch, until_ms), not passed on yet
        self._withheld_epoch = 0  # the controller asks to give this mastership up
        self._given_up_epoch = 0  # this copy is master by the metadata, but does not act
        self._alive: tuple[str, ...] | None = None  # as last reported by the active controller
        self._has_changes = False  # for the next heartbeat
        self._leaving = False
        self._has_left = False
        self._silent_since_ms: int | None = None  # a member that is not alive delays a change of the set
        self._has_opened_epoch = 0  # the controller was notified at once that this epoch is open here
        self._acted_epoch = 0  # the newest epoch in which the core here has been master
        self._leased_epoch = 0  # the newest epoch of a lease that was passed on
        self._unused_since_ms: int | None = None  # the metadata have this epoch open, and that is not durable
        self._unused_times = 0  # how often such an epoch was given up, since the last lease
        self._is_opened_epoch = 0  # ... and that this node knows that the metadata have it open

    @property
    def replica_id(self) -> int:
        """0 until it is registered."""
        return self._identity.replica_id if self._registered and self._identity is not None else 0

    def report(self, view: HaView) -> Report:
        """Return what the next heartbeat reports of this copy (C-03)."""
        copy, ends = (self.log, self.generation, self.replica_id), (view.max_offset, view.confirm_offset)
        return Report(*copy, view.log_epoch, *ends, view.electable, view.has_room)

    # --- what the shell reports ----------------------------------------------------------------------------

    def saved(self, identity: CopyIdentity) -> None:
        self._identity = identity
        self._saving = False

    def answered(self, command: AnyCommand, answer: Done | Refusal | None, now_ms: int) -> None:
        """Handle the answer to a ControllerRequest; None: there was none, and the outcome is unknown."""
        if command is not self._open:
            return
        self._open = None
        if isinstance(command, RegisterReplica) and not self._is_own(command):
            return  # meanwhile the metadata were without this copy
        if isinstance(answer, Refusal):
            self._pause_until_ms = now_ms + self._config.heartbeat_interval_ms
            if answer.reason is Reason.STALE_SET_EPOCH:  # until the newest is known here
                self._pause_until_ms = now_ms + self._config.retry_interval_ms
            if answer.reason in (Reason.UNKNOWN_REPLICA, Reason.CHECK_CODE, Reason.LOST_RECORDS):
                self._forget_identity()
        elif answer is None:
            self._pause_until_ms = now_ms + self._config.retry_interval_ms
        elif isinstance(command, ApplyForReplicaId) and answer.value is not None:
            self._identity, self._saving = CopyIdentity(command.check_code, answer.value), True
        elif isinstance(command, RegisterReplica) and not self._registered:
            self._registered = self._has_changes = True
            self._registered_index = answer.index
            self._registered_ms = now_ms
            # The incarnation before may have opened that epoch, and an older copy of its folder does not show
            # it: a second opening would give the epoch other records.
            self._given_up_epoch = answer.value or 0
        else:  # until its outcome is in the metadata here
            if isinstance(command, StepDown):
                self._has_left = command.leaving
            self._pause_until_ms = now_ms + self._config.retry_interval_ms

    def heartbeat_answered(
        self,
        granted: Sequence[tuple[str, int]],
        withheld: Sequence[str],
        alive: tuple[str, ...],
        sent_ms: int,
        leases: Sequence[int] = (),
        withheld_epochs: Sequence[int] = (),
    ) -> None:
        """Handle the answer of the active controller to the heartbeat sent at sent_ms. leases,
        withheld_epochs: as in the answer.

        A heartbeat from before the registration did not report this copy: a lease for its log is of another
        copy, perhaps of a deleted log of that name, whose epochs began with 1 too.
        """
        self._alive = alive
        if not self._registered or sent_ms < self._registered_ms:
            return
        for place, (log, master_epoch) in enumerate(granted):
            if log == self.log:
                lease_ms = leases[place] if place < len(leases) else self._config.lease_ms
                self._lease = (master_epoch, sent_ms + lease_ms)
        for place, log in enumerate(withheld):
            if log == self.log and place < len(withheld_epochs):
                self._withheld_epoch = withheld_epochs[place]
            elif log == self.log and isinstance(self._sent_role, MasterRole):
                self._withheld_epoch = self._sent_role.master_epoch

    def leave(self) -> None:
        """The node stops: give the mastership up."""
        self._leaving = True

    def has_left(self, log: Log | None) -> bool:
        """Return whether nothing is left to give up, or the controller knows of it."""
        return self._has_left or log is None or not self._is_master(log)

    # --- what follows --------------------------------------------------------------------------------------

    def step(self, metadata: Metadata, view: HaView, now_ms: int, durable_index: int) -> list[Action]:
        """metadata: as this node knows them, durable here up to durable_index. view: the core between two
        turns."""
        log = metadata.log(self.log)
        if log is None or log.generation != self.generation or not log.elects:
            return []
        if log.set_epoch != self._known_set[0]:
            self._known_set = (log.set_epoch, metadata.applied_index)
        if not log.is_opening and log.master_epoch != self._known_opening[0]:
            self._known_opening = (log.master_epoch, metadata.applied_index)
        if view.role is Role.MASTER:
            self._acted_epoch = view.epoch
        actions: list[Action] = self._register(view, now_ms)
        if self._has_changes:
            self._has_changes = False
            actions.append(HeartbeatNow())
        if self._registered and metadata.applied_index >= self._registered_index:
            self._note_registration(durable_index)
            self._watch_disk(log, durable_index, now_ms)
            self._send_role(log, actions, durable_index)
            self._send_lease(log, actions, durable_index)
            self._report_opening(log, view, actions)
            self._correct_address(log, actions, now_ms)
            self._ask_for_more(log, view, actions, now_ms)
            if self._is_taken_out(log):
                self._forget_identity()
        elif self._registered and self._given_up_epoch:
            self._ask_for_successor(view, actions, now_ms)
        return actions

    def _is_taken_out(self, log: Log) -> bool:
        """Return whether the log was without this copy since it was registered: its node was removed, and
        may be back already. This copy is another replica then, as an empty one would be. Older metadata,
        which a repair may restore, prove nothing."""
        if log.is_current(self.replica_id):
            self._current_version = log.version
            return False
        known = self._current_version
        return known is not None and log.version > known and log.of_node(self._node) is None

    def _register(self, view: HaView, now_ms: int) -> list[Action]:
        if self._identity is None:
            self._identity = CopyIdentity(f"{self._random.getrandbits(128):032x}")
            self._saving = True
            return [Save(self._identity)]
        if self._saving:
            return [Save(self._identity)]
        if self._registered or self._open is not None or now_ms < self._pause_until_ms:
            return []
        code, replica_id = self._identity.check_code, self._identity.replica_id
        if replica_id == 0:
            return [self._ask(ApplyForReplicaId(self.log, self.generation, self._node, code))]
        return [self._ask(self._registration(view.max_offset, view.log_epoch))]

    def _registration(self, max_offset: int | None, log_epoch: int | None) -> RegisterReplica:
        assert self._identity is not None
        code, replica_id, is_copy = msgspec.structs.astuple(self._identity)
        copy = (self.log, self.generation, self._node, replica_id, code)
        return RegisterReplica(*copy, self._address, max_offset, log_epoch, is_copy and not self._registered)

    def _note_registration(self, durable_index: int) -> None:
        """A copied folder is registered as one, and rebuilt controllers know it from the metadata here."""
        if self._identity and self._identity.is_copy and durable_index >= self._registered_index:
            self._identity, self._saving = msgspec.structs.replace(self._identity, is_copy=False), True

    def _is_own(self, command: RegisterReplica) -> bool:
        return self._identity is not None and self._identity.check_code == command.check_code

    def _correct_address(self, log: Log, actions: list[Action], now_ms: int) -> None:
        """Register again if the metadata have another address of this copy: a registration of an earlier
        incarnation arrived late, and the other replicas do not reach this one. What the copy held at its
        start was checked when it was registered."""
        if self._open is not None or now_ms < self._pause_until_ms or self._leaving:
            return
        known = log.current(self.replica_id)
        if known is not None and known.address != self._address:
            actions.append(self._ask(self._registration(None, None)))

    def _forget_identity(self) -> None:
        """The id belongs to another copy: this one is new to the controller, whatever it holds."""
        self._identity = None
        self._registered = False
        self._sent_role = self._current_version = None

    def _ask(self, command: AnyCommand) -> ControllerRequest:
        self._open = command
        return ControllerRequest(command)

    def _is_master(self, log: Log) -> bool:
        return log.master is not None and log.master == self.replica_id and log.is_current(log.master)

    def _role_of(self, log: Log) -> MasterRole | SlaveRole:
        replicas = tuple(
            KnownReplica(each.id, each.node, each.address or "", log.is_learner(each.node))
            for each in log.replicas
            if log.is_current(each.id)
        )
        if not log.is_current(self.replica_id):  # they know a later copy of this node, or none
            return SlaveRole(None, log.master_epoch, (), log.unclean_epoch, log.sync_state_set)
        if not self._is_master(log):
            return SlaveRole(log.master, log.master_epoch, replicas, log.unclean_epoch, log.sync_state_set)
        if log.master_epoch == self._given_up_epoch:
            return SlaveRole(None, log.master_epoch, replicas, log.unclean_epoch)
        return MasterRole(
            log.master_epoch,
            log.sync_state_set,
            log.set_epoch,
            replicas,
            log.unclean_epoch,
            log.set_acks,
        )

    def _send_role(self, log: Log, actions: list[Action], durable_index: int) -> None:
        """Send the full role on any change except the SyncStateSet; send only the delta for that.

        A master takes a set only once it is durable here: what counts on it is acknowledged at once, and
        controllers that are rebuilt from this copy must know it (C-09). A newer epoch is durable in the vote
        of the log before anything is acknowledged.
        """
        if self._is_master(log) and (self._leaving or log.master_epoch == self._withheld_epoch):
            self._given_up_epoch = log.master_epoch
        role, sent = self._role_of(log), self._sent_role
        is_same_epoch = isinstance(sent, MasterRole) and sent.master_epoch == log.master_epoch
        is_new_set = isinstance(role, MasterRole) and is_same_epoch and log.set_epoch > self._sent_set_epoch
        if is_new_set and durable_index < self._known_set[1]:
            return
        if _without_set(role) != sent:
            if isinstance(role, MasterRole) and not isinstance(sent, MasterRole):
                actions.append(HeartbeatNow())
            actions.append(SendToCore(role))
            self._sent_role, self._sent_set_epoch = _without_set(role), log.set_epoch
        elif is_new_set:
            changed = SyncStateSetUpdate(log.master_epoch, log.set_epoch, log.sync_state_set, log.set_acks)
            actions.append(SendToCore(changed))
            self._sent_set_epoch = log.set_epoch

    def _send_lease(self, log: Log, actions: list[Action], durable_index: int) -> None:
        """Pass on a lease for the epoch in the metadata here; one for a newer epoch waits for them.

        It also waits until it is durable here that the epoch is open: controllers that are rebuilt from this
        copy could elect a member of the former set otherwise (C-09).
        """
        if self._lease is None:
            return
        master_epoch, until_ms = self._lease
        if master_epoch > log.master_epoch:
            return
        is_open = not log.is_opening and durable_index >= self._known_opening[1]
        if master_epoch == log.master_epoch and not is_open:
            return
        self._lease = None
        role = self._sent_role
        if isinstance(role, MasterRole) and role.master_epoch == master_epoch:
            self._leased_epoch, self._unused_times = master_epoch, 0
            actions.append(SendToCore(Lease(until_ms, master_epoch)))

    def _watch_disk(self, log: Log, durable_index: int, now_ms: int) -> None:
        """Give an epoch up in which no lease can be used: the disk hangs, and does not take the metadata. A
        member of the set before can lead. Each time it waits twice as long, for disks that are slow."""
        waits = self._is_unused(log.master_epoch) and log.master_epoch != self._given_up_epoch
        waits = waits and self._is_master(log) and log.can_restore_set(self._alive or (), least=2)
        if not waits or durable_index >= self._known_opening[1]:
            self._unused_since_ms = None
        elif self._unused_since_ms is None:
            self._unused_since_ms = now_ms
        elif now_ms - self._unused_since_ms >= self._config.opening_timeout_ms << self._unused_times:
            self._unused_since_ms, self._given_up_epoch = None, log.master_epoch
            self._unused_times = min(self._unused_times + 1, _DOUBLED_MAX)

    def _is_unused(self, master_epoch: int) -> bool:
        """Return whether the core here was master of that epoch and got no lease in it."""
        return self._acted_epoch == master_epoch and self._leased_epoch != master_epoch

    def _report_opening(self, log: Log, view: HaView, actions: list[Action]) -> None:
        """Speed up a new master: the controller learns that its epoch is open here, and grants no lease
        before that is in the metadata."""
        role = self._sent_role
        if not isinstance(role, MasterRole) or role.master_epoch != log.master_epoch:
            return
        epoch = role.master_epoch
        if log.is_opening and self._has_opened_epoch < epoch <= view.log_epoch and view.max_offset > 0:
            self._has_opened_epoch = epoch
            actions.append(HeartbeatNow())
        elif not log.is_opening and self._is_opened_epoch < epoch == self._has_opened_epoch:
            self._is_opened_epoch = epoch
            actions.append(HeartbeatNow())

    def _ask_for_successor(self, view: HaView, actions: list[Action], now_ms: int) -> None:
        """Give up the epoch of the incarnation before, which the registration reported, before the metadata
        are here: while the disk hangs they do not arrive, and this copy would remain master (C-05)."""
        if self._open is None and now_ms >= self._pause_until_ms:
            self._step_down(self._given_up_epoch, view, actions)

    def _ask_for_more(self, log: Log, view: HaView, actions: list[Action], now_ms: int) -> None:
        """Request an election that this copy needs, or the set that it wants."""
        if self._open is not None or now_ms < self._pause_until_ms or not self._is_master(log):
            return
        # A core that has not heard of this epoch yet reports an earlier one: it may take this one up.
        cannot = view.needs_election and view.epoch == log.master_epoch
        if log.master_epoch == self._given_up_epoch or cannot:
            self._step_down(log.master_epoch, view, actions)
            return
        request, wanted = view.set_request, self._wanted_set(log, view, now_ms)
        if request is not None and wanted is not None:
            copy, epochs = (self.log, self.generation, self.replica_id), (log.master_epoch, log.set_epoch)
            actions.append(self._ask(AlterSyncStateSet(*copy, *epochs, wanted, request.acks)))

    def _step_down(self, master_epoch: int, view: HaView, actions: list[Action]) -> None:
        """Request an election once the core does not act as master any more: what it acknowledged after that
        could be unknown to the replicas that are asked what they hold (C-12).

        What a core that was master has acknowledged ends at its confirm offset; one that restarted after that
        does not know it.
        """
        if view.role is Role.MASTER and view.epoch == master_epoch:
            return
        confirmed = view.confirm_offset if self._acted_epoch == master_epoch else None
        unused = master_epoch == self._given_up_epoch and self._is_unused(master_epoch)
        copy = self.log, self.generation, self.replica_id
        actions.append(self._ask(StepDown(*copy, master_epoch, self._leaving, confirmed, unused)))

    def _wanted_set(self, log: Log, view: HaView, now_ms: int) -> tuple[int, ...] | None:
        """Return the set that the core wants, without replicas that cannot join because they are not alive.

        A dead member that the core still wants is left to the core for a while: the core notices that soon.
        One that the core hears and the controllers do not must leave then: no set with it is accepted (C-06),
        and it would block every other change. Only the minimum size of the set is kept (C-12).
        """
        request = view.set_request
        if request is None or self._alive is None:
            self._silent_since_ms = None
            return None
        if (request.master_epoch, request.sync_state_set_epoch) != (log.master_epoch, log.set_epoch):
            return None  # the core, or this node, does not know the newest yet
        wanted, silent = [self.replica_id], False
        for member in request.members:
            if member == self.replica_id:
                continue
            replica = log.current(member)
            if replica is not None and replica.node in self._alive:
                wanted.append(member)
            elif member in log.sync_state_set:
                silent = True
        found = tuple(sorted(wanted))
        if not silent:
            self._silent_since_ms = None
        elif not self._may_leave_silent_out(log, request.members, found, now_ms):
            return None
        if found == log.sync_state_set and len(found) < len(request.members):
            return None  # who should join is not alive yet
        return found

    def _may_leave_silent_out(
        self, log: Log, wanted: tuple[int, ...], found: tuple[int, ...], now_ms: int
    ) -> bool:
        """Return whether members that the controllers do not hear have delayed another change for long
        enough."""
        if self._silent_since_ms is None:
            self._silent_since_ms = now_ms
        grows = any(member not in log.sync_state_set for member in found)
        shrinks = any(member not in wanted for member in log.sync_state_set)
        waited_ms = now_ms - self._silent_since_ms
        return (
            (grows or shrinks)
            and waited_ms >= self._config.broker_timeout_ms
            and len(found) >= log.spec.min_in_sync_replicas
        )


def _without_set(role: MasterRole | SlaveRole) -> MasterRole | SlaveRole:
    """Return the role without the parts that SyncStateSetUpdate contains."""
    if not isinstance(role, MasterRole):
        return role
    return replace(role, sync_state_set=(), sync_state_set_epoch=0, acks=0)
