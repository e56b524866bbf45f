"""Names of logs and patterns such as `orders-*`. The system's own logs (`__...`) match only patterns that
begin with `__`."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

WILD = frozenset("*?[")


def split_names(given: Iterable[str]) -> tuple[str, ...]:
    """Return names and patterns from lists with commas, each once, in order."""
    names = (part.strip() for text in given for part in text.split(","))
    return tuple(dict.fromkeys(name for name in names if name))


def is_pattern(name: str) -> bool:
    return not WILD.isdisjoint(name)


def matching(patterns: Sequence[str], logs: Iterable[str]) -> list[str]:
    """Return the logs that a pattern matches."""
    return [
        log
        for log in logs
        if any(
            is_pattern(pattern)
            and fnmatchcase(log, pattern)
            and (pattern.startswith("__") or not log.startswith("__"))
            for pattern in patterns
        )
    ]


def selected(names: Sequence[str], logs: Iterable[str]) -> list[str]:
    """Return the logs that a name or a pattern selects."""
    logs = list(logs)
    found = dict.fromkeys([*(log for log in logs if log in names), *matching(names, logs)])
    return list(found)
