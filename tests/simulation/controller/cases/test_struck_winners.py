"""Winners of elections that fail, or seem to, around the openings of their epochs (C-05, A-11)."""

from random import Random

import pytest

from tests.simulation.controller.cluster import HaCluster
from tests.simulation.controller.node import HaSimNode
from tests.simulation.controller.plan import LOG_NAME, long_plan_of

STEP_US = 5_000
CHANCE = 0.1  # in one step of an opening, or after it until the set changes


class Strikes:
    """Strikes winners: while they open their epochs, or once that is noted."""

    def __init__(self, cluster: HaCluster, seed: int) -> None:
        self.count = 0
        self._cluster = cluster
        self._random = Random(seed)
        self._struck: dict[tuple[int, bool], None] = {}
        cluster.world.after(STEP_US, self._step)

    def _step(self) -> None:
        cluster = self._cluster
        if not cluster.nemesis.active:
            return
        cluster.world.after(STEP_US, self._step)
        log = cluster.checker.truth.log(LOG_NAME)
        if log is None or log.master_node is None or not (log.is_opening or log.set_before):
            return
        phase = (log.master_epoch, log.is_opening)
        if phase not in self._struck and self._random.random() < CHANCE:
            self._struck[phase] = None
            if self._random.random() < 0.7:
                self._strike(cluster.nodes[log.master_node])

    def _strike(self, winner: HaSimNode) -> None:
        cluster, lasting_us = self._cluster, self._random.randrange(200_000, 6_000_000)
        self.count += 1
        match self._random.randrange(5):
            case 0:
                cluster.nemesis.down(winner, lasting_us, power=False)
            case 1:
                winner.hang_disk(3 * lasting_us)
            case 2:
                cluster.cut("cut from controllers", winner.name, lasting_us, keeps=True)
            case _:
                cluster.hang_up(winner.name)  # it returns at once


@pytest.mark.rule("C-05", "A-11", "C-04")
@pytest.mark.parametrize("seed", [1, 2])
def test_winners_that_fail_around_their_openings_lose_nothing(seed: int) -> None:
    cluster = HaCluster(seed, long_plan_of(seed))
    strikes = Strikes(cluster, seed)
    cluster.run(30)
    cluster.settle()
    assert strikes.count >= 2
