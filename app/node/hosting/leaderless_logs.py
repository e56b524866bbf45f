"""Log lines about logs that have no leader.

Other lines name the nodes that cannot be reached. These lines state the consequence: appends of these logs
wait or fail.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from app.node.hosted_logs import HostedLogs
from app.node.hosting.rival_groups import REPEAT_S
from app.pauses import Repeats, rest

logger = logging.getLogger(__name__)

LEADERLESS_S: Final = 5.0  # an election is shorter
NAMES_MAX: Final = 10


class LeaderlessLogs:
    """Owned by the event loop. At most one line at a time about logs that have lacked a leader for
    LEADERLESS_S, and one when none lacks it any more."""

    def __init__(self, node_id: str, hosted: HostedLogs, is_connected: Callable[[str], bool]) -> None:
        """is_connected(id of a node): its connection to this node is open."""
        self._node_id = node_id
        self._hosted = hosted
        self._is_connected = is_connected
        self._since_s: dict[str, float] = {}
        self._logged = Repeats(REPEAT_S)
        self._is_reported = False

    async def run(self) -> None:
        """Check as long as the node runs."""
        while True:
            self.check()
            await rest(1.0)

    def check(self) -> None:
        """Log what is due."""
        now_s = _now_s()
        lacking = {
            log.name: log
            for log in self._hosted
            if log.driver is not None and not log.removed and not log.has_leader
        }
        self._since_s = {name: self._since_s.get(name, now_s) for name in lacking}
        self._logged.keep(lacking)
        lasting = [name for name, since_s in self._since_s.items() if now_s >= since_s + LEADERLESS_S]
        due = [name for name in lasting if self._logged.allow(name, now_s)]
        if due:
            self._is_reported = True
            members = {member for name in due for member in lacking[name].members} - {self._node_id}
            missing = sorted(member for member in members if not self._is_connected(member))
            logger.warning(
                "logs have no leader, their appends wait or fail (docs/operations.md, section 7)",
                extra={"logs": len(due), "names": _listed(due), "not_connected": ", ".join(missing)},
            )
        elif self._is_reported and not lacking:
            self._is_reported = False
            logger.info("all logs have a leader again")


def _listed(names: Sequence[str]) -> str:
    more = len(names) - NAMES_MAX
    return ", ".join(names[:NAMES_MAX]) + (f" and {more} more" if more > 0 else "")


def _now_s() -> float:
    return asyncio.get_running_loop().time()
