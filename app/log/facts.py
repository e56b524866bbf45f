"""Small values that control records of a log set: cursors and members (docs/api.md §5, R-10). PURE."""

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


class Membership(NamedTuple):
    """The members of the group since the record at `since` (R-10).

    nodes: addresses of members that the configuration of the first start does not name.
    """

    since: int
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    nodes: dict[str, Address]
