"""Durations as people write them, such as `90s`, `500ms` or `1.5h`."""

import re
from typing import Final

_DURATION: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*(ms|s|m|h|d)")
_UNITS_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}


def parse_duration(text: str) -> float:
    """Return a duration in seconds. Raises ValueError."""
    parts = _DURATION.fullmatch(text.strip())
    if parts is None:
        raise ValueError(f"{text!r} is not a duration such as 90s, 500ms or 2h")
    return float(parts[1]) * _UNITS_S[parts[2]]
