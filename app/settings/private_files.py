"""Permissions of the files with private keys and cluster secrets: no other user can read them."""

import stat
from pathlib import Path
from typing import Final

from app.errors import ConfigError

_ROOT: Final = 0
_NOT_OF_THE_OWNER: Final = stat.S_IRWXG | stat.S_IRWXO


def check_private(name: str, path: Path) -> None:
    """Raise ConfigError for a file that its group or others can use.

    The group may read a file of root: so Kubernetes mounts secrets (fsGroup), and systemd credentials. name:
    of the setting, for the message. Raises OSError.
    """
    found = path.stat()
    if (reason := objection(stat.S_IMODE(found.st_mode), found.st_uid)) is not None:
        raise ConfigError(f"[security] {name} {path} {reason}: use `chmod 600 {path}`")


def objection(mode: int, owner: int) -> str | None:
    """Return why a private file with these permissions is refused, None if it is accepted."""
    if not mode & (_NOT_OF_THE_OWNER & ~stat.S_IRGRP if owner == _ROOT else _NOT_OF_THE_OWNER):
        return None
    allowed = "0640 at most, since it belongs to root" if owner == _ROOT else "0600 at most"
    return f"has the permissions {mode:04o}, which let other users read or change it; allowed are {allowed}"
