"""Which member of the SyncStateSet leader:transfer elects (C-05)."""

import pytest

from app.api.routes.move_master import transfer_target
from app.controller.metadata import Log, LogSpec, Replica
from app.errors import AlreadyLeader, TransferFailed
from app.log.contract import PeerStatus

NODES = ("n1", "n2", "n3", "n4")


def log_with_set(*members: int, **settings: object) -> Log:
    """The master is n1; replica k is at node nk."""
    spec = LogSpec(replication="controller", replicas=NODES, **settings)  # type: ignore[arg-type]
    replicas = tuple(Replica(number, node, "code", f"{node}:1") for number, node in enumerate(NODES, 1))
    return Log(
        name="a",
        log_id=1,
        generation=0,
        spec=spec,
        version=0,
        replicas=replicas,
        master=1,
        master_epoch=3,
        sync_state_set=members,
        set_epoch=5,
    )


def slave(node: str, lag_bytes: int | None = 0, *, in_sync: bool = True) -> PeerStatus:
    return PeerStatus(node, "TRANSFER", 1, 0, lag_bytes, in_sync=in_sync)


def test_the_named_member_is_elected_however_good_the_others_are() -> None:
    peers = [slave("n2"), slave("n3", 900)]
    assert transfer_target(log_with_set(1, 2, 3), peers, "n3") == "n3"


def test_without_a_name_the_member_that_lacks_least_then_the_best_priority() -> None:
    log = log_with_set(1, 2, 3, 4, priorities={"n4": 1})
    assert transfer_target(log, [slave("n2", 5), slave("n3", 2), slave("n4", 9)], None) == "n3"
    assert transfer_target(log, [slave("n2", 2), slave("n3", 2), slave("n4", 2)], None) == "n4"


@pytest.mark.rule("C-05")
@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("n9", "no replica"),
        ("n3", "not in the SyncStateSet"),  # as the controllers have it
        ("n2", "not in the SyncStateSet"),  # as the master has it
        ("n4", "learner"),
    ],
)
def test_a_replica_that_no_clean_election_can_make_master_is_refused(to: str, reason: str) -> None:
    log = log_with_set(1, 2, learners=("n4",))
    with pytest.raises(TransferFailed, match=reason):
        transfer_target(log, [slave("n2", in_sync=False), slave("n3"), slave("n4")], to)


def test_a_member_without_a_connection_is_refused_and_never_chosen() -> None:
    log = log_with_set(1, 2)
    for to in ("n2", None):
        with pytest.raises(TransferFailed):
            transfer_target(log, [slave("n2", None)], to)


def test_the_master_leads_already() -> None:
    with pytest.raises(AlreadyLeader):
        transfer_target(log_with_set(1, 2), [slave("n2")], "n1")
