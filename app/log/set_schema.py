"""Command that sets the next version of a log's schema (docs/api.md §5). PURE."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import msgspec

from app import schemas
from app.errors import InvalidRequest, RateLimited, SchemaChanged, SchemaIncompatible
from app.log.commands import ABSENT, LeaderView
from app.log.control_records import SchemaRecord
from app.log.schemas import (
    DEFINITION_MAX_BYTES,
    DEFINITIONS_MAX_BYTES,
    SchemaVersion,
    as_log_schema,
)
from app.log.state import LogState
from app.schemas import Difference
from app.schemas.schema import SCHEMA_VERSIONS_MAX

BACKWARD: Final = "backward"
REJECT: Final = "reject"
_UNSET: Final = 0  # as version and index of a schema that is not set yet


@dataclass(frozen=True, slots=True)
class SetSchema:
    """Set the next version of the schema.

    asked: its version is ignored. if_match: the newest version before, ABSENT for none; None: any. A repeat
    of the newest version changes nothing, also after a change that its own first attempt has made.
    """

    asked: SchemaRecord
    if_match: int | None = None

    def control(self, state: LogState, view: LeaderView) -> SchemaRecord | None:
        """Return the control record, None if nothing has to change.

        Raises SchemaChanged, SchemaIncompatible, RateLimited at the limits of a log, InvalidRequest.
        """
        held = state.schemas
        newest = held.newest
        version = 0 if newest is None else newest.version
        expected = 0 if self.if_match == ABSENT else self.if_match
        if (
            newest is not None
            and is_same(newest.record, self.asked)
            and expected in (None, version - 1, version)
        ):
            return None
        if expected not in (None, version):
            raise SchemaChanged(None if newest is None else version)
        size = len(self.asked.definition.encode())
        if size > DEFINITION_MAX_BYTES:
            raise InvalidRequest(
                ("/definition", f"must have at most {DEFINITION_MAX_BYTES} bytes, got {size}")
            )
        if len(held) >= SCHEMA_VERSIONS_MAX or held.size_bytes + size > DEFINITIONS_MAX_BYTES:
            raise RateLimited(
                f"The schema of the log has {len(held)} versions with {held.size_bytes} bytes of "
                f"definitions; the limits are {SCHEMA_VERSIONS_MAX} versions and {DEFINITIONS_MAX_BYTES} "
                "bytes."
            )
        if newest is not None and self.asked.compatibility == BACKWARD:
            found = incompatibilities(newest.record, self.asked)
            if found:
                raise SchemaIncompatible(version, [_document(each) for each in found])
        return msgspec.structs.replace(self.asked, version=version + 1)


def is_same(first: SchemaRecord, second: SchemaRecord) -> bool:
    """Return whether two schemas are equal but for their versions, and for the layout of their JSON."""
    if msgspec.structs.replace(first, version=_UNSET, definition="") != msgspec.structs.replace(
        second, version=_UNSET, definition=""
    ):
        return False
    return first.definition == second.definition or _canonical(first.definition) == _canonical(
        second.definition
    )


def _canonical(definition: str) -> bytes:
    """Return a definition that is JSON with sorted names and without spaces; another one as it is."""
    try:
        return msgspec.json.encode(msgspec.json.decode(definition), order="sorted")
    except (msgspec.MsgspecError, RecursionError):
        return definition.encode()


@lru_cache(maxsize=16)
def incompatibilities(old: SchemaRecord, new: SchemaRecord) -> tuple[Difference, ...]:
    """Return the differences for which records that match `old` may not match `new`.

    The result is remembered: a caller that may take long computes it before the command is decided. Raises
    InvalidRequest for a schema that cannot be compared.
    """
    versions = (SchemaVersion(_UNSET, msgspec.structs.replace(each, version=_UNSET)) for each in (old, new))
    try:
        return tuple(schemas.incompatibilities(*map(as_log_schema, versions)))
    except Exception as error:  # of a parser: within a turn of the driver it would stop the node
        raise InvalidRequest(
            ("/definition", f"cannot be compared with the newest version: {error}")
        ) from error


def _document(difference: Difference) -> dict[str, str]:
    return {"path": difference.path, "kind": difference.kind, "detail": difference.detail}
