"""Masters of the logs: elections on request, and those that the controller begins itself (C-04). PURE."""

from collections import Counter
from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from app.controller import elect_master, replica_changes, settings_of_logs
from app.controller.active.catching_up import CatchingUp
from app.controller.active.full_disks import FullDisks
from app.controller.active.rounds import Happen
from app.controller.commands import AnyCommand, Done, ElectMaster, Reason, Refused, StepDown
from app.controller.complete_copies import may_become_complete, surely_lacks
from app.controller.events import MasterElected, MasterLost, SyncStateSetChanged
from app.controller.liveness import Liveness
from app.controller.metadata import Log
from app.controller.state_machine import Metadata

_OPENINGS_TRIED: Final = 2  # by one replica, before others are preferred: a restart may cost it one
_DOUBLED_MAX: Final = 8  # times: the patience with a replica that failed often, whose disk may just be slow


class _UnopenedEpoch(NamedTuple):
    """An epoch whose master has yet to open it. failed: how often that replica had failed before."""

    epoch: int
    since_ms: int
    failed: int


class Masters:
    """Elections of one period of being active, and what is remembered between rounds to decide on them.

    Invariant: a log whose lease is withheld waits for an operator's election, or for a handover by a master
    whose node leaves the log, or has a full disk.
    """

    def __init__(self, liveness: Liveness, now_ms: int) -> None:
        """liveness: its `config` has the settings that hold now."""
        self._liveness = liveness
        self._began_ms = now_ms
        # Logs whose lease is not granted -> the operator's election that waits for that, None for a handover.
        self._withheld: dict[str, ElectMaster | None] = {}
        self._catching_up = CatchingUp()
        self._handing_over: dict[str, None] = {}  # of those: the master's node leaves, or its disk is full
        self._full_disks = FullDisks(liveness)
        self._unmastered_ms: dict[str, int] = {}  # log that never had a master -> since when it is known
        self._openings_failed: dict[str, dict[int, int]] = {}  # log -> replica -> how often, since one opened
        self._recorded_ms: dict[str, int] = {}  # log -> when its metadata got what its copies have confirmed
        self._openings: dict[str, _UnopenedEpoch] = {}  # log -> the epoch that is not open yet
        self._failed_epochs: dict[str, int] = {}  # log -> the last epoch that counts as a failed opening
        self._unleased: dict[str, int] = {}  # log -> epoch noted here as open, no lease granted since
        self.refused_elections: Counter[tuple[str, str]] = Counter()  # (log, reason)
        self._refused_epochs: dict[str, int] = {}  # log -> epoch after which an election was refused

    def is_withheld(self, log: str) -> bool:
        """Return whether the log's lease is not granted, so that another master can be elected."""
        return log in self._withheld

    def refused(self, log: str, refused: Refused) -> None:
        """Count a refused election."""
        self.refused_elections[log, refused.refusal.reason.value] += 1

    def granted(self, log: Log, now_ms: int) -> None:
        """Record that a lease leaves for the master of the log."""
        self._unleased.pop(log.name, None)
        self._liveness.granted(log.name, now_ms)

    def _has_opened(self, log: Log) -> bool:
        """Return whether the master's epoch is open. Earlier failures do not count any more then, unless the
        master has given the epoch up since."""
        has_opened = elect_master.has_opened(log, self._liveness)
        if has_opened and not self._liveness.is_given_up(log.name):
            self._openings_failed.pop(log.name, None)
        return has_opened

    def must_wait(self, state: Metadata, command: AnyCommand, now_ms: int) -> bool:
        """An operator's election away from a master that may hold a lease: the lease is not renewed, and
        the election waits until it has ended or the master has given it up (A-11). Then it waits briefly
        until enough members have reported what they hold, if the set does not count all (C-12). A copy that
        lacks records is refused while the master leads. Raises Refused."""
        if not isinstance(command, ElectMaster):
            return False
        is_withheld = command.log in self._withheld
        if self._withheld.get(command.log) == command:
            del self._withheld[command.log]
        log = state.log(command.log)
        if log is None or not log.elects or log.master_epoch > command.seen_epoch:
            return False
        if command.generation not in (None, log.generation):
            return False  # it will be refused now, as one that names no replica
        if command.candidate is not None and command.candidate not in log.nodes:
            return False
        if not self._moves_master(log, command, now_ms):
            return False
        if not self._liveness.may_be_leased(log.name, now_ms):
            over_ms = now_ms - self._liveness.lease_over_ms(log.name)
            if over_ms >= self._liveness.config.broker_timeout_ms or self._can_elect(log, command, now_ms):
                return False
            candidate = None if command.candidate is None else log.of_node(command.candidate)
            if candidate is not None and surely_lacks(log, self._liveness, candidate):
                return False
        elif not is_withheld and self._catching_up.must_wait(log, command, self._liveness, now_ms):
            return True
        try:
            elect_master.elect(log, self._liveness, now_ms, command=command, provisional=True)
        except Refused:
            if self._liveness.may_be_leased(log.name, now_ms):
                raise  # no copy is proven to be complete before that ends, so it would be unclean
            return False
        self._withheld[command.log] = command
        return True

    def _can_elect(self, log: Log, command: ElectMaster, now_ms: int) -> bool:
        try:
            elect_master.elect(log, self._liveness, now_ms, command=command)
        except Refused:
            return False
        return True

    def _moves_master(self, log: Log, command: ElectMaster, now_ms: int) -> bool:
        """Return whether the command asks for a master other than the living one, which stays if any will
        do."""
        if not elect_master.has_living_master(log, self._liveness, now_ms):
            return True
        return command.candidate is not None and command.candidate != log.master_node

    def step_down(self, state: Metadata, log: Log, command: StepDown, happen: Happen, now_ms: int) -> Done:
        """The master of that epoch has given it up: elect a master; the same replica may win again."""
        if command.master_epoch != log.master_epoch or command.master != log.master:
            return Done(state.applied_index)  # carried out before, or outdated
        if command.leaving and log.master_node is not None:
            self._liveness.disconnected(log.master_node)
        confirmed = None if command.unused else command.confirmed  # what it has confirmed is of no use then
        self._liveness.given_up(log.name, now_ms, log.master_epoch, confirmed)
        if not command.leaving:
            self._count_failed(log)
        living = [node for node in log.nodes if self._liveness.may_live(node, now_ms)]
        if command.unused and log.can_restore_set(living):  # else only this copy is known to be complete
            if not command.leaving:  # its disk hangs: others are preferred
                self._count_failed(log, least=_OPENINGS_TRIED)
            happen(_set_before(log))
            log = _known(state, log)
        if log.name not in self._withheld:  # else the operator's election, which waits for this, comes next
            self._replace_master(log, happen, now_ms, steps_down=True)
        return Done(state.applied_index)

    def elect(self, state: Metadata, log: Log, command: ElectMaster, happen: Happen, now_ms: int) -> Done:
        settings_of_logs.check_usable(log)
        if not log.elects:
            raise Refused(Reason.WRONG_MODE, f"log {log.name!r} is not in controller mode")
        if command.candidate is not None and command.candidate not in log.nodes:
            raise Refused(Reason.NO_ELIGIBLE_REPLICA, f"{command.candidate} does not keep the log")
        if log.master_epoch > command.seen_epoch or not self._moves_master(log, command, now_ms):
            return Done(state.applied_index)
        self._elected(log, elect_master.elect(log, self._liveness, now_ms, command=command), happen)
        return Done(state.applied_index)

    def forget(self, name: str) -> None:
        """Forget a deleted log: the next one of that name has other replicas, and epochs from 1 on."""
        self._unmastered_ms.pop(name, None)
        self._openings_failed.pop(name, None)
        self._openings.pop(name, None)
        self._unleased.pop(name, None)
        self._failed_epochs.pop(name, None)
        self._recorded_ms.pop(name, None)
        self._handing_over.pop(name, None)
        self._full_disks.forget(name)
        self._refused_epochs.pop(name, None)
        self._withheld.pop(name, None)
        self._catching_up.forget(name)

    def let_leave(self, log: Log, happen: Happen, now_ms: int) -> bool:
        """Remove the nodes that a change has taken out, once the log can do without them; return whether
        something happened. A leaving master is replaced first, and so is one whose disk is full."""
        may_leave = replica_changes.may_leave(log, self._liveness, now_ms)
        if may_leave and not replica_changes.is_master_leaving(log):
            happen(replica_changes.left(log))
            return True
        left_out = self._full_disks.left_out(log, now_ms, is_begun=log.name in self._handing_over)
        if may_leave:
            return self._hand_over(log, log.leaving, elect_master.REASON_LEAVING, happen, now_ms)
        if left_out:
            return self._hand_over(log, left_out, elect_master.REASON_DISK_FULL, happen, now_ms)
        self._stop_handing_over(log)
        return False

    def _hand_over(
        self, log: Log, left_out: Collection[str], reason: str, happen: Happen, now_ms: int
    ) -> bool:
        """Elect a member of another node than these; return whether it happened. The master gives up its
        lease first, as for an operator's election."""
        is_leased = self._liveness.may_be_leased(log.name, now_ms)
        avoided = {each.id: 1 for each in log.copies() if each.node in left_out} | self._avoided(log)
        try:
            event = elect_master.elect(log, self._liveness, now_ms, avoided=avoided, provisional=is_leased)
        except Refused:
            self._stop_handing_over(log)
            return False
        winner = log.replica(event.master)
        if winner is None or winner.node in left_out:
            self._stop_handing_over(log)
            return False
        if is_leased or self._withheld.get(log.name) is not None:  # an operator's election comes first
            self._handing_over[log.name] = None
            self._withheld.setdefault(log.name, None)
            return False
        self._stop_handing_over(log)
        self._elected(log, msgspec.structs.replace(event, reason=reason), happen)
        return True

    def _stop_handing_over(self, log: Log) -> None:
        """Grant leases again; a master that has given its own up requests an election."""
        if log.name in self._handing_over:
            del self._handing_over[log.name]
            if self._withheld.get(log.name) is None:
                self._withheld.pop(log.name, None)

    def supervise(self, state: Metadata, log: Log, happen: Happen, now_ms: int) -> None:
        """Replace a master that is gone, or that does not open its epoch; note when it has, and from time to
        time what the copies have confirmed."""
        has_opened = self._has_opened(log)
        lives = elect_master.has_living_master(log, self._liveness, now_ms)
        opens = has_opened and log.is_opening and lives  # the former set holds still if it is dead by now
        if opens:
            self._unleased[log.name] = log.master_epoch
        if opens or (has_opened and not log.is_opening and self._is_record_due(log, now_ms)):
            happen(
                SyncStateSetChanged(
                    log=log.name,
                    master_epoch=log.master_epoch,
                    sync_state_set=log.sync_state_set,
                    set_epoch=log.set_epoch + 1 if log.is_opening else log.set_epoch,
                    acks=log.set_acks,
                )
            )
            return
        if not lives:
            self._replace_dead(state, log, happen, now_ms)
        elif log.is_opening and self._opens_too_slowly(log, now_ms):
            self._count_failed(log, least=_OPENINGS_TRIED)
            self._replace_master(log, happen, now_ms, stays=log.master)

    def _replace_dead(self, state: Metadata, log: Log, happen: Happen, now_ms: int) -> None:
        """Replace a master that is gone: by a member of the set before its election, if it was granted no
        lease. This controller knows that: it noted that the epoch is open, and leases are granted only after.

        That set is restored together with the election alone: the master may return before, and get a lease.
        """
        living = [node for node in log.nodes if self._liveness.may_live(node, now_ms)]
        if self._unleased.get(log.name) == log.master_epoch and log.can_restore_set(living):
            trial, set_before = state.copy(), _set_before(log)
            trial.apply(state.applied_index + 1, set_before)
            restored = _known(trial, log)
            missed_ms = elect_master.missed_master_ms(log, self._liveness, now_ms)
            try:
                event = self._election(restored, missed_ms, now_ms)
            except Refused:
                if may_become_complete(restored, self._liveness, now_ms):
                    return
            else:
                happen(set_before)
                self._elected(restored, event, happen)
                return
        self._replace_master(log, happen, now_ms)

    def _count_failed(self, log: Log, *, least: int = 1) -> None:
        """Count the epoch of the master as one that it did not open, once, and as `least` failures at
        least."""
        assert log.master is not None
        failed = self._openings_failed.setdefault(log.name, {})
        if self._failed_epochs.get(log.name) != log.master_epoch:
            self._failed_epochs[log.name] = log.master_epoch
            failed[log.master] = failed.get(log.master, 0) + 1
        failed[log.master] = max(least, failed.get(log.master, 0))

    def _is_record_due(self, log: Log, now_ms: int) -> bool:
        """True if the copies of an open log have confirmed more than its metadata record, for long enough."""
        since_ms = now_ms - self._recorded_ms.get(log.name, self._began_ms)
        is_due = since_ms >= self._liveness.config.confirmed_interval_ms
        return is_due and bool(self._liveness.changes_of_confirmed(log))

    def with_confirmed(self, state: Metadata, event: SyncStateSetChanged, now_ms: int) -> SyncStateSetChanged:
        """The event with what copies have confirmed: the next active controller must refuse copies that hold
        less than that (C-03)."""
        log = state.log(event.log)
        if log is None:
            return event
        self._recorded_ms[log.name] = now_ms
        return msgspec.structs.replace(event, confirmed=self._liveness.changes_of_confirmed(log))

    def _opens_too_slowly(self, log: Log, now_ms: int) -> bool:
        """Return whether the master lives but cannot write its first record to its disk. Each attempt of a
        replica that failed before has twice the time, while none that failed less often can be elected: a
        slow disk gets enough, and one that hangs gives way to others."""
        opening, timeout_ms = self._opening(log, now_ms), self._liveness.config.opening_timeout_ms
        waited_ms, failed = now_ms - opening.since_ms, opening.failed
        if waited_ms >= timeout_ms << min(_DOUBLED_MAX, failed):
            return True
        return failed > 0 and waited_ms >= timeout_ms and self._can_elect_other(log, failed, now_ms)

    def _opening(self, log: Log, now_ms: int) -> _UnopenedEpoch:
        """Return the epoch of a log that is opening."""
        if log.name not in self._openings or self._openings[log.name].epoch != log.master_epoch:
            failed = 0 if log.master is None else self._avoided(log).get(log.master, 0)
            self._openings[log.name] = _UnopenedEpoch(log.master_epoch, now_ms, failed)
        return self._openings[log.name]

    def _is_too_soon(self, log: Log, winner: int, now_ms: int) -> bool:
        """Return whether a replica that could not open an epoch, repeatedly, would be elected directly after
        another one that could not either: the disks of all may be full. The master requests it again."""
        if not log.is_opening or winner not in self._avoided(log):
            return False
        return now_ms - self._opening(log, now_ms).since_ms < self._liveness.config.opening_timeout_ms

    def _can_elect_other(self, log: Log, failed: int, now_ms: int) -> bool:
        """Return whether a replica can be elected that has failed less often."""
        avoided = self._avoided(log)
        try:
            event = elect_master.elect(log, self._liveness, now_ms, avoided=avoided)
        except Refused:
            return False
        return avoided.get(event.master, 0) < failed

    def _replace_master(
        self,
        log: Log,
        happen: Happen,
        now_ms: int,
        *,
        stays: int | None = None,
        steps_down: bool = False,
    ) -> None:
        """Elect, or record that no replica can be elected, once no earlier master can act any more.

        stays: the living master, which is kept when no other replica can be elected. steps_down: the master
        requested it, and did not fall silent.
        """
        missed_ms = None if steps_down else elect_master.missed_master_ms(log, self._liveness, now_ms)
        if log.master_epoch == 0:
            if not self._may_begin(log, now_ms):
                return
        elif self._liveness.may_be_leased(log.name, now_ms):
            return
        try:
            event = self._election(log, missed_ms, now_ms)
        except Refused as refused:
            if not may_become_complete(log, self._liveness, now_ms):
                self._note_refused(log, refused)
                if log.master is not None:
                    happen(MasterLost(log=log.name, master_epoch=log.master_epoch))
            return
        if event.master != stays and not (steps_down and self._is_too_soon(log, event.master, now_ms)):
            self._elected(log, event, happen)

    def _election(self, log: Log, missed_ms: int | None, now_ms: int) -> MasterElected:
        """Return the event of an election after the master fell silent. Raises Refused."""
        return elect_master.elect(
            log, self._liveness, now_ms, heard_after_ms=missed_ms, avoided=self._avoided(log)
        )

    def _note_refused(self, log: Log, refused: Refused) -> None:
        """Count it once for each epoch, not at each scan."""
        if self._refused_epochs.get(log.name) != log.master_epoch:
            self._refused_epochs[log.name] = log.master_epoch
            self.refused(log.name, refused)

    def _avoided(self, log: Log) -> dict[int, int]:
        """Replicas that were elected and did not open their epoch, repeatedly, and how often."""
        failed = self._openings_failed.get(log.name, {})
        return {replica: times for replica, times in failed.items() if times >= _OPENINGS_TRIED}

    def _elected(self, log: Log, event: MasterElected, happen: Happen) -> None:
        """Record the election; the set before the last one is restored first, if the winner belongs to it."""
        self._unmastered_ms.pop(log.name, None)
        restored = elect_master.restored_set(log, event)
        set_epoch = event.set_epoch
        if restored is not None:
            happen(restored)
            set_epoch = restored.set_epoch + 1
        lease_ms = self._liveness.config.lease_ms
        happen(msgspec.structs.replace(event, set_epoch=set_epoch, lease_ms=lease_ms))

    def _may_begin(self, log: Log, now_ms: int) -> bool:
        """Return whether the first election need not wait for the replica that the settings prefer, or for
        all."""
        since_ms = self._unmastered_ms.setdefault(log.name, now_ms)
        if now_ms - since_ms >= self._liveness.config.broker_timeout_ms:
            return True
        registered = [each.node for each in log.eligible() if self._liveness.has_copy(log, each, now_ms)]
        first = min(log.voters, key=log.spec.preference)
        return first in registered or registered == list(log.voters)


def _set_before(log: Log) -> SyncStateSetChanged:
    """Return the event that restores the set before the last election: nothing was acknowledged since. Its
    members held all that was, and so does the winner, which was elected among them."""
    assert log.set_before is not None
    return SyncStateSetChanged(
        log=log.name,
        master_epoch=log.master_epoch,
        sync_state_set=tuple(sorted({*log.set_before.members, *log.sync_state_set})),
        set_epoch=log.set_epoch + 1,
        restored=True,
        acks=log.set_before.acks,
    )


def _known(state: Metadata, log: Log) -> Log:
    """Return the log as that state has it."""
    known = state.log(log.name)
    assert known is not None
    return known
