"""The home folder of the user. Standard library only."""

from pathlib import Path
from typing import Final

NO_HOME: Final = Path("/nonexistent")  # Debian's home folder of users that have none


def home_folder() -> Path:
    """Return the user's home folder; a path that does not exist if there is none: without HOME, and with a
    number of a user that the machine does not know, as in a container."""
    try:
        return Path.home()
    except RuntimeError:
        return NO_HOME
