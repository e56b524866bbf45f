"""Notes of a doubt at an opening: what one of them states is never taken back by a later finding."""

from pathlib import Path
from typing import Any

import pytest

from app.node.opening.trust import Trust, judge_opening
from app.node.repair.marker import Note, RepairMarker
from storage.errors import CorruptFile
from tests.support.memory_files import MemoryFiles
from tests.unit.node.replica.driver_support import Node, Seams


class CleanStopOf:
    """Replaces CleanStop. power: it failed before the last records were synced."""

    def __init__(self, power: bool) -> None:
        self._power = power

    def may_have_lost(self) -> bool:
        return self._power


def judged(
    marker: RepairMarker, *, power: bool = False, sound: bool = True, sound_if_alone: bool = False
) -> Trust:
    clean_stop: Any = CleanStopOf(power)
    return judge_opening(
        "log", marker, clean_stop, Seams(), sound=sound, sound_if_alone=sound_if_alone, is_empty=False
    )


@pytest.mark.rule("R-01")
def test_a_power_failure_gives_a_lost_vote_not_back() -> None:
    marker = RepairMarker(MemoryFiles(), "data", "log")
    marker.save(Note("empty", "start", 1, keeps_promises=True, intact=True, lost_vote=True))
    assert not judged(marker, power=True).knows_vote
    assert marker.lost_vote  # in the note that has both reasons
    assert not judged(marker).knows_vote


@pytest.mark.rule("R-02")
def test_a_note_that_keeps_the_promises_makes_no_unsound_replica_sound() -> None:
    marker = RepairMarker(MemoryFiles(), "data", "log")
    marker.save(Note("noise", "scrub", 1, keeps_promises=True, lacks_records=False))
    assert judged(marker, sound=True).sound
    assert not judged(marker, sound=False).sound


@pytest.mark.rule("R-02", "R-10")
@pytest.mark.parametrize(
    ("intact", "lacks_records", "alone"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_the_only_voter_is_sound_with_a_doubt_alone_if_its_files_and_records_are_there(
    intact: bool, lacks_records: bool, alone: bool
) -> None:
    marker = RepairMarker(MemoryFiles(), "data", "log")
    marker.save(Note("power", "start", 1, intact=intact, lacks_records=lacks_records))
    assert judged(marker).sound_if_alone is alone
    assert judged(marker, sound_if_alone=True).sound_if_alone


@pytest.mark.rule("R-01", "R-02")
def test_a_note_that_cannot_be_read_promises_nothing() -> None:
    files = MemoryFiles()
    marker = RepairMarker(files, "data", "log")
    marker.save(Note("noise", "scrub", 1, keeps_promises=True, lacks_records=False, intact=True))
    files.open("data/repairing/log").truncate(5)
    assert judged(marker) == Trust(sound=False, sound_if_alone=False, knows_vote=False)


def test_a_held_index_is_forgotten_alone() -> None:
    marker = RepairMarker(MemoryFiles(), "data", "log")
    marker.forget_held()
    assert not marker.exists
    marker.save(Note("noise", "scrub", 1, keeps_promises=True, held_index=5, pair=("n1", "n2")))
    assert marker.held_index == 5
    marker.forget_held()
    assert (marker.held_index, marker.pair, marker.keeps_promises) == (-1, ("n1", "n2"), True)


@pytest.mark.rule("R-01")
def test_a_missing_vote_of_a_log_is_damage_and_no_new_one_is_written(tmp_path: Path) -> None:
    """The replica may have voted in the present term."""
    node = Node(tmp_path, "n1", "n2", "n3")
    vote = tmp_path / "logs" / "default" / "vote"
    vote.unlink()
    for _ in range(2):
        with pytest.raises(CorruptFile, match="vote: missing"):
            node.open()
    assert not vote.exists()
