"""Folders of one user among the temporary files that all users of a machine share.

Their names are predictable, so that later processes find them again. Another user could create one of them
first, and then read, replace or redirect by links what is written there: the code that Spark's processes
import, their configuration, staged records.
"""

import os
import stat
import tempfile
from pathlib import Path

from app.errors import ConfigError


def private_folder(name: str) -> Path:
    """Return the folder TMPDIR/NAME-UID, created if it does not exist.

    Raises ConfigError if it is a link, or belongs to another user, or others can use it; OSError.
    """
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if not is_ours or found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(
            f"{folder} must be a folder with the permissions 0700 that belongs to the user {os.getuid()}: "
            "another user may have created it; remove it, or set TMPDIR to another folder"
        )
    return folder
