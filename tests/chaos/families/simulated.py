"""Controllers and replicas in controller mode on simulated time: no process (tests/simulation/controller)."""

import asyncio
import logging
from collections import Counter

from tests.chaos.session import World
from tests.simulation.controller.run import FULL_MASTER_CHANGES, FULL_SEEDS, run_seeds


async def controller_mode(world: World) -> None:
    """Master changes under crashes, cuts, lost answers of the controllers, and truncations."""
    await asyncio.to_thread(_run, world)


def _run(world: World) -> None:
    goal, first = world.count(FULL_MASTER_CHANGES), world.report.seed
    logging.disable(logging.CRITICAL)

    def progress(counts: Counter[str]) -> None:
        world.progress(min(goal, counts["master changes"]), goal)

    counts, violations = run_seeds(range(first, first + FULL_SEEDS), until=goal, progress=progress)
    world.report.counts.update(counts)
    world.report.violations += violations
    if counts["master changes"] < goal:
        world.report.missed.append(f"{counts['master changes']} of {goal} master changes")
