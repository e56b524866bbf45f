"""Every planted bug is noticed: by the test named for it, else by the simulator (both: `make mutants`)."""

from pathlib import Path

import pytest

from tests.mutants.catalogue import MUTANTS
from tests.mutants.killing import killed_by_simulator, killed_by_test
from tests.mutants.planting import Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.rule}-{mutant.name}")
def test_every_planted_bug_is_noticed(mutant: Mutant, tmp_path: Path) -> None:
    """By a broken promise, not by a patch that does not fit any more."""
    killer = killed_by_test(mutant, tmp_path) if mutant.killer is not None else killed_by_simulator(mutant)
    assert killer is not None


def test_without_a_planted_bug_the_killers_are_quiet(tmp_path: Path) -> None:
    for number, mutant in enumerate(MUTANTS):
        if mutant.killer is not None:
            mutant.killer(tmp_path / str(number))
