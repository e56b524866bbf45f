"""A planted bug that fails in its own code is stale: it is not counted as noticed."""

from pathlib import Path
from typing import Any

import pytest

from tests.mutants.killing import StaleMutant, killed_by_simulator, killed_by_test
from tests.mutants.planting import Killer, Mutant, Patch, planted
from tests.simulation.raft.cluster import SimulatedCluster


class Product:
    """Code for the bugs of this file."""

    def double(self, number: int) -> int:
        return 2 * number


def check_double(_folder: Path) -> None:
    try:
        doubled = Product().double(2)
    except (AttributeError, TypeError) as error:
        raise AssertionError("the product stopped") from error
    assert doubled == 4


def not_held(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, Product, "double")
    def double(original: Any, self: Any, number: int) -> int:
        return self.factor * number  # type: ignore[no-any-return]


def fewer_arguments(patch: pytest.MonkeyPatch) -> None:
    def double(self: Product) -> int:
        return 4

    patch.setattr(Product, "double", double)


def no_such_function(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Product, "triple", None)


def wrong_result(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Product, "double", lambda self, number: number)


def refusal(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, Product, "double")
    def double(original: Any, self: Any, number: int) -> int:
        raise ValueError(number)


def broken_settling(patch: pytest.MonkeyPatch) -> None:
    @planted(patch, SimulatedCluster, "run")
    def run(original: Any, self: Any, seconds: float) -> None:
        self.no_such_attribute()


def bug(patch: Patch, killer: Killer | None = check_double) -> Mutant:
    return Mutant(patch.__name__, "R-01", patch, killer)


@pytest.mark.parametrize("patch", [not_held, fewer_arguments, no_such_function])
def test_a_bug_that_fails_in_its_own_code_is_stale(patch: Patch, tmp_path: Path) -> None:
    with pytest.raises(StaleMutant, match=patch.__name__):
        killed_by_test(bug(patch), tmp_path)


def test_the_simulator_does_not_count_a_stale_bug() -> None:
    with pytest.raises(StaleMutant, match="broken_settling"):
        killed_by_simulator(bug(broken_settling, None))


def test_a_wrong_result_is_noticed(tmp_path: Path) -> None:
    assert killed_by_test(bug(wrong_result), tmp_path) is not None


def test_an_error_that_the_bug_raises_on_purpose_is_none_of_its_own(tmp_path: Path) -> None:
    """A refused call is a possible bug: the killer decides."""
    with pytest.raises(ValueError, match="2"):
        killed_by_test(bug(refusal), tmp_path)
