"""AutoSwitch under crashes, power cuts, cut links, lost answers and elections at any moment (A-12).

The group checks after every step: one master an epoch, which holds what is confirmed; what one replica saw as
confirmed never changes anywhere; whatever is acknowledged is held by every member of the set at that moment.
"""

import pytest

from app.log.contract import Durability
from tests.unit.ha.group import Group


@pytest.mark.rule("A-12", "C-12", "C-04", "A-11")
@pytest.mark.parametrize("seed", range(6))
def test_nothing_that_was_acknowledged_is_lost(seed: int) -> None:
    group = Group(seed, nodes=2 + seed % 3)
    group.run(20)
    group.settle()
    assert group.controller.elections > 2
    assert len(group.ledger.acknowledged) > 20
    assert group.ledger.reads > 50


@pytest.mark.rule("A-12", "C-12")
@pytest.mark.parametrize("seed", range(100, 102))
def test_nothing_is_lost_with_replicated_durability_and_a_floor(seed: int) -> None:
    group = Group(seed, durability=Durability.REPLICATED, min_in_sync=2)
    group.run(20)
    group.settle()
    assert len(group.ledger.acknowledged) > 20


@pytest.mark.rule("C-11")
@pytest.mark.parametrize("seed", range(200, 201))
def test_learners_follow_and_are_never_master_nor_in_the_set(seed: int) -> None:
    group = Group(seed, learners=("n3",))

    def n3_is_more_than_a_learner() -> bool:
        return "n3" in group.controller.members or group.controller.master == "n3"

    assert not group.run_until(n3_is_more_than_a_learner, 15)
    group.settle()
    assert group.nodes["n3"].log.end_index > 20


@pytest.mark.rule("A-04")
def test_records_lost_by_unclean_elections_are_in_a_receipt() -> None:
    """Every acknowledged record is in the log, or was written down where it was held."""
    rollbacks = 0
    for seed in range(321, 361):
        group = Group(seed, unclean=True)
        group.run(12)
        group.settle()
        rollbacks += group.rollbacks
        if rollbacks >= 5:
            return
    pytest.fail(f"only {rollbacks} copies had anything to lose")


def test_the_same_seed_gives_the_same_run() -> None:
    lives = []
    for _ in range(2):
        group = Group(7)
        group.run(5)
        lives.append((group.world.trace_digest, group.world.steps, dict(group.ledger.acknowledged)))
    assert lives[0] == lives[1]


@pytest.mark.rule("C-12")
def test_a_quiet_group_has_everybody_in_the_set() -> None:
    group = Group(1, faults=False)
    group.run(3)
    assert sorted(group.controller.members) == ["n1", "n2", "n3"]
    assert group.controller.elections == 1
