"""Pauses that grow with the duration of the work before them have a limit: a suspended machine is no work."""

from collections.abc import Callable

import pytest

from spark_jobs.materialize.typed import CURRENT_EACH_S, CURRENT_PAUSE_MAX_S, pause_after_change
from spark_jobs.run import LONGEST_PAUSE_S, MIN_PAUSE_S, pause_after


@pytest.mark.parametrize(
    ("pause", "least_s", "usual", "longest_s"),
    [
        (pause_after, MIN_PAUSE_S, (0.1, 1.0), LONGEST_PAUSE_S),
        (pause_after_change, CURRENT_EACH_S, (30.0, 120.0), CURRENT_PAUSE_MAX_S),
    ],
)
def test_a_driver_that_was_suspended_works_again_soon(
    pause: Callable[[float], float], least_s: float, usual: tuple[float, float], longest_s: float
) -> None:
    assert pause(0.0) == least_s
    assert pause(usual[0]) == usual[1]
    assert pause(8 * 3_600.0) == longest_s
