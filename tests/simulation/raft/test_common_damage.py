"""Damage at one voter while the others are damaged or in doubt: every record that is left is found."""

from dataclasses import replace

import pytest

from app.log.driver_interfaces import DriverConfig
from storage.format.batch import Batch
from storage.format.segment_format import segment_name
from storage.log.checkpoint import CheckpointFile
from storage.log.log_folder import segment_offsets
from storage.units import MIB
from tests.simulation.raft.cluster import SimulatedCluster
from tests.simulation.raft.node import FOLDER, SimulatedNode
from tests.simulation.raft.plans import TINY_SEGMENTS, ClusterPlan
from tests.simulation.world.network import LinkFaults
from tests.simulation.world.sick_files import Flip

PLAN = ClusterPlan(
    faults=None, clients=4, links=LinkFaults(), storage=TINY_SEGMENTS, think_us=(1_000, 100_000)
)
MASK = 1
WAIT_S = 10
SLOTS = (10, 4_106)  # a byte in each slot of a small file


def rot(node: SimulatedNode, batch: Batch) -> None:
    """Turn a bit of the batch on the disk of the node."""
    begin = max(each for each in segment_offsets(node.files, FOLDER) if each <= batch.offset)
    path, offset = f"{FOLDER}/{segment_name(begin)}", batch.next_offset - 1 - begin
    flip = Flip(path, offset, MASK, node.files.read(path)[offset] ^ MASK)
    node.files._turn(flip)
    node.files.flips.append(flip)


def lose_vote(node: SimulatedNode) -> None:
    """Turn a bit in both slots of the vote file on the disk of the node."""
    path = f"{FOLDER}/vote"
    for offset in SLOTS:
        flip = Flip(path, offset, MASK, node.files.read(path)[offset] ^ MASK)
        node.files._turn(flip)
        node.files.flips.append(flip)


@pytest.mark.rule("R-01", "R-02")
@pytest.mark.parametrize("seed", range(2))
def test_voters_that_have_all_lost_their_votes_elect_a_leader_together(seed: int) -> None:
    cluster = SimulatedCluster(seed, PLAN)
    cluster.run(5)
    for node in cluster.members:
        node.crash(power=False)
        lose_vote(node)
    first, *others = (node.name for node in cluster.members)
    for name in others:
        cluster.restart(name)
    cluster.run(WAIT_S)
    assert cluster.leading() is None  # the third one may lead, or have voted
    cluster.restart(first)
    cluster.settle()
    cluster.run(1)  # until the notes are removed
    assert not any(node.is_in_doubt for node in cluster.members)
    cluster.close()


@pytest.mark.rule("R-01", "R-02")
@pytest.mark.parametrize("seed", range(2))
def test_lost_votes_wait_for_a_voter_that_is_gone_until_an_empty_one_takes_its_place(seed: int) -> None:
    """Two of five know their terms, and one of them is gone (docs/operations.md, section 7)."""
    cluster = SimulatedCluster(seed, replace(PLAN, nodes=5))
    cluster.run(5)
    gone, *present = cluster.members
    for node in cluster.members:
        node.crash(power=False)
    for node in present[:3]:
        lose_vote(node)
    for node in present:
        cluster.restart(node.name)
    cluster.run(4 * WAIT_S)
    assert cluster.leading() is None
    gone.replace_disk()
    cluster.restart(gone.name)
    cluster.settle()
    cluster.run(1)  # until the notes are removed
    assert not any(node.is_in_doubt for node in cluster.members)
    cluster.close()


@pytest.mark.rule("R-01", "R-07")
@pytest.mark.parametrize("lost", [(0, 1, 2), (0, 2), (0,)], ids=["all", "two", "one-of-two"])
def test_lost_votes_and_damaged_batches_do_not_wait_for_one_another(lost: tuple[int, ...]) -> None:
    cluster = SimulatedCluster(1, PLAN)
    cluster.run(9)
    nodes = cluster.members
    for node in nodes:
        node.crash(power=False)
    checkpoints = [CheckpointFile(node.files, f"{FOLDER}/checkpoint").load() for node in nodes]
    settled = min(checkpoint.committed_index for checkpoint in checkpoints)
    batches = [each for each in nodes[0].log.read_batches(settled - 40, MIB) if each.last_index <= settled]
    rot(nodes[1], batches[-1])
    for place in lost:
        lose_vote(nodes[place])
    present = nodes if len(lost) > 1 else nodes[:2]
    for node in present:
        cluster.restart(node.name)
    cluster.run(4 * WAIT_S)
    assert cluster.leading() is not None
    for node in nodes[len(present) :]:
        cluster.restart(node.name)
    cluster.settle()
    cluster.close()


