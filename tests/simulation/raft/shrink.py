"""From a run that fails to the few faults that it needs: delta debugging over the numbers of its faults."""

import re
import time
from collections.abc import Callable, Sequence

from tests.simulation.raft.cluster import SimulatedCluster
from tests.simulation.world.promises import Violation

BUDGET_S = 120.0  # of real time
KIND_LENGTH = 25  # of a message

Run = Callable[[Sequence[int] | None], tuple[SimulatedCluster, Violation | None]]


def shrink(run: Run, budget_s: float = BUDGET_S) -> list[int]:
    """Return the numbers of faults with which the run still fails so, and without none of which it does.

    run(only): a run with only those faults; it fails with all of them. What is left when the budget is spent
    may hold more than it must.
    """
    ends = time.monotonic() + budget_s
    cluster, violation = run(None)
    what = _kind(violation)
    kept = [fault.number for fault in cluster.faults if fault.at_us <= cluster.world.now_us]

    def fails(only: Sequence[int]) -> bool:
        return time.monotonic() < ends and _kind(run(only)[1]) == what

    if fails([]):
        return []
    parts = 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        for start in range(0, len(kept), size):
            without = kept[:start] + kept[start + size :]
            if without and fails(without):
                kept, parts = without, max(2, parts - 1)
                break
        else:
            if size == 1:
                break
            parts = min(len(kept), 2 * parts)
    return kept


def _kind(violation: Violation | None) -> str | None:
    """Return the broken guarantee, without nodes and places."""
    return None if violation is None else re.sub(r"\b[nc]?\d[-\d]*", "#", str(violation))[:KIND_LENGTH]
