"""The folder of a demo: wiped before each demo, but only when a demo has made it."""

import shutil
from pathlib import Path

MARKER = ".commitlog-demo"


class FolderRefused(Exception):
    """The folder has something in it that no demo has made."""


def prepare(folder: Path) -> bool:
    """Make `folder` an empty one with the demo's marker; True when an earlier demo's was wiped.

    Raises FolderRefused, and leaves it alone, when it holds things but no marker.
    """
    wiped = False
    if folder.exists():
        if not folder.is_dir():
            raise FolderRefused(f"{folder} is not a folder")
        if (folder / MARKER).is_file():
            shutil.rmtree(folder)
            wiped = True
        elif any(folder.iterdir()):
            raise FolderRefused(
                f"{folder} holds things that no demo has made: it stays as it is. Use another --data"
            )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text("made by `commitlog demo`, which wipes this folder when it runs again\n")
    return wiped
