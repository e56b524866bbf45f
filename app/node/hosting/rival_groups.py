"""Groups of one log that contradict each other, because the configuration files of nodes differ.

Each node reports its groups in its hello. A replica of a new log takes no part in the beginning of a group
beside a peer whose group could lead at the same time. Groups that exist are only reported: no node stops.
"""

import asyncio
import logging
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from app.controller.metadata import CONTROLLER_LOG
from app.log.contract import Role
from app.node.hosted_log import CONFIGURED, HostedLog
from app.node.hosted_logs import HostedLogs
from app.node.network.group_claims import GroupClaim
from app.node.replica.driver import LogDriver
from app.pauses import Repeats, rest
from app.settings.model import Replication

logger = logging.getLogger(__name__)

GREETING_S: Final = 3.0  # a new group waits so long for nodes that neither answer nor refuse a call
ASK_AFTER_S: Final = 5.0  # a node that joins, or was down, learns of its group meanwhile
REPORT_AFTER_S: Final = 10.0
REPEAT_S: Final = 300.0


class GroupConflict(NamedTuple):
    """Claims of a peer and of this node about one log."""

    log: str
    peer: str
    theirs: GroupClaim
    node: str
    ours: GroupClaim

    @property
    def key(self) -> str:
        """Return the key of the configuration file in which they differ."""
        if self.theirs.mode != self.ours.mode:
            return "replication"
        if self.log == CONTROLLER_LOG:
            return "[controller] nodes"
        return "master" if self.ours.mode == Replication.CLASSIC.value else "replicas"

    def __str__(self) -> str:
        return f"the nodes differ in `{self.key}`: {self.peer} has {self.theirs}, {self.node} has {self.ours}"


class GreetedPeers(Protocol):
    """The part of PeerTransport that is used here."""

    @property
    def has_called_all(self) -> bool: ...
    def is_connected(self, peer_id: str) -> bool: ...
    def greet(self, peer_id: str) -> None: ...


class RivalGroups:
    """Owned by the event loop. peers: set before the first call."""

    peers: GreetedPeers

    def __init__(self, node_id: str, hosted: HostedLogs) -> None:
        self._node_id = node_id
        self._hosted = hosted
        self._opened: Mapping[str, LogDriver] = {}
        self._claims: dict[str, dict[str, GroupClaim]] = {}  # peer -> last report, without what agrees
        self._since_s: dict[GroupConflict, float] = {}
        self._asked = Repeats(REPEAT_S)
        self._logged = Repeats(REPEAT_S)
        self._begin_s = _now_s()

    def opened(self, drivers: Mapping[str, LogDriver]) -> None:
        """Take the replicas, by log, that are open and not served yet."""
        self._opened, self._begin_s = drivers, _now_s()
        self.check()

    def claims(self) -> dict[str, GroupClaim]:
        """Return what this node reports: the groups of the logs of its file that it keeps."""
        found = {log: (_claim_of(*each), each[1]) for log, each in self._kept().items()}
        return {log: claim for log, (claim, driver) in found.items() if _is_current(claim, driver)}

    def heard(self, peer: str, claims: dict[str, GroupClaim]) -> None:
        """Take what a peer reports: its connection is open."""
        self._claims[peer] = claims
        self.check()

    @property
    def reported(self) -> list[GroupConflict]:
        """The conflicts that have lasted."""
        return [conflict for conflict in self._since_s if conflict in self._logged]

    async def run(self) -> None:
        """Check as long as the node runs: often while new groups wait for the other nodes."""
        while True:
            self.check()
            is_greeting = _now_s() - self._begin_s < GREETING_S
            await rest(0.1 if is_greeting else 1.0)

    def check(self) -> None:
        """Let new groups begin or wait, and log conflicts that have lasted.

        A hello is as old as its connection. So the peer is asked for a new one first.
        """
        found: list[GroupConflict] = []
        waits = not self.peers.has_called_all and _now_s() - self._begin_s < GREETING_S
        self._claims = {peer: each for peer, each in self._claims.items() if self.peers.is_connected(peer)}
        for log, (hosted, driver) in self._kept().items():
            ours = _claim_of(hosted, driver)
            conflicts = [each for peer in self._claims if (each := self._conflict(log, peer, ours))]
            is_rival = any(each.theirs.excludes(ours) for each in conflicts)
            driver.let_found(ours.is_named or not (waits or is_rival))
            if conflicts and _is_current(ours, driver):
                found += conflicts
        self._since_s = {each: self._since_s.get(each, _now_s()) for each in found}
        for peer in {each.peer: None for each in self._due(self._asked, ASK_AFTER_S)}:
            self.peers.greet(peer)
        for conflict in self._due(self._logged, REPORT_AFTER_S):
            advice = "use the same file on all nodes (docs/operations.md, section 7)"
            logger.error("log %s: %s: %s", conflict.log, conflict, advice)

    def _due(self, repeats: Repeats, after_s: float) -> list[GroupConflict]:
        """Return the conflicts that are due: those that have lasted for `after_s`, again each REPEAT_S."""
        now_s, since_s = _now_s(), self._since_s
        repeats.keep(since_s)
        return [each for each in since_s if now_s >= since_s[each] + after_s and repeats.allow(each, now_s)]

    def _kept(self) -> dict[str, tuple[HostedLog, LogDriver]]:
        """Return the logs of the file of which this node keeps a replica, and their drivers."""
        found = ((hosted, hosted.driver or self._opened.get(hosted.name)) for hosted in self._hosted)
        return {
            hosted.name: (hosted, driver)
            for hosted, driver in found
            if hosted.generation == CONFIGURED and driver is not None
        }

    def _conflict(self, log: str, peer: str, ours: GroupClaim) -> GroupConflict | None:
        """Compare with the claim of a peer. One that agrees is forgotten: both groups may change."""
        theirs = self._claims[peer].get(log)
        if theirs is None:
            return None
        if theirs.contradicts(ours):
            return GroupConflict(log, peer, theirs, self._node_id, ours)
        del self._claims[peer][log]
        return None


def _claim_of(hosted: HostedLog, driver: LogDriver) -> GroupClaim:
    settings, named = hosted.settings, driver.state.membership
    mode = settings.replication
    if mode is Replication.CONTROLLER:
        return GroupClaim(mode.value, (), is_named=True)
    if mode is Replication.CLASSIC:
        return GroupClaim(mode.value, settings.replicas[:1], is_named=True)
    voters = driver.group.voters if named is None else named.voters
    return GroupClaim(mode.value, tuple(sorted(voters)), is_named=not driver.is_unborn)


def _is_current(claim: GroupClaim, driver: LogDriver) -> bool:
    """Return False for a replica that was removed, or that follows a leader of another group than it knows:
    it has not received the changes of members yet."""
    is_behind = bool(claim.voters) and driver.leader_id not in (None, *claim.voters)
    return driver.role is not Role.REMOVED and not is_behind


def _now_s() -> float:
    return asyncio.get_running_loop().time()
