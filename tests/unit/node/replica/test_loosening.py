"""The change of a log from `fsync` to `replicated`: the note in its folder comes first."""

import pytest

from app.log.contract import Durability
from app.node.replica.loosening import RETRY_MS, Loosening
from storage.errors import DiskError, StorageFull
from tests.unit.node.replica.driver_support import Seams


class Log:
    """A log that was opened with `fsync`."""

    def __init__(self) -> None:
        self.seams = Seams()
        self.notes = 0
        self.noted = 0
        self.loosening = Loosening(
            "default", Durability.FSYNC, self.seams, self._note, self._on_noted, self.seams.fail
        )

    def _note(self) -> None:
        self.notes += 1

    def _on_noted(self) -> None:
        self.noted += 1

    def allowed(self, wanted: Durability = Durability.REPLICATED, now_ms: int = 0) -> Durability:
        return self.loosening.allowed(wanted, now_ms)


@pytest.mark.rule("R-11")
def test_unsynced_records_are_acknowledged_only_after_the_note_is_durable() -> None:
    log = Log()
    for _ in range(3):  # the settings may change again before that
        assert log.allowed() is Durability.FSYNC
    log.seams.run()
    assert (log.notes, log.noted) == (1, 1)
    assert log.allowed() is Durability.REPLICATED


@pytest.mark.rule("R-11")
def test_a_full_disk_delays_the_note() -> None:
    log = Log()
    log.seams.disk_error = StorageFull("opened", "write", "no space")
    log.allowed()
    log.seams.run()
    log.seams.disk_error = None
    log.loosening.tick(RETRY_MS - 1)
    log.seams.run()
    assert log.notes == 0
    log.loosening.tick(RETRY_MS)
    log.seams.run()
    assert (log.notes, log.noted) == (1, 1)


@pytest.mark.rule("R-11")
def test_a_failed_note_stops_the_node() -> None:
    log = Log()
    error = DiskError("opened", "write", "broken")
    log.seams.disk_error = error
    log.allowed()
    log.seams.run()
    assert [each for _, each in log.seams.failures] == [error]
    assert log.allowed() is Durability.FSYNC
