"""Registrations of copied folders: the other members of the set decide whether they are new replicas (C-03).

Where a member is heard whose folder is no copy, it holds what was acknowledged, and a copy is a new replica.
After a restore of all folders there is none, and the copies may be of different times. So a copy waits until
every other member is heard or waits too. All that wait then remain members, and the one that holds most is
elected, once each has reported. A member that is not heard for long may hold more than the copies: they are
new replicas then. PURE.
"""

from collections.abc import Collection, Iterable
from typing import Final

from app.controller import registration
from app.controller.commands import AnyCommand, RegisterReplica
from app.controller.events import ReplicaIdApplied, ReplicaRegistered
from app.controller.liveness import Liveness
from app.controller.metadata import Log
from app.controller.state_machine import Metadata

_PATIENCE: Final = 5  # times broker_timeout_ms: wait for the rest, while a member is heard that is no copy
_PATIENCE_ALONE: Final = 60  # ... while none is: no copy can lead then, and nodes are started one by one

_Copy = tuple[str, int]  # log, replica id


class CopiedFolders:
    """The registrations of copies, of one period of being active."""

    def __init__(self, liveness: Liveness) -> None:
        self._liveness = liveness
        self._copies: Collection[_Copy] = ()  # all that ask or wait now
        self._since_ms: dict[_Copy, int] = {}  # since when one of them waits
        # A copy that remained a member, until it is heard: the answer may be lost, and it asks again.
        self._kept: dict[_Copy, tuple[RegisterReplica, int]] = {}

    def ask(self, state: Metadata, commands: Iterable[AnyCommand], now_ms: int) -> None:
        """Take the commands of a round, before the first one is decided."""
        self._copies = {
            (each.log, each.replica_id)
            for each in commands
            if isinstance(each, RegisterReplica) and each.is_copy
        }
        self._since_ms = {each: since for each, since in self._since_ms.items() if each in self._copies}
        timeout_ms = self._liveness.config.broker_timeout_ms
        self._kept = {
            (name, member): kept
            for (name, member), kept in self._kept.items()
            if now_ms - kept[1] < timeout_ms and not self._is_heard(state.log(name), member, now_ms)
        }

    def must_wait(self, log: Log | None, command: AnyCommand, now_ms: int) -> bool:
        """Return whether the command is the registration of a copy that has to wait. Raises Refused."""
        if not isinstance(command, RegisterReplica) or not command.is_copy or self._is_kept(command):
            return False
        if log is None or not log.elects or log.generation != command.generation:
            return False
        registration.register(log, command, self._liveness.confirmed(log, command.replica_id))
        others = log.others_that_count(command.replica_id)
        heard = [each for each in others if self._is_heard(log, each, now_ms)]
        silent = [each for each in others if each not in heard]
        awaited = [each for each in silent if (log.name, each) not in self._copies]
        if heard:  # the others may live on without those that are dead
            awaited = [each for each in awaited if self._may_live(log, each, now_ms)]
        if not awaited or not log.depends_on(command.replica_id, doubtful=silent):
            return False
        since_ms = self._since_ms.setdefault((log.name, command.replica_id), now_ms)
        patience = _PATIENCE if heard else _PATIENCE_ALONE
        return now_ms - since_ms < patience * self._liveness.config.broker_timeout_ms

    def replaced(
        self, log: Log, command: RegisterReplica, now_ms: int
    ) -> tuple[ReplicaIdApplied, ReplicaRegistered] | None:
        """Return registration.replaced, where copies that wait prove nothing."""
        if not command.is_copy or self._is_kept(command):
            return None
        others = log.others_that_count(command.replica_id)
        copies = [
            each
            for each in others
            if (log.name, each) in self._copies and not self._is_heard(log, each, now_ms)
        ]
        events = registration.replaced(log, command, copies)
        if events is None:
            self._kept[log.name, command.replica_id] = command, now_ms
        return events

    def must_report(self, log: Log, now_ms: int) -> bool:
        """Return whether an election has to wait for the report of a copy that remained a member just now: it
        may hold more than the others that did."""
        return any(
            name == log.name
            and not self._is_heard(log, member, now_ms)
            and self._may_live(log, member, now_ms)
            for name, member in self._kept
        )

    def _is_kept(self, command: RegisterReplica) -> bool:
        kept = self._kept.get((command.log, command.replica_id))
        return kept is not None and kept[0] == command

    def _is_heard(self, log: Log | None, replica_id: int, now_ms: int) -> bool:
        replica = None if log is None else log.current(replica_id)
        return log is not None and replica is not None and self._liveness.has_copy(log, replica, now_ms)

    def _may_live(self, log: Log, replica_id: int, now_ms: int) -> bool:
        replica = log.current(replica_id)
        return replica is not None and self._liveness.may_live(replica.node, now_ms)
