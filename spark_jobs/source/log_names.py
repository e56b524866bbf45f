"""Names of logs and patterns such as `orders-*`. The system's own logs (`__...`) match only patterns that
begin with `__`."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from app.names import SYSTEM, check_log_name
from spark_jobs.errors import OptionError

WILD = frozenset("*?[")


def split_names(given: Iterable[str]) -> tuple[str, ...]:
    """Return names and patterns from lists with commas, each once, in order.

    Raises OptionError for a name that no log can have.
    """
    names = (part.strip() for text in given for part in text.split(","))
    found = tuple(dict.fromkeys(name for name in names if name))
    for name in found:
        if not is_pattern(name):
            check_name(name)
    return found


def check_name(name: str) -> None:
    """Raise OptionError for a name that no log can have."""
    try:
        check_log_name(name)
    except ValueError as error:
        raise OptionError(str(error)) from error


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
            and (pattern.startswith(SYSTEM) or not log.startswith(SYSTEM))
            for pattern in patterns
        )
    ]


def selected(names: Sequence[str], logs: Iterable[str]) -> list[str]:
    """Return the logs that a name or a pattern selects."""
    logs = list(logs)
    found = dict.fromkeys([*(log for log in logs if log in names), *matching(names, logs)])
    return list(found)
