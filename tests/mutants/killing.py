"""Detection of a planted bug: by the simulator of its mode, and by the test that is named for it.

A bug that fails in its own code proves nothing: it is stale, because the code that it patches has changed.
"""

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.errors import CorruptLog
from tests.mutants.planting import GroupMutant, Mutant
from tests.simulation.classic import group as classic
from tests.simulation.controller import run as controller
from tests.simulation.raft.run import run_seed
from tests.simulation.world.promises import Violation

FIRST_SEED = 3
SEEDS, SEEDS_BESIDE_A_TEST = 120, 30  # that are tried
SECONDS = 80.0
GROUP_SEEDS, GROUP_SECONDS = 12, 20.0  # that are tried
STALE = (AttributeError, NameError, TypeError)  # what a bug raises that does not fit the code
HERE = Path(__file__).parent


class StaleMutant(Exception):
    """The planted bug does not fit the product any more: a failure of the catalogue."""


def check_fits(mutant: Mutant, failure: BaseException) -> None:
    """Raises StaleMutant when the failure comes from the code of the planted bug itself."""
    for error in _causes(failure):
        if isinstance(error, STALE) and (_raised_here(error) or _is_call_of(mutant, error)):
            raise StaleMutant(f"{mutant.name} does not fit the code: {error!r}") from failure


@contextlib.contextmanager
def _planted(mutant: Mutant) -> Iterator[None]:
    """The product with the bug in it. Raises StaleMutant."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            mutant.patch(patch)
        except (*STALE, LookupError) as error:
            raise StaleMutant(f"{mutant.name} cannot be planted: {error!r}") from error
        try:
            yield
        except STALE as error:
            check_fits(mutant, error)
            raise


def _causes(failure: BaseException) -> Iterator[BaseException]:
    """The failure, and the errors that led to it."""
    error: BaseException | None = failure
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _raised_here(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and HERE in Path(frames[-1].filename).parents


def _is_call_of(mutant: Mutant, error: BaseException) -> bool:
    """Return whether the arguments of a call do not fit the function of the bug."""
    return isinstance(error, TypeError) and f"{mutant.name}.<locals>." in str(error)


def killed_by_simulator(mutant: Mutant) -> str | None:
    """The first seed whose cluster breaks a promise under the mutant, and which promise.

    Raises StaleMutant.
    """
    count = SEEDS if mutant.killer is None else SEEDS_BESIDE_A_TEST
    with _planted(mutant):
        for seed in range(FIRST_SEED, FIRST_SEED + 2 * count, 2):  # every second one is a storm
            _, violation = run_seed(seed, SECONDS)
            if violation is not None:
                check_fits(mutant, violation)
                return f"seed {seed}: {violation}"
    return None


def killed_by_group(mutant: GroupMutant) -> str | None:
    """The first seed whose group breaks a promise under the mutant, and which promise.

    Raises StaleMutant.
    """
    simulator = controller if mutant.mode == "controller" else classic
    with _planted(mutant):
        for seed in range(GROUP_SEEDS):
            _, violation = simulator.run_seed(seed, GROUP_SECONDS)
            if violation is not None:
                check_fits(mutant, violation)
                return f"seed {seed}: {violation}"
    return None


def killed_by_test(mutant: Mutant, folder: Path) -> str | None:
    """Why the named test fails under the mutant; None when there is none, or when it passes.

    Raises StaleMutant.
    """
    if mutant.killer is None:
        return None
    folder.mkdir(exist_ok=True)
    with _planted(mutant):
        try:
            mutant.killer(folder)
        except (AssertionError, CorruptLog, Violation, pytest.fail.Exception) as failure:
            check_fits(mutant, failure)
            return f"test: {str(failure).splitlines()[0] if str(failure) else 'assertion'}"
    return None
