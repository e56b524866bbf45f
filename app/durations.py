"""Durations as people write them: text such as `90s`, `500ms` or `1.5h`, and options in seconds."""

import math
import re
from typing import Any, Final

import click

_DURATION: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(ms|s|m|h|d)")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def parse_duration(text: str) -> float:
    """Return a duration in seconds. Raises ValueError."""
    parts = _DURATION.fullmatch(text.strip())
    if parts is None:
        raise ValueError(f"{text!r} is not a duration such as 90s, 500ms or 2h")
    return float(parts[1]) * _UNITS_S[parts[2]]


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
