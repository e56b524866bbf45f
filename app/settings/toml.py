"""Reader of TOML files with settings: every complaint names the file and the place in it."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from app.errors import ConfigError
from app.names import rule_of

Parsed = TypeVar("Parsed")
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


def load_toml(path: Path, parse: Callable[[Mapping[str, Any]], Parsed]) -> Parsed:
    """Read a file and return what `parse` makes of it. Raises ConfigError, led by the path."""
    try:
        return parse(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"{path}: {error}") from error


def validated(model: type[Parsed], document: Mapping[str, Any]) -> Parsed:
    """Return the document as an instance of a pydantic model or dataclass.

    Raises ConfigError with every complaint, each led by its place in the document.
    """
    try:
        return TypeAdapter(model).validate_json(json.dumps(document, default=str))  # strict fields take paths
    except ValidationError as error:
        items = error.errors()
        inner = [item for item in items if not any(_is_inside(other, item) for other in items)]
        raise ConfigError("; ".join(map(_complaint, inner))) from error


def _is_inside(item: Any, outer: Any) -> bool:
    """Return whether the place of `item` is in that of `outer`, whose complaint only follows from it: a list
    has too few valid entries."""
    place, around = item["loc"], outer["loc"]
    return len(place) > len(around) and place[: len(around)] == around


def _complaint(item: Any) -> str:
    place = ".".join(str(part) for part in item["loc"])
    if item["type"] in _UNKNOWN:
        return f"{place}: unknown key"
    given = item["input"]
    rule = rule_of(item.get("ctx", {}).get("pattern"))
    if rule is not None:
        return f"{place}: {rule.refusal(given)}"
    return f"{place}: {message_of(item)}" + (
        f", got {given!r}" if isinstance(given, str | int | float) else ""
    )


def message_of(item: Any) -> str:
    """Return the message of one of pydantic's errors in the words of this project."""
    if item["type"] == "missing":
        return "is required"
    if item["type"] == "too_short":
        least, found = item["ctx"]["min_length"], item["ctx"]["actual_length"]
        return f"the number of entries must be at least {least}, got {found}"
    if item["type"] == "greater_than_equal":
        return f"must be at least {item['ctx']['ge']}"
    if item["type"] == "less_than_equal":
        return f"must be at most {item['ctx']['le']}"
    return re.sub(r"^\w+ should", "must", str(item["msg"]))
