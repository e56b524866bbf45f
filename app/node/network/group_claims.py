"""Claims of a node about the groups of its logs, in its hello: peers detect files that contradict each other.

The version in a hello carries the claims, because earlier versions accept no other field and only show that
text: `VERSION groups:JSON appends`. JSON is an object: log -> [mode, voters, is_named].
"""

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple

import msgspec

from app.names import KNOWN_NODE_ID

CARRIES_APPENDS: Final = " appends"  # at the end, where earlier versions look for it
_GROUPS: Final = " groups:"
_CLAIMS_MAX_BYTES: Final = 2_500  # of a hello, which has at most 4 096: claims beyond it are left out

_Name = Annotated[str, msgspec.Meta(pattern=rf"\A{KNOWN_NODE_ID.pattern.pattern}\Z")]  # people read it


class GroupClaim(msgspec.Struct, frozen=True, array_like=True):
    """The group of one log at one node. voters: ascending; classic mode: the master; controller mode: none,
    because the controllers choose. is_named: the log names them, not only the configuration."""

    mode: _Name
    voters: tuple[_Name, ...]
    is_named: bool

    def excludes(self, other: "GroupClaim") -> bool:
        """Return whether both groups could lead at once. Every voter of a first group must vote for its first
        leader, so groups with a common voter cannot (R-10)."""
        return self.mode != other.mode or (
            self.voters != other.voters and {*self.voters}.isdisjoint(other.voters)
        )

    def contradicts(self, other: "GroupClaim") -> bool:
        """Return whether the configurations of both nodes cannot be meant. A named group may have changed
        since the file was written, so only one without a common voter contradicts."""
        is_first = not (self.is_named or other.is_named)
        return self.excludes(other) or (is_first and self.voters != other.voters)

    def __str__(self) -> str:
        return f"{self.mode} ({', '.join(self.voters)})" if self.voters else self.mode


class Announced(NamedTuple):
    """The version in a hello, and what follows it."""

    version: str
    claims: dict[str, GroupClaim]
    takes_appends: bool


def announce(version: str, claims: Mapping[str, GroupClaim], *, takes_appends: bool) -> str:
    """Return the text; the first claims that fit are in it."""
    room_bytes = _CLAIMS_MAX_BYTES
    kept: dict[str, GroupClaim] = {}
    for log, claim in claims.items():
        room_bytes -= len(_json(_json({log: claim})))  # a hello is JSON, too: it escapes each quote
        if room_bytes < 0:
            break
        kept[log] = claim
    groups = _GROUPS + _json(kept) if kept else ""
    return version + groups + (CARRIES_APPENDS if takes_appends else "")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def announced(text: str) -> Announced:
    """Invert `announce`. Claims that cannot be read count as none."""
    whole = text.removesuffix(CARRIES_APPENDS)
    version, _, groups = whole.partition(_GROUPS)
    try:
        claims = msgspec.json.decode(groups or "{}", type=dict[str, GroupClaim])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        claims = {}
    return Announced(version, claims, whole != text)
