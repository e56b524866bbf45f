"""Confirmed records, cursors, schemas and sequences in controller mode: what answers are compared with."""

from storage.format.batch import Batch
from storage.format.records import control_value
from tests.simulation.world.promises import KnownRecords, Violation
from tests.support.committed import values_of


class ConfirmedRecords(KnownRecords):
    """Takes each confirmed batch in once, in the order of the log. Not for logs that an unclean election may
    cut: what they confirm may change."""

    def __init__(self) -> None:
        super().__init__()
        self.schemas: list[tuple[int, int]] = []  # index and version of each schema

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
            elif value["kind"] == "schema":
                self.schemas.append((batch.last_index, value["version"]))
                if value["version"] != len(self.schemas):
                    raise Violation(f"schemas are confirmed in the order {self.schemas}")
        else:
            self._note_values(batch, values_of(batch))
            self._note_sequences(batch)
