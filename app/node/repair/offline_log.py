"""A log while it is offline for its repair: its group, its promises, and what it gives to peers."""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial

from app.log.driver_interfaces import Clock
from app.log.events import Corruption, Repair
from app.log.terms import TERM_UNKNOWN
from app.node.job_threads import in_thread
from app.node.network.peer_calls import PeerCalls
from app.node.repair.copy_files import CopyFiles
from app.node.repair.interfaces import DamagedCopy, FoundDamage, RepairHost, RepairResult, RepairState
from app.node.repair.marker import Note
from app.node.repair.peer_replicas import PeerReplicas
from storage.care.survey import Damage
from storage.errors import CorruptLog
from storage.format.batch import Batch

logger = logging.getLogger(__name__)


class GivenUp(Exception):
    """The log is to be deleted."""


class OfflineLog:
    """One log of this node, which has no driver. Owned by the event loop.

    left: ranges that are not repaired yet. result: what has been repaired so far.
    """

    def __init__(
        self, host: RepairHost, copy: DamagedCopy, found: FoundDamage, *, calls: PeerCalls, clock: Clock
    ) -> None:
        self.cause = found.cause
        self.found_by = found.found_by
        self.state = RepairState.SURVEYING
        self.result = RepairResult()
        self.left: list[Damage] = []
        self._is_surveyed = False  # `left` has every damage of the log as it is now
        self._host = host
        self._folder = copy.folder
        self._copy = CopyFiles(copy, found.held_index)
        self._log_name = copy.log_name
        self._log_id = copy.log_id
        self._node_id = copy.node_id
        self._keeps_promises = found.sound  # nothing that was acknowledged or voted before is missing
        self._lacks_records = self._lost_vote = self._lacks_vote = False
        self._votes = copy.votes
        self._marker = copy.marker
        self._calls = calls
        self._clock = clock
        self._pair: Sequence[str] = ()  # the voters, if this copy is one of two
        self._set_group(copy.voters, learners=copy.learners)
        if copy.is_of_pair:
            self._set_pair(copy.voters, copy.learners)
        self._is_configured = copy.is_configured and copy.votes
        self._reported_waiting = False
        self._given_up = asyncio.Event()

    def _set_group(self, *groups: Sequence[str], learners: Sequence[str]) -> None:
        """groups: voters of the log's group; of more than one if it is unknown which is newer. All are asked,
        those of the first one first. As many as a majority of the largest one decide: the nodes that only one
        of them names may have been removed."""
        self._groups = groups
        self._voters = tuple(dict.fromkeys(voter for group in groups for voter in group))
        self._peers = tuple(voter for voter in self._voters if voter != self._node_id)
        others = (each for each in learners if each not in (*self._voters, self._node_id))
        self._holders = (*self._peers, *others)  # learners give what they have, and testify nothing
        self._is_alone = {*self._voters, *learners} <= {self._node_id}
        self._majority = max(map(len, groups)) // 2 + 1
        self._peer_replicas = PeerReplicas(self._calls, self._log_id, self._holders)

    def _set_pair(self, voters: Sequence[str], learners: Sequence[str]) -> None:
        """The group is one of two: the other voter decides (DamagedCopy.is_of_pair)."""
        self._set_group(voters, learners=learners)
        self._pair, self._majority = voters, 1

    # --- what peers get

    async def held(
        self, first_index: int, last_index: int, max_bytes: int, *, committed: bool
    ) -> Sequence[Batch]:
        """As OfflineCopy.held, of a range that a peer lacks: two damaged copies would wait for each other
        otherwise."""
        if not self._is_surveyed:
            return ()
        for damage in self.left:
            if damage.last_index >= first_index:
                last_index = min(last_index, damage.first_index - 1)
        return await in_thread(
            partial(self._copy.intact, first_index, last_index, max_bytes, committed=committed)
        )

    async def term(self) -> int | None:
        """As OfflineCopy.term: the peer may wait for it, and this repair for what the peer holds."""
        return TERM_UNKNOWN if self._lacks_vote else await in_thread(self._copy.saved_term)

    # --- what was promised

    def _note(self) -> None:
        self._marker.save(
            Note(
                str(self.cause),
                self.found_by,
                self._clock.now_ms(),
                self._keeps_promises,
                self._lacks_records,
                lost_vote=self._lost_vote,
                held_index=self._copy.held_index,
                pair=tuple(self._pair),
            )
        )

    async def _doubt(self, *, lacks_records: bool = False, lost_vote: bool = False) -> None:
        """Save that something this replica acknowledged or voted may be lost, before any further step."""
        self._keeps_promises = False
        self._lacks_records = self._lacks_records or lacks_records
        self._lost_vote = self._lost_vote or lost_vote
        await in_thread(self._note)

    def _corruption(self) -> Corruption:
        cause = self.cause
        return Corruption(
            file=cause.path.removeprefix(self._folder).lstrip("/"),
            offset=cause.offset if isinstance(cause, CorruptLog) else None,
            reason=cause.reason,
            found_by=self.found_by,
        )

    # --- waits

    def give_up(self) -> None:
        """The log is to be deleted: end soon, and leave its files unchanged."""
        self._given_up.set()

    async def _pause(self, seconds: float | None) -> None:
        """Wait, with None without limit, unless the repair is given up meanwhile. Raises GivenUp."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._given_up.wait()
        if self._given_up.is_set():
            raise GivenUp

    def _wait(self, reason: str) -> None:
        """Log once that no peer can help yet; the metric continues to report it."""
        self.state = RepairState.WAITING
        if not self._reported_waiting:
            self._reported_waiting = True
            logger.error("log %s: the repair is waiting: %s", self._log_name, reason)
            self._host.record(Repair(state="waiting", reason=reason))

    async def _wait_for_operator(self, reason: str, seconds: float | None = None) -> None:
        """Wait, in a group of one: no other replica has these records, and none are discarded here."""
        self._wait(f"{reason}; no other node has this log: restore its folder from a copy")
        await self._pause(seconds)
