"""Commands of operators and readers: each becomes one control record or is refused (docs/api.md §3, §5).

PURE. The leader decides against its own state, uncommitted records included, as it does for appends. The
record contains the outcome, not the condition, so every replica adopts it without a decision of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import msgspec

from app.errors import CursorMoved, CursorNotFound, Fenced, InvalidRequest, NotMaterialized, RateLimited
from app.log.contract import ChangeKind, GroupConfig
from app.log.control_records import AnyControlRecord, CursorRecord, FenceRecord, MembershipRecord, TrimRecord
from app.log.state import Address, LogCursor, LogState


class Unset(Enum):
    """a field that the request does not name, where null has a meaning"""

    UNSET = "unset"


UNSET = Unset.UNSET
ABSENT = -1  # as a revision: no cursor may exist yet
PRESENT = -3  # as a revision: the cursor must exist, with any revision


class LeaderView(Protocol):
    """Context of a command beside the log's state."""

    @property
    def begin_index(self) -> int: ...
    @property
    def committed_index(self) -> int: ...
    @property
    def max_cursors(self) -> int: ...
    def changed_group(self, kind: ChangeKind, node_id: str) -> GroupConfig | None:
        """app.raft.membership.changed: the group after the change, None if it is already so."""
        ...


class Command(Protocol):
    def control(self, state: LogState, view: LeaderView) -> AnyControlRecord | None:
        """Return the control record, None if nothing has to change. Raises CommitlogError."""
        ...


@dataclass(frozen=True, slots=True)
class CommandResult:
    """A committed command. index: of its record, or of the log's end when nothing had to change."""

    index: int
    term: int
    changed: bool


@dataclass(frozen=True, slots=True)
class Trim:
    """Let every replica remove the records below `until_index`, unless a fence forbids it; `force`
    overrides."""

    until_index: int
    force: bool = False

    def control(self, state: LogState, view: LeaderView) -> AnyControlRecord | None:
        most = view.committed_index + 1
        if self.until_index > most:
            detail = f"must be at most {most}, after the last committed record, got {self.until_index}"
            raise InvalidRequest(("/until_index", detail))
        if self.until_index <= max(view.begin_index, state.trim_index):
            return None
        fence = state.fenced_below(self.until_index)
        if fence is not None and not self.force:
            raise NotMaterialized(*fence, self.until_index)
        return TrimRecord(until_index=self.until_index)


@dataclass(frozen=True, slots=True)
class SetFence:
    """Require a token for every later append (None: no token). match_token: the token that must be set
    before."""

    token: str | None
    match_token: str | Unset | None = UNSET

    def control(self, state: LogState, view: LeaderView) -> AnyControlRecord | None:
        if self.match_token is not UNSET and self.match_token != state.fencing_token:
            raise Fenced("match_token is not the fencing token of the log")
        if self.token == state.fencing_token:
            return None
        return FenceRecord(token=self.token)


@dataclass(frozen=True, slots=True)
class MoveCursor:
    """Move the cursor of reader `name` to `position`. if_match: the expected revision, ABSENT or PRESENT;
    None: any. holder: the name that the reader gives itself."""

    name: str
    position: int
    fence: bool
    if_match: int | None = None
    holder: str | None = None

    def control(self, state: LogState, view: LeaderView) -> AnyControlRecord | None:
        _check_revision(state, self.name, self.if_match)
        if self.name not in state.cursors and len(state.cursors) >= view.max_cursors:
            raise RateLimited(
                f"The log has {view.max_cursors} cursors, its limit (limits.max_cursors). "
                "Delete cursors that no reader uses."
            )
        holder = msgspec.UNSET if self.holder is None else self.holder
        return CursorRecord(name=self.name, index=self.position, fence=self.fence, holder=holder)


@dataclass(slots=True)
class DropCursor:
    """Delete the cursor of reader `name`. if_match: as for MoveCursor. dropped: the cursor that the decision
    has deleted."""

    name: str
    if_match: int | None = None
    dropped: LogCursor | None = field(default=None, init=False)

    def control(self, state: LogState, view: LeaderView) -> AnyControlRecord | None:
        cursor = state.cursors.get(self.name)
        if cursor is None:
            raise CursorNotFound(self.name)
        _check_revision(state, self.name, self.if_match)
        self.dropped = cursor
        return CursorRecord(name=self.name, index=None, fence=False)


def _check_revision(state: LogState, name: str, if_match: int | None) -> None:
    cursor = state.cursors.get(name)
    version = None if cursor is None else cursor.revision
    if if_match is None or (if_match == PRESENT and version is not None):
        return
    if if_match != (ABSENT if version is None else version):
        raise CursorMoved(name, version, wanted_none=if_match == ABSENT)


@dataclass(frozen=True, slots=True)
class ChangeMembers:
    """Add, promote or remove a member (R-10). address: of a new member, which no other member may have."""

    kind: ChangeKind
    node_id: str
    address: Address | None = None

    def control(self, state: LogState, view: LeaderView) -> AnyControlRecord | None:
        nodes = {} if state.membership is None else dict(state.membership.nodes)
        if self.address is not None:
            check_address(self.node_id, self.address, nodes)
        group = view.changed_group(self.kind, self.node_id)
        if group is None:
            return None
        if self.address is not None:
            nodes[self.node_id] = self.address
        if self.node_id not in group.members:  # one of two voters stays as a learner first
            nodes.pop(self.node_id, None)
        return MembershipRecord(voters=group.voters, learners=group.learners, nodes={**nodes})


def check_address(node_id: str, address: Address, members: Mapping[str, Address]) -> None:
    """Raise InvalidRequest if a member has another address than this, or another member has this one (R-10).

    Two ids for one process would let it vote and acknowledge twice.
    """
    known = members.get(node_id)
    if known is not None and known != address:
        detail = f"{node_id} is a member with {known.url} and {known.peer_address}; remove it first"
        raise InvalidRequest(("/id", detail))
    for other, taken in members.items():
        if other == node_id:
            continue
        if taken.peer_address == address.peer_address:
            raise InvalidRequest(("/peer_address", f"{address.peer_address} is the address of {other}"))
        if taken.url == address.url:
            raise InvalidRequest(("/url", f"{address.url} is the URL of {other}"))