@pytest.mark.rule("R-02")
def test_a_voter_whose_folder_was_moved_away_elects_no_leader_that_lacks_records() -> None:
    cluster = SimulatedCluster(1, PLAN)
    cluster.run(4)
    moved, other, late = cluster.members
    late.crash(power=False)
    cluster.run(5)
    for node in (moved, other):
        node.crash(power=False)
    moved.files.flips.append(Flip(f"{FOLDER}/vote", 0, MASK, 0))  # the damage is expected
    for path in moved.files._files_of(FOLDER):
        moved.files.remove(path)
    cluster.restart(moved.name)
    cluster.restart(late.name)
    cluster.run(WAIT_S)
    assert cluster.leading() is None
    cluster.restart(other.name)
    cluster.settle()
    cluster.close()


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("seed", range(2))
def test_voters_with_different_damage_repair_one_another(seed: int) -> None:
    cluster = SimulatedCluster(seed, PLAN)
    cluster.run(5)
    nodes = cluster.members
    committed = min(node.driver.committed_index for node in nodes)
    begin = max(node.log.begin_index for node in nodes)
    batches = [batch for batch in nodes[0].log.read_batches(begin, MIB) if batch.last_index <= committed]
    cluster.run(4)  # until the checkpoints have that index
    for place, node in enumerate(nodes, 1):
        rot(node, batches[3 * place])
    for node in nodes:
        node.begin_scrub()
    cluster.run(WAIT_S)
    assert [node.name for node in nodes if not node.alive] == []
    cluster.settle()
    cluster.close()


@pytest.mark.rule("R-07")
@pytest.mark.parametrize("seed", range(2))
def test_a_batch_that_no_leader_can_commit_is_restored_from_a_peer(seed: int) -> None:
    """One voter is damaged after its checkpoint, one has lost its disk: the third alone elects no leader."""
    driver = DriverConfig(snapshot_interval_ms=5_000, checkpoint_interval_ms=1_500)
    cluster = SimulatedCluster(seed, replace(PLAN, driver=driver))
    cluster.run(5.7)
    number = cluster.leading()
    assert number is not None
    damaged = cluster.members[number]
    other, emptied = (node for node in cluster.members if node is not damaged)
    for node in cluster.members:
        node.crash(power=False)
    known = [CheckpointFile(node.files, f"{FOLDER}/checkpoint").load() for node in cluster.members]
    settled = max(checkpoint.committed_index for checkpoint in known)
    end = min(damaged.log.durable_index, other.log.durable_index)
    later = [each for each in damaged.log.read_batches(settled + 1, MIB) if each.last_index < end]
    rot(damaged, later[0])
    emptied.replace_disk()
    for node in cluster.members:
        cluster.restart(node.name)
    cluster.run(WAIT_S)
    assert damaged.alive
    assert not damaged._mending.result.set_aside
    assert cluster.leading() is not None
    cluster.settle()
    cluster.close()


def checkpoint_of(node: SimulatedNode) -> int:
    return CheckpointFile(node.files, f"{FOLDER}/checkpoint").load().committed_index


def rot_ends(cluster: SimulatedCluster, *, to_the_end: bool) -> list[SimulatedNode]:
    """Crash every node, and turn bits of two copies after their checkpoints: of two batches, or of the end of
    one copy and a batch before it of the other. The third disk is replaced. Return the damaged nodes."""
    while True:
        cluster.run(0.1)
        number = cluster.leading()
        assert number is not None
        leader = cluster.members[number]  # it holds all that the others do
        other, emptied = (node for node in cluster.members if node is not leader)
        settled = max(map(checkpoint_of, cluster.members))
        durable = min(leader.log.durable_index, other.log.durable_index)
        later = [each for each in other.log.read_batches(settled + 1, MIB) if each.last_index <= durable]
        if len(later) > 4:
            break
    for node in cluster.members:
        node.crash(power=False)
    rot(leader, later[0])
    for batch in other.log.read_batches(later[2].base_index, MIB) if to_the_end else later[2:3]:
        rot(other, batch)
    emptied.replace_disk()
    return [leader, other]


@pytest.mark.rule("R-02", "R-07")
@pytest.mark.parametrize("to_the_end", [False, True], ids=["between", "end"])
@pytest.mark.parametrize("seed", range(2))
def test_two_copies_with_damage_that_no_leader_can_commit_repair_one_another(
    seed: int, to_the_end: bool
) -> None:
    driver = DriverConfig(snapshot_interval_ms=5_000, checkpoint_interval_ms=1_500)
    storage = replace(TINY_SEGMENTS, mark_interval_bytes=512)
    cluster = SimulatedCluster(seed, replace(PLAN, driver=driver, storage=storage))
    cluster.run(5.7)
    damaged = rot_ends(cluster, to_the_end=to_the_end)
    for node in cluster.members:
        cluster.restart(node.name)
    cluster.run(WAIT_S)
    assert [node.name for node in damaged if not node.alive or node._mending.result.set_aside] == []
    assert cluster.leading() is not None
    cluster.settle()
    cluster.close()
