"""Answers of a member to a sender that it does not follow (D-21): they carry the term, nothing else. A term
that no group can have reached gets none."""

from app.log.contract import NO_INDEX, ReplicaLog
from app.log.events import Corruption
from app.log.terms import is_plausible_term
from app.raft.messages import (
    Heartbeat,
    HeartbeatAnswer,
    PushAnswer,
    PushCode,
    PushRequest,
    RaftMessage,
    ReadIndexAnswer,
    ReadIndexRequest,
    VoteAnswer,
    VoteRequest,
)
from app.raft.state import MemberState, Outbox


class TermGuard:
    """Refuses messages with a term that is implausible, and reports them once in a row for each source."""

    def __init__(self, member: MemberState, outbox: Outbox) -> None:
        self._member = member
        self._outbox = outbox
        self._refused: str | None = None  # the last source whose term was refused

    def allows(self, source: str, term: int) -> bool:
        if is_plausible_term(self._member.term, term):
            return True
        if source != self._refused:
            self._refused = source
            reason = f"term {term} is beyond any that the group can have reached"
            self._outbox.record(self._member.term, Corruption(reason=reason, peer=source))
        return False


def refuse_older(
    member: MemberState, log: ReplicaLog, outbox: Outbox, source: str, message: RaftMessage
) -> None:
    """Answer a sender of an older term with the current one."""
    if isinstance(message, PushRequest):
        refuse_push(member, log, outbox, source, message)
    elif isinstance(message, Heartbeat):
        outbox.send(source, HeartbeatAnswer(member.term, NO_INDEX, sound=member.sound))
    elif isinstance(message, VoteRequest):
        outbox.send(source, VoteAnswer(member.term, False, message.pre_vote, sound=member.sound))
    elif isinstance(message, ReadIndexRequest):
        outbox.send(source, ReadIndexAnswer(member.term, message.id, None))


def refuse_push(
    member: MemberState, log: ReplicaLog, outbox: Outbox, source: str, request: PushRequest
) -> None:
    answer = PushAnswer(
        member.term,
        request.type,
        PushCode.REFUSED,
        request.session,
        0,
        request.index,
        log.begin_index,
        log.end_index,
        sound=member.sound,
    )
    outbox.send(source, answer)
