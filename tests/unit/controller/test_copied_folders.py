"""Copied folders of all members, as after a restore: they wait for one another (C-03)."""

import msgspec
import pytest

from app.controller.active.rounds import Answer
from app.controller.commands import Done, Reason, Refusal, RegisterReplica, StepDown
from tests.unit.controller.support import CONFIG, Quorum
from tests.unit.controller.test_lost_records import start_of


def restored(**settings: int) -> Quorum:
    """All members have acknowledged up to byte 100; then all stop, and another controller is active."""
    quorum = Quorum()
    quorum.with_master(**settings)
    quorum.join_all()
    quorum.fail_over()
    quorum.confirms = True
    return quorum


def copy_of(quorum: Quorum, node: str, max_offset: int) -> RegisterReplica:
    return msgspec.structs.replace(start_of(quorum, node, max_offset), log_epoch=1, is_copy=True)


def asked(quorum: Quorum, *commands: RegisterReplica) -> list[Answer]:
    """The answers of a round in which these are asked, also to earlier ones."""
    for command in commands:
        quorum.active.ask(command, command)
    return [answer for _token, answer in quorum.turn()]


@pytest.mark.rule("C-03", "C-05", "C-12")
def test_copies_of_all_members_remain_members_and_the_newest_is_elected() -> None:
    """n1 and n2 were replaced at once, as n3 exists; it lacked the last records, and led without them."""
    quorum = restored()
    before = quorum.log()
    assert not asked(quorum, copy_of(quorum, "n1", 100))
    assert not asked(quorum, copy_of(quorum, "n2", 100))
    answers = asked(quorum, copy_of(quorum, "n3", 50))
    assert all(isinstance(answer, Done) for answer in answers)
    assert len(answers) == len(before.sync_state_set)
    assert quorum.log().sync_state_set == before.sync_state_set
    quorum.offsets = {("n1", "a"): (1, 100, 0), ("n2", "a"): (1, 101, 0), ("n3", "a"): (1, 50, 0)}
    for heard in (("n1", "n3"), quorum.nodes):  # n2 is the last one that reports
        assert quorum.log().master_epoch == 1
        for _ in range(2):  # the second one confirms the answer to the first
            quorum.heartbeats(*heard)
        quorum.done(StepDown("a", before.generation, quorum.id_of("n1"), 1))
    assert quorum.log().master_node == "n2"


@pytest.mark.rule("C-03")
def test_a_copy_whose_answer_was_lost_asks_again_and_remains() -> None:
    quorum = restored(in_sync_replicas=2)
    starts = [copy_of(quorum, node, 100) for node in quorum.nodes]
    assert all(isinstance(answer, Done) for answer in asked(quorum, *starts))
    quorum.heartbeats("n1", "n3")
    assert quorum.log().is_current(quorum.id_of("n2"))
    (answer,) = asked(quorum, starts[1])
    assert isinstance(answer, Done)


@pytest.mark.rule("C-03")
@pytest.mark.parametrize("is_heard", [True, False])
def test_a_copy_waits_for_a_member_that_is_no_copy_and_not_without_end(is_heard: bool) -> None:
    """The dead member may hold more than the copy: only an unclean election makes it master."""
    quorum = restored()
    assert not asked(quorum, copy_of(quorum, "n1", 100))
    quorum.pass_time(10 * CONFIG.broker_timeout_ms)
    assert not asked(quorum)
    if is_heard:
        quorum.heartbeat("n2")
    else:
        quorum.pass_time(60 * CONFIG.broker_timeout_ms)
    (answer,) = asked(quorum)
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.LOST_RECORDS
    assert quorum.log().set_nodes == ("n2", "n3")
