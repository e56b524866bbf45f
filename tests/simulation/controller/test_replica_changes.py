"""The nodes of a log change under faults: nothing acknowledged is lost, and the change is completed."""

import pytest

from tests.simulation.controller.replica_changes import run_seeds


@pytest.mark.rule("C-03", "C-05", "C-06", "C-12")
@pytest.mark.timeout(300)
def test_replicas_are_added_replaced_and_removed_under_faults() -> None:
    counts, violations = run_seeds(range(4), 12)
    assert not violations, "\n".join(violations)
    assert counts["appends"] >= 100
    for rare in ("changes complete", "copies added", "copies removed", "master changes"):
        assert counts[rare], f"a run without {rare} proves little"
