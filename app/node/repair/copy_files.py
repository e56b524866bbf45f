"""Files of a log that is offline for its repair: what they contain, and single changes of them."""

from collections.abc import Sequence

from app.log.contract import NO_INDEX
from app.log.state import DAY_MS, Membership
from app.log.terms import TERM_UNKNOWN
from app.node.repair.interfaces import Damaged, DamagedCopy
from app.node.state.checkpoints import load_snapshot, load_state
from app.node.state.group_file import GROUP_NAME, lose
from storage.care.begin import begin_with
from storage.care.end import end_before
from storage.care.intact import intact_batches
from storage.care.patch import batch_in, fills, fits, patch, proves, rest_after
from storage.care.survey import NO_OFFSET, Damage, Survey, survey
from storage.errors import CorruptFile, CorruptLog, StorageError, as_damage
from storage.format.batch import Batch
from storage.log.aside import set_aside
from storage.log.checkpoint import Checkpoint, CheckpointFile, SnapshotFile
from storage.log.commitlog import Commitlog
from storage.log.hard_state import HardState, HardStateFile
from storage.log.log_folder import MANIFEST_NAME
from storage.log.origin import FolderOrigin
from storage.log.recovery import Recovery


class CopyFiles:
    """Each method reads or writes the disk, so a thread calls it. Each may raise StorageError.

    held_index: index up to which this replica may have acknowledged when the damage was found.
    """

    def __init__(self, copy: DamagedCopy, held_index: int) -> None:
        self.held_index = held_index
        self._files = copy.files
        self._folder = copy.folder
        self._log_id = copy.log_id
        self._storage = copy.storage
        self._state_type = copy.state_type
        self._marker = copy.marker
        self._votes = copy.votes
        self.predates_folder = copy.predates_folder
        self._times_read: dict[Damage, int] = {}  # first batches that were there after all

    # --- what they contain ------------------------------------------------------------------------------

    def noted_pair(self) -> Sequence[str]:
        """Return the voters of the group of two, if the note of this repair shows that the copy is one of
        them; else ()."""
        return self._marker.pair

    def saved_membership(self) -> Membership | None:
        """Return the members that the saved state of the log names; None if it is lost, or names none."""
        snapshot_file = SnapshotFile(self._files, f"{self._folder}/state")
        try:
            found = load_snapshot(snapshot_file, idempotency_ms=DAY_MS, state_type=self._state_type)
        except StorageError as error:
            if isinstance(as_damage(error), Damaged):
                return None
            raise
        return None if found is None else found[0].membership

    def last_known(self) -> tuple[int, tuple[str, ...], tuple[str, ...]] | None:
        """Return the term of the log's last batch, the voters that the log itself names, and the others that
        may campaign (R-10): learners, and voters of the group before until its successor is known to be
        committed. None if the log is damaged, too."""
        try:
            log = Commitlog.open(
                self._files,
                self._folder,
                log_id=self._log_id,
                config=self._storage,
                committed_index=self.committed_index(),
            )
        except (CorruptLog, CorruptFile):
            return None
        try:
            snapshot_file = SnapshotFile(self._files, f"{self._folder}/state")
            state, _ = load_state(log, snapshot_file, idempotency_ms=DAY_MS, state_type=self._state_type)
            if (checkpoint := self.checkpoint()) is not None:
                state.committed(checkpoint.committed_index)
            membership, replaced = state.membership, state.replaced_membership
        except (CorruptFile, ValueError):  # the leader sends the state; use the configured voters
            membership = replaced = None
        finally:
            log.close()
        voters, learners = ((), ()) if membership is None else (membership.voters, membership.learners)
        return log.last_term, voters, (*learners, *(() if replaced is None else replaced.voters))

    def names_voters(self) -> bool:
        """Return whether the log itself names the voters of its group."""
        known = self.last_known()
        return known is not None and bool(known[1])

    def checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint, None if it is damaged."""
        try:
            return CheckpointFile(self._files, f"{self._folder}/checkpoint").load()
        except StorageError as error:
            if isinstance(as_damage(error), Damaged):
                return None
            raise

    def committed_index(self) -> int:
        """Return the index up to which the log was committed or durable before the damage."""
        held_index = max(self.held_index, self._marker.held_index)
        checkpoint = self.checkpoint()
        return held_index if checkpoint is None else max(held_index, checkpoint.committed_index)

    def has_manifest(self) -> bool:
        return self._files.exists(f"{self._folder}/{MANIFEST_NAME}")

    def has_torn_tail(self) -> bool:
        return self._recovery().has_torn_tail()

    def is_trimmed(self) -> bool:
        """Return whether the records from which the state would be replayed are not all here."""
        return self._recovery().prepare().base_index > 0

    def _recovery(self) -> Recovery:
        return Recovery(self._files, self._folder, self._log_id, self.committed_index())

    def survey(self) -> Survey:
        return survey(self._files, self._folder, self._log_id, self.committed_index())

    def intact(
        self, first_index: int, last_index: int, max_bytes: int, *, committed: bool
    ) -> tuple[Batch, ...]:
        """Return consecutive batches from the one that begins at `first_index`, if it is intact. last_index:
        before any damage. committed: only what the checkpoint shows to be committed."""
        if committed:
            checkpoint = self.checkpoint()
            last_index = min(last_index, NO_INDEX if checkpoint is None else checkpoint.committed_index)
        if last_index < first_index:
            return ()
        return intact_batches(self._files, self._folder, self._log_id, first_index, last_index, max_bytes)

    def batch_in(self, offset: int) -> Batch | None:
        return batch_in(self._files, self._folder, self._log_id, offset)

    def reads_again(self, damage: Damage) -> bool:
        """Return whether the disk gives the first batch of a damage by now, as after a read error that has
        passed. A batch that the next one contradicts can be read, too, and a survey reads the whole log: so
        it is true the first, second, fourth, eighth time and so on that the batch is there."""
        batch = self.batch_in(damage.first_offset)
        if batch is None or not self.fits(damage, (batch,)):
            return False
        times = self._times_read.get(damage, 0) + 1
        self._times_read[damage] = times
        return times & (times - 1) == 0

    def fits(self, damage: Damage, batches: Sequence[Batch]) -> bool:
        return fits(self._files, self._folder, self._log_id, damage, batches)

    def rest_after(self, damage: Damage, batches: Sequence[Batch]) -> Damage | None:
        """Raises PatchRefused."""
        return rest_after(self._files, self._folder, self._log_id, damage, batches)

    def proves(self, damage: Damage, batches: Sequence[Batch], *, of_voter: bool) -> bool:
        """Return whether the batches are those that were here, or replace records that no group committed.

        The chain proves it if an intact batch follows the damage. At the end of the log in Raft mode, the
        term of the last one does, if it is at least that of the vote file: what this replica acknowledged up
        to that term and a majority held is in the log of the leader that wrote the batch, so it is in these
        batches. of_voter: they are of a voter; the log of a learner may be of another group.
        """
        if proves(self._files, self._folder, self._log_id, damage, batches):
            return True
        is_end = damage.next_offset == NO_OFFSET and damage.previous_chain is not None
        if not (
            self._votes
            and of_voter
            and is_end
            and fills(self._files, self._folder, self._log_id, damage, batches)
        ):
            return False
        term = self.saved_term()
        return term is not None and batches[-1].term >= term

    def read(self, path: str) -> None:
        """Read a small file: what matters is whether that succeeds."""
        if self._files.exists(path):
            self._files.read(path)

    def saved_term(self) -> int | None:
        """Return the term of the vote file; TERM_UNKNOWN if that may be older than the last one, or is lost;
        None before the note of the repair. A repair that was cut short continues before an opening has found
        that the folder was replaced by a copy."""
        if not self._marker.exists:
            return None
        path = f"{self._folder}/vote"
        may_be_older = self._marker.lost_vote or FolderOrigin(self._files, self._folder).is_copy()
        if may_be_older or not self._files.exists(path):
            return TERM_UNKNOWN
        try:
            return HardStateFile(self._files, path).load().term
        except CorruptFile:
            return TERM_UNKNOWN

    # --- changes ----------------------------------------------------------------------------------------

    def save_vote(self, promise: HardState) -> None:
        self.remove("vote")
        HardStateFile(self._files, f"{self._folder}/vote").save(promise)

    def reach(self, promise: HardState, damage: Damage) -> None:
        """Save the vote if its term, of records that were written at a damaged end, is later than that of the
        vote file. A lost vote stays lost: a vote file that is older than the records before the damage is not
        the last one."""
        term = self.saved_term()
        if term is None or term == TERM_UNKNOWN or damage.next_offset != NO_OFFSET:
            return
        if damage.previous_term <= term < promise.term:
            HardStateFile(self._files, f"{self._folder}/vote").save(promise)

    def remove(self, name: str) -> None:
        """Remove a small file, if it is there. That of the group becomes a record of its loss."""
        path = f"{self._folder}/{name}"
        if name == GROUP_NAME:
            lose(self._files, self._folder)
        elif self._files.exists(path):
            self._files.remove(path)
            self._files.sync_folder(self._folder)

    def forget_held(self) -> None:
        self.held_index = NO_INDEX
        self._marker.forget_held()

    def forget_offline(self) -> None:
        self.held_index = NO_INDEX
        self._marker.forget_offline()

    def patch(self, damage: Damage, batches: Sequence[Batch]) -> Damage | None:
        """Raises PatchRefused."""
        return patch(self._files, self._folder, self._log_id, damage, batches)

    def end_before(self, damage: Damage) -> StorageError | None:
        """Raises PatchRefused."""
        return end_before(self._files, self._folder, damage)

    def begin_with(self, batch: Batch) -> None:
        """Raises PatchRefused."""
        begin_with(self._files, self._folder, self._log_id, batch)

    def set_aside(self) -> None:
        set_aside(self._files, self._folder)
