"""Times of the command line: ISO 8601 or milliseconds in, ISO 8601 with a zone out."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import click

from app.durations import parse_duration

FORMS = "ISO 8601 (UTC unless it has a zone), milliseconds since 1970 UTC, or an age such as 90s, 15m, 2h, 7d"


class Time(click.ParamType[int]):
    """A point of time in milliseconds since 1970 UTC."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the time. Fails with the accepted forms."""
        if isinstance(value, int):
            return value
        try:
            return parse_time(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time: {FORMS}", param, ctx)


def parse_time(text: str) -> int:
    """Return milliseconds since 1970 UTC. Raises ValueError."""
    text = text.strip()
    if text.removeprefix("-").isdecimal():
        return int(text)
    with suppress(ValueError):
        return time.time_ns() // 1_000_000 - round(parse_duration(text) * 1_000)
    parsed = datetime.fromisoformat(text)
    parsed = parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
    return (parsed - datetime.fromtimestamp(0, UTC)) // _MILLISECOND


_MILLISECOND = datetime.fromtimestamp(0.001, UTC) - datetime.fromtimestamp(0, UTC)


def format_time(timestamp_ms: int) -> str:
    """Return the time as ISO 8601 in UTC; years that datetime does not have as milliseconds."""
    try:
        seconds, milliseconds = divmod(timestamp_ms, 1_000)
        text = datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat()  # %Y: 1 for year 1
        return f"{text}.{milliseconds:03d}Z"
    except (ValueError, OverflowError, OSError):
        return f"{timestamp_ms} ms"
