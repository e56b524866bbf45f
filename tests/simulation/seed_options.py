"""Options of the command line that all simulators take."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

CommandFunction = TypeVar("CommandFunction", bound=Callable[..., Any])


def seed_options(seconds: float) -> Callable[[CommandFunction], CommandFunction]:
    """Add --seed, --seeds, --first and --seconds, with this default."""

    def add(command: CommandFunction) -> CommandFunction:
        for option in (
            click.option(
                "--seconds",
                type=click.FloatRange(0, min_open=True),
                default=seconds,
                show_default=True,
                help="Simulated seconds of a usual seed.",
            ),
            click.option("--first", default=0, show_default=True, help="First of the --seeds."),
            click.option(
                "--seeds",
                type=click.IntRange(1),
                default=20,
                show_default=True,
                help="Number of seeds to run.",
            ),
            click.option("--seed", type=int, help="Replay this seed alone."),
        ):
            command = option(command)
        return command

    return add
