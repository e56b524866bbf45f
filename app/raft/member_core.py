"""Shared part of every core, whatever the replication mode. PURE."""

import math

from app.log.contract import GroupConfig, Ready, Role
from app.log.events import RoleChanged, TermKnown
from app.raft.state import MemberState, Outbox


class MemberCore:
    """The common part of ReplicationCore, over the member's state and its next Ready."""

    runs_ahead = False
    takes_unreplicated = False
    needs_all_records = False
    has_room = True
    may_truncate = True

    def __init__(self, member: MemberState) -> None:
        self._member = member
        self._outbox = Outbox()
        self._announced: tuple[Role, str | None, int] = (member.role, member.leader_id, member.term)

    @property
    def due_ms(self) -> float:
        """The times of HA are seconds: the ticks of a quiet node are enough."""
        return math.inf

    @property
    def role(self) -> Role:
        return self._member.role

    @property
    def term(self) -> int:
        return self._member.term

    @property
    def leader_id(self) -> str | None:
        return self._member.leader_id

    @property
    def group(self) -> GroupConfig:
        return self._member.group

    @property
    def sound(self) -> bool:
        return self._member.sound

    @property
    def electable(self) -> bool:
        return self._member.electable

    @electable.setter
    def electable(self, electable: bool) -> None:
        self._member.electable = electable

    @property
    def may_found(self) -> bool:
        return self._member.may_found

    @may_found.setter
    def may_found(self, may_found: bool) -> None:
        self._member.may_found = may_found

    @property
    def committed_index(self) -> int:
        return self._member.committed_index

    def ready(self) -> Ready | None:
        return self._outbox.take()

    def _announce(self) -> None:
        """Record a new leader, term or role in the journal."""
        member = self._member
        role, leader_id, term = self._announced
        if (member.role, member.leader_id, member.term) == self._announced:
            return
        self._announced = (member.role, member.leader_id, member.term)
        if member.leader_id is not None and (member.leader_id, member.term) != (leader_id, term):
            self._outbox.record(member.term, TermKnown(term=member.term, leader=member.leader_id))
        if (member.role, member.leader_id) != (role, leader_id):
            role_changed = RoleChanged(role=member.role.value, leader=member.leader_id)
            self._outbox.record(member.term, role_changed)
