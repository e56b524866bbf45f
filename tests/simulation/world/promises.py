"""Promises to clients, and everything that was ever committed in one log: what answers are compared with."""

import traceback

from app.log.contract import NO_INDEX, AppendResult
from storage.format.batch import Batch, marks_of


class Violation(AssertionError):
    """The cluster broke a promise; the message names it, and the seed replays it."""


PLACE_FRAMES = 8  # of an unexpected error


def unexpected(error: Exception) -> Violation:
    """Return an error that a run did not expect as a violation, with its places, innermost first."""
    frames = traceback.extract_tb(error.__traceback__)[:-PLACE_FRAMES:-1]
    places = " < ".join(f"{frame.name}:{frame.lineno}" for frame in frames)
    violation = Violation(f"{error!r} at {places}")
    violation.__cause__ = error
    return violation


def value_of(append: str, number: int) -> str:
    """Return the value of one record of an append; the first record's is the name of the append."""
    return append if number == 0 else f"{append}+{number}"


class KnownRecords:
    """Committed records of one log. The checker of the simulated mode adds each committed batch once."""

    def __init__(self) -> None:
        self.committed: dict[int, Batch] = {}  # by base index
        self.committed_index = NO_INDEX
        self.reported_index = NO_INDEX  # the largest committed index of a member, also of one with damage
        self.places: dict[str, int] = {}  # of every committed record, by value
        self.values: dict[int, str] = {}  # of every committed data record, by index
        self.cursors: dict[int, tuple[str, int | None]] = {}  # committed moves: revision -> (name, position)
        self.largest_batch = 0  # records of a committed batch
        self._sequences: dict[str, tuple[int, int]] = {}  # by producer: newest committed (epoch, sequence)

    def check_acknowledged(self, value: str, result: AppendResult) -> None:
        """Check that acknowledged records are at their index (D-28). value: of the first record."""
        place = self.places.get(value)
        if place != result.first_index:
            raise Violation(f"{value} was acknowledged at {result.first_index}, but is at {place}")
        for number, index in enumerate(range(result.first_index, result.last_index + 1)):
            if self.values.get(index) != value_of(value, number):
                raise Violation(f"record {number} of {value} at {index} is {self.values.get(index)}")

    def has_only_control(self, first_index: int, end_index: int) -> bool:
        """Return whether every committed record from first_index to before end_index is a control record."""
        index = first_index
        while index < end_index:
            batch = self.committed.get(index)
            if batch is None or not batch.is_control:
                return False
            index = batch.next_index
        return True

    def _note_values(self, batch: Batch, values: list[str]) -> None:
        """Every record exists once."""
        self.largest_batch = max(self.largest_batch, batch.count)
        for place, value in enumerate(values, batch.base_index):
            self.values[place] = value
            if self.places.setdefault(value, place) != place:
                raise Violation(f"{value} is at {self.places[value]} and at {place}")

    def _note_sequences(self, batch: Batch) -> None:
        """The sequences of a producer rise by one, its epochs never fall."""
        for mark in marks_of(batch):
            if mark.producer_id is None:
                continue
            epoch, sequence = self._sequences.get(mark.producer_id, (NO_INDEX, NO_INDEX))
            follows = mark.producer_epoch == epoch and mark.producer_sequence == sequence + 1
            if not follows and mark.producer_epoch <= epoch:
                raise Violation(f"{mark} committed after epoch {epoch}, sequence {sequence}")
            self._sequences[mark.producer_id] = (mark.producer_epoch, mark.producer_sequence)
