"""Tails torn at every byte and flipped at every bit, on a disk in memory, judged by storage's own tests."""

import asyncio
import os
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context

from tests.chaos.session import World
from tests.unit.storage.torn_tails import BEHIND, flips_everywhere, torn_everywhere

PARTS = 32  # of each kind, so that all cores work and progress shows


async def tails(world: World) -> None:
    """A tail of 64 KiB torn at every byte, in four ways; every bit of the last 4 KiB flipped."""
    await asyncio.to_thread(run_parts, world)


def run_parts(world: World) -> None:
    """At scale s, one place in 1/s is tried."""
    every = max(1, round(1 / max(world.report.scale, 1e-4)))
    parts = [(kind, part * every, PARTS * every) for kind in (*BEHIND, "flip") for part in range(PARTS)]
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as workers:
        running = {workers.submit(run_part, *part): part for part in parts}
        for done, future in enumerate(as_completed(running), start=1):
            kind = running[future][0]
            count, complaint = future.result()
            world.report.counts["bits flipped" if kind == "flip" else f"torn, then {kind}"] += count
            if complaint:
                world.report.violations.append(complaint)
            world.progress(done, len(parts))


def run_part(kind: str, first: int, stride: int) -> tuple[int, str]:
    """How many places were tried, and what was wrong at one of them."""
    try:
        if kind == "flip":
            return flips_everywhere(first, stride), ""
        return torn_everywhere(kind, first, stride), ""
    except AssertionError as error:
        where = "".join(traceback.format_exception(error))[-600:]
        return 0, f"{kind}, every {stride} from {first}: {where}"
