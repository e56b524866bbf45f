"""Who is in the group of a log: the last word of the log itself, else that of the configuration (R-10)."""

from collections.abc import Mapping

from app.log_state import Address, LogState, Membership
from app.replication import NO_INDEX, Clock, GroupConfig, ReplicationCore

NOBODY: Mapping[str, Address] = {}


class LogGroup:
    """Invariant: the core knows of `group`."""

    def __init__(self, configured: GroupConfig, state: LogState, core: ReplicationCore, clock: Clock) -> None:
        """configured: holds until the log names another one."""
        self._configured = configured
        self._state = state
        self._core = core
        self._clock = clock
        self._membership: Membership | None = None  # the core knows of it

    @property
    def group(self) -> GroupConfig:
        membership = self._membership
        if membership is None:
            return self._configured
        return GroupConfig(voters=membership.voters, learners=membership.learners)

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Members that the log itself says how to reach; the same object until that changes."""
        return NOBODY if self._membership is None else self._membership.nodes

    def look(self) -> None:
        """Let the core know who is in the group, if the log says something new."""
        membership = self._state.membership
        if membership != self._membership:
            self._membership = membership
            index = NO_INDEX if membership is None else membership.since
            self._core.configure(self.group, index, self._clock.monotonic_ms())
