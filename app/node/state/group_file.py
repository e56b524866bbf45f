"""The group of a log whose records do not name one yet: as configured at its first opening (R-10).

DATA/logs/NAME/group is one line: CRC32C in hexadecimal, a space, JSON. The next leader writes its group into
the log; from then on the file is ignored. Until then a changed configuration must not change the group: nodes
that restart one by one could form two majorities without a common member. A repair replaces a file that
cannot be read by the line LOST: the replica uses the configured group, and does not campaign.
"""

import logging
from typing import Final

import msgspec

from app.log.contract import GroupConfig
from storage.errors import CorruptFile
from storage.file_system import FileSystem, write_durably
from storage.format.checksum import crc32c

logger = logging.getLogger(__name__)

GROUP_NAME: Final = "group"
LOST: Final = b"lost\n"


class _GroupLine(msgspec.Struct, frozen=True):
    voters: tuple[str, ...]
    learners: tuple[str, ...]


def first_group(files: FileSystem, folder: str, configured: GroupConfig, *, is_bound: bool) -> GroupConfig:
    """Return the group of the log's first opening; save the configured one if there is none. Blocks.

    is_bound: false while this replica has neither voted nor stored anything: then the configuration may still
    be corrected, and an unreadable line is replaced. Raises CorruptFile if it is bound to a group that the
    line does not show any more, until that is known to be lost; StorageFull, DiskError.
    """
    path = f"{folder}/{GROUP_NAME}"
    if is_bound and is_lost(files, folder):
        logger.error("%s is lost: no campaign until a record of a leader names the group", path)
        return configured
    if files.exists(path):
        found = _read(files.read(path))
        if found is None and is_bound:
            raise CorruptFile(path, "it does not show the group of this replica")
        if found is None:
            logger.error("%s cannot be read: the configured group is recorded again", path)
        elif is_bound or found == configured:
            if found != configured:
                logger.warning(
                    "the configuration names other replicas than %s: change the members of the log instead",
                    path,
                )
            return found
    text = msgspec.json.encode(_GroupLine(configured.voters, configured.learners))
    write_durably(files, path, b"%08x %s\n" % (crc32c(text), text))
    return configured


def is_lost(files: FileSystem, folder: str) -> bool:
    """Return whether the group of the first opening is known to be lost. Raises DiskError."""
    path = f"{folder}/{GROUP_NAME}"
    return files.exists(path) and files.read(path) == LOST


def lose(files: FileSystem, folder: str) -> None:
    """Record that the group is lost; durable on return. Raises StorageFull, DiskError."""
    write_durably(files, f"{folder}/{GROUP_NAME}", LOST)


def _read(data: bytes) -> GroupConfig | None:
    checksum, _, text = data.strip().partition(b" ")
    if checksum != b"%08x" % crc32c(text):
        return None
    line = msgspec.json.decode(text, type=_GroupLine)
    return GroupConfig(voters=line.voters, learners=line.learners)
