"""Checks of a caller's arguments: TypeError and ValueError that name the argument, before a call is made."""

import math
from numbers import Integral, Real
from typing import Any


def check_text(name: str, value: object) -> None:
    """Raise TypeError for anything but text."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, got {kind_of(value)}")


def check_whole(name: str, value: Any, lowest: int, highest: int | None = None) -> None:
    """Raise TypeError for anything but a whole number, of numpy too, ValueError for one out of the range."""
    if not issubclass(type(value), Integral) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {kind_of(value)}")
    if value < lowest or (highest is not None and value > highest):
        allowed = f"at least {lowest}" if highest is None else f"between {lowest} and {highest}"
        raise ValueError(f"{name} must be {allowed}, got {value}")


def check_number(name: str, value: Any, *, limited: bool = True) -> None:
    """Raise TypeError for anything but a number, ValueError for a negative one and, if limited, infinity."""
    if not issubclass(type(value), Real) or isinstance(value, bool):
        raise TypeError(f"{name} must be a number, got {kind_of(value)}")
    if math.isnan(value) or value < 0 or (limited and value == math.inf):
        raise ValueError(f"{name} must be a {'finite ' if limited else ''}number from 0 on, got {value}")


def check_instance(name: str, value: object, *kinds: type, remedy: str = "") -> None:
    """Raise TypeError for anything but an object of one of these classes. remedy: end of the sentence."""
    if not isinstance(value, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{name} must be of the type {wanted}, got {kind_of(value)}{remedy}")


def kind_of(value: object) -> str:
    """Return the name of a value's type, as the texts of errors show it."""
    return "None" if value is None else type(value).__name__
