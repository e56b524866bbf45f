"""The type of the options of commands and jobs that are a number of seconds."""

import math
from typing import Any

import click


class Seconds(click.FloatRange):
    """A number of seconds from `min` on. Refuses `nan`, which every range of click accepts."""

    def __init__(self, min: float = 0, max: float | None = None) -> None:
        super().__init__(min, max)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Fails for any other value."""
        seconds: float = super().convert(value, param, ctx)
        if math.isnan(seconds):
            self.fail(f"{value!r} is not a number of seconds.", param, ctx)
        return seconds
