"""Controllers, managers, masters and slaves together under faults: all promises after every step (checks.py).

The full size, 5 000 master changes: `commitlog sim --mode controller --full`.
"""

from collections import Counter

import pytest

from app.controller.active.masters import Masters
from app.controller.commands import ElectMaster
from app.ha.auto_switch.slave_side import SlaveSide
from app.log.contract import NO_INDEX
from app.raft.messages import TimeoutNow
from tests.simulation.classic import group as classic
from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.nemesis import EVENTS
from tests.simulation.controller.plan import LOG_NAME, USUAL, HaPlan, plan_with_acks
from tests.simulation.controller.run import rare_events, run_seed, run_seeds
from tests.simulation.world.network import LATE_US, LinkFaults, Network
from tests.simulation.world.promises import Violation
from tests.simulation.world.world import World

SEEDS, SECONDS = range(20, 29), 18.0


@pytest.mark.rule(
    "C-01", "C-02", "C-04", "C-05", "C-06", "C-08", "C-09", "C-10", "C-12", "A-01", "A-04", "A-11", "A-12"
)
@pytest.mark.timeout(600)
def test_groups_keep_every_promise_under_faults() -> None:
    counts, violations = run_seeds(SEEDS, SECONDS)
    assert not violations, "\n".join(violations)
    assert counts["master changes"] >= 25
    assert counts["set changes"] >= 80
    assert counts["appends"] >= 1_000
    operations = ("trim all", "replaced disk", "copy set aside", "rebuilt controllers", "changed settings")
    for rare in (
        "reads",
        "unclean pages",
        "page-read",
        "cursor-read",
        "stall",
        "suspend",
        "hung disk",
        *operations,
    ):
        assert counts[rare], f"a run without {rare} proves little"


def test_an_event_that_hardly_ever_happens_is_reported() -> None:
    counts = Counter(dict.fromkeys(EVENTS, 500)) + Counter({"simulated seconds": 360_000})
    assert rare_events(counts) == []
    counts["suspend"] -= 1
    assert rare_events(counts) == ["suspend happened only 499 times"]
    assert rare_events(counts, ["suspend", "role change"]) == [
        "suspend happened only 499 times",
        "role change happened only 0 times",
    ]


def test_frames_that_a_cut_has_kept_are_late_for_some_time_after_it() -> None:
    world = World(1)
    network = Network(world, LinkFaults(), lambda _source, _target, _message: None)
    link = ("n1", "n2")
    network.cut([link], keeps=True)
    network.send(*link, 1, TimeoutNow(1))
    world.step(10_000)  # the frame reaches the cut
    network.heal_links([link])
    assert (network.is_late(*link), network.is_late("n2", "n1")) == (True, False)
    world.now_us += LATE_US[1]
    assert not network.is_late(*link)


@pytest.mark.rule("C-12", "C-08")
@pytest.mark.parametrize("brokers", [2, 3])
def test_a_quiet_group_elects_once_and_has_everybody_in_the_set(brokers: int) -> None:
    cluster = HaCluster(1, HaPlan(brokers=brokers, faults=False))
    cluster.run(3)
    log = cluster.checker.truth.log(LOG_NAME)
    assert log is not None
    assert sorted(log.set_nodes) == list(cluster.plan.broker_names)
    assert cluster.checker.counts["elections"] == 1
    assert min(node.driver.committed_index for node in cluster.brokers) > NO_INDEX


def test_the_same_seed_gives_the_same_run() -> None:
    lives = []
    for _ in range(2):
        cluster, violation = run_seed(4, 6)
        assert violation is None
        lives.append((cluster.world.trace_digest, cluster.world.steps, dict(cluster.ledger.acknowledged)))
    assert lives[0] == lives[1]


