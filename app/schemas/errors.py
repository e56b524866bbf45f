"""Errors of schemas, and mismatches between a record and its schema. The routes map them to answers."""

from collections.abc import Iterable
from dataclasses import dataclass

from app.extras import install_command


class SchemaInvalid(Exception):
    """The definition of a schema cannot be used. pointer: JSON pointer of the fault in the definition."""

    def __init__(self, pointer: str, reason: str) -> None:
        super().__init__(f"{pointer}: {reason}" if pointer else reason)
        self.pointer, self.reason = pointer, reason


class SchemaLibraryMissing(Exception):
    """A package that reads this format is not installed."""

    def __init__(self, package: str, format_name: str) -> None:
        super().__init__(
            f"Schemas of the format {format_name} need the package `{package}`: "
            f"install it with `{install_command('schemas')}`."
        )


class ValueInvalid(Exception):
    """A part of a record does not match. `path` grows from the inside out while the exception passes."""

    def __init__(self, reason: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str | int] = list(path)


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A record that does not match its schema.

    position: of the record in the batch, from 0. pointer: JSON pointer (RFC 6901) of the part of the record,
    "" for the whole. reason: one sentence without the record's content beyond 80 characters.
    """

    position: int
    pointer: str
    reason: str


def pointer_of(path: Iterable[str | int]) -> str:
    """Return a path as a JSON pointer (RFC 6901)."""
    return "".join(f"/{str(part).replace('~', '~0').replace('/', '~1')}" for part in path)
