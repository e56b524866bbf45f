"""Detection of a planted bug: by the simulator of its mode, and by the test that is named for it."""

from pathlib import Path

import pytest

from tests.mutants.planting import GroupMutant, Mutant
from tests.simulation.classic import group as classic
from tests.simulation.controller import run as controller
from tests.simulation.raft.run import run_seed
from tests.simulation.world.promises import Violation

FIRST_SEED = 3
SEEDS, SEEDS_BESIDE_A_TEST = 120, 30  # that are tried
SECONDS = 80.0
GROUP_SEEDS, GROUP_SECONDS = 12, 20.0  # that are tried


def killed_by_simulator(mutant: Mutant) -> str | None:
    """The first seed whose cluster breaks a promise under the mutant, and which promise."""
    count = SEEDS if mutant.killer is None else SEEDS_BESIDE_A_TEST
    with pytest.MonkeyPatch.context() as patch:
        mutant.patch(patch)
        for seed in range(FIRST_SEED, FIRST_SEED + 2 * count, 2):  # every second one is a storm
            _, violation = run_seed(seed, SECONDS)
            if violation is not None:
                return f"seed {seed}: {violation}"
    return None


def killed_by_group(mutant: GroupMutant) -> str | None:
    """The first seed whose group breaks a promise under the mutant, and which promise."""
    simulator = controller if mutant.mode == "controller" else classic
    with pytest.MonkeyPatch.context() as patch:
        mutant.patch(patch)
        for seed in range(GROUP_SEEDS):
            _, violation = simulator.run_seed(seed, GROUP_SECONDS)
            if violation is not None:
                return f"seed {seed}: {violation}"
    return None


def killed_by_test(mutant: Mutant, folder: Path) -> str | None:
    """Why the named test fails under the mutant; None when there is none, or when it passes."""
    if mutant.killer is None:
        return None
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        mutant.patch(patch)
        try:
            mutant.killer(folder)
        except (AssertionError, Violation, pytest.fail.Exception) as failure:
            return f"test: {str(failure).splitlines()[0] if str(failure) else 'assertion'}"
    return None
