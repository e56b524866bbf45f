"""Small values that control records of a log set: cursors, members, what a classic epoch needs. PURE.

docs/api.md §5, R-10, H-07.
"""

from typing import NamedTuple

import msgspec


class LogCursor(msgspec.Struct, frozen=True, array_like=True):
    """The next index that a reader reads. With `fence` nothing from `position` on is trimmed.

    revision: the index of the record that set the cursor. holder: the name that its reader gave itself.
    """

    position: int
    fence: bool
    revision: int
    holder: str | None = None


class Address(NamedTuple):
    """Addresses of a member: base URL of its REST service, host:port for its peers."""

    url: str
    peer_address: str


class SyncFloor(msgspec.Struct, frozen=True, array_like=True):
    """Least that a synchronous append of a classic log needs since the record at `since` (H-07).

    sync_slaves: slaves that hold it, at least; slaves: of the log at that time.
    """

    since: int
    sync_slaves: int
    slaves: int


class Membership(NamedTuple):
    """The members of the group since the record at `since` (R-10).

    nodes: addresses of members that the configuration of the first start does not name.
    """

    since: int
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    nodes: dict[str, Address]
