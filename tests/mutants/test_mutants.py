"""`make mutants`: every planted bug is noticed, by the simulator or by the test named for it."""

from pathlib import Path

import pytest

from tests.mutants.mutants import MUTANTS, Mutant
from tests.simulation.cluster import SimulatedCluster, storm

SEEDS = range(60)
SECONDS = 20


def run_storms() -> None:
    """Stormy clusters one after another until one breaks."""
    for seed in SEEDS:
        cluster = SimulatedCluster(seed, storm(3 if seed % 3 else 5))
        cluster.run(SECONDS)
        cluster.settle()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.rule}-{mutant.name}")
def test_every_planted_bug_is_noticed(
    mutant: Mutant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a broken promise (a Violation is an AssertionError), not by a patch that does not fit any more."""
    with monkeypatch.context() as patch:
        mutant.patch(patch)
        with pytest.raises(AssertionError):
            mutant.killer(tmp_path) if mutant.killer is not None else run_storms()


def test_without_a_planted_bug_the_killers_are_quiet(tmp_path: Path) -> None:
    for number, mutant in enumerate(MUTANTS):
        if mutant.killer is not None:
            mutant.killer(tmp_path / str(number))
