"""A long log starts as fast as a short one."""

import asyncio
import shutil

from tests.bench.startup import GIB, MIB, measure
from tests.chaos.report import CannotRun
from tests.chaos.session import World

LARGE_BYTES = 10 * GIB
GOAL_RATIO = 1.5


async def startup(world: World) -> None:
    """From the start of the process to /readyz with 10 MiB and with 10 GiB of log, page cache dropped."""
    large_bytes = max(64 * MIB, round(LARGE_BYTES * world.report.scale))
    folder = world.new_folder()
    if shutil.disk_usage(folder).free < 1.2 * large_bytes:
        raise CannotRun(f"a log of {large_bytes / GIB:.1f} GiB finds no room in {folder}")
    *sizes, ratio = await asyncio.to_thread(
        measure, folder, large_bytes, world.count(6, least=2), world.progress
    )
    shutil.rmtree(folder)
    world.report.figures["startup"] = sizes
    world.report.figures["large_to_small"] = ratio
    if ratio["ready"] > GOAL_RATIO:
        world.report.missed.append(f"the large log takes {ratio['ready']} times as long to be ready")
