"""A production node whose every sync of a file or folder takes `SYNC_DELAY_MS` longer, like a slow disk's."""

import os
import sys
import time
from typing import Final

from app.serve import main
from storage.files import OsFile, OsFileSystem

DELAY_ENV: Final = "SYNC_DELAY_MS"


def slow_down(delay_s: float) -> None:
    """Let every sync of this process wait first, as long as a real disk would, in its own thread."""
    sync, sync_folder = OsFile.sync, OsFileSystem.sync_folder

    def slow_sync(self: OsFile) -> None:
        time.sleep(delay_s)
        sync(self)

    def slow_sync_folder(self: OsFileSystem, path: str) -> None:
        time.sleep(delay_s)
        sync_folder(self, path)

    OsFile.sync = slow_sync  # type: ignore[method-assign]
    OsFileSystem.sync_folder = slow_sync_folder  # type: ignore[method-assign]


if __name__ == "__main__":
    slow_down(float(os.environ[DELAY_ENV]) / 1000)
    sys.exit(main())
