"""The folder of a demo: emptied before each demo, but only if a demo has created it."""

import fcntl
import shutil
from contextlib import suppress
from pathlib import Path

from app.local.cluster import LOCK

MARKER = ".commitlog-demo"
MADE_BY_DEMOS = ("n[1-9]", "cluster.toml", "spark", "tables", "checkpoints", "proofs.*", "notebook*.*")


class FolderRefused(Exception):
    """The folder contains something that no demo has created."""


def prepare(folder: Path) -> bool:
    """Create `folder` with the demo's marker and nothing of an earlier demo; return whether there was one.

    Other files are left alone. Raises FolderRefused when the folder is not empty and has no marker, or when a
    cluster runs in it.
    """
    earlier = (folder / MARKER).is_file()
    if folder.exists() and not folder.is_dir():
        raise FolderRefused(f"{folder} is not a folder")
    if folder.exists() and not earlier and any(folder.iterdir()):
        raise FolderRefused(
            f"{folder} contains files that no demo has created. They are left unchanged: use another --data"
        )
    _check_idle(folder)
    for pattern in MADE_BY_DEMOS:
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text(
        "`commitlog demo` created this folder. Its next run deletes what it created here.\n",
        "utf-8",
    )
    return earlier


def _check_idle(folder: Path) -> None:
    with suppress(FileNotFoundError), (folder / LOCK).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise FolderRefused(f"a cluster runs in {folder}: end it, or use another --data") from error
