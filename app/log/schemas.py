"""Schemas of a log: every version with the index of its control record, in the log's order.

PURE. A version is never changed or removed, so what a truncation undoes and what a reader of committed values
must not see are both the versions from some index on.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Final

import msgspec

from app.log.control_records import SchemaRecord
from app.schemas import LogSchema
from storage.units import KIB, MIB

DEFINITION_MAX_BYTES: Final = 256 * KIB  # of one version
DEFINITIONS_MAX_BYTES: Final = 8 * MIB  # of all versions of one log

_INDEX: Final = attrgetter("index")


class SchemaVersion(msgspec.Struct, frozen=True, array_like=True):
    """One version of a log's schema. index: of its control record."""

    index: int
    record: SchemaRecord

    @property
    def version(self) -> int:
        return self.record.version


class LogSchemas:
    """The versions of one log, oldest first. The index of each is above that of the one before."""

    def __init__(self, versions: Iterable[SchemaVersion] = ()) -> None:
        self._versions = list(versions)
        self.size_bytes = sum(map(_size_of, self._versions))

    def __len__(self) -> int:
        return len(self._versions)

    @property
    def versions(self) -> Sequence[SchemaVersion]:
        """All versions, uncommitted ones included: for decisions about later records."""
        return self._versions

    @property
    def newest(self) -> SchemaVersion | None:
        """The newest version, committed or not; None while the log has no schema."""
        return self._versions[-1] if self._versions else None

    def until(self, index: int) -> Sequence[SchemaVersion]:
        """Return the versions whose records have at most this index."""
        return self._versions[: bisect_right(self._versions, index, key=_INDEX)]

    def add(self, index: int, record: SchemaRecord) -> None:
        """Add the version that the control record at `index` sets."""
        self._versions.append(SchemaVersion(index, record))
        self.size_bytes += _size_of(self._versions[-1])

    def truncate_after(self, index: int) -> None:
        """Remove the versions whose records are after `index`."""
        while self._versions and self._versions[-1].index > index:
            self.size_bytes -= _size_of(self._versions.pop())


def _size_of(version: SchemaVersion) -> int:
    return len(version.record.definition.encode())


def as_log_schema(version: SchemaVersion) -> LogSchema:
    """Return the version as app/schemas takes it."""
    fields = msgspec.structs.asdict(version.record)
    return LogSchema(index=version.index, **fields)