def test_a_stall_lasts_to_its_end_when_the_faults_end() -> None:
    """Meanwhile no master is expected: the node's events wait for that end."""
    cluster = HaCluster(1, HaPlan(brokers=2, clients=1))
    cluster.nemesis.active = False
    cluster.run(3)
    for node in cluster.nodes.values():
        node.stall(12_000_000)
    cluster.run(0.5)
    cluster.settle()
    assert cluster.world.now_us >= 15_000_000


@pytest.mark.rule("C-08")
def test_a_copy_that_never_joins_the_set_again_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = HaCluster(1, HaPlan(brokers=2, clients=1, faults=False))
    cluster.run(2)
    slave = next(node for node in cluster.brokers if not node.is_master)
    slave.crash(power=False)
    cluster.hang_up(slave.name)
    cluster.run(2)
    monkeypatch.setattr(SlaveSide, "_is_learner", True)
    with pytest.raises(Violation, match=f"not in the SyncStateSet: .'{slave.name}'"):
        cluster.settle(5)


@pytest.mark.rule("C-05")
def test_a_healthy_group_that_elects_no_master_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = HaCluster(1, HaPlan(brokers=3, clients=1))
    cluster.nemesis.active = False
    cluster.run(2)
    (master,) = [node for node in cluster.brokers if node.is_master]
    monkeypatch.setattr(Masters, "_replace_dead", lambda *_given: None)
    master.crash(power=False)
    cluster.hang_up(master.name)
    cluster.run(2)
    with pytest.raises(Violation, match="no master under one active controller for"):
        cluster.run(8)


@pytest.mark.rule("C-02", "A-11")
def test_a_controller_that_was_overtaken_grants_no_lease() -> None:
    """It is master too, and hears itself only; the others know at once that it is gone, and elect."""
    for seed in range(3):
        cluster = HaCluster(seed, HaPlan(faults=False))
        cluster.run(1.5)
        (active,) = [node for node in cluster.nodes.values() if node.is_active]
        active.client.ask(ElectMaster(LOG_NAME, active.name, False, 1), lambda _answer: None, 1_000)
        cluster.run(1)
        assert active.is_master
        cluster.cut("isolate", active.name, 1_000_000)
        cluster.hang_up(active.name)
        cluster.run(1.5)
        assert cluster.checker.counts["elections"] >= 2
        cluster.settle()


@pytest.mark.rule("C-02", "C-10", "A-11")
@pytest.mark.parametrize("seed", range(3))
def test_a_master_accepts_appends_all_the_time_while_another_controller_becomes_active(seed: int) -> None:
    """With the default times of the product."""
    plan = HaPlan(own_controllers=True, faults=False, timing=USUAL, links=LinkFaults())
    cluster = HaCluster(seed, plan)
    cluster.run(6)
    (active,) = [node for node in cluster.nodes.values() if node.is_active]
    (master,) = [node for node in cluster.brokers if node.acknowledges]
    active.crash(power=False)
    cluster.hang_up(active.name)
    assert not cluster.run_until(lambda: not master.acknowledges, 3)
    assert [node.is_active for node in cluster.nodes.values()].count(True) == 1
    assert cluster.checker.counts["elections"] == 1


@pytest.mark.rule("C-05", "C-07", "C-12", "A-11")
def test_records_acknowledged_by_part_of_the_set_survive_every_clean_election() -> None:
    counts: Counter[str] = Counter()
    for seed in range(2, 6):
        cluster = HaCluster(seed, plan_with_acks(seed))
        cluster.run(12)
        cluster.settle()
        counts.update(cluster.checker.counts)
    assert counts["acks by a part"] >= 50
    assert counts["master changes"] >= 10


@pytest.mark.rule("H-01", "H-04", "H-07", "H-08")
def test_classic_groups_keep_every_promise_under_faults_and_operations() -> None:
    counts, violations = classic.run_seeds(range(8), 25)
    assert not violations, "\n".join(violations)
    assert counts["appends"] >= 200
    assert counts["reads"] >= 200
    for rare in ("role change", "replaced disk of the master", "trim", "long cut", "stall"):
        assert counts[rare], f"a run without {rare} proves little"
