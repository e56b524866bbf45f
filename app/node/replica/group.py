"""The group of a log: of the log's newest membership record, else of the configuration (R-10)."""

from collections.abc import Mapping

from app.log.contract import NO_INDEX, Clock, GroupConfig, ReplicationCore
from app.log.state import Address, LogState, Membership
from app.raft.messages import GroupNotice

NOBODY: Mapping[str, Address] = {}


class LogGroup:
    """Invariant: the core knows the newest group that the log names."""

    def __init__(self, configured: GroupConfig, state: LogState, core: ReplicationCore, clock: Clock) -> None:
        """configured: holds until the log names another one."""
        self._configured = configured
        self._state = state
        self._core = core
        self._clock = clock
        self._membership: Membership | None = None  # the core knows of it
        self._notice: GroupNotice | None = None
        self._noticed: Mapping[str, Address] = NOBODY  # the addresses in it

    @property
    def group(self) -> GroupConfig:
        """The newest group known: of the log, or of a peer that does not count this replica as a member."""
        named = self._core.notice or self._membership
        if named is None:
            return self._configured
        return GroupConfig(voters=named.voters, learners=named.learners)

    @property
    def addresses(self) -> Mapping[str, Address]:
        """Addresses of members that the log, or the peer, gives; the same object until they change."""
        notice = self._core.notice
        if notice is not None:
            if notice is not self._notice:
                self._notice = notice
                self._noticed = {node: Address(*address) for node, address in notice.nodes.items()}
            return self._noticed
        return NOBODY if self._membership is None else self._membership.nodes

    def look(self) -> None:
        """Let the core know the group, if the log names a new one. After a start the committed group first:
        its voters may campaign until the newest one is committed."""
        newest = self._state.membership
        if newest == self._membership:
            return
        if self._membership is None:
            self._adopt(self._state.settled_membership)
        self._adopt(newest)

    def _adopt(self, membership: Membership | None) -> None:
        self._membership = membership
        if membership is None:
            group, index, nodes = self._configured, NO_INDEX, NOBODY
        else:
            group = GroupConfig(voters=membership.voters, learners=membership.learners)
            index, nodes = membership.since, membership.nodes
        self._core.configure(group, index, self._clock.monotonic_ms(), nodes)
