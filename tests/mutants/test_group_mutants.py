"""Every bug planted in controller mode and classic HA is noticed by the test named for it."""

from pathlib import Path

import pytest

from tests.mutants.catalogue import GROUP_MUTANTS
from tests.mutants.killing import killed_by_test
from tests.mutants.planting import GroupMutant


@pytest.mark.parametrize("mutant", GROUP_MUTANTS, ids=lambda mutant: f"{mutant.rule}-{mutant.name}")
def test_every_planted_bug_is_noticed(mutant: GroupMutant, tmp_path: Path) -> None:
    assert killed_by_test(mutant, tmp_path) is not None


def test_without_a_planted_bug_the_killers_are_quiet(tmp_path: Path) -> None:
    for mutant in GROUP_MUTANTS:
        assert mutant.killer is not None
        mutant.killer(tmp_path)
