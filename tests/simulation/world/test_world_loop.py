"""The event loop of a simulated node: which errors end a run."""

import pytest

from tests.simulation.world.world import Life, World
from tests.simulation.world.world_loop import WorldLoop


def test_an_error_in_a_callback_ends_the_run() -> None:
    world = World(1)
    loop = WorldLoop(world, Life("n1"))

    def fail() -> None:
        raise KeyError("lost")

    loop.call_soon(fail)
    with pytest.raises(KeyError, match="lost"):
        world.step(1_000)


def test_an_answer_whose_reader_never_ran_is_not_an_error() -> None:
    """The run ended before; pytest reports what a destructor raises."""
    loop = WorldLoop(World(1), Life("n1"))
    loop.create_future().set_exception(KeyError("refused"))
