"""A copy without what a master needs neither joins the set nor wins a clean election (C-05, C-06)."""

import msgspec
import pytest

from app.controller.commands import ElectMaster, Reason, Refusal
from app.controller.liveness import Report
from tests.unit.controller.elections.test_elections import elections, let_die
from tests.unit.controller.support import Quorum


@pytest.mark.rule("C-05")
def test_a_member_that_lacks_the_logs_state_is_not_elected() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.offsets["n2", "a"] = (1, 99, 0)  # it would win
    quorum.lacking.add("n2")
    let_die(quorum, "n1")
    assert quorum.log().master_node == "n3"


@pytest.mark.rule("C-05")
def test_without_a_copy_that_may_lead_there_is_no_master() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.join_all()
    quorum.lacking.update(("n2", "n3"))
    let_die(quorum, "n1")
    assert quorum.log().master is None
    assert quorum.refused(ElectMaster("a", "n2", False, 1)) is Reason.NO_ELIGIBLE_REPLICA
    quorum.lacking.remove("n3")
    quorum.heartbeats("n2", "n3")
    quorum.scan()
    assert quorum.log().master_node == "n3"
    assert not elections(quorum)[-1].unclean


@pytest.mark.rule("C-05")
@pytest.mark.parametrize("allowed_by", ["settings", "operator"])
def test_an_unclean_election_takes_a_copy_without_state_where_no_other_may_lead(allowed_by: str) -> None:
    quorum = Quorum()
    quorum.with_master(unclean=allowed_by == "settings")
    quorum.join_all()
    quorum.lacking.update(("n2", "n3"))
    quorum.offsets["n3", "a"] = (1, 5, 0)
    let_die(quorum, "n1")
    if allowed_by == "operator":
        assert quorum.log().master is None
        quorum.done(ElectMaster("a", None, True, 1))
    assert quorum.log().master_node == "n3"
    assert elections(quorum)[-1].unclean
    assert quorum.log().unclean_epoch == quorum.log().master_epoch


@pytest.mark.rule("C-06")
def test_a_copy_that_lacks_the_logs_state_does_not_join() -> None:
    quorum = Quorum()
    quorum.with_master()
    quorum.lacking.add("n2")
    quorum.heartbeats()
    answer = quorum.alter("n1", "n2")
    assert isinstance(answer, Refusal)
    assert answer.reason is Reason.NOT_ELECTABLE
    quorum.alter("n1", "n3")
    assert quorum.log().set_nodes == ("n1", "n3")


def test_a_report_of_an_older_build_is_of_a_copy_that_may_lead_and_has_disk_space() -> None:
    old = msgspec.msgpack.encode(["a", -1, 1, 2, 30, 30])
    assert msgspec.msgpack.decode(old, type=Report) == Report("a", -1, 1, 2, 30, 30, True, True)
    newer = msgspec.msgpack.encode(["a", -1, 1, 2, 30, 30, True, False, "more"])
    assert msgspec.msgpack.decode(newer, type=Report) == Report("a", -1, 1, 2, 30, 30, True, False)
