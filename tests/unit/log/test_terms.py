"""Terms beyond reason: refused and reported by every core, adopted by none."""

import pytest

from app.controller.liveness import Report
from app.controller.messages import BrokerHeartbeat
from app.log.contract import NO_INDEX
from app.log.terms import TERM_JUMP_MAX, TERM_MAX, is_plausible_term
from app.node.network import wire
from app.raft.messages import (
    Heartbeat,
    HeartbeatAnswer,
    PushAnswer,
    PushCode,
    PushRequest,
    PushType,
    RaftMessage,
    ReadIndexRequest,
    TimeoutNow,
    VoteAnswer,
    VoteRequest,
)
from tests.unit.raft.support import Group, log_of

FORGED = (1 << 63) - 2


@pytest.mark.parametrize(
    ("own", "named", "plausible"),
    [
        (0, 0, True),
        (7, 6, True),
        (7, 7 + TERM_JUMP_MAX, True),
        (7, 8 + TERM_JUMP_MAX, False),
        (0, FORGED, False),
        (TERM_MAX, TERM_MAX, True),
        (TERM_MAX, TERM_MAX + 1, False),
        (FORGED, FORGED, False),
    ],
)
def test_a_term_is_plausible_within_a_jump_and_the_bound(own: int, named: int, plausible: bool) -> None:
    assert is_plausible_term(own, named) is plausible


@pytest.mark.rule("D-21")
@pytest.mark.parametrize("term", [FORGED, TERM_MAX + 1, 1_000 + TERM_JUMP_MAX])
@pytest.mark.parametrize("source", ["n2", "n9"])
def test_no_message_makes_a_member_adopt_a_term_beyond_reason(term: int, source: str) -> None:
    group = Group({name: log_of(1, 3) for name in ("n1", "n2", "n3")})
    group.pass_time(3_000)
    messages: list[RaftMessage] = [
        VoteRequest(term, 9, 3),
        VoteRequest(term, 9, 3, pre_vote=True),
        VoteRequest(term, 9, 3, transfer=True),
        VoteAnswer(term, False),
        VoteAnswer(term, True, pre_vote=True),
        Heartbeat(term, source, 1, 1),
        HeartbeatAnswer(term, 1),
        PushRequest(term, PushType.COMPARE, source, 1, 1, 0, 1, 3, 0),
        PushAnswer(term, PushType.COMPARE, PushCode.REFUSED, 1, 1, 1, 0, 9),
        ReadIndexRequest(term, 1),
        TimeoutNow(term),
    ]
    for member in group.members.values():
        before = (member.core.term, member.core.role, member.core.leader_id, len(member.saved))
        for message in messages:
            if source != member.name:
                member.step(source, message)
        assert (member.core.term, member.core.role, member.core.leader_id, len(member.saved)) == before
    reported = [event for event in group["n1"].events if event.kind == "corruption"]
    assert [event.data["peer"] for event in reported] == [source]
    assert str(term) in reported[0].data["reason"]
    group.pass_time(3_000)
    assert sum(member.leads for member in group.members.values()) == 1


def test_a_report_of_an_impossible_epoch_is_not_decoded() -> None:
    report = Report("default", 1, 1, FORGED, 10, 10)
    frame = b"".join(wire.encode(7, BrokerHeartbeat(1, NO_INDEX, (report,))))
    with pytest.raises(wire.CorruptFrame, match="head"):
        wire.decode(memoryview(frame))
