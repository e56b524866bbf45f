"""Seeded runs of controllers and replicas managers (C-01..C-06, C-10, A-11)."""

import pytest

from tests.unit.controller.simulation import World


@pytest.mark.rule("C-03", "C-04", "C-05", "C-06", "C-10", "A-11")
@pytest.mark.parametrize("nodes", [2, 3, 5])
@pytest.mark.parametrize("seed", range(6))
def test_one_master_at_a_time_from_the_set_whatever_fails(seed: int, nodes: int) -> None:
    world = World(seed * 1_000 + nodes, nodes)
    world.run(6_000)  # two minutes
    assert world.master_changes > 1
    assert world.acknowledged > 500


@pytest.mark.rule("C-01")
def test_the_same_seed_gives_the_same_run() -> None:
    lives = []
    for _ in range(2):
        world = World(7)
        world.run(2_000)
        lives.append((world.events, world.acknowledged, world.metadata.snapshot()))
    assert lives[0] == lives[1]
