"""A bit rots in an end of a log that was never committed: the repair removes that end and nothing else."""

from dataclasses import replace
from itertools import product

import pytest

from app.log.commands import ChangeMembers
from app.log.contract import ChangeKind
from app.log.driver_interfaces import DriverConfig
from storage.care.intact import intact_batches
from storage.errors import CorruptLog
from storage.format.segment_format import segment_name
from storage.log.aside import ASIDE_FOLDER
from storage.log.log_folder import segment_offsets
from storage.log.manifest import ManifestFile
from storage.units import MIB
from tests.simulation.raft.cluster import SimulatedCluster
from tests.simulation.raft.node import FOLDER, LOG_ID
from tests.simulation.raft.plans import TINY_SEGMENTS, ClusterPlan
from tests.simulation.raft.test_common_damage import rot
from tests.simulation.world.network import LinkFaults
from tests.simulation.world.sick_files import Flip

PLAN = ClusterPlan(
    faults=None,
    clients=60,
    links=LinkFaults(),
    storage=replace(TINY_SEGMENTS, mark_interval_bytes=512),
    think_us=(1_000, 200_000),
)
MASK = 1
SELDOM = DriverConfig(checkpoint_interval_ms=100_000)


@pytest.mark.rule("R-02", "R-07")
@pytest.mark.parametrize("seed", range(2))
def test_a_leader_alone_loses_the_damaged_end_that_no_other_has(seed: int) -> None:
    cluster = SimulatedCluster(seed, PLAN)
    cluster.run(5)
    number = cluster.leading()
    assert number is not None
    leader = cluster.members[number]
    others = [name for name in cluster.names if name != leader.name]
    links = [*product([leader.name], others), *product(others, [leader.name])]
    cluster.network.cut(links)
    committed_index = leader.driver.committed_index
    while True:
        cluster.run(0.05)
        manifest = ManifestFile(leader.files, f"{FOLDER}/manifest").load()
        assert manifest is not None
        if manifest.durable_index > committed_index + 1:
            break
    damaged = leader.log.batch_at(manifest.durable_index)
    cluster.crash(leader.name, power=False)
    begin = max(each for each in segment_offsets(leader.files, FOLDER) if each <= damaged.offset)
    path, offset = f"{FOLDER}/{segment_name(begin)}", damaged.next_offset - 1 - begin
    flip = Flip(path, offset, MASK, leader.files.read(path)[offset] ^ MASK)
    leader.files._turn(flip)
    leader.files.flips.append(flip)
    cluster.run(5)
    cluster.network.heal_links(links)
    cluster.restart(leader.name)
    cluster.settle()
    assert leader.files.list(f"{FOLDER}/{ASIDE_FOLDER}")
    assert not leader._mending.result.set_aside
    cluster.close()


@pytest.mark.rule("R-07", "R-10")
def test_a_voter_that_was_alone_keeps_what_the_second_one_lacks() -> None:
    """The promotion is not committed: the first voter has acknowledged alone what is after the damage."""
    cluster = SimulatedCluster(1, replace(PLAN, nodes=1, spares=1, clients=8, driver=SELDOM))
    first, second = cluster.members
    cluster.run(2)
    first.command(ChangeMembers(ChangeKind.ADD, second.name), lambda _answer: None)
    cluster.run(2)
    links = [(first.name, second.name), (second.name, first.name)]
    cluster.network.cut(links)
    cluster.run(0.15)
    first.command(ChangeMembers(ChangeKind.PROMOTE, second.name), lambda _answer: None)
    cluster.run(0.5)
    assert first.driver.group.voters == (first.name, second.name)
    assert first.driver.state.settled_membership.voters == (first.name,)
    acknowledged, held = first.driver.committed_index, second.log.end_index
    damaged = first.log.batch_at(held + 1)
    assert damaged.last_index < acknowledged
    rot(first, damaged)
    cluster.network.heal_links(links)
    first.find_flip(CorruptLog(FOLDER, damaged.offset, "noise"))
    cluster.run(25)
    assert not first.files.exists(f"{FOLDER}/{ASIDE_FOLDER}")
    kept = intact_batches(first.files, FOLDER, LOG_ID, damaged.next_index, acknowledged, MIB)
    assert kept[-1].last_index == acknowledged
    cluster.close()
