"""Repair of one log of this node while the others continue (R-01, R-07; docs/design.md).

    1. save the note (marker.py) before any file is changed; record the event `corruption`
    2. find every damaged range, fetch it from a peer that has it settled, write it in place
    3. in Raft mode begin later, at the first index that any peer holds, if all have trimmed a range. End
       before a range that was never committed: what this replica acknowledged there is in doubt. Set aside
       what peers cannot repair (structure, a committed range that none has): the log starts empty and gets
       everything from its leader
    4. open the log again. With its vote and every range restored between intact neighbours it is sound.
       Otherwise it does not vote until it holds all that its leader has committed. Then the note is removed,
       and the event `repair` describes the repair

After a crash the repair continues at 2. Batches that no peer can send yet are requested again, with pauses.
Meanwhile peers get the batches that the survey has found intact; uncommitted ones on request (proof.py).
While a disk refuses to read, nothing is discarded for UNREADABLE_S, and until a peer has records of the log.
Batches that no peer sends are read here again: a read error may have passed.
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from app.log.driver_interfaces import Clock
from app.node.job_threads import in_thread
from app.node.network.peer_calls import PeerCalls
from app.node.repair.fetch import Fetch, Outlook
from app.node.repair.interfaces import (
    Damaged,
    DamagedCopy,
    FoundDamage,
    RangeOutcome,
    RepairHost,
    RepairState,
)
from app.node.repair.lost_vote import LostVote
from app.node.repair.offline_log import GivenUp, OfflineLog
from app.node.repair.proof import proven
from app.node.replica.driver import LogDriver
from storage.care.survey import NO_OFFSET, Damage
from storage.errors import (
    DiskError,
    InvariantError,
    PatchRefused,
    StorageError,
    StorageFull,
    UnreadableFile,
    as_damage,
)
from storage.format.batch import Batch
from storage.format.segment_format import segment_offset
from storage.log.clean_stop import OPENED_NAME
from storage.log.hard_state import HardState
from storage.log.origin import ORIGIN_NAME

logger = logging.getLogger(__name__)

PATIENCE_S: Final = 5  # wait for voters that do not report their term
UNREADABLE_S: Final = 30  # a disk may refuse reads for so long
SAME_DAMAGE_MAX: Final = 3  # repairs allowed per file before the log is set aside
_NOTES: Final = (OPENED_NAME, ORIGIN_NAME, "replica")  # beside the log; without one it is in doubt
_RETRY_FIRST_S: Final = 0.2
_RETRY_LAST_S: Final = 5.0


class LogRepair(OfflineLog):
    """One log that is offline. `run` ends when it is served again, given up, or when the node must stop."""

    def __init__(
        self, host: RepairHost, copy: DamagedCopy, found: FoundDamage, *, calls: PeerCalls, clock: Clock
    ) -> None:
        super().__init__(host, copy, found, calls=calls, clock=clock)
        self._seen: dict[str, int] = {}  # file or folder -> number of times it was still damaged
        self._unreadable_until_ms: int | None = None  # until then the disk may read again; None: it reads
        self._read_pause_s = _RETRY_FIRST_S

    async def run(self) -> None:
        """Run the repair; a failure of it does not affect the other logs of the node."""
        with contextlib.suppress(GivenUp):
            await self._run()

    async def _run(self) -> None:
        logger.error(
            "log damaged, repair begins",
            extra={"log": self._log_name, "found_by": self.found_by, "damage": str(self.cause)},
        )
        is_recorded = False
        while True:
            try:
                if self._is_configured:
                    await self._find_group()
                await in_thread(self._note)
                if not is_recorded:
                    self._host.record(self._corruption())
                is_recorded = True
                self._host.serve(await self._open())
                return
            except StorageFull as error:
                self._wait(f"no room: {error}")
                await self._pause(_RETRY_LAST_S)
            except (DiskError, InvariantError) as error:
                self._host.fail(f"repair of log {self._log_name}", error)
                return
            except GivenUp:
                raise
            except Exception as error:
                logger.exception("log %s: the repair failed and starts again", self._log_name)
                self._wait(f"it failed: {error!r}")
                await self._pause(_RETRY_LAST_S)

    async def _find_group(self) -> None:
        """Use the group of the log: this node knows the configuration alone, since it has started again."""
        pair = await in_thread(self._copy.noted_pair)
        saved = await in_thread(self._copy.saved_membership)
        if pair:
            self._set_pair(pair, () if saved is None else saved.learners)
        elif saved is not None:
            # The log may name others than the configuration, which may be newer than the saved state.
            self._set_group(saved.voters, self._voters, learners=saved.learners)
        self._is_configured = False

    # --- a lost vote ------------------------------------------------------------------------------------

    async def _restore_vote(self) -> None:
        """Replace a lost vote by one that contradicts no vote of this node, or open in doubt (lost_vote.py).
        A damaged log is repaired first: it may name more voters."""
        self._lacks_vote = True
        is_lost = not await in_thread(self._copy.has_manifest)  # the folder was lost or moved away
        if is_lost and (self._peers or await in_thread(self._copy.predates_folder)):
            await self._doubt(lacks_records=True, lost_vote=not self._peers)
        known = await in_thread(self._copy.last_known)
        if known is None:
            await self._repair_batches()
            known = await in_thread(self._copy.last_known)
        term, voters, others = known or (0, (), ())
        groups = (voters, *self._groups) if voters else self._groups
        lost = LostVote(self._node_id, term, groups, (*self._holders, *others))
        pause_s, until_ms = _RETRY_FIRST_S, self._clock.monotonic_ms() + PATIENCE_S * 1000
        while lost.asked and not lost.is_hopeless:
            asked = tuple(lost.asked)
            answers = await asyncio.gather(*(self._peer_replicas.term(peer) for peer in asked))
            for peer, answer in zip(asked, answers, strict=True):
                lost.take(peer, answer)
            if lost.has_majority and self._clock.monotonic_ms() >= until_ms:
                break
            if lost.asked and not lost.is_hopeless:
                self._wait(f"the vote is lost: the terms of {', '.join(lost.asked)} are needed")
                await self._pause(pause_s)
                pause_s = min(_RETRY_LAST_S, 2 * pause_s)
        if lost.is_hopeless:
            logger.error("log %s: too many voters have lost their votes", self._log_name)
            await self._doubt(lost_vote=True)
        promise = HardState(lost.safe_term(self._clock.now_ms()), self._node_id)
        await in_thread(partial(self._copy.save_vote, promise))
        self._lacks_vote = False
        self.result.small_files["vote"] = None

    async def _restore_epoch(self) -> None:
        """Replace a lost epoch: this copy may have opened a later one than its log shows, and must not
        open it again. As another replica it never will: each epoch is assigned to one replica (C-04)."""
        await self._doubt()
        known = await in_thread(self._copy.last_known)
        await in_thread(partial(self._copy.save_vote, HardState(known[0] if known else 0, self._node_id)))
        self.result.small_files["vote"] = None

    # --- from damage to an open log ---------------------------------------------------------------------

    async def _open(self) -> LogDriver:
        """Open the log, and repair every damage that prevents it, until it opens."""
        cause: Damaged = self.cause
        while True:
            try:
                await self._repair(cause)
                self.state = RepairState.OPENING
                driver = await in_thread(partial(self._host.open_log, sound=self._keeps_promises))
                await in_thread(self._copy.forget_offline)  # the leader may truncate what was not committed
                return driver
            except StorageError as error:
                damage = as_damage(error)
                if not (isinstance(damage, Damaged) and damage.path.startswith(self._folder)):
                    raise
                logger.warning("log %s: still damaged: %s", self._log_name, damage)
                if not (isinstance(damage, UnreadableFile) and await self._may_be_read_later(damage)):
                    self._seen[damage.path] = self._seen.get(damage.path, 0) + 1
                cause = damage

    async def _may_be_read_later(self, damage: UnreadableFile) -> bool:
        """Return whether it is too early to repair the file as a damaged one; pause before."""
        now_ms = self._clock.monotonic_ms()
        if self._unreadable_until_ms is None:
            self._unreadable_until_ms = now_ms + UNREADABLE_S * 1000
        is_over = now_ms >= self._unreadable_until_ms
        if is_over and await self._peer_replicas.exist(max(0, await in_thread(self._copy.committed_index))):
            return False
        self._wait(damage.reason)
        await self._pause(self._read_pause_s)
        self._read_pause_s = min(_RETRY_LAST_S, 2 * self._read_pause_s)
        return True

    async def _repair(self, cause: Damaged) -> None:
        """Repair one damage. If a file is still damaged after several repairs, start with an empty log."""
        name = cause.path.rpartition("/")[2]
        if self._seen.get(cause.path, 0) >= SAME_DAMAGE_MAX:
            await self._set_aside(f"damaged again and again: {cause}")
        elif (
            isinstance(cause, UnreadableFile)
            and cause.path not in self._seen
            and segment_offset(name) is None
        ):
            await in_thread(partial(self._copy.read, cause.path))  # it may be intact
        elif name in ("vote", "group"):
            if await in_thread(self._copy.checkpoint) is None:
                await self._judge_tail()
            if name == "vote":
                await (self._restore_vote() if self._votes else self._restore_epoch())
            else:
                await self._doubt(lacks_records=not await in_thread(self._copy.names_voters))
                await self._remove(name)
        elif name == "checkpoint":
            await self._judge_tail()
            await self._remove(name)  # the leader sends the committed index
        elif name == "state":  # it is replayed, or received from the leader (state_transfer.py)
            if self._is_alone and await in_thread(self._copy.is_trimmed):
                await self._wait_for_operator(f"the state of the log is damaged: {cause}")
            await self._remove(name)
        elif name in _NOTES:
            await self._doubt()
            await self._remove(name)
        else:
            await self._repair_batches()

    async def _remove(self, name: str) -> None:
        await in_thread(partial(self._copy.remove, name))
        self.result.small_files[name] = None

    async def _judge_tail(self) -> None:
        """Save a doubt if there is a torn tail: the checkpoint, which alone distinguishes it from damage, is
        lost. Called before the log is opened, which removes the tail. Raises StorageError."""
        if await in_thread(self._copy.has_torn_tail):
            await self._doubt(lacks_records=True)

    async def _repair_batches(self) -> None:
        self.state = RepairState.SURVEYING
        if not await in_thread(self._copy.has_manifest):
            await self._doubt(lacks_records=True)  # the survey treats a missing log as an empty one
        while await self._repair_found() is RangeOutcome.SURVEY_AGAIN:
            continue

    async def _repair_found(self) -> RangeOutcome:
        """Survey the log, and repair or set aside what is found."""
        self._is_surveyed = False
        found = await in_thread(self._copy.survey)
        if found.structural:
            await self._set_aside(found.structural)
            return RangeOutcome.LOST
        self.left, self._is_surveyed = list(found.damages), True
        if self.left and self.left[-1].next_offset == NO_OFFSET:  # `patch` moves the durable point
            self._copy.held_index = max(self._copy.held_index, self.left[-1].last_index)
            await self._doubt(lacks_records=True)
        while self.left:
            damage = self.left[0]
            logger.warning(
                "log %s: indexes %d to %d are damaged: %s",
                self._log_name, damage.first_index, damage.last_index, damage.reason,
            )  # fmt: skip
            outcome = await self._repair_stretch(damage)
            self._is_surveyed = outcome is RangeOutcome.RESTORED
            if outcome is RangeOutcome.UNCOMMITTED and not await self._end_before(damage):
                outcome = RangeOutcome.LOST
            if outcome is RangeOutcome.LOST:
                await self._set_aside(f"no peer has indexes {damage.first_index} to {damage.last_index}")
            if outcome is not RangeOutcome.RESTORED:
                return outcome
            del self.left[0]
        return RangeOutcome.RESTORED

    async def _repair_stretch(self, damage: Damage) -> RangeOutcome:
        """Fetch one range and write it in place, in pieces."""
        if not self._holders:
            what = f"indexes {damage.first_index} to {damage.last_index} are damaged"
            while not await in_thread(partial(self._copy.reads_again, damage)):
                await self._wait_for_operator(what, _RETRY_LAST_S)
            return RangeOutcome.SURVEY_AGAIN
        fetch = Fetch(damage.first_index, damage.last_index, self._holders, self._majority, self._peers)
        rest: Damage | None = damage
        while rest is not None:
            batches = await self._fetch(fetch, rest)
            if not batches:
                if await in_thread(partial(self._copy.reads_again, rest)):
                    return RangeOutcome.SURVEY_AGAIN
                if not fetch.hopeless:
                    continue
                # A slave may lack records before its beginning that no trim has removed (A-09, H-06).
                if fetch.trimmed_until is None or not self._votes:
                    return await self._unrepaired(damage, fetch)
                return await self._begin_later(fetch.trimmed_until)
            try:
                rest = await in_thread(partial(self._copy.patch, rest, batches))
            except PatchRefused as error:
                logger.error("log %s: the copies of the peers do not match: %s", self._log_name, error)
                return await self._unrepaired(damage, fetch)
            if self._votes:  # in a term that is later than its vote this replica has not voted
                promise = HardState(batches[-1].term, self._node_id)
                await in_thread(partial(self._copy.reach, promise, damage))
            self.result.batches += len(batches)
            self.result.size_bytes += sum(batch.size_bytes for batch in batches)
        self.result.stretches.append({"first_index": damage.first_index, "last_index": damage.last_index})
        return RangeOutcome.RESTORED

    async def _unrepaired(self, damage: Damage, fetch: Fetch) -> RangeOutcome:
        """Return whether the range, which no peer will send, was never committed: by the checkpoint, and by
        every peer. One that has trimmed it may only lack it."""
        checkpoint = await in_thread(self._copy.checkpoint)
        is_later = checkpoint is not None and damage.first_index > checkpoint.committed_index
        return RangeOutcome.UNCOMMITTED if is_later and not fetch.is_trimmed else RangeOutcome.LOST

    async def _end_before(self, damage: Damage) -> bool:
        """Remove the end of the log from a damage on; return whether something is left of the log.

        This replica may have acknowledged what it removes: it is in doubt as if it had set the log aside. A
        copy is kept for the operator, unless the disk is full or cannot be read.
        """
        await self._doubt(lacks_records=True)
        await in_thread(self._copy.forget_held)
        try:
            refused = await in_thread(partial(self._copy.end_before, damage))
        except PatchRefused:
            return False
        if refused is not None:
            logger.error("log %s: no copy is kept of its removed end: %s", self._log_name, refused)
        logger.error(
            "log %s ends before index %d: its group never committed what is damaged there",
            self._log_name,
            damage.first_index,
        )
        self.left = []
        return True

    async def _begin_later(self, index: int) -> RangeOutcome:
        """Let the log begin at `index`, the first one that any peer holds: what is before it was committed,
        and may be removed everywhere. A log that does not hold the same batch there is lost."""
        batch = await self._peer_replicas.batch_at(index)
        if batch is None:  # trimmed meanwhile, or the peers are silent
            self._wait(f"all peers have trimmed the indexes before {index}, and none sends its batch")
            await self._pause(_RETRY_FIRST_S)
            return RangeOutcome.SURVEY_AGAIN
        is_damaged = any(damage.first_index <= index <= damage.last_index for damage in self.left)
        if not is_damaged and await in_thread(partial(self._copy.batch_in, batch.offset)) != batch:
            return RangeOutcome.LOST
        try:
            await in_thread(partial(self._copy.begin_with, batch))
        except PatchRefused as error:
            logger.error("log %s: its beginning cannot be moved: %s", self._log_name, error)
            return RangeOutcome.LOST
        logger.warning("log %s begins at index %d: all peers have trimmed to there", self._log_name, index)
        self.result.begin_index = index
        return RangeOutcome.SURVEY_AGAIN

    async def _fetch(self, fetch: Fetch, rest: Damage) -> Sequence[Batch]:
        """Return the next piece of a range; none if no peer has it as it was here, now or ever. rest: what is
        missing of it."""
        while not fetch.hopeless:
            if fetch.waits:
                self._wait(f"indexes {fetch.next_index} to {fetch.last_index}: {fetch.seen}")
            else:
                self.state = RepairState.FETCHING
            ask = fetch.next()
            await self._pause(ask.pause_ms / 1000)
            answer = await self._peer_replicas.fetch(ask.peer, fetch.next_index, fetch.last_index)
            if answer is not None and ask.peer not in self._peers:  # a learner: another history is no proof
                fits = await in_thread(partial(self._copy.fits, rest, answer.batches))
                answer = answer if fits else None
            batches = fetch.took(ask.peer, answer)
            if not batches and fetch.outlook[ask.peer] in (Outlook.NOT_YET, Outlook.OFFLINE):
                batches = await proven(
                    self._copy,
                    self._peer_replicas,
                    ask.peer,
                    rest,
                    self._pause,
                    voters=self._peers,
                    collecting=self._calls.collecting,
                )
            if batches:
                self.result.peers[ask.peer] = None
                return batches
            if fetch.is_round_over:
                break
        return ()

    # --- the last resort --------------------------------------------------------------------------------

    async def _set_aside(self, reason: str) -> None:
        """Move the log's files away, kept for the operator, and start empty; the vote stays."""
        if not self._peers:
            await self._wait_for_operator(reason)
        self._seen.clear()
        if self.result.set_aside:  # what was set aside first is worth more than this
            self._wait(f"the log that was started again is damaged too: {reason}")
            await self._pause(_RETRY_LAST_S)
            return
        logger.error("log %s: quarantined; a new copy is fetched from the leader: %s", self._log_name, reason)
        await self._doubt(lacks_records=True)
        await in_thread(self._copy.forget_offline)
        await in_thread(self._copy.set_aside)
        self.left = []
        self.result.set_aside = True
