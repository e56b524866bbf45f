"""Background scrub of a node: rereads every log periodically, at a limited rate, to find old damage early.

One log after the other, at `bytes_per_s` in total. Batches are read in a separate thread, small files in the
log's disk lane, the only place where they are written. Damage begins a repair, and so does a block that
cannot be read.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from app.futures import settle
from app.log.driver_interfaces import Lanes
from app.node.hosted_log import HostedLog
from app.node.repair.interfaces import Damaged
from app.node.replica.driver import LogDriver
from app.settings.model import ScrubConfig
from storage.care.scrub import Scrub, ScrubStep
from storage.errors import CorruptFile, CorruptLog, DiskError, DiskRefused, NewerFormat, StorageFull
from storage.file_system import FileSystem
from storage.units import KIB

logger = logging.getLogger(__name__)

STEP_BYTES: Final = 256 * KIB


class Scrubber:
    """Owned by the event loop."""

    def __init__(
        self,
        config: ScrubConfig,
        files: FileSystem,
        disk: Lanes,
        damaged: Callable[[HostedLog, Damaged, str], None],
    ) -> None:
        """damaged(hosted, error, found_by): begins the repair of a log."""
        self._config = config
        self._files = files
        self._disk = disk
        self._damaged = damaged

    async def run(self, logs: Mapping[int, HostedLog]) -> None:
        """Run as long as the node. logs: as the node keeps them."""
        if not self._config.enabled:
            return
        await asyncio.sleep(self._config.start_delay_ms / 1000)
        while True:
            for hosted in list(logs.values()):
                await self.scrub(hosted)
            await asyncio.sleep(self._config.interval_ms / 1000)

    async def scrub(self, hosted: HostedLog) -> None:
        """One round over one log."""
        driver = hosted.driver
        if driver is None:
            return
        try:
            if await self._round(hosted, driver):
                hosted.scrub_rounds += 1
                logger.info("log scrubbed", extra={"log": hosted.name, "rounds": hosted.scrub_rounds})
        except (CorruptLog, CorruptFile) as error:
            self._found(hosted, driver, error)
        except StorageFull as error:  # a small file waits for space: a repair could not even begin
            logger.warning("log %s: the disk is full: the scrub cannot repair a file: %s", hosted.name, error)
        except (DiskRefused, NewerFormat) as error:  # it shows no damage: the next round reads again
            logger.warning("log %s: the scrub ends early: %s", hosted.name, error)
        except DiskError as error:
            self._found(hosted, driver, CorruptLog(error.path, 0, f"it cannot be read: {error.reason}"))

    async def _round(self, hosted: HostedLog, driver: LogDriver) -> bool:
        """True if the round reached its end."""
        for step in Scrub(self._files, driver.log, STEP_BYTES):
            if step.size_bytes:
                await asyncio.to_thread(step.run)
            else:
                await self._in_disk_thread(hosted.name, step)
            hosted.scrubbed_bytes += step.size_bytes
            await asyncio.sleep(step.size_bytes / self._config.bytes_per_s)
            if hosted.driver is not driver:
                return False
        return True

    def _found(self, hosted: HostedLog, driver: LogDriver, error: Damaged) -> None:
        if hosted.driver is driver:
            self._damaged(hosted, error, "scrub")

    async def _in_disk_thread(self, log_name: str, step: ScrubStep) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._disk.lane(log_name).submit(step.run, partial(settle, done))
        await done
