"""Everything that was ever confirmed in a log of controller mode: records, cursors, sequences.

Reads and answers are compared with it. It has what clients and reads need of
tests.simulation.raft.checks.SafetyChecker.
"""

from app.log.contract import NO_INDEX, AppendResult
from storage.format.batch import Batch, marks_of
from storage.format.records import control_value
from tests.simulation.raft.checks import Violation, value_of
from tests.support.committed import values_of


class ConfirmedRecords:
    """Takes each confirmed batch in once, in the order of the log. Not for logs that an unclean election may
    cut: what they confirm may change."""

    def __init__(self) -> None:
        self.committed: dict[int, Batch] = {}  # by base index
        self.committed_index = NO_INDEX
        self.values: dict[int, str] = {}  # of every data record, by index
        self.places: dict[str, int] = {}  # of every data record, by value
        self.cursors: dict[int, tuple[str, int | None]] = {}  # moves: revision -> (name, position)
        self.largest_batch = 0
        self._sequences: dict[str, tuple[int, int]] = {}  # by producer: newest (epoch, sequence)

    def take(self, name: str, batch: Batch) -> None:
        """A replica has this batch as confirmed. Raises Violation."""
        known = self.committed.get(batch.base_index)
        if known is not None:
            if known != batch:
                raise Violation(f"{name}: confirmed {batch}, but {known} was confirmed before")
            return
        if batch.base_index <= self.committed_index:
            raise Violation(f"{name}: {batch} was confirmed with other bounds before")
        self.committed[batch.base_index] = batch
        self.committed_index = batch.last_index
        if batch.is_control:
            value = control_value(batch)
            if value["kind"] == "cursor":
                self.cursors[batch.last_index] = value["name"], value["index"]
        else:
            self._note_records(batch)

    def _note_records(self, batch: Batch) -> None:
        """Every record is there once; a producer's sequences rise by one, its epochs never fall."""
        self.largest_batch = max(self.largest_batch, batch.count)
        for place, value in enumerate(values_of(batch), batch.base_index):
            self.values[place] = value
            if self.places.setdefault(value, place) != place:
                raise Violation(f"{value} is at {self.places[value]} and at {place}")
        for mark in marks_of(batch):
            if mark.producer_id is None:
                continue
            epoch, sequence = self._sequences.get(mark.producer_id, (NO_INDEX, NO_INDEX))
            follows = mark.producer_epoch == epoch and mark.producer_sequence == sequence + 1
            if not follows and mark.producer_epoch <= epoch:
                raise Violation(f"{mark} confirmed after epoch {epoch}, sequence {sequence}")
            self._sequences[mark.producer_id] = (mark.producer_epoch, mark.producer_sequence)

    def check_acknowledged(self, value: str, result: AppendResult) -> None:
        """An answer guarantees a client that its records are permanent (D-28). value: of the first one."""
        place = self.places.get(value)
        if place != result.first_index:
            raise Violation(f"{value} was acknowledged at {result.first_index}, but is at {place}")
        for number, index in enumerate(range(result.first_index, result.last_index + 1)):
            if self.values.get(index) != value_of(value, number):
                raise Violation(f"record {number} of {value} at {index} is {self.values.get(index)}")

    def has_only_control(self, first_index: int, end_index: int) -> bool:
        """Return whether every confirmed record from first_index to before end_index is a control record."""
        index = first_index
        while index < end_index:
            batch = self.committed.get(index)
            if batch is None or not batch.is_control:
                return False
            index = batch.next_index
        return True
